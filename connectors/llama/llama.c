#include "kvtier/llama.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "connectors/llama/attached.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define STAGING_KEPT_BYTES (32 * KVT_MIB)
enum { BLOCK_TOKENS_MIN = 4 };

struct kvt_llama_config kvt_llama_config_default(void)
{
    return (struct kvt_llama_config){ .size = sizeof(struct kvt_llama_config),
                                      .version = KVT_LLAMA_VERSION,
                                      .host_bytes = 512 * KVT_MIB };
}

/*
 * ---- The engine
 * ------------------------------------------------------------------------------------------------------
 */

enum kvt_status kvt_llama_staging(struct kvt_llama *llama, size_t bytes)
{
    llama->stats.staging_bytes = bytes;
    if (bytes <= llama->staging_bytes) return KVT_OK;
    if (llama->staging) kvt_table_unmap(llama->staging, llama->staging_bytes);
    llama->staging = kvt_table_map(bytes);
    llama->staging_bytes = llama->staging ? bytes : 0;
    return llama->staging ? KVT_OK : KVT_NOMEM;
}

void kvt_llama_staging_trim(struct kvt_llama *llama)
{
    if (llama->staging_bytes <= STAGING_KEPT_BYTES) return;
    kvt_table_unmap(llama->staging, llama->staging_bytes);
    llama->staging = NULL;
    llama->staging_bytes = 0;
}

enum kvt_status kvt_llama_read_state(struct kvt_llama *llama, int32_t seq, size_t *ret_size)
{
    const size_t size = llama->engine.state_seq_get_size_ext(llama->ctx, seq, 0);
    if (size == 0) return KVT_IO;
    KVT_TRY(kvt_llama_staging(llama, size));
    if (llama->engine.state_seq_get_data_ext(llama->ctx, llama->staging, size, seq, 0) != size) return KVT_IO;
    *ret_size = size;
    return KVT_OK;
}

void kvt_llama_empty_seq(struct kvt_llama *llama, int32_t seq)
{
    (void)llama->engine.memory_seq_rm(llama->memory, seq, -1, -1);
    struct kvt_llama_seq *known = &llama->seqs[seq];
    known->is_tainted = false;
    known->saved_tokens = known->seen_count = 0;
}

bool kvt_llama_hand_over(struct kvt_llama *llama, int32_t seq, const uint8_t *state, size_t size, uint64_t tokens)
{
    const struct kvt_llama_engine *engine = &llama->engine;
    bool is_taken = engine->state_seq_set_data_ext(llama->ctx, state, size, seq, 0) == size;
    is_taken = is_taken && engine->memory_seq_pos_max(llama->memory, seq) == (int32_t)tokens - 1;
    if (is_taken && !llama->is_whole) {
        const uint64_t window = llama->window_tokens;
        const uint64_t needed = window > 0 && tokens + 1 > window ? tokens + 1 - window : 0;
        const int32_t first = engine->memory_seq_pos_min(llama->memory, seq);
        is_taken = first >= 0 && (uint64_t)first <= needed;
    }
    if (!is_taken) kvt_llama_empty_seq(llama, seq);
    return is_taken;
}

/* A unified cache is shared by all sequences; otherwise each has its part. */
static uint64_t context_tokens(const struct kvt_llama *llama)
{
    const bool is_unified = llama->is_whole || llama->layout.caches[KVT_LLAMA_FULL].streams == 1;
    return llama->engine.n_ctx(llama->ctx) / (is_unified ? 1 : llama->seq_count);
}

bool kvt_llama_has_room(struct kvt_llama *llama, int32_t seq, uint64_t tokens)
{
    uint64_t used = 0;
    const bool is_unified = llama->is_whole || llama->layout.caches[KVT_LLAMA_FULL].streams == 1;
    for (int32_t other = 0; is_unified && other < (int32_t)llama->seq_count; other++)
        if (other != seq) used += (uint64_t)(llama->engine.memory_seq_pos_max(llama->memory, other) + 1);
    return used + tokens <= context_tokens(llama);
}

/*
 * ---- Attach and detach
 * -----------------------------------------------------------------------------------------------
 */

static void forward_log(void *log_user, enum kvt_log_level level, const char *line)
{
    const struct kvt_llama *llama = log_user;
    if (level <= KVT_LOG_INFO) llama->log(llama->log_user, (int)level, line);
}

static enum kvt_status refuse(char *ret_error, size_t error_bytes, const char *field, uint64_t value, const char *rule)
{
    (void)snprintf(ret_error, error_bytes, "%s is %" PRIu64 ": %s", field, value, rule);
    return KVT_INVAL;
}

static enum kvt_status check_config(const struct kvt_llama_config *config, char *ret_error, size_t error_bytes)
{
    if (config->size != sizeof *config)
        return refuse(ret_error, error_bytes, "size", config->size, "sizeof(struct kvt_llama_config)");
    if (config->version != KVT_LLAMA_VERSION)
        return refuse(ret_error, error_bytes, "version", config->version, "KVT_LLAMA_VERSION of these headers");
    if (config->host_bytes < KVT_MIB)
        return refuse(ret_error, error_bytes, "host_bytes", config->host_bytes, "at least 1 MiB");
    if (config->path && config->nvme_bytes == 0)
        return refuse(ret_error, error_bytes, "nvme_bytes", 0, "with a path, at least what the store wants");
    if (!config->path && config->nvme_bytes > 0)
        return refuse(ret_error, error_bytes, "nvme_bytes", config->nvme_bytes, "0 without a path");
    if (config->block_tokens != 0
        && (config->block_tokens < BLOCK_TOKENS_MIN || config->block_tokens > KVT_LLAMA_BLOCK_TOKENS_MAX))
        return refuse(ret_error, error_bytes, "block_tokens", config->block_tokens, "4 to 1024, or 0");
    return KVT_OK;
}

static enum kvt_status open_vault(struct kvt_llama *llama, const struct kvt_llama_config *config, char *ret_error,
                                  size_t error_bytes)
{
    const struct kvt_llama_vault_config vault = { .host_bytes = config->host_bytes,
                                                  .path = config->path,
                                                  .nvme_bytes = config->nvme_bytes,
                                                  .nvme_bytes_per_day = config->nvme_bytes_per_day,
                                                  .nvme_key = config->nvme_key,
                                                  .record_bytes_max = (uint32_t)llama->record_bytes,
                                                  .space = llama->space,
                                                  .env = &llama->env };
    return kvt_llama_vault_open(&vault, &llama->vault, ret_error, error_bytes);
}

static void fill_facts(struct kvt_llama *llama)
{
    struct kvt_llama_stats *stats = &llama->stats;
    stats->is_whole = llama->is_whole;
    stats->window_tokens = llama->window_tokens;
    stats->ring_tokens = llama->ring_tokens;
    stats->block_tokens = llama->block_tokens;
    if (llama->is_whole) return;
    stats->is_transposed = llama->layout.caches[KVT_LLAMA_FULL].is_transposed;
    stats->groups = llama->layout.cache_count;
    stats->streams = llama->layout.caches[KVT_LLAMA_FULL].streams;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
        stats->layers[c] = llama->layout.caches[c].layers;
        stats->token_bytes[c] = llama->layout.caches[c].cell_bytes;
    }
}

static enum kvt_status attach(struct kvt_llama *llama, const struct kvt_llama_config *config, char *ret_error,
                              size_t error_bytes)
{
    KVT_TRY(kvt_llama_engine_resolve(config, &llama->engine, ret_error, error_bytes));
    llama->memory = llama->engine.get_memory(llama->ctx);
    llama->seq_count = llama->engine.n_seq_max(llama->ctx);
    if (!llama->memory || llama->seq_count == 0) {
        (void)snprintf(ret_error, error_bytes, "this context has no memory: one with a KV cache is needed");
        return KVT_UNSUPPORTED;
    }
    llama->seqs = kvt_alloc(llama->seq_count, sizeof *llama->seqs);
    if (!llama->seqs) return KVT_NOMEM;
    KVT_TRY(kvt_key_init());
    KVT_TRY(kvt_llama_learn(llama, config, ret_error, error_bytes));
    KVT_TRY(open_vault(llama, config, ret_error, error_bytes));
    kvt_llama_load_tables(llama);
    fill_facts(llama);
    kvt_llama_staging_trim(llama);
    return KVT_OK;
}

enum kvt_status kvt_llama_attach(const struct kvt_llama_config *config, struct llama_context *ctx,
                                 struct kvt_llama **ret_llama, char *ret_error, size_t error_bytes)
{
    char error[512] = "";
    enum kvt_status status = KVT_INVAL;
    if (!config || !ctx || !ret_llama)
        (void)snprintf(error, sizeof error, "config, ctx or ret_llama is NULL: none may be");
    else status = check_config(config, error, sizeof error);
    struct kvt_llama *llama = status == KVT_OK ? kvt_alloc(1, sizeof *llama) : NULL;
    if (status == KVT_OK && !llama) status = KVT_NOMEM;
    if (llama) {
        llama->ctx = ctx;
        llama->env = kvt_env_default();
        llama->log = config->log;
        llama->log_user = config->log_user;
        if (config->log) llama->env.log = forward_log;
        llama->env.log_user = llama;
        status = attach(llama, config, error, sizeof error);
    }
    if (status != KVT_OK) {
        kvt_llama_detach(&llama);
        if (error[0] == '\0') (void)snprintf(error, sizeof error, "attach failed: %s", kvt_status_text(status));
        if (ret_error && error_bytes > 0) (void)snprintf(ret_error, error_bytes, "%s", error);
        return status;
    }
    *ret_llama = llama;
    return KVT_OK;
}

void kvt_llama_detach(struct kvt_llama **llama)
{
    struct kvt_llama *l = *llama;
    *llama = NULL;
    if (!l) return;
    kvt_llama_vault_close(&l->vault);
    kvt_llama_blocks_done(&l->blocks);
    if (l->staging) kvt_table_unmap(l->staging, l->staging_bytes);
    if (l->record) kvt_table_unmap(l->record, l->record_bytes);
    kvt_free(l->cell_of);
    kvt_free(l->chain);
    kvt_free(l->known);
    kvt_free(l->tails);
    kvt_free(l->plan.pieces);
    for (uint32_t seq = 0; l->seqs && seq < l->seq_count; seq++) kvt_free(l->seqs[seq].seen);
    kvt_free(l->seqs);
    kvt_llama_engine_done(&l->engine);
    kvt_free(l);
}

/*
 * ---- Match, restore, save
 * --------------------------------------------------------------------------------------------
 */

static uint64_t restorable_max(const struct kvt_llama *llama, uint64_t count)
{
    return count == 0 ? 0 : kvt_min_u64(count - 1, context_tokens(llama));
}

/* How many of these tokens can be restored, at most tokens_max. */
static uint64_t longest(struct kvt_llama *llama, const int32_t *tokens, uint64_t count, uint64_t tokens_max)
{
    if (tokens_max == 0) return 0;
    if (llama->is_whole) return kvt_llama_match_whole(llama, tokens, tokens_max);
    return kvt_llama_plan_prefix(llama, tokens, count, tokens_max) == KVT_OK ? llama->plan.tokens : 0;
}

uint64_t kvt_llama_match(struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    llama->stats.matches++;
    kvt_llama_vault_poll(llama->vault);
    return longest(llama, tokens, count, restorable_max(llama, count));
}

static bool is_seq(const struct kvt_llama *llama, int32_t seq) { return seq >= 0 && (uint32_t)seq < llama->seq_count; }

enum kvt_status kvt_llama_restore(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                  uint64_t *ret_tokens)
{
    if (!is_seq(llama, seq) || count == 0) return KVT_INVAL;
    const uint64_t start_ns = kvt_env_now_ns(&llama->env), tokens_max = restorable_max(llama, count);
    uint64_t restored = 0;
    llama->stats.restores++;
    llama->stats.asked_tokens += count;
    kvt_llama_empty_seq(llama, seq);
    enum kvt_status status = KVT_OK;
    if (tokens_max > 0 && llama->is_whole) status = kvt_llama_restore_whole(llama, seq, tokens, tokens_max, &restored);
    else if (tokens_max > 0) status = kvt_llama_restore_blocks(llama, seq, tokens, count, tokens_max, &restored);
    kvt_llama_staging_trim(llama);
    llama->stats.restore_ns += kvt_env_now_ns(&llama->env) - start_ns;
    if (status != KVT_OK) {
        kvt_llama_empty_seq(llama, seq);
        return status;
    }
    llama->seqs[seq].saved_tokens = restored;
    llama->stats.hit_tokens += restored;
    *ret_tokens = restored;
    return KVT_OK;
}

enum kvt_status kvt_llama_resume(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                 uint64_t *ret_tokens)
{
    return kvt_llama_restore(llama, seq, tokens, count, ret_tokens);
}

/* What the engine says of the sequence is what the caller says: positions 0 to count - 1, of a known layout. */
static enum kvt_status save_state(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count)
{
    if (llama->seqs[seq].is_tainted) return KVT_INVAL;
    if (llama->engine.memory_seq_pos_max(llama->memory, seq) != (int32_t)(count - 1)) return KVT_INVAL;
    size_t size = 0;
    const enum kvt_status status = kvt_llama_read_state(llama, seq, &size);
    if (status != KVT_OK) return status == KVT_NOMEM ? KVT_NOMEM : KVT_INVAL;
    if (llama->is_whole) return kvt_llama_save_whole(llama, seq, tokens, count, size);
    struct kvt_llama_state_view view;
    if (kvt_llama_state_parse(&llama->layout, llama->staging, size, &view) != KVT_LLAMA_PARSED) return KVT_INVAL;
    return kvt_llama_save_blocks(llama, seq, tokens, count, &view);
}

enum kvt_status kvt_llama_save(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                               uint64_t *ret_tokens)
{
    if (!is_seq(llama, seq) || count == 0 || count > INT32_MAX) return KVT_INVAL;
    const uint64_t start_ns = kvt_env_now_ns(&llama->env);
    llama->stats.saves++;
    kvt_llama_vault_poll(llama->vault);
    const enum kvt_status status = save_state(llama, seq, tokens, count);
    kvt_llama_staging_trim(llama);
    llama->stats.save_ns += kvt_env_now_ns(&llama->env) - start_ns;
    if (status == KVT_INVAL) {
        llama->stats.refused_saves++;
        kvt_log(&llama->env, KVT_LOG_WARN,
                "sequence %" PRId32 " is not kept: it does not hold %" PRIu64
                " tokens from position 0 on, or was shifted",
                seq, count);
    }
    if (status == KVT_OK || status == KVT_FULL)
        *ret_tokens = status == KVT_OK ? count : longest(llama, tokens, count, count);
    return status;
}

enum kvt_status kvt_llama_idle(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                               uint64_t *ret_tokens)
{
    const enum kvt_status status = kvt_llama_save(llama, seq, tokens, count, ret_tokens);
    if (status == KVT_OK || status == KVT_FULL) kvt_llama_empty_seq(llama, seq);
    return status;
}

bool kvt_llama_is_due(struct kvt_llama *llama, int32_t seq, uint64_t count, uint64_t next_tokens)
{
    if (!is_seq(llama, seq) || llama->window_tokens == 0) return false;
    const uint64_t saved = llama->seqs[seq].saved_tokens;
    return saved < count && count + next_tokens > saved + llama->window_tokens;
}

void kvt_llama_taint(struct kvt_llama *llama, int32_t seq)
{
    if (is_seq(llama, seq)) llama->seqs[seq].is_tainted = true;
}

/*
 * ---- Forgetting and numbers
 * ------------------------------------------------------------------------------------------
 */

uint64_t kvt_llama_forget(struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    uint64_t forgotten = 0;
    if (llama->is_whole) return kvt_llama_forget_whole(llama, tokens, count);
    if (kvt_llama_chain(llama, tokens, count) != KVT_OK) return 0;
    for (uint64_t n = 1; n <= count; n++) {
        const uint64_t block = (n - 1) / llama->block_tokens;
        const uint32_t end = (uint32_t)(n - block * llama->block_tokens);
        const struct kvt_key last = kvt_llama_chain_end(llama, tokens, block, end);
        for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
            const uint32_t from_max = c == KVT_LLAMA_WINDOW ? end - 1 : 0;
            for (uint32_t from = 0; from <= from_max; from++)
                forgotten += kvt_llama_vault_forget(llama->vault,
                                                    kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, from, last));
        }
    }
    return forgotten;
}

enum kvt_status kvt_llama_forget_all(struct kvt_llama *llama)
{
    llama->tables_known = 0; /* they went with the rest: learned ones are kept again with the next save */
    return kvt_llama_vault_reset(llama->vault);
}

enum kvt_status kvt_llama_flush(struct kvt_llama *llama) { return kvt_llama_vault_flush(llama->vault); }

void kvt_llama_stats(struct kvt_llama *llama, struct kvt_llama_stats *ret_stats)
{
    struct kvt_llama_vault_stats vault;
    kvt_llama_vault_poll(llama->vault);
    kvt_llama_vault_stats(llama->vault, &vault);
    *ret_stats = llama->stats;
    ret_stats->host_bytes = vault.host.used_bytes;
    ret_stats->host_capacity = vault.host.capacity_bytes;
    ret_stats->host_peak = vault.host.peak_bytes;
    ret_stats->host_evictions = vault.host.evictions;
    ret_stats->host_hits = vault.host_hits;
    ret_stats->nvme_hits = vault.nvme_hits;
    ret_stats->dropped_blocks = vault.dropped;
    ret_stats->damaged_blocks = vault.damaged;
    if (!vault.has_store) return;
    ret_stats->damaged_blocks += vault.store.recovered_bad; /* found at open */
    ret_stats->written_bytes = vault.store.written_bytes;
    ret_stats->nvme_allocated_bytes = vault.store.allocated_bytes;
    ret_stats->nvme_capacity = vault.store.capacity_bytes;
    ret_stats->nvme_records = vault.store.records;
}
