#include "tests/connectors/llama/made_up_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connectors/llama/engine.h"
#include "runtime/base/bytes.h"

#define SHOWN __attribute__((visibility("default")))

enum { ELEMENTS = 64, FULL_LAYERS = 2, WINDOW_LAYERS = 3, PLANES_MAX = 2 * WINDOW_LAYERS, MAGIC = 0x51455531 };

struct cell {
    int32_t pos; /* -1: empty */
    int32_t seq;
    uint8_t *rows; /* [plane][row] */
};

struct cache {
    uint32_t layers, planes, size, streams, heads[8];
    int32_t window;
    uint32_t row_bytes[PLANES_MAX];
    uint32_t cell_bytes;
    struct cell *cells; /* [stream][size] */
    uint8_t *memory;
};

struct llama_context {
    struct made_up_config config;
    struct cache caches[2];
    uint32_t cache_count, refuse, offered;
};

struct made_up_config made_up_config(void)
{
    return (struct made_up_config){ .n_ctx = 3 * 512,
                                    .n_seq_max = 3,
                                    .n_ubatch = 64,
                                    .window = 96,
                                    .type_k = MADE_UP_F16,
                                    .type_v = MADE_UP_F16,
                                    .is_transposed = true,
                                    .weights = 1 };
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x632be59bd9b4e019u);
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static uint32_t row_bytes_of(int32_t type)
{
    if (type == MADE_UP_F32) return ELEMENTS * 4;
    return type == MADE_UP_Q8_0 ? ELEMENTS / 32 * 34 : ELEMENTS * 2;
}

static uint32_t element_bytes_of(int32_t type) { return type == MADE_UP_F32 ? 4 : 2; }

static void make_cache(struct llama_context *ctx, struct cache *cache, uint32_t layers, int32_t window, uint32_t size)
{
    const struct made_up_config *config = &ctx->config;
    cache->layers = layers;
    cache->planes = config->is_v_missing ? layers : 2 * layers;
    cache->window = window;
    cache->size = size;
    cache->streams = config->is_unified ? 1 : config->n_seq_max;
    for (uint32_t p = 0; p < cache->planes; p++) {
        cache->row_bytes[p] = row_bytes_of(p < layers ? config->type_k : config->type_v);
        cache->cell_bytes += cache->row_bytes[p];
    }
    const uint32_t count = cache->streams * size;
    cache->cells = calloc(count, sizeof *cache->cells);
    cache->memory = calloc(count, cache->cell_bytes);
    for (uint32_t i = 0; i < count; i++)
        cache->cells[i] = (struct cell){ .pos = -1, .rows = cache->memory + (size_t)i * cache->cell_bytes };
}

struct llama_context *made_up_create(const struct made_up_config *config)
{
    struct llama_context *ctx = calloc(1, sizeof *ctx);
    ctx->config = *config;
    const uint32_t all = config->is_unified ? config->n_ctx : config->n_ctx / config->n_seq_max;
    make_cache(ctx, &ctx->caches[0], FULL_LAYERS, 0, all);
    ctx->cache_count = 1;
    if (config->window > 0) {
        uint32_t size = (uint32_t)config->window * (config->is_unified ? config->n_seq_max : 1) + config->n_ubatch;
        size = kvt_min_u32((size + 255) / 256 * 256, all);
        make_cache(ctx, &ctx->caches[1], WINDOW_LAYERS, config->window, config->is_swa_full ? all : size);
        ctx->cache_count = 2;
    }
    return ctx;
}

void made_up_destroy(struct llama_context *ctx)
{
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        free(ctx->caches[c].cells);
        free(ctx->caches[c].memory);
    }
    free(ctx);
}

/*
 * ---- Cells
 * -----------------------------------------------------------------------------------------------------------
 */

static struct cell *stream_of(const struct cache *cache, int32_t seq)
{
    return cache->cells + (cache->streams > 1 ? (size_t)seq * cache->size : 0);
}

static int32_t cache_pos_max(const struct cache *cache, int32_t seq)
{
    int32_t max = -1;
    const struct cell *cells = stream_of(cache, seq);
    for (uint32_t i = 0; i < cache->size; i++)
        if (cells[i].pos > max && cells[i].seq == seq) max = cells[i].pos;
    return max;
}

static int32_t cache_pos_min(const struct cache *cache, int32_t seq)
{
    int32_t min = -1;
    const struct cell *cells = stream_of(cache, seq);
    for (uint32_t i = 0; i < cache->size; i++)
        if (cells[i].pos >= 0 && cells[i].seq == seq && (min < 0 || cells[i].pos < min)) min = cells[i].pos;
    return min;
}

static bool is_masked(const struct cache *cache, int32_t pos, int32_t at)
{
    return cache->window > 0 && at - pos >= cache->window;
}

/* From the head on, once around; cells that have left their sequence's window count as free. */
static struct cell *take_cell(struct cache *cache, int32_t seq)
{
    uint32_t *head = &cache->heads[cache->streams > 1 ? seq : 0];
    struct cell *cells = stream_of(cache, seq);
    for (uint32_t tried = 0; tried < cache->size; tried++) {
        struct cell *cell = &cells[(*head + tried) % cache->size];
        if (cell->pos >= 0 && !is_masked(cache, cell->pos, cache_pos_max(cache, cell->seq) + 1)) continue;
        *head = (*head + tried + 1) % cache->size;
        return cell;
    }
    return NULL;
}

static void cache_remove(struct cache *cache, int32_t seq, int32_t from)
{
    uint32_t *head = &cache->heads[cache->streams > 1 ? seq : 0];
    struct cell *cells = stream_of(cache, seq);
    for (uint32_t i = cache->size; i-- > 0;) {
        if (cells[i].pos < from || cells[i].seq != seq || cells[i].pos < 0) continue;
        cells[i].pos = -1;
        *head = kvt_min_u32(*head, i);
    }
}

static const struct cell *find_cell(const struct cache *cache, int32_t seq, int32_t pos)
{
    const struct cell *cells = stream_of(cache, seq);
    for (uint32_t i = 0; i < cache->size; i++) {
        const struct cell *cell = &cells[((uint32_t)pos + i) % cache->size]; /* where it is, most of the time */
        if (cell->pos == pos && cell->seq == seq) return cell;
    }
    return NULL;
}

/* Each row: eight bytes that say all tokens up to here, then values whose exponents are alike. */
static void fill_rows(const struct cache *cache, struct cell *cell, uint64_t hash)
{
    uint8_t *row = cell->rows;
    for (uint32_t p = 0; p < cache->planes; row += cache->row_bytes[p++]) {
        for (uint32_t at = 0; at + 2 <= cache->row_bytes[p]; at += 2)
            kvt_store_u16(row + at, (uint16_t)((mix(hash, p * 4096 + at) & 0x87ff) | 0x3800));
        memcpy(row, &hash, sizeof hash);
    }
}

/* What a token at pos attends to, all of it. */
static uint64_t attend(const struct llama_context *ctx, int32_t seq, int32_t pos)
{
    uint64_t logits = 1;
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        const struct cache *cache = &ctx->caches[c];
        for (int32_t p = 0; p <= pos; p++) {
            if (is_masked(cache, p, pos)) continue;
            const struct cell *seen = find_cell(cache, seq, p);
            logits = mix(logits, seen ? 1 : 2);
            for (uint32_t at = 0; seen && at + 4 <= cache->cell_bytes; at += 4)
                logits = mix(logits, kvt_load_u32(seen->rows + at));
        }
    }
    return logits;
}

static bool evaluate_one(struct llama_context *ctx, int32_t seq, int32_t token, int32_t pos)
{
    uint64_t hash = ctx->config.weights;
    if (pos > 0) {
        const struct cell *before = find_cell(&ctx->caches[0], seq, pos - 1);
        if (!before) return false;
        memcpy(&hash, before->rows, sizeof hash);
    }
    hash = mix(hash, (uint64_t)(uint32_t)token + 1);
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        struct cell *cell = take_cell(&ctx->caches[c], seq);
        if (!cell) return false;
        cell->pos = pos;
        cell->seq = seq;
        fill_rows(&ctx->caches[c], cell, hash);
    }
    return true;
}

uint64_t made_up_evaluate(struct llama_context *ctx, int32_t seq, const int32_t *tokens, uint32_t first, uint32_t count)
{
    uint64_t logits = 1;
    for (uint32_t i = 0; i < count; i++) {
        const int32_t pos = (int32_t)(first + i);
        if (!evaluate_one(ctx, seq, tokens[pos], pos)) return 0;
        if (i == 0 || i + 1 == count) logits = mix(logits, attend(ctx, seq, pos));
    }
    return logits;
}

void made_up_refuse(struct llama_context *ctx, uint32_t n) { ctx->refuse = n; }
uint32_t made_up_offered(const struct llama_context *ctx) { return ctx->offered; }
int32_t made_up_pos_max(struct llama_context *ctx, int32_t seq) { return cache_pos_max(&ctx->caches[0], seq); }

void made_up_remove(struct llama_context *ctx, int32_t seq, int32_t from)
{
    for (uint32_t c = 0; c < ctx->cache_count; c++) cache_remove(&ctx->caches[c], seq, from);
}

void made_up_shift(struct llama_context *ctx, int32_t seq, int32_t from, int32_t by)
{
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        struct cell *cells = stream_of(&ctx->caches[c], seq);
        for (uint32_t i = 0; i < ctx->caches[c].size; i++)
            if (cells[i].seq == seq && cells[i].pos >= from) cells[i].pos += by;
    }
}

void made_up_cut(struct llama_context *ctx, int32_t seq, int32_t from, int32_t end)
{
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        struct cell *cells = stream_of(&ctx->caches[c], seq);
        for (uint32_t i = 0; i < ctx->caches[c].size; i++)
            if (cells[i].seq == seq && cells[i].pos >= from && cells[i].pos < end) cells[i].pos = -1;
    }
    made_up_shift(ctx, seq, end, from - end);
}

/*
 * ---- States
 * ----------------------------------------------------------------------------------------------------------
 */

struct out {
    uint8_t *bytes; /* NULL: only counted */
    size_t at;
};

static void put(struct out *out, const void *bytes, size_t size)
{
    if (out->bytes) memcpy(out->bytes + out->at, bytes, size);
    out->at += size;
}

static void put_u32(struct out *out, uint32_t value) { put(out, &value, 4); }

/* Indices of the cells that a state holds, in their order. */
static uint32_t list_cells(const struct cache *cache, uint32_t stream, int32_t seq, uint32_t *list)
{
    uint32_t count = 0;
    const struct cell *cells = cache->cells + (size_t)stream * cache->size;
    for (uint32_t i = 0; i < cache->size; i++)
        if (cells[i].pos >= 0 && cells[i].seq == seq && !is_masked(cache, cells[i].pos, cache_pos_max(cache, seq)))
            list[count++] = i;
    return count;
}

static void write_planes(const struct llama_context *ctx, const struct cache *cache, const struct cell *cells,
                         const uint32_t *list, uint32_t count, struct out *out)
{
    size_t offset = 0;
    for (uint32_t p = 0; p < cache->planes; offset += cache->row_bytes[p++]) {
        const int32_t type = p < cache->layers ? ctx->config.type_k : ctx->config.type_v;
        const uint64_t row_bytes = cache->row_bytes[p];
        put(out, &type, 4);
        if (p < cache->layers || !ctx->config.is_transposed) {
            put(out, &row_bytes, 8);
            for (uint32_t i = 0; i < count; i++) put(out, cells[list[i]].rows + offset, row_bytes);
            continue;
        }
        const uint32_t size = element_bytes_of(type), elements = (uint32_t)row_bytes / size;
        put_u32(out, size);
        put_u32(out, elements);
        for (uint32_t e = 0; e < elements; e++)
            for (uint32_t i = 0; i < count; i++) put(out, cells[list[i]].rows + offset + (size_t)e * size, size);
    }
}

static size_t write_state(const struct llama_context *ctx, int32_t seq, struct out *out)
{
    uint32_t list[2048];
    put_u32(out, MAGIC);
    put(out, &seq, 4);
    if (ctx->config.is_odd_layout) put_u32(out, 7);
    for (uint32_t c = 0; c < ctx->cache_count; c++) {
        const struct cache *cache = &ctx->caches[c];
        put_u32(out, cache->streams);
        for (uint32_t s = 0; s < cache->streams; s++) {
            const struct cell *cells = cache->cells + (size_t)s * cache->size;
            const uint32_t count = list_cells(cache, s, seq, list);
            put_u32(out, count);
            if (count == 0) continue;
            for (uint32_t i = 0; i < count; i++) {
                put(out, &cells[list[i]].pos, 4);
                put_u32(out, 1);
                put(out, &seq, 4);
            }
            put_u32(out, ctx->config.is_transposed ? 1 : 0);
            put_u32(out, cache->layers);
            write_planes(ctx, cache, cells, list, count, out);
        }
    }
    return out->at;
}

struct in {
    const uint8_t *bytes;
    size_t size, at;
    bool is_short;
};

static const uint8_t *get(struct in *in, size_t size)
{
    static const uint8_t zeros[16];
    if (in->is_short || size > in->size - in->at) {
        in->is_short = true;
        return size <= sizeof zeros ? zeros : NULL;
    }
    in->at += size;
    return in->bytes + in->at - size;
}

static void read_planes(const struct llama_context *ctx, const struct cache *cache, struct cell *const *cells,
                        uint32_t count, struct in *in)
{
    size_t offset = 0;
    for (uint32_t p = 0; p < cache->planes && !in->is_short; offset += cache->row_bytes[p++]) {
        const int32_t type = p < cache->layers ? ctx->config.type_k : ctx->config.type_v;
        const bool is_transposed = p >= cache->layers && ctx->config.is_transposed;
        if ((int32_t)kvt_load_u32(get(in, 4)) != type) in->is_short = true;
        (void)get(in, 8);
        const uint32_t size = is_transposed ? element_bytes_of(type) : cache->row_bytes[p];
        for (uint32_t e = 0; e < cache->row_bytes[p] / size; e++) {
            for (uint32_t i = 0; i < count; i++) {
                const uint8_t *bytes = get(in, size);
                if (bytes && !in->is_short) memcpy(cells[i]->rows + offset + (size_t)e * size, bytes, size);
            }
        }
    }
}

/* As the engine does it: cells are taken as they are read, so that half a state leaves half a sequence. */
static void read_cache(struct llama_context *ctx, struct cache *cache, int32_t seq, struct in *in)
{
    struct cell *cells[2048];
    if (kvt_load_u32(get(in, 4)) != cache->streams) in->is_short = true;
    for (uint32_t s = 0; s < cache->streams && !in->is_short; s++) {
        const uint32_t count = kvt_load_u32(get(in, 4));
        if (count == 0) continue;
        if (count > cache->size) in->is_short = true;
        cache_remove(cache, seq, 0);
        for (uint32_t i = 0; i < count && !in->is_short; i++) {
            const uint8_t *position = get(in, 12);
            struct cell *cell = in->is_short ? NULL : take_cell(cache, seq);
            if (!cell || (ctx->refuse > 0 && i > count / 2)) in->is_short = true;
            if (in->is_short || !cell) break;
            cell->pos = (int32_t)kvt_load_u32(position);
            cell->seq = seq;
            cells[i] = cell;
        }
        (void)get(in, 8);
        if (!in->is_short) read_planes(ctx, cache, cells, count, in);
    }
}

/*
 * ---- What the connector finds
 * ----------------------------------------------------------------------------------------
 */

#define ENGINE_FUNCTIONS(X)                                                                                    \
    X(const struct llama_model *, llama_get_model, (const struct llama_context *ctx))                          \
    X(struct llama_memory_i *, llama_get_memory, (const struct llama_context *ctx))                            \
    X(const struct llama_vocab *, llama_model_get_vocab, (const struct llama_model *model))                    \
    X(uint32_t, llama_n_ctx, (const struct llama_context *ctx))                                                \
    X(uint32_t, llama_n_batch, (const struct llama_context *ctx))                                              \
    X(uint32_t, llama_n_ubatch, (const struct llama_context *ctx))                                             \
    X(uint32_t, llama_n_seq_max, (const struct llama_context *ctx))                                            \
    X(int32_t, llama_vocab_n_tokens, (const struct llama_vocab *vocab))                                        \
    X(int32_t, llama_model_n_swa, (const struct llama_model *model))                                           \
    X(int32_t, llama_model_n_layer, (const struct llama_model *model))                                         \
    X(int32_t, llama_model_n_embd, (const struct llama_model *model))                                          \
    X(int32_t, llama_model_n_head_kv, (const struct llama_model *model))                                       \
    X(int32_t, llama_model_desc, (const struct llama_model *model, char *buffer, size_t size))                 \
    X(uint64_t, llama_model_size, (const struct llama_model *model))                                           \
    X(uint64_t, llama_model_n_params, (const struct llama_model *model))                                       \
    X(int32_t, llama_model_meta_count, (const struct llama_model *model))                                      \
    X(int32_t, llama_model_meta_key_by_index, (const struct llama_model *m, int32_t i, char *b, size_t size))  \
    X(int32_t, llama_model_meta_val_str_by_index, (const struct llama_model *m, int32_t i, char *b, size_t n)) \
    X(bool, llama_model_is_recurrent, (const struct llama_model *model))                                       \
    X(bool, llama_model_is_hybrid, (const struct llama_model *model))                                          \
    X(bool, llama_memory_seq_rm, (struct llama_memory_i * memory, int32_t seq, int32_t from, int32_t to))      \
    X(int32_t, llama_memory_seq_pos_min, (struct llama_memory_i * memory, int32_t seq))                        \
    X(int32_t, llama_memory_seq_pos_max, (struct llama_memory_i * memory, int32_t seq))                        \
    X(size_t, llama_state_seq_get_size_ext, (struct llama_context * ctx, int32_t seq, uint32_t flags))         \
    X(size_t, llama_state_seq_get_data_ext,                                                                    \
      (struct llama_context * ctx, uint8_t * target, size_t size, int32_t seq, uint32_t flags))                \
    X(size_t, llama_state_seq_set_data_ext,                                                                    \
      (struct llama_context * ctx, const uint8_t *source, size_t size, int32_t seq, uint32_t flags))           \
    X(int32_t, llama_decode, (struct llama_context * ctx, struct kvt_llama_batch batch))                       \
    X(void, llama_log_get, (kvt_llama_engine_log * ret_log, void **ret_user))                                  \
    X(void, llama_log_set, (kvt_llama_engine_log log, void *user))

#define DECLARE(type, name, parameters) SHOWN type name parameters;
ENGINE_FUNCTIONS(DECLARE)

/* Model, vocabulary and memory are the context, under other names. */
static struct llama_context *context_of(const void *object) { return (struct llama_context *)(uintptr_t)object; }

const struct llama_model *llama_get_model(const struct llama_context *ctx) { return (const void *)ctx; }
struct llama_memory_i *llama_get_memory(const struct llama_context *ctx) { return (void *)context_of(ctx); }
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *model) { return (const void *)model; }
uint32_t llama_n_ctx(const struct llama_context *ctx) { return ctx->config.n_ctx; }
uint32_t llama_n_batch(const struct llama_context *ctx) { return ctx->config.n_ubatch; }
uint32_t llama_n_ubatch(const struct llama_context *ctx) { return ctx->config.n_ubatch; }
uint32_t llama_n_seq_max(const struct llama_context *ctx) { return ctx->config.n_seq_max; }
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab) { return vocab ? 1000 : 0; }
int32_t llama_model_n_swa(const struct llama_model *model) { return context_of(model)->config.window; }
int32_t llama_model_n_layer(const struct llama_model *model) { return model ? FULL_LAYERS + WINDOW_LAYERS : 0; }
int32_t llama_model_n_embd(const struct llama_model *model) { return model ? ELEMENTS : 0; }
int32_t llama_model_n_head_kv(const struct llama_model *model) { return model ? 1 : 0; }
uint64_t llama_model_size(const struct llama_model *model) { return model ? 1000 : 0; }
uint64_t llama_model_n_params(const struct llama_model *model) { return model ? 1000 : 0; }
int32_t llama_model_meta_count(const struct llama_model *model) { return model ? 1 : 0; }
bool llama_model_is_recurrent(const struct llama_model *model) { return context_of(model)->config.is_recurrent; }
bool llama_model_is_hybrid(const struct llama_model *model) { return model == NULL; }

int32_t llama_model_desc(const struct llama_model *model, char *buffer, size_t size)
{
    return model ? snprintf(buffer, size, "made up") : -1;
}

int32_t llama_model_meta_key_by_index(const struct llama_model *m, int32_t i, char *b, size_t size)
{
    return m ? snprintf(b, size, "key %d", i) : -1;
}

int32_t llama_model_meta_val_str_by_index(const struct llama_model *m, int32_t i, char *b, size_t n)
{
    return m ? snprintf(b, n, "value %d", i) : -1;
}

bool llama_memory_seq_rm(struct llama_memory_i *memory, int32_t seq, int32_t from, int32_t to)
{
    if (to >= 0) return false;
    made_up_remove(context_of(memory), seq, from < 0 ? 0 : from);
    return true;
}

int32_t llama_memory_seq_pos_min(struct llama_memory_i *memory, int32_t seq)
{
    const struct llama_context *ctx = context_of(memory);
    return cache_pos_min(&ctx->caches[ctx->cache_count - 1], seq);
}

int32_t llama_memory_seq_pos_max(struct llama_memory_i *memory, int32_t seq)
{
    const struct llama_context *ctx = context_of(memory);
    return cache_pos_max(&ctx->caches[ctx->cache_count - 1], seq);
}

size_t llama_state_seq_get_size_ext(struct llama_context *ctx, int32_t seq, uint32_t flags)
{
    struct out out = { 0 };
    return flags == 0 ? write_state(ctx, seq, &out) : 0;
}

size_t llama_state_seq_get_data_ext(struct llama_context *ctx, uint8_t *target, size_t size, int32_t seq,
                                    uint32_t flags)
{
    struct out out = { .bytes = target };
    if (llama_state_seq_get_size_ext(ctx, seq, flags) > size) return 0;
    return write_state(ctx, seq, &out);
}

size_t llama_state_seq_set_data_ext(struct llama_context *ctx, const uint8_t *source, size_t size, int32_t seq,
                                    uint32_t flags)
{
    struct in in = { .bytes = source, .size = size, .is_short = flags != 0 };
    ctx->offered++;
    if (kvt_load_u32(get(&in, 4)) != MAGIC) return 0;
    (void)get(&in, 4);
    if (ctx->config.is_odd_layout && kvt_load_u32(get(&in, 4)) != 7) return 0;
    for (uint32_t c = 0; c < ctx->cache_count && !in.is_short; c++) read_cache(ctx, &ctx->caches[c], seq, &in);
    if (ctx->refuse > 0) ctx->refuse--;
    return in.is_short ? 0 : in.at;
}

int32_t llama_decode(struct llama_context *ctx, struct kvt_llama_batch batch)
{
    for (int32_t i = 0; i < batch.n_tokens; i++)
        if (!evaluate_one(ctx, batch.seq_id[i][0], batch.token[i], batch.pos[i])) return 1;
    return 0;
}

static kvt_llama_engine_log current_log;
static void *current_log_user;

void llama_log_get(kvt_llama_engine_log *ret_log, void **ret_user)
{
    *ret_log = current_log;
    *ret_user = current_log_user;
}

void llama_log_set(kvt_llama_engine_log log, void *user)
{
    current_log = log;
    current_log_user = user;
}
