#include "connectors/llama/attached.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum {
    PROBE_TOKENS = 24,
    PROBE_PIECE = 7, /* tokens; no divisor of the above */
    BLOCK_TOKENS = 32,
    BLOCK_TOKENS_MIN = 8,
    WHOLE_PART_BYTES = 1 << 20
};
#define BLOCK_BYTES_WANTED (4 * KVT_MIB)
#define RING_TRIAL_BYTES_MAX (256 * KVT_MIB)

/*
 * ---- The probe
 * -------------------------------------------------------------------------------------------------------
 */

static int32_t free_seq(const struct kvt_llama *llama)
{
    for (int32_t seq = (int32_t)llama->seq_count - 1; seq >= 0; seq--)
        if (llama->engine.memory_seq_pos_max(llama->memory, seq) < 0) return seq;
    return -1;
}

/* Evaluates a few tokens that every vocabulary has, always the same ones. */
static bool evaluate_probe(struct kvt_llama *llama, int32_t seq, uint32_t count, uint32_t vocabulary)
{
    int32_t tokens[PROBE_TOKENS], positions[PROBE_TOKENS], seq_counts[PROBE_TOKENS], *seqs[PROBE_TOKENS];
    int8_t logits[PROBE_TOKENS] = { 0 };
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)((37 * i + 101) % vocabulary);
        positions[i] = (int32_t)i;
        seq_counts[i] = 1;
        seqs[i] = &seq;
    }
    logits[count - 1] = 1;
    const struct kvt_llama_batch batch = { .n_tokens = (int32_t)count,
                                           .token = tokens,
                                           .pos = positions,
                                           .n_seq_id = seq_counts,
                                           .seq_id = seqs,
                                           .logits = logits };
    return llama->engine.decode(llama->ctx, batch) == 0;
}

/* Takes the probe's state apart, through the packed form, and writes it again into target. */
static bool rebuild(struct kvt_llama *llama, const struct kvt_llama_state_view *view, uint32_t count, uint8_t *target)
{
    struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX] = { 0 };
    struct kvt_llama_state_view made;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
        spans[c].cells = view->caches[c].cells;
        if (spans[c].cells != count) return false;
    }
    kvt_llama_state_write(&llama->layout, view->seq, spans, target, &made);
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
        if (llama->layout.caches[c].plane_count == 0) continue;
        const uint32_t step = kvt_min_u32(PROBE_PIECE, llama->block_tokens);
        for (uint32_t at = 0; at < count; at += step) {
            struct kvt_llama_rows rows = { .layout = &llama->layout.caches[c],
                                           .view = &view->caches[c],
                                           .cell_first = at };
            rows.count = rows.buffer_cells = kvt_min_u32(step, count - at);
            kvt_llama_rows_gather(&rows, llama->staging, llama->blocks.raw);
            const uint32_t length = kvt_llama_blocks_pack(&llama->blocks, c, 0, rows.count, llama->record);
            memset(llama->blocks.raw, 0xa5, llama->blocks.raw_bytes);
            if (kvt_llama_blocks_unpack(&llama->blocks, c, 0, rows.count, llama->record, length) != KVT_OK)
                return false;
            rows.view = &made.caches[c];
            kvt_llama_rows_scatter(&rows, llama->blocks.raw, target);
        }
    }
    return true;
}

/* True: a state put together from its parts is the state, and the engine takes it for that. */
static bool check_rebuilt(struct kvt_llama *llama, int32_t seq, size_t size, uint32_t count)
{
    struct kvt_llama_state_view view;
    if (kvt_llama_state_parse(&llama->layout, llama->staging, size, &view) != KVT_LLAMA_PARSED) return false;
    uint8_t *rebuilt = kvt_table_map(size);
    if (!rebuilt) return false;
    size_t again = 0;
    bool is_same = rebuild(llama, &view, count, rebuilt) && memcmp(rebuilt, llama->staging, size) == 0;
    kvt_llama_empty_seq(llama, seq);
    is_same = is_same && kvt_llama_hand_over(llama, seq, rebuilt, size, count);
    is_same = is_same && kvt_llama_read_state(llama, seq, &again) == KVT_OK;
    is_same = is_same && again == size && memcmp(rebuilt, llama->staging, size) == 0;
    kvt_table_unmap(rebuilt, size);
    return is_same;
}

/*
 * ---- The ring
 * --------------------------------------------------------------------------------------------------------
 */

static void stay_silent(int level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

/*
 * Whether the window layers' cache has so many cells for one sequence. The engine says so on its log when it has
 * not.
 */
static bool has_window_cells(struct kvt_llama *llama, int32_t seq, uint32_t cells)
{
    struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX] = { 0 };
    struct kvt_llama_state_view view;
    spans[KVT_LLAMA_WINDOW].cells = cells;
    const size_t size = kvt_llama_state_bytes(&llama->layout, spans);
    uint8_t *state = size > 0 && size <= RING_TRIAL_BYTES_MAX ? kvt_table_map(size) : NULL;
    if (!state) return false;
    kvt_llama_engine_log log;
    void *user;
    kvt_llama_empty_seq(llama, seq);
    kvt_llama_state_write(&llama->layout, seq, spans, state, &view);
    llama->engine.log_get(&log, &user);
    llama->engine.log_set(stay_silent, NULL);
    const bool is_taken = llama->engine.state_seq_set_data_ext(llama->ctx, state, size, seq, 0) == size;
    llama->engine.log_set(log, user);
    kvt_llama_empty_seq(llama, seq);
    kvt_table_unmap(state, size);
    return is_taken;
}

/*
 * How many cells a sequence has in the window layers' cache: with a cache of its own, the window and a batch,
 * in steps of 256, or as many as in the full layers' (swa_full). Where that is not as it was, restored
 * sequences are exact all the same; their cells lie elsewhere.
 */
static void learn_ring(struct kvt_llama *llama, int32_t seq)
{
    const bool is_shared = llama->layout.caches[KVT_LLAMA_FULL].streams == 1 && llama->seq_count > 1;
    if (llama->window_tokens == 0 || is_shared) return;
    const uint32_t all = llama->engine.n_ctx(llama->ctx) / llama->seq_count;
    const uint32_t few = (uint32_t)kvt_align_up((uint64_t)llama->window_tokens + llama->engine.n_ubatch(llama->ctx),
                                                256);
    if (few >= all) llama->ring_tokens = all;
    else if (llama->engine.log_get && llama->engine.log_set)
        llama->ring_tokens = has_window_cells(llama, seq, few + 1) ? all : few;
}

/*
 * ---- What is learned
 * -------------------------------------------------------------------------------------------------
 */

/* Why states of this context cannot be split; NULL: they can. */
static const char *why_whole(struct kvt_llama *llama, const struct kvt_llama_config *config, size_t size)
{
    const struct llama_model *model = llama->engine.get_model(llama->ctx);
    const int32_t window = llama->engine.model_n_swa(model);
    if (config->is_whole) return "it was asked for";
    if (llama->engine.model_is_recurrent(model)) return "the model is recurrent";
    if (llama->engine.model_is_hybrid(model)) return "the model has recurrent layers";
    if (kvt_llama_state_learn(llama->staging, size, &llama->layout) != KVT_LLAMA_PARSED)
        return "their layout is not a known one";
    if (llama->layout.cache_count == 2 && window < 2) return "there are two caches and no window";
    llama->window_tokens = llama->layout.cache_count == 2 ? (uint32_t)window : 0;
    return NULL;
}

static uint32_t choose_block_tokens(const struct kvt_llama *llama, const struct kvt_llama_config *config)
{
    if (config->block_tokens > 0) return config->block_tokens;
    uint64_t token_bytes = 1;
    for (uint32_t c = 0; c < llama->layout.cache_count; c++)
        token_bytes = kvt_max_u64(token_bytes, llama->layout.caches[c].cell_bytes);
    uint32_t tokens = BLOCK_TOKENS;
    while (tokens > BLOCK_TOKENS_MIN && tokens * token_bytes > BLOCK_BYTES_WANTED) tokens /= 2;
    return tokens;
}

static enum kvt_status make_record_buffer(struct kvt_llama *llama, size_t bytes)
{
    if (llama->record) kvt_table_unmap(llama->record, llama->record_bytes);
    llama->record_bytes = bytes;
    llama->record = kvt_table_map(bytes);
    return llama->record ? KVT_OK : KVT_NOMEM;
}

static enum kvt_status set_whole(struct kvt_llama *llama, const struct kvt_llama_config *config, const char *why)
{
    kvt_log(&llama->env, config->is_whole ? KVT_LOG_INFO : KVT_LOG_WARN,
            "states are kept whole, and restored only where they were saved: %s", why);
    kvt_llama_blocks_done(&llama->blocks);
    llama->is_whole = true;
    llama->window_tokens = 0;
    llama->block_tokens = config->block_tokens ? config->block_tokens : BLOCK_TOKENS;
    return make_record_buffer(llama, (size_t)kvt_min_u64(WHOLE_PART_BYTES, config->host_bytes));
}

/*
 * ---- What changes the bytes
 * ------------------------------------------------------------------------------------------
 */

struct text {
    uint8_t *bytes;
    size_t length, capacity;
};

static void say(struct text *text, const void *bytes, size_t size)
{
    const size_t fits = kvt_min_u64(size, text->capacity - text->length);
    memcpy(text->bytes + text->length, bytes, fits);
    text->length += fits;
}

static void say_u64(struct text *text, uint64_t value) { say(text, &value, sizeof value); }

static void say_string(struct text *text, const char *string)
{
    say_u64(text, strlen(string));
    say(text, string, strlen(string));
}

/* Long values (a vocabulary) are said by their first bytes and their length. */
static void say_model(struct kvt_llama *llama, struct text *text)
{
    const struct kvt_llama_engine *engine = &llama->engine;
    const struct llama_model *model = engine->get_model(llama->ctx);
    char buffer[1024] = "";
    (void)engine->model_desc(model, buffer, sizeof buffer);
    say_string(text, buffer);
    say_u64(text, engine->model_size(model));
    say_u64(text, engine->model_n_params(model));
    say_u64(text, (uint64_t)engine->model_n_layer(model) << 32 | (uint32_t)engine->model_n_embd(model));
    say_u64(text, (uint64_t)engine->model_n_head_kv(model) << 32 | (uint32_t)engine->model_n_swa(model));
    const int32_t count = engine->model_meta_count(model);
    for (int32_t i = 0; i < count; i++) {
        struct kvt_key digests[2];
        buffer[0] = '\0';
        (void)engine->model_meta_key_by_index(model, i, buffer, sizeof buffer);
        digests[0] = kvt_key_digest(buffer, strlen(buffer));
        buffer[0] = '\0';
        say_u64(text, (uint64_t)engine->model_meta_val_str_by_index(model, i, buffer, sizeof buffer));
        digests[1] = kvt_key_digest(buffer, strlen(buffer));
        const struct kvt_key both = kvt_key_digest(digests, sizeof digests);
        say(text, &both, sizeof both);
    }
}

static void say_layout(const struct kvt_llama *llama, struct text *text)
{
    say_u64(text, llama->is_whole ? 1 : 0);
    say_u64(text, llama->layout.magic);
    say_u64(text, llama->block_tokens);
    say_u64(text, llama->window_tokens);
    for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
        const struct kvt_llama_cache_layout *cache = &llama->layout.caches[c];
        say_u64(text, (uint64_t)cache->layers << 32 | cache->plane_count);
        say_u64(text, cache->is_transposed);
        for (uint32_t p = 0; p < cache->plane_count; p++)
            say_u64(text, (uint64_t)(uint32_t)cache->planes[p].type << 32 | cache->planes[p].row_bytes);
    }
}

/*
 * The probe's KV is a function of every weight that KV depends on, of the positions' encoding and its
 * parameters, of adapters and of how this machine computes: two contexts that agree in it agree in all that
 * cannot be asked for. Of a state that is not understood all bytes are taken but the sequence's number.
 */
static struct kvt_key digest_probe(struct kvt_llama *llama, size_t size)
{
    if (!llama->is_whole) {
        struct kvt_llama_state_view view;
        const enum kvt_llama_parsed parsed = kvt_llama_state_parse(&llama->layout, llama->staging, size, &view);
        KVT_ASSERT(parsed == KVT_LLAMA_PARSED); /* check_rebuilt has parsed these bytes */
        struct kvt_key key = { 0, 0 };
        for (uint32_t c = 0; c < llama->layout.cache_count; c++) {
            struct kvt_llama_rows rows = { .layout = &llama->layout.caches[c], .view = &view.caches[c] };
            for (uint32_t i = 0; i < view.caches[c].cells; i++) {
                rows.cell_first = i;
                rows.count = rows.buffer_cells = 1;
                kvt_llama_rows_gather(&rows, llama->staging, llama->blocks.raw);
                const struct kvt_key parts[2] = { key, kvt_key_digest(llama->blocks.raw, rows.layout->cell_bytes) };
                key = kvt_key_digest(parts, sizeof parts);
            }
        }
        return key;
    }
    return kvt_key_digest(llama->staging + kvt_min_u64(KVT_LLAMA_STATE_HEADER_BYTES, size),
                          size - kvt_min_u64(KVT_LLAMA_STATE_HEADER_BYTES, size));
}

static enum kvt_status make_space(struct kvt_llama *llama, const struct kvt_llama_config *config, struct kvt_key probe)
{
    struct text text = { .capacity = (size_t)1 << 18 };
    text.bytes = kvt_alloc(1, text.capacity);
    if (!text.bytes) return KVT_NOMEM;
    say_string(&text, "kvtier_llama 1");
    say_string(&text, config->model ? config->model : "");
    say_model(llama, &text);
    say_layout(llama, &text);
    say(&text, &probe, sizeof probe);
    llama->space = kvt_key_digest(text.bytes, text.length);
    kvt_key_root(NULL, 0, &llama->space, config->salt, config->salt_bytes, &llama->root);
    kvt_free(text.bytes);
    return KVT_OK;
}

/*
 * ---- All of it
 * -------------------------------------------------------------------------------------------------------
 */

static enum kvt_status learn_from(struct kvt_llama *llama, const struct kvt_llama_config *config, int32_t seq,
                                  uint32_t count, char *ret_error, size_t error_bytes)
{
    size_t size = 0;
    const enum kvt_status status = kvt_llama_read_state(llama, seq, &size);
    if (status != KVT_OK || size < KVT_LLAMA_STATE_HEADER_BYTES) {
        (void)snprintf(ret_error, error_bytes, "the state of a sequence is %zu bytes: a context with a cache is needed",
                       size);
        return status == KVT_NOMEM ? KVT_NOMEM : KVT_UNSUPPORTED;
    }
    const char *why = why_whole(llama, config, size);
    if (!why) {
        llama->block_tokens = choose_block_tokens(llama, config);
        KVT_TRY(kvt_llama_blocks_init(&llama->blocks, &llama->layout, llama->block_tokens, config->is_codec_off));
        KVT_TRY(make_record_buffer(llama, llama->blocks.record_bytes_max));
        if (!check_rebuilt(llama, seq, size, count)) why = "a state put together from its parts was not the same";
        if (why) KVT_TRY(kvt_llama_read_state(llama, seq, &size));
    }
    if (why) KVT_TRY(set_whole(llama, config, why));
    KVT_TRY(make_space(llama, config, digest_probe(llama, size)));
    if (!why) learn_ring(llama, seq);
    return KVT_OK;
}

enum kvt_status kvt_llama_learn(struct kvt_llama *llama, const struct kvt_llama_config *config, char *ret_error,
                                size_t error_bytes)
{
    const struct kvt_llama_engine *engine = &llama->engine;
    const int32_t vocabulary = engine->vocab_n_tokens(engine->model_get_vocab(engine->get_model(llama->ctx)));
    const uint32_t room = engine->n_ctx(llama->ctx) / llama->seq_count;
    const uint32_t batch = kvt_min_u32(engine->n_batch(llama->ctx), engine->n_ubatch(llama->ctx));
    const int32_t window = engine->model_n_swa(engine->get_model(llama->ctx));
    uint32_t count = kvt_min_u32(PROBE_TOKENS, kvt_min_u32(room, batch));
    if (window > 0) count = kvt_min_u32(count, (uint32_t)window); /* all of it is in every group */
    const int32_t seq = free_seq(llama);
    if (seq < 0) {
        (void)snprintf(ret_error, error_bytes, "all %u sequences are in use: attach before the first decode",
                       llama->seq_count);
        return KVT_INVAL;
    }
    if (vocabulary < 1 || count < 1) {
        (void)snprintf(ret_error, error_bytes,
                       "a context of %u tokens, a vocabulary of %" PRId32 ": it cannot be tried", room, vocabulary);
        return KVT_UNSUPPORTED;
    }
    if (!evaluate_probe(llama, seq, count, (uint32_t)vocabulary)) {
        kvt_llama_empty_seq(llama, seq);
        (void)snprintf(ret_error, error_bytes, "llama_decode of %u tokens failed: a context that decodes is needed",
                       count);
        return KVT_UNSUPPORTED;
    }
    const enum kvt_status status = learn_from(llama, config, seq, count, ret_error, error_bytes);
    if (status == KVT_NOMEM) (void)snprintf(ret_error, error_bytes, "no memory to take a state apart");
    kvt_llama_empty_seq(llama, seq);
    return status;
}
