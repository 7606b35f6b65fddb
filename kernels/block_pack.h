/*
 * block_pack: a whole packed block made from a block's segments, and taken apart into them, in one go: gather and pack,
 * unpack and scatter. It is the form of docs/codec.md without its second stage: LZ4 has no place in a GPU kernel.
 *
 * A packed block of this kernel is what tiers/codec.h unpacks, and, where LZ4 was not used, what it packs: the same
 * decisions, the same bytes. A block in which LZ4 was used is STAGED here: the CPU's codec has to unpack it.
 *
 * Types:   bf16, fp16, fp8. Chunks of less than 2^24 elements.
 * Memory:  plans and scratch are the caller's. chunks, plans, target and the results are read and written by the
 *          kernel: for the GPU they lie where it can reach them (HBM, or mapped host memory).
 * Trust:   unpack believes nothing of the packed bytes: what does not fit is CORRUPT, and nothing out of bounds is read
 *          or written.
 */
#ifndef KVT_KERNELS_BLOCK_PACK_H
#define KVT_KERNELS_BLOCK_PACK_H

#include "kernels/rank_body.h"

enum {
    KVT_BLOCK_FORMAT = 1,
    KVT_BLOCK_HEADER_BYTES = 8,
    KVT_BLOCK_CHUNK_ALIGNMENT = 8,
    KVT_BLOCK_RAW_HEADER_BYTES = 8,
    KVT_BLOCK_CHUNK_HEADER_BYTES = 16,
    KVT_BLOCK_ELEMENTS_MAX = (1 << 24) - 1 /* of a chunk: its counts have 24 bits */
};

enum kvt_block_kind { KVT_BLOCK_RAW, KVT_BLOCK_CONSTANT, KVT_BLOCK_LZ4, KVT_BLOCK_RANKED };
enum { KVT_BLOCK_KIND_MASK = 0x0f, KVT_BLOCK_STAGED_FLAGS = 0x30, KVT_BLOCK_BASED = 0x40 };

/* One layer: where its valid tokens lie, contiguous rows; and the bases of its planes (kvt_rank_bases), or NULL. */
struct kvt_block_chunk {
    uint8_t *plane[2];
    const uint8_t *bases[2];
};

/* What pack decided about a chunk, and where it lies. */
struct kvt_block_plan {
    uint32_t kind; /* enum kvt_block_kind */
    uint32_t expected, start, size;
    struct kvt_rank_table table;
    uint32_t second_count, third_count, escape_count;
};

struct kvt_block_pack {
    struct kvt_rank_shape shape; /* of each chunk: the valid tokens' elements */
    uint32_t layers, tokens;
    uint32_t tables_id; /* of the set that the bases are of; 0: chunks have none */
    uint32_t capacity;  /* bytes at target */
    const struct kvt_block_chunk *chunks;
    struct kvt_block_plan *plans; /* room for `layers`; overwritten */
    uint8_t *target;
    uint32_t *ret_length; /* 0: packing saves less than 1/32 or does not fit; target is undefined then */
};

enum kvt_block_verdict {
    KVT_BLOCK_OK,
    KVT_BLOCK_STAGED, /* LZ4 was used: for the CPU; the chunks are undefined */
    KVT_BLOCK_CORRUPT /* no packed block of this shape; the chunks are undefined */
};

struct kvt_block_unpack {
    struct kvt_rank_shape shape;
    uint32_t layers, tokens;
    uint32_t tables_id; /* of the bases in chunks; a block that needs others is CORRUPT */
    uint32_t length;
    uint32_t first, count; /* count layers from first on alone, chunks has one for each of these; count 0: all layers */
    const struct kvt_block_chunk *chunks;
    const uint8_t *packed;
    uint32_t *ret_verdict; /* enum kvt_block_verdict */
};

/* The reference, and what any other implementation of rank_planes makes of it. scratch: kvt_block_scratch_bytes(). */
void kvt_block_pack(const struct kvt_block_pack *block, const struct kvt_rank_ops *ops, uint8_t *scratch);
void kvt_block_unpack(const struct kvt_block_unpack *block, const struct kvt_rank_ops *ops, uint8_t *scratch);
size_t kvt_block_scratch_bytes(const struct kvt_rank_shape *shape);

/* ---- What every implementation shares -------------------------------------------------------------------------- */

KVT_BODY uint32_t kvt_block_element_bytes(const struct kvt_rank_shape *shape)
{
    return shape->dtype == KVT_DTYPE_FP8 ? 1 : 2;
}

KVT_BODY uint64_t kvt_block_plane_bytes(const struct kvt_rank_shape *shape)
{
    return (uint64_t)shape->elements * kvt_block_element_bytes(shape);
}

KVT_BODY uint64_t kvt_block_chunk_bytes(const struct kvt_rank_shape *shape)
{
    return shape->plane_count * kvt_block_plane_bytes(shape);
}

/* What saves too little to be worth an unpack. */
KVT_BODY uint64_t kvt_block_worth(uint64_t raw_bytes) { return raw_bytes - raw_bytes / 32; }

KVT_BODY uint64_t kvt_block_align(uint64_t at)
{
    return (at + KVT_BLOCK_CHUNK_ALIGNMENT - 1) & ~(uint64_t)(KVT_BLOCK_CHUNK_ALIGNMENT - 1);
}

KVT_BODY uint64_t kvt_block_directory_end(uint32_t layers) { return KVT_BLOCK_HEADER_BYTES + (uint64_t)4 * layers; }

KVT_BODY void kvt_block_store_number(uint8_t *target, uint32_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) target[i] = (uint8_t)(value >> 8 * i);
}

KVT_BODY uint32_t kvt_block_load_number(const uint8_t *source, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++) value |= (uint32_t)source[i] << 8 * i;
    return value;
}

KVT_BODY bool kvt_block_is_zero(const uint8_t *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

/* Kind, table and expected size of a chunk, by a sample of its exponents. */
KVT_BODY void kvt_block_choose(const struct kvt_rank_shape *shape, const uint32_t *histogram, bool is_constant,
                               struct kvt_block_plan *ret_plan)
{
    ret_plan->second_count = ret_plan->third_count = ret_plan->escape_count = 0;
    ret_plan->start = ret_plan->size = 0;
    ret_plan->kind = KVT_BLOCK_RAW;
    ret_plan->expected = (uint32_t)(KVT_BLOCK_RAW_HEADER_BYTES + kvt_block_chunk_bytes(shape));
    if (is_constant) {
        ret_plan->kind = KVT_BLOCK_CONSTANT;
        ret_plan->expected = KVT_BLOCK_CHUNK_HEADER_BYTES;
        return;
    }
    uint64_t sampled = 0;
    for (uint32_t i = 0; i < 256; i++) sampled += histogram[i];
    const uint64_t bits = kvt_rank_choose_body(histogram, &ret_plan->table);
    const uint64_t ranks = (uint64_t)((double)bits / (double)sampled * shape->plane_count * shape->elements / 8);
    const uint64_t ranked = KVT_BLOCK_CHUNK_HEADER_BYTES + kvt_rank_rest_bytes(shape) + ranks;
    if (ranked > kvt_block_worth(kvt_block_chunk_bytes(shape))) return;
    ret_plan->kind = KVT_BLOCK_RANKED;
    ret_plan->expected = (uint32_t)ranked;
}

/* Where the parts of a ranked chunk lie, from its start; `end` is its size. */
struct kvt_block_parts {
    uint64_t rest, first, second[2], third[2], escapes, end;
};

KVT_BODY void kvt_block_parts_of(const struct kvt_rank_shape *shape, uint32_t second_count, uint32_t third_count,
                                 uint32_t escape_count, struct kvt_block_parts *ret_parts)
{
    const uint64_t second = ((uint64_t)second_count + 7) / 8, third = ((uint64_t)third_count + 7) / 8;
    ret_parts->rest = KVT_BLOCK_CHUNK_HEADER_BYTES;
    ret_parts->first = ret_parts->rest + kvt_rank_rest_bytes(shape);
    ret_parts->second[0] = ret_parts->first + kvt_rank_first_bytes(shape);
    ret_parts->second[1] = ret_parts->second[0] + second;
    ret_parts->third[0] = ret_parts->second[1] + second;
    ret_parts->third[1] = ret_parts->third[0] + third;
    ret_parts->escapes = ret_parts->third[1] + third;
    ret_parts->end = ret_parts->escapes + escape_count;
}

KVT_BODY uint64_t kvt_block_plan_bytes(const struct kvt_rank_shape *shape, const struct kvt_block_plan *plan)
{
    if (plan->kind == KVT_BLOCK_RAW) return KVT_BLOCK_RAW_HEADER_BYTES + kvt_block_chunk_bytes(shape);
    if (plan->kind == KVT_BLOCK_CONSTANT) return KVT_BLOCK_CHUNK_HEADER_BYTES;
    struct kvt_block_parts parts;
    kvt_block_parts_of(shape, plan->second_count, plan->third_count, plan->escape_count, &parts);
    return parts.end;
}

/*
 * When all chunks are planned and counted: places them, writes header, directory and the zeros between. Returns the
 * block's length, 0 when it saves too little or does not fit.
 */
KVT_BODY uint32_t kvt_block_lay_out(const struct kvt_block_pack *block)
{
    const uint64_t worth = kvt_block_worth(kvt_block_chunk_bytes(&block->shape) * block->layers);
    const uint64_t capacity = block->capacity, limit = capacity < worth ? capacity : worth;
    uint64_t expected = kvt_block_directory_end(block->layers), at = expected;
    for (uint32_t layer = 0; layer < block->layers; layer++) expected += block->plans[layer].expected;
    /* A sample is a little off: what is a 16th too large for the capacity by prediction may still fit. */
    if (expected > worth || expected > capacity + capacity / 16 || at > limit) return 0;

    for (uint32_t layer = 0; layer < block->layers; layer++) {
        struct kvt_block_plan *plan = &block->plans[layer];
        const uint64_t start = kvt_block_align(at), size = kvt_block_plan_bytes(&block->shape, plan);
        if (start > limit || size > limit - start) return 0;
        for (; at < start; at++) block->target[at] = 0;
        plan->start = (uint32_t)start;
        plan->size = (uint32_t)size;
        at = start + size;
        kvt_block_store_number(block->target + KVT_BLOCK_HEADER_BYTES + (uint64_t)4 * layer, (uint32_t)at, 4);
    }
    block->target[0] = KVT_BLOCK_FORMAT;
    block->target[1] = 0;
    kvt_block_store_number(block->target + 2, block->tokens, 2);
    kvt_block_store_number(block->target + 4, block->tables_id, 4);
    return (uint32_t)at;
}

/* The 8 bytes before a raw chunk, the 16 of a constant or a ranked one. */
KVT_BODY void kvt_block_write_chunk_header(const struct kvt_block_pack *block, const struct kvt_block_chunk *chunk,
                                           const struct kvt_block_plan *plan)
{
    uint8_t *target = block->target + plan->start;
    const uint32_t bytes = plan->kind == KVT_BLOCK_RAW ? KVT_BLOCK_RAW_HEADER_BYTES : KVT_BLOCK_CHUNK_HEADER_BYTES;
    for (uint32_t i = 0; i < bytes; i++) target[i] = 0;
    target[0] = (uint8_t)plan->kind;
    if (plan->kind == KVT_BLOCK_CONSTANT) {
        for (uint32_t p = 0; p < block->shape.plane_count; p++)
            for (uint32_t i = 0; i < kvt_block_element_bytes(&block->shape); i++)
                target[8 + 4 * p + i] = chunk->plane[p][i];
    } else if (plan->kind == KVT_BLOCK_RANKED) {
        if (block->tables_id) target[0] |= KVT_BLOCK_BASED;
        for (uint32_t r = 0; r < KVT_RANK_SYMBOLS; r++) target[1 + r] = plan->table.symbol[r];
        kvt_block_store_number(target + 10, plan->second_count, 3);
        kvt_block_store_number(target + 13, plan->third_count, 3);
    }
}

/* How many layers are taken apart. */
KVT_BODY uint32_t kvt_block_unpack_count(const struct kvt_block_unpack *block)
{
    return block->count ? block->count : block->layers - block->first;
}

/* Header, directory, and the zeros between chunks. */
KVT_BODY enum kvt_block_verdict kvt_block_check_directory(const struct kvt_block_unpack *block)
{
    const uint8_t *packed = block->packed;
    uint64_t at = kvt_block_directory_end(block->layers);
    if (block->length < at || packed[0] != KVT_BLOCK_FORMAT || packed[1] != 0) return KVT_BLOCK_CORRUPT;
    if (kvt_block_load_number(packed + 2, 2) != block->tokens) return KVT_BLOCK_CORRUPT;
    for (uint32_t layer = 0; layer < block->layers; layer++) {
        const uint64_t start = kvt_block_align(at);
        const uint64_t end = kvt_block_load_number(packed + KVT_BLOCK_HEADER_BYTES + (uint64_t)4 * layer, 4);
        if (start > end || end > block->length || end - start < KVT_BLOCK_RAW_HEADER_BYTES) return KVT_BLOCK_CORRUPT;
        if (!kvt_block_is_zero(packed + at, start - at)) return KVT_BLOCK_CORRUPT;
        at = end;
    }
    return at == block->length ? KVT_BLOCK_OK : KVT_BLOCK_CORRUPT;
}

/* A chunk of a block whose directory is sound. */
struct kvt_block_found {
    const uint8_t *packed;
    uint64_t size;
    uint32_t second_count, third_count, escape_count; /* of a ranked one */
    struct kvt_block_parts parts;
};

KVT_BODY void kvt_block_find_chunk(const struct kvt_block_unpack *block, uint32_t layer,
                                   struct kvt_block_found *ret_found)
{
    const uint8_t *ends = block->packed + KVT_BLOCK_HEADER_BYTES;
    const uint64_t before = layer == 0 ? kvt_block_directory_end(block->layers)
                                       : kvt_block_load_number(ends + (uint64_t)4 * (layer - 1), 4);
    const uint64_t start = kvt_block_align(before);
    ret_found->packed = block->packed + start;
    ret_found->size = kvt_block_load_number(ends + (uint64_t)4 * layer, 4) - start;
}

/* Whether a ranked chunk's sizes agree with each other; fills in the counts and the parts. */
KVT_BODY enum kvt_block_verdict kvt_block_check_ranked(const struct kvt_block_unpack *block,
                                                       struct kvt_block_found *found)
{
    const uint8_t flags = found->packed[0];
    if (flags & ~(KVT_BLOCK_KIND_MASK | KVT_BLOCK_STAGED_FLAGS | KVT_BLOCK_BASED)) return KVT_BLOCK_CORRUPT;
    if (flags & KVT_BLOCK_STAGED_FLAGS) return KVT_BLOCK_STAGED;
    if ((flags & KVT_BLOCK_BASED)
        && (block->tables_id == 0 || kvt_block_load_number(block->packed + 4, 4) != block->tables_id))
        return KVT_BLOCK_CORRUPT;
    if (found->size < KVT_BLOCK_CHUNK_HEADER_BYTES) return KVT_BLOCK_CORRUPT;
    found->second_count = kvt_block_load_number(found->packed + 10, 3);
    found->third_count = kvt_block_load_number(found->packed + 13, 3);
    kvt_block_parts_of(&block->shape, found->second_count, found->third_count, 0, &found->parts);
    if (found->size < found->parts.end) return KVT_BLOCK_CORRUPT;
    const uint64_t escapes = found->size - found->parts.end;
    if (found->second_count > (uint64_t)block->shape.plane_count * block->shape.elements) return KVT_BLOCK_CORRUPT;
    if (found->third_count > found->second_count || escapes > found->third_count) return KVT_BLOCK_CORRUPT;
    found->escape_count = (uint32_t)escapes;
    found->parts.end = found->size;
    return KVT_BLOCK_OK;
}

/* Whether a chunk is what its first byte says. */
KVT_BODY enum kvt_block_verdict kvt_block_check_chunk(const struct kvt_block_unpack *block,
                                                      struct kvt_block_found *found)
{
    const struct kvt_rank_shape *shape = &block->shape;
    const uint8_t kind = found->packed[0];
    if ((kind & KVT_BLOCK_KIND_MASK) == KVT_BLOCK_RANKED) return kvt_block_check_ranked(block, found);
    if (kind == KVT_BLOCK_LZ4) return KVT_BLOCK_STAGED;
    if (kind == KVT_BLOCK_RAW)
        return found->size == KVT_BLOCK_RAW_HEADER_BYTES + kvt_block_chunk_bytes(shape)
                && kvt_block_is_zero(found->packed + 1, 7)
            ? KVT_BLOCK_OK
            : KVT_BLOCK_CORRUPT;
    if (kind != KVT_BLOCK_CONSTANT || found->size != KVT_BLOCK_CHUNK_HEADER_BYTES) return KVT_BLOCK_CORRUPT;
    if (!kvt_block_is_zero(found->packed + 1, 7)) return KVT_BLOCK_CORRUPT;
    for (uint32_t p = 0; p < 2; p++) {
        const uint32_t used = p < shape->plane_count ? kvt_block_element_bytes(shape) : 0;
        if (!kvt_block_is_zero(found->packed + 8 + 4 * p + used, 4 - used)) return KVT_BLOCK_CORRUPT;
    }
    return KVT_BLOCK_OK;
}

#endif
