/* block_pack on the CPU, chunk after chunk: with the reference of rank_planes it is the specification of the GPU's. */
#include "kernels/block_pack.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

size_t kvt_block_scratch_bytes(const struct kvt_rank_shape *shape)
{
    return 4 * kvt_rank_stream_room(shape) + (size_t)shape->plane_count * shape->elements + KVT_RANK_SLACK;
}

static struct kvt_rank_bases bases_of(const struct kvt_block_chunk *chunk, bool is_based)
{
    return is_based ? (struct kvt_rank_bases){ { chunk->bases[0], chunk->bases[1] } }
                    : (struct kvt_rank_bases){ { NULL, NULL } };
}

static bool is_constant(const struct kvt_rank_shape *shape, const struct kvt_block_chunk *chunk)
{
    const size_t bytes = kvt_block_plane_bytes(shape), element = kvt_block_element_bytes(shape);
    for (uint32_t p = 0; p < shape->plane_count; p++)
        if (memcmp(chunk->plane[p], chunk->plane[p] + element, bytes - element) != 0) return false;
    return true;
}

/* ---- Pack ------------------------------------------------------------------------------------------------------ */

/* The streams go to scratch; rest and first to where they are given. */
static struct kvt_rank_pack pack_args(const struct kvt_block_pack *block, uint32_t layer, uint8_t *rest, uint8_t *first,
                                      uint8_t *scratch)
{
    const struct kvt_block_chunk *chunk = &block->chunks[layer];
    const size_t room = kvt_rank_stream_room(&block->shape);
    return (struct kvt_rank_pack){
        .shape = block->shape,
        .source = { chunk->plane[0], chunk->plane[1] },
        .bases = bases_of(chunk, block->tables_id != 0),
        .table = block->plans[layer].table,
        .rest = rest,
        .first = first,
        .second = { scratch, scratch + room },
        .third = { scratch + 2 * room, scratch + 3 * room },
        .escapes = scratch + 4 * room,
    };
}

/* How many elements of a chunk go on to each level. */
static void count(const struct kvt_block_pack *block, uint32_t layer)
{
    const struct kvt_rank_shape *shape = &block->shape;
    struct kvt_block_plan *plan = &block->plans[layer];
    struct kvt_rank_coder coder;
    kvt_rank_coder_init(&plan->table, &coder);
    for (uint32_t p = 0; p < shape->plane_count; p++) {
        const uint8_t *bases = block->tables_id ? block->chunks[layer].bases[p] : NULL;
        for (uint32_t i = 0; i < shape->elements; i++) {
            const uint32_t value = kvt_rank_load_value(shape->dtype, block->chunks[layer].plane[p], i);
            const uint32_t exponent = kvt_rank_exponent(shape->dtype, value);
            const uint32_t code = kvt_rank_code(&coder, exponent - (bases ? bases[i % shape->channels] : 0u));
            plan->second_count += (code & 3) == 3;
            plan->third_count += (code & 15) == 15;
            plan->escape_count += code == 0x3f;
        }
    }
}

static void write_ranked(const struct kvt_block_pack *block, uint32_t layer, const struct kvt_rank_ops *ops,
                         uint8_t *scratch)
{
    const struct kvt_block_plan *plan = &block->plans[layer];
    uint8_t *target = block->target + plan->start;
    struct kvt_block_parts parts;
    kvt_block_parts_of(&block->shape, plan->second_count, plan->third_count, plan->escape_count, &parts);
    struct kvt_rank_pack args = pack_args(block, layer, target + parts.rest, target + parts.first, scratch);
    ops->pack(&args);
    KVT_ASSERT(args.second_count == plan->second_count);
    KVT_ASSERT(args.third_count == plan->third_count);
    KVT_ASSERT(args.escape_count == plan->escape_count);
    for (uint32_t k = 0; k < 2; k++) {
        memcpy(target + parts.second[k], args.second[k], (args.second_count + 7) / 8);
        memcpy(target + parts.third[k], args.third[k], (args.third_count + 7) / 8);
    }
    memcpy(target + parts.escapes, args.escapes, args.escape_count);
}

void kvt_block_pack(const struct kvt_block_pack *block, const struct kvt_rank_ops *ops, uint8_t *scratch)
{
    const struct kvt_rank_shape *shape = &block->shape;
    KVT_ASSERT(shape->dtype == KVT_DTYPE_BF16 || shape->dtype == KVT_DTYPE_FP16 || shape->dtype == KVT_DTYPE_FP8);
    KVT_ASSERT((uint64_t)shape->plane_count * shape->elements <= KVT_BLOCK_ELEMENTS_MAX);
    for (uint32_t layer = 0; layer < block->layers; layer++) {
        const struct kvt_block_chunk *chunk = &block->chunks[layer];
        const struct kvt_rank_bases bases = bases_of(chunk, block->tables_id != 0);
        const uint8_t *const source[2] = { chunk->plane[0], chunk->plane[1] };
        uint32_t histogram[256];
        ops->sample(shape, source, &bases, histogram);
        kvt_block_choose(shape, histogram, is_constant(shape, chunk), &block->plans[layer]);
        if (block->plans[layer].kind == KVT_BLOCK_RANKED) count(block, layer);
    }
    const uint32_t length = kvt_block_lay_out(block);
    for (uint32_t layer = 0; length > 0 && layer < block->layers; layer++) {
        const struct kvt_block_plan *plan = &block->plans[layer];
        kvt_block_write_chunk_header(block, &block->chunks[layer], plan);
        if (plan->kind == KVT_BLOCK_RANKED) write_ranked(block, layer, ops, scratch);
        for (uint32_t p = 0; plan->kind == KVT_BLOCK_RAW && p < shape->plane_count; p++)
            memcpy(block->target + plan->start + KVT_BLOCK_RAW_HEADER_BYTES + p * kvt_block_plane_bytes(shape),
                   block->chunks[layer].plane[p], kvt_block_plane_bytes(shape));
    }
    *block->ret_length = length;
}

/* ---- Unpack ---------------------------------------------------------------------------------------------------- */

static bool unpack_ranked(const struct kvt_block_unpack *block, const struct kvt_block_chunk *chunk,
                          const struct kvt_block_found *found, const struct kvt_rank_ops *ops, uint8_t *scratch)
{
    const struct kvt_block_parts *parts = &found->parts;
    struct kvt_rank_unpack args = {
        .shape = block->shape,
        .target = { chunk->plane[0], chunk->plane[1] },
        .bases = bases_of(chunk, found->packed[0] & KVT_BLOCK_BASED),
        .rest = found->packed + parts->rest,
        .first = found->packed + parts->first,
        .second_count = found->second_count,
        .third_count = found->third_count,
        .escape_count = found->escape_count,
    };
    memcpy(args.symbol, found->packed + 1, KVT_RANK_SYMBOLS);
    /* Implementations read a little behind a stream: from a copy they may. */
    const uint8_t *streams = memcpy(scratch, found->packed + parts->second[0], parts->end - parts->second[0]);
    for (uint32_t k = 0; k < 2; k++) {
        args.second[k] = streams + (parts->second[k] - parts->second[0]);
        args.third[k] = streams + (parts->third[k] - parts->second[0]);
    }
    args.escapes = streams + (parts->escapes - parts->second[0]);
    return ops->unpack(&args);
}

/* The i-th of the layers that are wanted. */
static enum kvt_block_verdict unpack_chunk(const struct kvt_block_unpack *block, uint32_t i,
                                           const struct kvt_rank_ops *ops, uint8_t *scratch)
{
    const struct kvt_block_chunk *chunk = &block->chunks[i];
    const uint32_t element = kvt_block_element_bytes(&block->shape);
    const size_t plane_bytes = kvt_block_plane_bytes(&block->shape);
    struct kvt_block_found found = { 0 };
    kvt_block_find_chunk(block, block->first + i, &found);
    const enum kvt_block_verdict verdict = kvt_block_check_chunk(block, &found);
    if (verdict != KVT_BLOCK_OK) return verdict;
    if ((found.packed[0] & KVT_BLOCK_KIND_MASK) == KVT_BLOCK_RANKED)
        return unpack_ranked(block, chunk, &found, ops, scratch) ? KVT_BLOCK_OK : KVT_BLOCK_CORRUPT;
    for (uint32_t p = 0; p < block->shape.plane_count; p++) {
        if (found.packed[0] == KVT_BLOCK_RAW)
            memcpy(chunk->plane[p], found.packed + KVT_BLOCK_RAW_HEADER_BYTES + p * plane_bytes, plane_bytes);
        for (size_t at = 0; found.packed[0] == KVT_BLOCK_CONSTANT && at < plane_bytes; at += element)
            memcpy(chunk->plane[p] + at, found.packed + 8 + 4 * p, element);
    }
    return KVT_BLOCK_OK;
}

void kvt_block_unpack(const struct kvt_block_unpack *block, const struct kvt_rank_ops *ops, uint8_t *scratch)
{
    enum kvt_block_verdict worst = kvt_block_check_directory(block);
    KVT_ASSERT(block->first < block->layers);
    KVT_ASSERT(block->count <= block->layers - block->first);
    for (uint32_t i = 0; worst != KVT_BLOCK_CORRUPT && i < kvt_block_unpack_count(block); i++) {
        const enum kvt_block_verdict verdict = unpack_chunk(block, i, ops, scratch);
        if (verdict > worst) worst = verdict;
    }
    *block->ret_verdict = worst;
}
