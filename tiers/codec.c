/*
 * The packed form of a block, all numbers little-endian; docs/codec.md says it again with the reasons.
 *
 *     0                 u8   format, 1
 *     1                 u8   0
 *     2                 u16  tokens (0 in a state group)
 *     4                 u32  id of the base tables that based chunks need, 0: none
 *     8                 u32  end of each chunk, [layers], from the start of the block
 *     8 + 4 * layers    the chunks in layer order, each at the next multiple of 8 behind the one before, zeros between
 *
 * The block ends with its last chunk. A chunk, from its start:
 *
 *     raw       u8 kind 0 | 7 zeros | the planes' bytes
 *     constant  u8 kind 1 | 7 zeros | u32 element of each of two planes (0 where there is none)
 *     lz4       u8 kind 2 | u8 bit p: plane p is raw | 6 zeros | u32 stored bytes of each of two planes |
 *               plane 0 | plane 1
 *     ranked    u8 kind 3 and flags | u8 symbol[9] | u24 second bits | u24 third bits | rest | first |
 *               second 0 | second 1 | third 0 | third 1 | escapes |
 *               with a second stage: u32 stored bytes of first, u32 of escapes, u32 escapes
 *
 * Flags of a ranked chunk: 0x10 first is LZ4, 0x20 escapes are LZ4, 0x40 exponents are relative to the base tables.
 * An element is a value of the group's type, in a state group a byte.
 */
#include "tiers/codec.h"
#include "tiers/codec_device.h"

#include <lz4.h>

#include "kernels/rank_planes.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/base_tables.h"
#include "tiers/fold.h"

#define TABLES_MAGIC 0x5442564bu /* "KVBT" */
#define TABLES_VERSION 1u

enum {
    BLOCK_FORMAT = 1,
    BLOCK_HEADER_BYTES = 8,
    CHUNK_ALIGNMENT = 8,
    RAW_HEADER_BYTES = 8,
    CHUNK_HEADER_BYTES = 16,
    STAGE_TRAILER_BYTES = 12,
    RANKED_ELEMENTS_MAX = (1 << 24) - 1, /* of a chunk: its counts have 24 bits */
    ESCAPES_STAGE_MIN = 64,              /* fewer escapes than this are not worth a second stage */
    TRIAL_PERIOD = 16,                   /* LZ4 is tried on one chunk of so many */
    SCRATCH_ALIGNMENT = 64
};

enum chunk_kind { CHUNK_RAW, CHUNK_CONSTANT, CHUNK_LZ4, CHUNK_RANKED };
enum {
    KIND_MASK = 0x0f,
    STAGED_FIRST = 0x10,
    STAGED_ESCAPES = 0x20,
    BASED = 0x40,
    FLAGS = STAGED_FIRST | STAGED_ESCAPES | BASED
};

/* One layer group, as the codec sees it. */
struct group {
    enum kvt_dtype dtype;
    bool is_state, is_ranked;
    uint32_t layers, plane_count;
    uint32_t channels;      /* elements of a row; a state group: bytes */
    uint32_t element_bytes; /* what a constant repeats; 1 in a state group */
    uint32_t tokens_max;
    struct kvt_base_tables tables;
    _Atomic uint32_t *stages; /* shared: for each layer, bit 0: LZ4 pays; above it: chunks seen */
};

/* Where the parts of a caller's scratch lie. */
struct scratch_layout {
    size_t streams, stream_bytes, first, escapes, lz4_state, plans, total;
};

struct kvt_codec {
    const struct kvt_rank_ops *kernels;
    uint32_t group_count;
    struct scratch_layout layout;
    struct group groups[KVT_GROUPS_MAX];
};

/* What pack decided about a chunk before it touched more than a sample of it. */
struct plan {
    enum chunk_kind kind;
    bool is_staged; /* try LZ4 */
    bool is_trial;  /* and judge by it whether to go on */
    struct kvt_rank_table table;
};

/* A chunk's valid tokens. */
struct chunk {
    const struct group *group;
    uint32_t layer, elements; /* of one plane */
    size_t plane_bytes;
    struct kvt_chunk_view view;
};

static size_t chunk_bytes(const struct chunk *chunk) { return chunk->group->plane_count * chunk->plane_bytes; }

static struct kvt_rank_shape rank_shape(const struct chunk *chunk)
{
    return (struct kvt_rank_shape){ .dtype = chunk->group->dtype,
                                    .plane_count = chunk->group->plane_count,
                                    .channels = chunk->group->channels,
                                    .elements = chunk->elements };
}

static struct chunk chunk_of(const struct group *group, uint32_t layer, uint32_t tokens,
                             const struct kvt_chunk_view *view)
{
    const uint32_t elements = group->is_state ? group->channels : tokens * group->channels;
    return (struct chunk){ .group = group,
                           .layer = layer,
                           .elements = elements,
                           .plane_bytes = (size_t)elements * group->element_bytes,
                           .view = *view };
}

/* ---- Create ---------------------------------------------------------------------------------------------------- */

static size_t take(size_t *total, size_t bytes)
{
    const size_t offset = *total;
    *total = kvt_align_up(offset + bytes, SCRATCH_ALIGNMENT);
    return offset;
}

/* Room for the largest chunk of any group. */
static void lay_out_scratch(struct kvt_codec *codec)
{
    size_t stream_bytes = 0, first_bytes = 0, escape_bytes = 0;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < codec->group_count; i++) {
        const struct group *group = &codec->groups[i];
        layers = kvt_max_u32(layers, group->layers);
        if (!group->is_ranked) continue;
        const struct kvt_chunk_view none = { { NULL, NULL } };
        const struct chunk chunk = chunk_of(group, 0, group->tokens_max, &none);
        const struct kvt_rank_shape shape = rank_shape(&chunk);
        stream_bytes = kvt_max_u64(stream_bytes, kvt_rank_stream_room(&shape));
        first_bytes = kvt_max_u64(first_bytes, kvt_rank_first_bytes(&shape));
        escape_bytes = kvt_max_u64(escape_bytes, (size_t)shape.plane_count * shape.elements + KVT_RANK_SLACK);
    }
    struct scratch_layout layout = { .stream_bytes = stream_bytes };
    layout.streams = take(&layout.total, 4 * stream_bytes + escape_bytes);
    layout.first = take(&layout.total, first_bytes);
    layout.escapes = take(&layout.total, escape_bytes);
    layout.lz4_state = take(&layout.total, (size_t)LZ4_sizeofState());
    layout.plans = take(&layout.total, layers * sizeof(struct plan));
    codec->layout = layout;
}

static enum kvt_status group_init(struct group *group, const struct kvt_model_shape *model,
                                  const struct kvt_group_shape *shape)
{
    const bool is_state = shape->kind == KVT_GROUP_STATE;
    const bool is_float = shape->dtype == KVT_DTYPE_BF16 || shape->dtype == KVT_DTYPE_FP16
        || shape->dtype == KVT_DTYPE_FP8;
    const uint32_t element_bytes = is_state ? 1 : kvt_dtype_bytes(shape->dtype);
    *group = (struct group){
        .dtype = shape->dtype,
        .is_state = is_state,
        .layers = shape->layers,
        .plane_count = is_state || shape->planes == 1 ? 1 : 2,
        .channels = (uint32_t)(kvt_group_row_bytes(shape) / element_bytes),
        .element_bytes = element_bytes,
        .tokens_max = model->block_tokens,
    };
    const uint64_t elements = (uint64_t)group->plane_count * group->channels * group->tokens_max;
    group->is_ranked = is_float && !is_state && elements <= RANKED_ELEMENTS_MAX;
    kvt_base_tables_init(&group->tables, group->dtype, group->layers, group->plane_count, group->channels);
    group->stages = kvt_alloc(group->layers, sizeof group->stages[0]);
    return group->stages ? KVT_OK : KVT_NOMEM;
}

enum kvt_status kvt_codec_create(const struct kvt_model_shape *shape, struct kvt_codec **ret_codec)
{
    struct kvt_codec *codec = kvt_alloc(1, sizeof *codec);
    if (!codec) return KVT_NOMEM;
    codec->kernels = kvt_rank_ops_best();
    for (uint32_t i = 0; i < shape->group_count; i++) {
        codec->group_count = i + 1;
        if (group_init(&codec->groups[i], shape, &shape->groups[i]) != KVT_OK) {
            kvt_codec_destroy(&codec);
            return KVT_NOMEM;
        }
    }
    lay_out_scratch(codec);
    *ret_codec = codec;
    return KVT_OK;
}

void kvt_codec_destroy(struct kvt_codec **codec)
{
    if (!*codec) return;
    for (uint32_t i = 0; i < (*codec)->group_count; i++) {
        kvt_base_tables_done(&(*codec)->groups[i].tables);
        kvt_free((*codec)->groups[i].stages);
    }
    kvt_free(*codec);
    *codec = NULL;
}

size_t kvt_codec_scratch_bytes(const struct kvt_codec *codec) { return codec->layout.total; }

void kvt_codec_set_kernels(struct kvt_codec *codec, const struct kvt_rank_ops *kernels)
{
    KVT_ASSERT(kernels->is_supported());
    codec->kernels = kernels;
}

/* ---- Where LZ4 pays -------------------------------------------------------------------------------------------- */

/* Whether this chunk tries LZ4: always where it paid at the last trial, else on one of TRIAL_PERIOD. */
static void stage_begin(struct group *group, uint32_t layer, struct plan *plan)
{
    const uint32_t seen = atomic_fetch_add_explicit(&group->stages[layer], 2, memory_order_relaxed);
    plan->is_trial = (seen >> 1) % TRIAL_PERIOD == 0;
    plan->is_staged = plan->is_trial || (seen & 1);
}

/* After a trial: LZ4 stays on while it saves a hundredth. */
static bool stage_end(struct group *group, uint32_t layer, size_t without, size_t with)
{
    const bool pays = with < without && (without - with) * 100 >= without;
    if (pays) atomic_fetch_or_explicit(&group->stages[layer], 1u, memory_order_relaxed);
    else atomic_fetch_and_explicit(&group->stages[layer], ~1u, memory_order_relaxed);
    return pays;
}

/* LZ4 of source, 0 when it is not below capacity. */
static size_t lz4_pack(const uint8_t *source, size_t size, uint8_t *target, size_t capacity, void *state)
{
    const size_t limit = kvt_min_u64(capacity, size - 1);
    if (size == 0 || limit == 0) return 0;
    const int stored = LZ4_compress_fast_extState(state, (const char *)source, (char *)target, (int)size, (int)limit,
                                                  1);
    return stored > 0 ? (size_t)stored : 0;
}

/* The whole of source is one independent LZ4 block of exactly size bytes, or it is damaged. */
static bool lz4_unpack(const uint8_t *source, size_t stored, uint8_t *target, size_t size)
{
    if (stored > INT32_MAX) return false;
    return LZ4_decompress_safe((const char *)source, (char *)target, (int)stored, (int)size) == (int)size;
}

/* ---- Pack: decide ---------------------------------------------------------------------------------------------- */

/* A plane that repeats its first element. */
static bool is_constant(const uint8_t *plane, size_t bytes, uint32_t element_bytes)
{
    return memcmp(plane, plane + element_bytes, bytes - element_bytes) == 0;
}

static bool is_constant_chunk(const struct chunk *chunk)
{
    for (uint32_t p = 0; p < chunk->group->plane_count; p++)
        if (!is_constant(chunk->view.plane[p], chunk->plane_bytes, chunk->group->element_bytes)) return false;
    return true;
}

/* What saves too little to be worth an unpack. */
static size_t worth(size_t raw_bytes) { return raw_bytes - raw_bytes / 32; }

/* The kind of a chunk from a sample of it; returns the bytes that it will take, about. */
static size_t plan_chunk(struct kvt_codec *codec, struct group *group, const struct chunk *chunk,
                         const struct kvt_base_set *set, struct plan *ret_plan)
{
    struct plan plan = { .kind = CHUNK_RAW };
    size_t expected = RAW_HEADER_BYTES + chunk_bytes(chunk);
    if (is_constant_chunk(chunk)) {
        plan.kind = CHUNK_CONSTANT;
        expected = CHUNK_HEADER_BYTES;
    } else if (!group->is_ranked) {
        stage_begin(group, chunk->layer, &plan);
        if (plan.is_staged) {
            plan.kind = CHUNK_LZ4;
            expected = 0; /* nothing can be said before it is tried */
        }
    } else {
        const struct kvt_rank_shape shape = rank_shape(chunk);
        const struct kvt_rank_bases bases = set ? kvt_base_set_layer(&group->tables, set, chunk->layer)
                                                : (struct kvt_rank_bases){ { NULL, NULL } };
        const uint8_t *const source[2] = { chunk->view.plane[0], chunk->view.plane[1] };
        uint32_t histogram[256];
        codec->kernels->sample(&shape, source, &bases, histogram);
        uint64_t sampled = 0;
        for (uint32_t i = 0; i < 256; i++) sampled += histogram[i];
        const uint64_t bits = kvt_rank_choose(histogram, &plan.table);
        const size_t ranks = (size_t)((double)bits / (double)sampled * shape.plane_count * shape.elements / 8);
        const size_t ranked = CHUNK_HEADER_BYTES + kvt_rank_rest_bytes(&shape) + ranks;
        if (ranked <= worth(chunk_bytes(chunk))) {
            plan.kind = CHUNK_RANKED;
            expected = ranked;
            stage_begin(group, chunk->layer, &plan);
        }
    }
    *ret_plan = plan;
    return expected;
}

/* ---- Pack: write ----------------------------------------------------------------------------------------------- */

/* What one call of pack works with. */
struct packer {
    struct kvt_codec *codec;
    struct group *group;
    const struct kvt_base_set *set;
    uint8_t *scratch;
};

/* The functions below write a chunk at target and return its bytes; 0: it does not fit in capacity. */

static size_t pack_raw(const struct chunk *chunk, uint8_t *target, size_t capacity)
{
    const size_t size = RAW_HEADER_BYTES + chunk_bytes(chunk);
    if (size > capacity) return 0;
    memset(target, 0, RAW_HEADER_BYTES);
    target[0] = CHUNK_RAW;
    for (uint32_t p = 0; p < chunk->group->plane_count; p++)
        memcpy(target + RAW_HEADER_BYTES + p * chunk->plane_bytes, chunk->view.plane[p], chunk->plane_bytes);
    return size;
}

static size_t pack_constant(const struct chunk *chunk, uint8_t *target, size_t capacity)
{
    if (CHUNK_HEADER_BYTES > capacity) return 0;
    memset(target, 0, CHUNK_HEADER_BYTES);
    target[0] = CHUNK_CONSTANT;
    for (uint32_t p = 0; p < chunk->group->plane_count; p++)
        memcpy(target + 8 + 4 * p, chunk->view.plane[p], chunk->group->element_bytes);
    return CHUNK_HEADER_BYTES;
}

static size_t pack_lz4(const struct packer *packer, const struct chunk *chunk, const struct plan *plan, uint8_t *target,
                       size_t capacity)
{
    if (CHUNK_HEADER_BYTES > capacity) return 0;
    memset(target, 0, CHUNK_HEADER_BYTES);
    target[0] = CHUNK_LZ4;
    size_t at = CHUNK_HEADER_BYTES;
    for (uint32_t p = 0; p < chunk->group->plane_count; p++) {
        const uint8_t *plane = chunk->view.plane[p];
        size_t stored = lz4_pack(plane, chunk->plane_bytes, target + at, capacity - at,
                                 packer->scratch + packer->codec->layout.lz4_state);
        if (stored == 0) {
            stored = chunk->plane_bytes;
            if (stored > capacity - at) {
                /*
                 * It may fit as raw in a larger block, but then it saves nothing here: no more LZ4 until the next
                 * trial.
                 */
                if (plan->is_trial) (void)stage_end(packer->group, chunk->layer, stored, stored);
                return 0;
            }
            memcpy(target + at, plane, stored);
            target[1] |= (uint8_t)(1u << p);
        }
        kvt_store_u32(target + 8 + 4 * p, (uint32_t)stored);
        at += stored;
    }
    if (plan->is_trial && !stage_end(packer->group, chunk->layer, chunk_bytes(chunk), at))
        return pack_raw(chunk, target, capacity);
    return at;
}

/* A ranked chunk while it is written. */
struct ranked {
    struct kvt_rank_pack args;
    uint8_t *target;
    size_t capacity, at; /* at: bytes written so far */
    uint8_t flags;
    size_t first_stored, escapes_stored;
    size_t saved; /* by the second stage */
};

static bool append(struct ranked *ranked, const uint8_t *bytes, size_t size)
{
    if (size > ranked->capacity - ranked->at) return false;
    memcpy(ranked->target + ranked->at, bytes, size);
    ranked->at += size;
    return true;
}

static void store_u24(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
    p[2] = (uint8_t)(value >> 16);
}

/* Replaces the first-level planes, which end at ranked->at, by their LZ4 where that saves a 64th of them. */
static void stage_first(const struct packer *packer, struct ranked *ranked)
{
    const size_t size = kvt_rank_first_bytes(&ranked->args.shape);
    uint8_t *packed = packer->scratch + packer->codec->layout.first;
    const size_t stored = lz4_pack(ranked->args.first, size, packed, size - size / 64,
                                   packer->scratch + packer->codec->layout.lz4_state);
    ranked->first_stored = stored ? stored : size;
    if (stored == 0) return;
    memcpy(ranked->args.first, packed, stored);
    ranked->at -= size - stored;
    ranked->saved += size - stored;
    ranked->flags |= STAGED_FIRST;
}

static bool append_escapes(const struct packer *packer, struct ranked *ranked, bool is_staged)
{
    const size_t size = ranked->args.escape_count;
    ranked->escapes_stored = size;
    if (is_staged && size > ESCAPES_STAGE_MIN) {
        uint8_t *target = ranked->target + ranked->at;
        const size_t stored = lz4_pack(ranked->args.escapes, size, target, ranked->capacity - ranked->at,
                                       packer->scratch + packer->codec->layout.lz4_state);
        if (stored > 0) {
            ranked->escapes_stored = stored;
            ranked->at += stored;
            ranked->saved += size - stored;
            ranked->flags |= STAGED_ESCAPES;
            return true;
        }
    }
    return append(ranked, ranked->args.escapes, size);
}

/* The streams behind the first level, and what says how to read them. */
static bool append_streams(const struct packer *packer, struct ranked *ranked, bool is_staged)
{
    const struct kvt_rank_pack *args = &ranked->args;
    const size_t second = (args->second_count + 7) / 8, third = (args->third_count + 7) / 8;
    for (uint32_t k = 0; k < 2; k++)
        if (!append(ranked, args->second[k], second)) return false;
    for (uint32_t k = 0; k < 2; k++)
        if (!append(ranked, args->third[k], third)) return false;
    if (!append_escapes(packer, ranked, is_staged)) return false;

    if (ranked->flags & (STAGED_FIRST | STAGED_ESCAPES)) {
        uint8_t trailer[STAGE_TRAILER_BYTES];
        kvt_store_u32(trailer, (uint32_t)ranked->first_stored);
        kvt_store_u32(trailer + 4, (uint32_t)ranked->escapes_stored);
        kvt_store_u32(trailer + 8, args->escape_count);
        if (!append(ranked, trailer, sizeof trailer)) return false;
    }
    ranked->target[0] = (uint8_t)(CHUNK_RANKED | ranked->flags);
    memcpy(ranked->target + 1, args->table.symbol, KVT_RANK_SYMBOLS);
    store_u24(ranked->target + 10, args->second_count);
    store_u24(ranked->target + 13, args->third_count);
    return true;
}

static size_t pack_ranked(const struct packer *packer, const struct chunk *chunk, const struct plan *plan,
                          uint8_t *target, size_t capacity)
{
    const struct scratch_layout *layout = &packer->codec->layout;
    const struct kvt_rank_shape shape = rank_shape(chunk);
    const size_t rest = kvt_rank_rest_bytes(&shape), first = kvt_rank_first_bytes(&shape);
    if (CHUNK_HEADER_BYTES + rest + first > capacity) return 0;

    uint8_t *streams = packer->scratch + layout->streams;
    struct ranked ranked = {
        .args = {
            .shape = shape, .source = { chunk->view.plane[0], chunk->view.plane[1] }, .table = plan->table,
            .rest = target + CHUNK_HEADER_BYTES, .first = target + CHUNK_HEADER_BYTES + rest,
            .second = { streams, streams + layout->stream_bytes },
            .third = { streams + 2 * layout->stream_bytes, streams + 3 * layout->stream_bytes },
            .escapes = streams + 4 * layout->stream_bytes,
        },
        .target = target, .capacity = capacity, .at = CHUNK_HEADER_BYTES + rest + first, .first_stored = first,
    };
    if (packer->set) {
        ranked.args.bases = kvt_base_set_layer(&packer->group->tables, packer->set, chunk->layer);
        ranked.flags |= BASED;
    }
    packer->codec->kernels->pack(&ranked.args);
    if (plan->is_staged) stage_first(packer, &ranked);
    if (!append_streams(packer, &ranked, plan->is_staged)) return 0;
    if (plan->is_trial) (void)stage_end(packer->group, chunk->layer, ranked.at + ranked.saved, ranked.at);
    return ranked.at;
}

static size_t pack_chunk(const struct packer *packer, const struct chunk *chunk, const struct plan *plan,
                         uint8_t *target, size_t capacity)
{
    switch (plan->kind) {
    case CHUNK_RAW: return pack_raw(chunk, target, capacity);
    case CHUNK_CONSTANT: return pack_constant(chunk, target, capacity);
    case CHUNK_LZ4: return pack_lz4(packer, chunk, plan, target, capacity);
    case CHUNK_RANKED: return pack_ranked(packer, chunk, plan, target, capacity);
    }
    KVT_ASSERT(!"a chunk of no kind");
    return 0;
}

/* The plans of all chunks; false when they promise too little, or far more than capacity. */
static bool plan_block(const struct packer *packer, const struct kvt_chunk_view *chunks, uint32_t tokens,
                       size_t worth_bytes, size_t capacity, struct plan *ret_plans)
{
    size_t expected = BLOCK_HEADER_BYTES + (size_t)4 * packer->group->layers;
    for (uint32_t layer = 0; layer < packer->group->layers; layer++) {
        const struct chunk chunk = chunk_of(packer->group, layer, tokens, &chunks[layer]);
        expected += plan_chunk(packer->codec, packer->group, &chunk, packer->set, &ret_plans[layer]);
    }
    /* A sample is a little off: what is a 16th too large for the capacity by prediction may still fit. */
    return expected <= worth_bytes && expected <= capacity + capacity / 16;
}

/* Where the next chunk starts; the bytes between are cleared. Past the limit: there is no room. */
static size_t pad(uint8_t *target, size_t at, size_t limit)
{
    const size_t start = kvt_align_up(at, CHUNK_ALIGNMENT);
    if (start <= limit) memset(target + at, 0, start - at);
    return start;
}

uint32_t kvt_codec_pack(struct kvt_codec *codec, uint32_t group, const struct kvt_chunk_view *chunks, uint32_t tokens,
                        uint8_t *target, uint32_t capacity, void *scratch)
{
    KVT_ASSERT(group < codec->group_count);
    struct group *g = &codec->groups[group];
    KVT_ASSERT(g->is_state || (tokens > 0 && tokens <= g->tokens_max));
    KVT_ASSERT(kvt_is_aligned((uintptr_t)scratch, SCRATCH_ALIGNMENT));

    if (g->is_ranked) kvt_base_tables_observe(&g->tables, chunks, tokens);
    const struct packer packer = {
        .codec = codec, .group = g, .scratch = scratch, .set = g->is_ranked ? kvt_base_tables_current(&g->tables) : NULL
    };
    const struct chunk any = chunk_of(g, 0, tokens, &chunks[0]);
    const size_t worth_bytes = worth(chunk_bytes(&any) * g->layers);
    const size_t limit = kvt_min_u64(capacity, worth_bytes);
    struct plan *plans = (struct plan *)((uint8_t *)scratch + codec->layout.plans);
    if (!plan_block(&packer, chunks, tokens, worth_bytes, capacity, plans)) return 0;

    size_t at = BLOCK_HEADER_BYTES + (size_t)4 * g->layers;
    if (at > limit) return 0;
    target[0] = BLOCK_FORMAT;
    target[1] = 0;
    kvt_store_u16(target + 2, (uint16_t)(g->is_state ? 0 : tokens));
    kvt_store_u32(target + 4, packer.set ? packer.set->id : 0);
    for (uint32_t layer = 0; layer < g->layers; layer++) {
        const size_t start = pad(target, at, limit);
        if (start > limit) return 0;
        const struct chunk chunk = chunk_of(g, layer, tokens, &chunks[layer]);
        const size_t size = pack_chunk(&packer, &chunk, &plans[layer], target + start, limit - start);
        if (size == 0) return 0;
        at = start + size;
        kvt_store_u32(target + BLOCK_HEADER_BYTES + (size_t)4 * layer, (uint32_t)at);
    }
    return (uint32_t)at;
}

/* ---- Unpack ---------------------------------------------------------------------------------------------------- */

/* What one call of unpack works with. */
struct unpacker {
    struct kvt_codec *codec;
    struct group *group;
    const uint8_t *end; /* of the packed block: nothing is read from here on */
    uint32_t set_id;
    uint8_t *scratch;
};

static bool is_zero(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i]) return false;
    return true;
}

static bool unpack_raw(const struct chunk *chunk, const uint8_t *packed, size_t size)
{
    if (size != RAW_HEADER_BYTES + chunk_bytes(chunk) || !is_zero(packed + 1, 7)) return false;
    for (uint32_t p = 0; p < chunk->group->plane_count; p++)
        memcpy(chunk->view.plane[p], packed + RAW_HEADER_BYTES + p * chunk->plane_bytes, chunk->plane_bytes);
    return true;
}

static bool unpack_constant(const struct chunk *chunk, const uint8_t *packed, size_t size)
{
    if (size != CHUNK_HEADER_BYTES || !is_zero(packed + 1, 7)) return false;
    const uint32_t element_bytes = chunk->group->element_bytes;
    for (uint32_t p = 0; p < 2; p++) {
        const uint8_t *element = packed + 8 + 4 * p;
        const uint32_t used = p < chunk->group->plane_count ? element_bytes : 0;
        if (!is_zero(element + used, 4 - used)) return false;
        uint8_t *plane = chunk->view.plane[p];
        for (size_t i = 0; used > 0 && i < chunk->plane_bytes; i += element_bytes)
            memcpy(plane + i, element, element_bytes);
    }
    return true;
}

static bool unpack_lz4(const struct chunk *chunk, const uint8_t *packed, size_t size)
{
    if (size < CHUNK_HEADER_BYTES || packed[1] >> chunk->group->plane_count || !is_zero(packed + 2, 6)) return false;
    size_t at = CHUNK_HEADER_BYTES;
    for (uint32_t p = 0; p < 2; p++) {
        const size_t stored = kvt_load_u32(packed + 8 + 4 * p);
        if (stored > size - at) return false;
        if (p >= chunk->group->plane_count) {
            if (stored != 0) return false;
        } else if (packed[1] >> p & 1) {
            if (stored != chunk->plane_bytes) return false;
            memcpy(chunk->view.plane[p], packed + at, stored);
        } else if (!lz4_unpack(packed + at, stored, chunk->view.plane[p], chunk->plane_bytes)) {
            return false;
        }
        at += stored;
    }
    return at == size;
}

static uint32_t load_u24(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16; }

/* The sizes that a ranked chunk states, checked against each other and against the chunk's own size. */
struct ranked_sizes {
    size_t rest, first, first_stored, second, third, escapes_stored;
    uint32_t second_count, third_count, escape_count;
};

static bool read_sizes(const struct kvt_rank_shape *shape, const uint8_t *packed, size_t size,
                       struct ranked_sizes *ret_sizes)
{
    const bool has_trailer = packed[0] & (STAGED_FIRST | STAGED_ESCAPES);
    const size_t frame = CHUNK_HEADER_BYTES + (has_trailer ? STAGE_TRAILER_BYTES : 0);
    if (size < frame) return false;
    struct ranked_sizes s = { .rest = kvt_rank_rest_bytes(shape),
                              .first = kvt_rank_first_bytes(shape),
                              .second_count = load_u24(packed + 10),
                              .third_count = load_u24(packed + 13) };
    s.second = ((size_t)s.second_count + 7) / 8;
    s.third = ((size_t)s.third_count + 7) / 8;
    s.first_stored = s.first;
    if (has_trailer) {
        const uint8_t *trailer = packed + size - STAGE_TRAILER_BYTES;
        s.first_stored = kvt_load_u32(trailer);
        s.escapes_stored = kvt_load_u32(trailer + 4);
        s.escape_count = kvt_load_u32(trailer + 8);
        if (!(packed[0] & STAGED_FIRST) && s.first_stored != s.first) return false;
        if (!(packed[0] & STAGED_ESCAPES) && s.escapes_stored != s.escape_count) return false;
    }
    const size_t known = frame + s.rest + s.first_stored + 2 * s.second + 2 * s.third; /* 64 bits: cannot overflow */
    if (size < known) return false;
    if (!has_trailer) {
        if (size - known > UINT32_MAX) return false;
        s.escapes_stored = size - known;
        s.escape_count = (uint32_t)s.escapes_stored;
    }
    if (known + s.escapes_stored != size) return false;
    if (s.second_count > (uint64_t)shape->plane_count * shape->elements) return false;
    if (s.third_count > s.second_count || s.escape_count > s.third_count) return false;
    *ret_sizes = s;
    return true;
}

static bool unpack_ranked(const struct unpacker *unpacker, const struct chunk *chunk, const uint8_t *packed,
                          size_t size)
{
    const struct scratch_layout *layout = &unpacker->codec->layout;
    const struct kvt_rank_shape shape = rank_shape(chunk);
    struct ranked_sizes s;
    if (!chunk->group->is_ranked || (packed[0] & ~(KIND_MASK | FLAGS)) || !read_sizes(&shape, packed, size, &s))
        return false;

    struct kvt_rank_unpack args = {
        .shape = shape,
        .target = { chunk->view.plane[0], chunk->view.plane[1] },
        .rest = packed + CHUNK_HEADER_BYTES,
        .first = packed + CHUNK_HEADER_BYTES + s.rest,
        .second_count = s.second_count,
        .third_count = s.third_count,
        .escape_count = s.escape_count,
    };
    memcpy(args.symbol, packed + 1, KVT_RANK_SYMBOLS);
    if (packed[0] & BASED) {
        const struct kvt_base_set *set = kvt_base_tables_find(&unpacker->group->tables, unpacker->set_id);
        if (!set) return false;
        args.bases = kvt_base_set_layer(&unpacker->group->tables, set, chunk->layer);
    }
    const uint8_t *streams = args.first + s.first_stored;
    if (packed[0] & STAGED_FIRST) {
        uint8_t *first = unpacker->scratch + layout->first;
        if (!lz4_unpack(args.first, s.first_stored, first, s.first)) return false;
        args.first = first;
    }
    /* The kernels read a little behind the streams: at the end of the block, from a copy. */
    const size_t streams_bytes = 2 * s.second + 2 * s.third + s.escapes_stored;
    const uint8_t *escapes_packed = streams + 2 * s.second + 2 * s.third;
    if ((size_t)(unpacker->end - streams) < streams_bytes + KVT_RANK_SLACK) {
        streams = memcpy(unpacker->scratch + layout->streams, streams, streams_bytes);
    }
    args.second[0] = streams;
    args.second[1] = streams + s.second;
    args.third[0] = streams + 2 * s.second;
    args.third[1] = args.third[0] + s.third;
    args.escapes = args.third[1] + s.third;
    if (packed[0] & STAGED_ESCAPES) {
        uint8_t *escapes = unpacker->scratch + layout->escapes;
        if (!lz4_unpack(escapes_packed, s.escapes_stored, escapes, s.escape_count)) return false;
        args.escapes = escapes;
    }
    return unpacker->codec->kernels->unpack(&args);
}

static bool unpack_chunk(const struct unpacker *unpacker, const struct chunk *chunk, const uint8_t *packed, size_t size)
{
    if (size < RAW_HEADER_BYTES) return false;
    switch (packed[0] & KIND_MASK) {
    case CHUNK_RAW: return packed[0] == CHUNK_RAW && unpack_raw(chunk, packed, size);
    case CHUNK_CONSTANT: return packed[0] == CHUNK_CONSTANT && unpack_constant(chunk, packed, size);
    case CHUNK_LZ4: return packed[0] == CHUNK_LZ4 && unpack_lz4(chunk, packed, size);
    case CHUNK_RANKED: return unpack_ranked(unpacker, chunk, packed, size);
    default: return false;
    }
}

enum kvt_status kvt_codec_unpack_layers(struct kvt_codec *codec, uint32_t group, const uint8_t *packed, uint32_t length,
                                        uint32_t tokens, uint32_t first, uint32_t count,
                                        const struct kvt_chunk_view *chunks, void *scratch)
{
    KVT_ASSERT(group < codec->group_count);
    struct group *g = &codec->groups[group];
    KVT_ASSERT(g->is_state || (tokens > 0 && tokens <= g->tokens_max));
    KVT_ASSERT(kvt_is_aligned((uintptr_t)scratch, SCRATCH_ALIGNMENT));
    KVT_ASSERT(first <= g->layers && count <= g->layers - first);

    const size_t directory_end = BLOCK_HEADER_BYTES + (size_t)4 * g->layers;
    if (length < directory_end || packed[0] != BLOCK_FORMAT || packed[1] != 0) return KVT_CORRUPT;
    if (kvt_load_u16(packed + 2) != (g->is_state ? 0 : tokens)) return KVT_CORRUPT;
    const struct unpacker unpacker = {
        .codec = codec, .group = g, .end = packed + length, .set_id = kvt_load_u32(packed + 4), .scratch = scratch
    };
    size_t at = directory_end;
    if (first > 0) at = kvt_load_u32(packed + BLOCK_HEADER_BYTES + (size_t)4 * (first - 1));
    if (at < directory_end || at > length) return KVT_CORRUPT;
    for (uint32_t layer = first; layer < first + count; layer++) {
        const size_t start = kvt_align_up(at, CHUNK_ALIGNMENT);
        const size_t end = kvt_load_u32(packed + BLOCK_HEADER_BYTES + (size_t)4 * layer);
        if (start > end || end > length || !is_zero(packed + at, start - at)) return KVT_CORRUPT;
        const struct chunk chunk = chunk_of(g, layer, tokens, &chunks[layer - first]);
        if (!unpack_chunk(&unpacker, &chunk, packed + start, end - start)) return KVT_CORRUPT;
        at = end;
    }
    return first + count < g->layers || at == length ? KVT_OK : KVT_CORRUPT;
}

enum kvt_status kvt_codec_unpack(struct kvt_codec *codec, uint32_t group, const uint8_t *packed, uint32_t length,
                                 uint32_t tokens, const struct kvt_chunk_view *chunks, void *scratch)
{
    KVT_ASSERT(group < codec->group_count);
    return kvt_codec_unpack_layers(codec, group, packed, length, tokens, 0, codec->groups[group].layers, chunks,
                                   scratch);
}

struct kvt_base_tables *kvt_codec_ranked_tables(struct kvt_codec *codec, uint32_t group)
{
    KVT_ASSERT(group < codec->group_count);
    return codec->groups[group].is_ranked ? &codec->groups[group].tables : NULL;
}

/* ---- Base tables ----------------------------------------------------------------------------------------------- */

enum kvt_status kvt_codec_learn(struct kvt_codec *codec, bool is_on)
{
    enum kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < codec->group_count; i++)
        if (codec->groups[i].is_ranked && kvt_base_tables_learn(&codec->groups[i].tables, is_on) != KVT_OK)
            status = KVT_NOMEM;
    return status;
}

void kvt_codec_tables_hold(struct kvt_codec *codec, bool is_on)
{
    for (uint32_t i = 0; i < codec->group_count; i++) kvt_base_tables_hold(&codec->groups[i].tables, is_on);
}

uint32_t kvt_codec_tables_count(const struct kvt_codec *codec)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < codec->group_count; i++) count += atomic_load(&codec->groups[i].tables.count);
    return count;
}

bool kvt_codec_bases(struct kvt_codec *codec, uint32_t group, uint32_t id, uint32_t layer,
                     struct kvt_rank_bases *ret_bases, uint32_t *ret_id)
{
    KVT_ASSERT(group < codec->group_count);
    struct kvt_base_tables *tables = &codec->groups[group].tables;
    KVT_ASSERT(layer < tables->layers);
    const struct kvt_base_set *set = !codec->groups[group].is_ranked ? NULL
        : id                                                         ? kvt_base_tables_find(tables, id)
                                                                     : kvt_base_tables_current(tables);
    if (!set) return false;
    *ret_bases = kvt_base_set_layer(tables, set, layer);
    *ret_id = set->id;
    return true;
}

/*
 * Exported tables: u32 magic, u32 version, u32 count; for each u32 group, u32 id, the set's bytes; u64 digest of all
 * before.
 */
enum { TABLES_HEADER_BYTES = 12, TABLE_HEADER_BYTES = 8, TABLES_DIGEST_BYTES = 8 };

size_t kvt_codec_tables_bytes(const struct kvt_codec *codec)
{
    size_t size = TABLES_HEADER_BYTES + TABLES_DIGEST_BYTES;
    for (uint32_t i = 0; i < codec->group_count; i++)
        if (codec->groups[i].is_ranked)
            size += TABLE_HEADER_BYTES + kvt_base_tables_set_bytes(&codec->groups[i].tables);
    return size;
}

size_t kvt_codec_tables_export(struct kvt_codec *codec, uint8_t *target, size_t capacity)
{
    uint32_t counts[KVT_GROUPS_MAX] = { 0 }; /* read once: another thread may publish meanwhile */
    uint32_t count = 0;
    size_t size = TABLES_HEADER_BYTES + TABLES_DIGEST_BYTES;
    for (uint32_t i = 0; i < codec->group_count; i++) {
        counts[i] = atomic_load_explicit(&codec->groups[i].tables.count, memory_order_acquire);
        count += counts[i];
        size += counts[i] * (TABLE_HEADER_BYTES + kvt_base_tables_set_bytes(&codec->groups[i].tables));
    }
    if (size > capacity) return size;

    kvt_store_u32(target, TABLES_MAGIC);
    kvt_store_u32(target + 4, TABLES_VERSION);
    kvt_store_u32(target + 8, count);
    uint8_t *at = target + TABLES_HEADER_BYTES;
    for (uint32_t i = 0; i < codec->group_count; i++) {
        struct kvt_base_tables *tables = &codec->groups[i].tables;
        for (uint32_t k = 0; k < counts[i]; k++) {
            const struct kvt_base_set *set = atomic_load_explicit(&tables->sets[k], memory_order_relaxed);
            kvt_store_u32(at, i);
            kvt_store_u32(at + 4, set->id);
            kvt_base_tables_write(tables, set, at + TABLE_HEADER_BYTES);
            at += TABLE_HEADER_BYTES + kvt_base_tables_set_bytes(tables);
        }
    }
    kvt_store_u64(at, kvt_fold(0, target, (size_t)(at - target)));
    return size;
}

/* Walks exported tables: checks them, or adds them. CORRUPT before anything was added, as the check comes first. */
static enum kvt_status walk_tables(struct kvt_codec *codec, const uint8_t *bytes, size_t size, bool is_adding)
{
    const uint32_t count = kvt_load_u32(bytes + 8);
    const uint8_t *at = bytes + TABLES_HEADER_BYTES, *end = bytes + size - TABLES_DIGEST_BYTES;
    for (uint32_t k = 0; k < count; k++) {
        if (end - at < TABLE_HEADER_BYTES) return KVT_CORRUPT;
        const uint32_t group = kvt_load_u32(at), id = kvt_load_u32(at + 4);
        if (group >= codec->group_count || !codec->groups[group].is_ranked) return KVT_CORRUPT;
        struct kvt_base_tables *tables = &codec->groups[group].tables;
        at += TABLE_HEADER_BYTES;
        if ((size_t)(end - at) < kvt_base_tables_set_bytes(tables)) return KVT_CORRUPT;
        if (is_adding) KVT_TRY(kvt_base_tables_add(tables, at));
        else if (kvt_base_tables_id(tables, at) != id) return KVT_CORRUPT;
        at += kvt_base_tables_set_bytes(tables);
    }
    return at == end ? KVT_OK : KVT_CORRUPT;
}

enum kvt_status kvt_codec_tables_import(struct kvt_codec *codec, const uint8_t *bytes, size_t size)
{
    if (size < TABLES_HEADER_BYTES + TABLES_DIGEST_BYTES) return KVT_CORRUPT;
    if (kvt_load_u32(bytes) != TABLES_MAGIC || kvt_load_u32(bytes + 4) != TABLES_VERSION) return KVT_CORRUPT;
    if (kvt_load_u64(bytes + size - TABLES_DIGEST_BYTES) != kvt_fold(0, bytes, size - TABLES_DIGEST_BYTES))
        return KVT_CORRUPT;
    KVT_TRY(walk_tables(codec, bytes, size, false));
    return walk_tables(codec, bytes, size, true);
}
