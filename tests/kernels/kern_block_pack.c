/*
 * Whole packed blocks: several blocks of different shapes in one launch, chunks of every kind, bases or none, capacities
 * that are too small; taken apart again, and damaged. What pack made by the reference is compared byte by byte.
 */
#include <string.h>

#include "kernels/block_pack.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"
#include "tests/unit/rank_cases.h"

enum { REF, LAUNCHES, LAYERS_MAX = 4, BLOCKS_MAX = 3 };

static const char *impl(uint32_t i)
{
    if (i == REF) return "reference";
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i) { return i < LAUNCHES || kern_launches_from(i, LAUNCHES)->is_here(); }

/* One block, twice: of the reference, and of the implementation. */
struct block_case {
    struct kvt_rank_shape shape;
    uint32_t layers, tokens, tables_id, capacity;
    struct kern_buffer planes[LAYERS_MAX][2], bases[LAYERS_MAX][2], back[LAYERS_MAX][2]; /* source, bases, unpacked */
    struct kern_buffer chunks, back_chunks, plans, target, results;
    struct kern_buffer wanted; /* the reference's packed block */
    uint32_t wanted_length;
};

static uint32_t *result_of(const struct block_case *c, uint32_t i) { return (uint32_t *)(void *)c->results.bytes + i; }

static struct kvt_rank_shape draw_shape(struct kvt_rng *rng, uint32_t *ret_tokens)
{
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
    static const uint32_t channels[] = { 1, 3, 33, 64, 65, 100, 128, 256 };
    struct kvt_rank_shape shape = { .dtype = dtypes[kvt_rng_below(rng, 3)],
                                    .plane_count = 1 + (uint32_t)kvt_rng_below(rng, 2),
                                    .channels = channels[kvt_rng_below(rng, KVT_ARRAY_COUNT(channels))] };
    *ret_tokens = 1 + (uint32_t)kvt_rng_below(rng, 33);
    shape.elements = shape.channels * *ret_tokens;
    return shape;
}

static void init_layer(struct block_case *c, uint32_t layer, const struct kern_launches *side, struct kvt_rng *rng)
{
    static const enum rank_fill fills[] = { RANK_FILL_KV,      RANK_FILL_KV,     RANK_FILL_KV,  RANK_FILL_CONSTANT,
                                            RANK_FILL_SPECIAL, RANK_FILL_RANDOM, RANK_FILL_TWO, RANK_FILL_ESCAPES };
    const enum rank_fill fill = fills[kvt_rng_below(rng, KVT_ARRAY_COUNT(fills))];
    struct kvt_block_chunk *chunk = (struct kvt_block_chunk *)(void *)c->chunks.bytes + layer;
    struct kvt_block_chunk *back = (struct kvt_block_chunk *)(void *)c->back_chunks.bytes + layer;
    for (uint32_t p = 0; p < 2; p++) {
        const size_t bytes = p < c->shape.plane_count ? kvt_block_plane_bytes(&c->shape) : 1;
        const size_t misalign = kvt_rng_below(rng, 3) == 0 ? kvt_rng_below(rng, 16) : 0;
        kern_buffer_init(&c->planes[layer][p], side, bytes, misalign);
        kern_buffer_init(&c->back[layer][p], side, bytes, misalign);
        if (p < c->shape.plane_count)
            rank_fill(c->planes[layer][p].bytes, c->shape.dtype, c->shape.elements, c->shape.channels, fill, rng);
        kern_buffer_init(&c->bases[layer][p], side, (size_t)c->shape.channels + KVT_RANK_GROUP, 0);
        for (uint32_t i = 0; i < c->shape.channels + KVT_RANK_GROUP; i++)
            c->bases[layer][p].bytes[i] = (uint8_t)(i % c->shape.channels % 5 + 250);
        chunk->plane[p] = p < c->shape.plane_count ? c->planes[layer][p].bytes : NULL;
        back->plane[p] = p < c->shape.plane_count ? c->back[layer][p].bytes : NULL;
        chunk->bases[p] = back->bases[p] = c->tables_id ? c->bases[layer][p].bytes : NULL;
    }
}

static void case_init(struct block_case *c, const struct kern_launches *side, struct kvt_rng *rng)
{
    memset(c, 0, sizeof *c);
    c->shape = draw_shape(rng, &c->tokens);
    c->layers = 1 + (uint32_t)kvt_rng_below(rng, LAYERS_MAX);
    c->tables_id = kvt_rng_below(rng, 2) ? 0x12345678u : 0;
    kern_buffer_init(&c->chunks, side, sizeof(struct kvt_block_chunk) * LAYERS_MAX, 0);
    kern_buffer_init(&c->back_chunks, side, sizeof(struct kvt_block_chunk) * LAYERS_MAX, 0);
    kern_buffer_init(&c->plans, side, sizeof(struct kvt_block_plan) * LAYERS_MAX, 0);
    kern_buffer_init(&c->results, side, 2 * sizeof(uint32_t), 0);
    for (uint32_t layer = 0; layer < c->layers; layer++) init_layer(c, layer, side, rng);
    const size_t raw = kvt_block_chunk_bytes(&c->shape) * c->layers;
    c->capacity = (uint32_t)(kvt_rng_below(rng, 4) ? raw : 1 + kvt_rng_below(rng, raw));
    const size_t misalign = kvt_rng_below(rng, 4) ? 0 : kvt_rng_below(rng, 16);
    kern_buffer_init(&c->target, side, c->capacity, misalign);
    kern_buffer_init(&c->wanted, NULL, c->capacity, misalign);
}

static struct kvt_block_pack pack_of(const struct block_case *c)
{
    return (struct kvt_block_pack){ .shape = c->shape,
                                    .layers = c->layers,
                                    .tokens = c->tokens,
                                    .tables_id = c->tables_id,
                                    .capacity = c->capacity,
                                    .chunks = (const struct kvt_block_chunk *)(void *)c->chunks.bytes,
                                    .plans = (struct kvt_block_plan *)(void *)c->plans.bytes,
                                    .target = c->target.bytes,
                                    .ret_length = result_of(c, 0) };
}

static struct kvt_block_unpack unpack_of(const struct block_case *c)
{
    return (struct kvt_block_unpack){ .shape = c->shape,
                                      .layers = c->layers,
                                      .tokens = c->tokens,
                                      .tables_id = c->tables_id,
                                      .length = c->wanted_length,
                                      .chunks = (const struct kvt_block_chunk *)(void *)c->back_chunks.bytes,
                                      .packed = c->target.bytes,
                                      .ret_verdict = result_of(c, 1) };
}

/* The block by the reference, into `wanted`. */
static void pack_wanted(struct block_case *c)
{
    struct kvt_block_plan plans[LAYERS_MAX];
    struct kvt_block_pack block = pack_of(c);
    uint8_t *scratch = kvt_alloc(1, kvt_block_scratch_bytes(&c->shape));
    KVT_ASSERT(scratch != NULL);
    block.plans = plans;
    block.target = c->wanted.bytes;
    block.ret_length = &c->wanted_length;
    kvt_block_pack(&block, &kvt_rank_ops_ref, scratch);
    kvt_free(scratch);
}

static bool case_is_intact(const struct block_case *c)
{
    bool is_intact = kern_buffer_is_intact(&c->target) && kern_buffer_is_intact(&c->chunks)
        && kern_buffer_is_intact(&c->plans) && kern_buffer_is_intact(&c->results) && kern_buffer_is_intact(&c->wanted);
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (uint32_t p = 0; p < 2; p++)
            is_intact = is_intact && kern_buffer_is_intact(&c->planes[layer][p])
                && kern_buffer_is_intact(&c->back[layer][p]) && kern_buffer_is_intact(&c->bases[layer][p]);
    return is_intact;
}

static void case_done(struct block_case *c)
{
    for (uint32_t layer = 0; layer < c->layers; layer++)
        for (uint32_t p = 0; p < 2; p++) {
            kern_buffer_done(&c->planes[layer][p]);
            kern_buffer_done(&c->back[layer][p]);
            kern_buffer_done(&c->bases[layer][p]);
        }
    kern_buffer_done(&c->chunks);
    kern_buffer_done(&c->back_chunks);
    kern_buffer_done(&c->plans);
    kern_buffer_done(&c->results);
    kern_buffer_done(&c->target);
    kern_buffer_done(&c->wanted);
}

/* A case says what it is when something differs. */
static bool differs(const struct kern_run *run, const struct block_case *c, const char *what, size_t index)
{
    return kern_differs(run, "%s at %zu; %s, %u layers, %u planes, %u channels, %u elements, %s, capacity %u", what,
                        index, kvt_dtype_name(c->shape.dtype), c->layers, c->shape.plane_count, c->shape.channels,
                        c->shape.elements, c->tables_id ? "bases" : "no bases", c->capacity);
}

/* ---- Pack ------------------------------------------------------------------------------------------------------ */

static bool check_pack_round(uint32_t i, struct kern_run *run, struct kvt_rng *rng)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    const uint32_t count = 1 + (uint32_t)kvt_rng_below(rng, BLOCKS_MAX);
    struct block_case cases[BLOCKS_MAX];
    struct kern_buffer table;
    kern_buffer_init(&table, side, sizeof(struct kvt_block_pack) * BLOCKS_MAX, 0);
    struct kvt_block_pack *blocks = (struct kvt_block_pack *)(void *)table.bytes;
    for (uint32_t b = 0; b < count; b++) {
        case_init(&cases[b], side, rng);
        pack_wanted(&cases[b]);
        blocks[b] = pack_of(&cases[b]);
    }
    bool is_ok = side->block_pack(blocks, count, LAYERS_MAX, (uint32_t)kvt_rng_below(rng, 5), NULL) == KVT_OK
        && side->finish();
    if (!is_ok) (void)kern_differs(run, "the launch failed");
    for (uint32_t b = 0; b < count; b++) {
        struct block_case *c = &cases[b];
        const uint32_t length = *result_of(c, 0);
        if (is_ok && length != c->wanted_length) is_ok = differs(run, c, "the length", length);
        const size_t index = kern_first_difference(c->target.bytes, c->wanted.bytes, is_ok ? length : 0);
        if (is_ok && index < length) is_ok = differs(run, c, "the packed block", index);
        if (is_ok && !(case_is_intact(c) && kern_buffer_is_intact(&table))) is_ok = differs(run, c, "a canary", 0);
        case_done(c);
        run->compared++;
    }
    kern_buffer_done(&table);
    return is_ok;
}

static bool check_pack(uint32_t i, struct kern_run *run)
{
    struct kvt_rng rng = { run->seed };
    for (uint32_t round = 0; round < 40; round++) {
        kern_launches_from(i, LAUNCHES)->reseed(run->seed + round);
        if (!check_pack_round(i, run, &rng)) return false;
    }
    return true;
}

/* ---- Unpack ---------------------------------------------------------------------------------------------------- */

/* What the reference says of the same bytes; its planes go to `planes`, which hold the source no longer. */
static uint32_t unpack_wanted(struct block_case *c, const struct kvt_block_unpack *of)
{
    uint32_t verdict = 0;
    struct kvt_block_unpack block = *of;
    uint8_t *scratch = kvt_alloc(1, kvt_block_scratch_bytes(&c->shape));
    KVT_ASSERT(scratch != NULL);
    block.chunks = (const struct kvt_block_chunk *)(void *)c->chunks.bytes;
    block.ret_verdict = &verdict;
    kvt_block_unpack(&block, &kvt_rank_ops_ref, scratch);
    kvt_free(scratch);
    return verdict;
}

/* The parts of a ranked chunk of the packed block, and where it starts; false: the layer's is of another kind. */
static bool find_ranked(const struct block_case *c, uint32_t layer, size_t *ret_start,
                        struct kvt_block_parts *ret_parts)
{
    const uint8_t *ends = c->wanted.bytes + KVT_BLOCK_HEADER_BYTES;
    const uint64_t before = layer ? kvt_load_u32(ends + 4 * (size_t)(layer - 1)) : kvt_block_directory_end(c->layers);
    const uint8_t *chunk = c->wanted.bytes + kvt_block_align(before);
    if ((chunk[0] & KVT_BLOCK_KIND_MASK) != KVT_BLOCK_RANKED) return false;
    *ret_start = (size_t)(chunk - c->wanted.bytes);
    kvt_block_parts_of(&c->shape, kvt_block_load_number(chunk + 10, 3), kvt_block_load_number(chunk + 13, 3), 0,
                       ret_parts);
    return true;
}

/*
 * Damage that all sizes agree with: a count of 8 less makes each of two streams a byte shorter and the escapes 2 longer;
 * bits of a plane send other elements on to the next level, or lie behind the end of a short group.
 */
static void damage_ranked(struct block_case *c, struct kvt_rng *rng)
{
    size_t start;
    struct kvt_block_parts parts;
    if (!find_ranked(c, (uint32_t)kvt_rng_below(rng, c->layers), &start, &parts)) return;
    uint8_t *chunk = c->target.bytes + start;
    const uint32_t which = (uint32_t)kvt_rng_below(rng, 9);
    if (which < 2) {
        uint8_t *at = chunk + (which == 0 ? 10 : 13);
        const uint32_t count = kvt_block_load_number(at, 3);
        if (count > 8) kvt_block_store_number(at, count - 8, 3);
        return;
    }
    if (which >= 6) { /* all elements go on, much further than the next streams reach */
        const uint64_t starts[] = { parts.first, parts.second[0], parts.third[0], parts.escapes };
        memset(chunk + starts[which - 6], 0xff, starts[which - 5] - starts[which - 6]);
        return;
    }
    const uint64_t froms[] = { parts.first, parts.second[0], parts.second[0] - 16, parts.third[0] };
    const uint64_t tos[] = { parts.second[0], parts.escapes, parts.second[0], parts.escapes };
    const uint64_t from = froms[which - 2], to = tos[which - 2];
    if (from < to) chunk[from + kvt_rng_below(rng, to - from)] ^= (uint8_t)(1u << kvt_rng_below(rng, 8));
}

static void damage(struct block_case *c, struct kvt_block_unpack *block, struct kvt_rng *rng)
{
    switch (kvt_rng_below(rng, 10)) {
    case 0: c->target.bytes[kvt_rng_below(rng, c->wanted_length)] ^= (uint8_t)(1u << kvt_rng_below(rng, 8)); break;
    case 1: /* headers and directory are small: aim at them */
        c->target.bytes[kvt_rng_below(rng, kvt_min_u32(c->wanted_length, 48))] ^= (uint8_t)(1u
                                                                                            << kvt_rng_below(rng, 8));
        break;
    case 2: block->length = (uint32_t)kvt_rng_below(rng, c->wanted_length + 1u); break;
    case 3: block->tables_id ^= 1; break;
    case 4: block->tokens++; break;
    case 5: break;
    default: damage_ranked(c, rng); break;
    }
}

static bool check_unpack_round(uint32_t i, struct kern_run *run, struct kvt_rng *rng, bool is_damaged)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    struct block_case c;
    case_init(&c, side, rng);
    pack_wanted(&c);
    struct kern_buffer table;
    kern_buffer_init(&table, side, sizeof(struct kvt_block_unpack), 0);
    struct kvt_block_unpack *block = (struct kvt_block_unpack *)(void *)table.bytes;
    bool is_ok = true;
    if (c.wanted_length > 0) {
        /* No byte longer than the block: what reads behind it is seen. */
        kern_buffer_done(&c.target);
        kern_buffer_init(&c.target, side, c.wanted_length, kvt_rng_below(rng, 4) ? 0 : kvt_rng_below(rng, 16));
        memcpy(c.target.bytes, c.wanted.bytes, c.wanted_length);
        *block = unpack_of(&c);
        if (kvt_rng_below(rng, 2)) { /* some layers alone */
            block->first = (uint32_t)kvt_rng_below(rng, c.layers);
            block->count = 1 + (uint32_t)kvt_rng_below(rng, c.layers - block->first);
        }
        if (is_damaged) damage(&c, block, rng);
        is_ok = side->block_unpack(block, 1, LAYERS_MAX, 1 + (uint32_t)kvt_rng_below(rng, 4), NULL) == KVT_OK
            && side->finish();
        if (!is_ok) (void)kern_differs(run, "the launch failed");
        const uint32_t verdict = *result_of(&c, 1);
        const uint32_t wanted = is_damaged ? unpack_wanted(&c, block) : KVT_BLOCK_OK;
        if (is_ok && verdict != wanted) is_ok = differs(run, &c, "the verdict", verdict);
        /* Without damage the source is at its layer's own place; the reference unpacks to the first places, too. */
        const uint32_t shift = is_damaged ? 0 : block->first;
        for (uint32_t n = 0; is_ok && wanted == KVT_BLOCK_OK && n < kvt_block_unpack_count(block); n++)
            for (uint32_t p = 0; is_ok && p < c.shape.plane_count; p++) {
                const size_t bytes = kvt_block_plane_bytes(&c.shape);
                const size_t index = kern_first_difference(c.back[n][p].bytes, c.planes[n + shift][p].bytes, bytes);
                if (index < bytes) is_ok = differs(run, &c, "what came back", index);
            }
        run->compared++;
    }
    if (is_ok && !(case_is_intact(&c) && kern_buffer_is_intact(&table))) is_ok = differs(run, &c, "a canary", 0);
    kern_buffer_done(&table);
    case_done(&c);
    return is_ok;
}

static bool check_unpack(uint32_t i, struct kern_run *run)
{
    struct kvt_rng rng = { run->seed };
    for (uint32_t round = 0; round < 240; round++) {
        kern_launches_from(i, LAUNCHES)->reseed(run->seed + round);
        if (!check_unpack_round(i, run, &rng, round % 3 != 0)) return false;
    }
    return true;
}

/* ---- Speed: blocks of 4 chunks of 64 KiB of bf16, in GB/s of raw bytes ------------------------------------------ */

enum { BENCH_BLOCKS = 32, BENCH_LAYERS = 4, BENCH_ELEMENTS = 16384, BENCH_CTAS = 128 };
enum { BENCH_PLANE = 2 * BENCH_ELEMENTS, BENCH_BLOCK = BENCH_LAYERS * 2 * BENCH_PLANE };

struct bench {
    const struct kern_launches *side; /* NULL: the reference, on one block */
    uint32_t blocks;
    uint8_t *planes, *packed; /* of device memory */
    struct kvt_block_chunk *chunks;
    struct kvt_block_plan *plans;
    struct kvt_block_pack *packs;
    struct kvt_block_unpack *unpacks;
    uint32_t *results;
    uint8_t *scratch; /* the reference's */
};

static void *take(const struct bench *b, size_t size)
{
    return b->side ? b->side->memory_alloc(size) : kvt_alloc(1, size);
}

static void *take_device(const struct bench *b, size_t size)
{
    return b->side ? b->side->device_alloc(size) : kvt_alloc(1, size);
}

static void bench_close(void *user)
{
    struct bench *b = user;
    void *const tables[] = { b->chunks, b->plans, b->packs, b->unpacks, b->results, b->scratch };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(tables); i++) {
        if (b->side) b->side->memory_free(tables[i]);
        else kvt_free(tables[i]);
    }
    void (*const drop)(void *) = b->side ? b->side->device_free : kvt_free;
    drop(b->planes);
    drop(b->packed);
    kvt_free(b);
}

static void bench_pack_pass(void *user)
{
    const struct bench *b = user;
    if (!b->side) kvt_block_pack(b->packs, &kvt_rank_ops_ref, b->scratch);
    else if (b->side->block_pack(b->packs, b->blocks, BENCH_LAYERS, BENCH_CTAS, NULL) == KVT_OK)
        (void)b->side->finish();
}

static void bench_unpack_pass(void *user)
{
    const struct bench *b = user;
    if (!b->side) kvt_block_unpack(b->unpacks, &kvt_rank_ops_ref, b->scratch);
    else if (b->side->block_unpack(b->unpacks, b->blocks, BENCH_LAYERS, BENCH_CTAS, NULL) == KVT_OK)
        (void)b->side->finish();
}

static void bench_tables(const struct bench *b, const struct kvt_rank_shape *shape)
{
    for (uint32_t i = 0; i < b->blocks; i++) {
        struct kvt_block_chunk *chunks = b->chunks + (size_t)i * BENCH_LAYERS;
        for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++)
            for (uint32_t p = 0; p < 2; p++)
                chunks[layer].plane[p] = b->planes + (size_t)i * BENCH_BLOCK + (size_t)(2 * layer + p) * BENCH_PLANE;
        b->packs[i] = (struct kvt_block_pack){ .shape = *shape,
                                               .layers = BENCH_LAYERS,
                                               .tokens = BENCH_ELEMENTS / shape->channels,
                                               .capacity = BENCH_BLOCK,
                                               .chunks = chunks,
                                               .plans = b->plans + (size_t)i * BENCH_LAYERS,
                                               .target = b->packed + (size_t)i * BENCH_BLOCK,
                                               .ret_length = &b->results[2 * i] };
        b->unpacks[i] = (struct kvt_block_unpack){ .shape = *shape,
                                                   .layers = BENCH_LAYERS,
                                                   .tokens = b->packs[i].tokens,
                                                   .chunks = chunks,
                                                   .packed = b->packs[i].target,
                                                   .ret_verdict = &b->results[2 * i + 1] };
    }
}

static void *bench_open(uint32_t i, uint64_t *ret_bytes)
{
    const struct kvt_rank_shape shape = {
        .dtype = KVT_DTYPE_BF16, .plane_count = 2, .channels = 1024, .elements = BENCH_ELEMENTS
    };
    struct bench *b = kvt_alloc(1, sizeof *b);
    if (!b) return NULL;
    b->side = kern_launches_from(i, LAUNCHES);
    b->blocks = b->side ? BENCH_BLOCKS : 1;
    const size_t bytes = (size_t)b->blocks * BENCH_BLOCK;
    b->planes = take_device(b, bytes);
    b->packed = take_device(b, bytes);
    b->chunks = take(b, sizeof *b->chunks * BENCH_LAYERS * b->blocks);
    b->plans = take(b, sizeof *b->plans * BENCH_LAYERS * b->blocks);
    b->packs = take(b, sizeof *b->packs * b->blocks);
    b->unpacks = take(b, sizeof *b->unpacks * b->blocks);
    b->results = take(b, 2 * sizeof *b->results * b->blocks);
    b->scratch = take(b, kvt_block_scratch_bytes(&shape));
    uint8_t *filled = kvt_alloc(1, BENCH_BLOCK);
    const bool is_there = b->planes && b->packed && b->chunks && b->plans && b->packs && b->unpacks && b->results
        && b->scratch && filled;
    if (is_there) {
        struct kvt_rng rng = { 1 };
        rank_fill(filled, shape.dtype, BENCH_BLOCK / 2, shape.channels, RANK_FILL_KV, &rng);
        for (uint32_t n = 0; n < b->blocks; n++) {
            if (b->side) b->side->copy(b->planes + (size_t)n * BENCH_BLOCK, filled, BENCH_BLOCK);
            else memcpy(b->planes + (size_t)n * BENCH_BLOCK, filled, BENCH_BLOCK);
        }
        bench_tables(b, &shape);
        bench_pack_pass(b); /* what unpack takes apart */
        for (uint32_t n = 0; n < b->blocks; n++) b->unpacks[n].length = b->results[2 * n];
    }
    kvt_free(filled);
    if (!is_there || b->results[0] == 0) {
        bench_close(b);
        return NULL;
    }
    *ret_bytes = bytes;
    return b;
}

const struct kern_kernel kern_block_pack = {
    .name = "block_pack",
    .what = "a block's segments to its packed form",
    .impl = impl,
    .is_here = is_here,
    .check = check_pack,
    .bench_open = bench_open,
    .bench_pass = bench_pack_pass,
    .bench_close = bench_close,
};

const struct kern_kernel kern_block_unpack = {
    .name = "block_unpack",
    .what = "a packed block to its segments",
    .impl = impl,
    .is_here = is_here,
    .check = check_unpack,
    .bench_open = bench_open,
    .bench_pass = bench_unpack_pass,
    .bench_close = bench_close,
};
