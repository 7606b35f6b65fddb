#include "tests/unit/rank_cases.h"

#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { CANARY_BYTES = 72, CANARY = 0xa5 };

const char *rank_fill_name(enum rank_fill fill)
{
    static const char *const names[] = { "random", "zero", "constant", "kv", "special", "two", "escapes" };
    return names[fill];
}

static uint16_t special_value(enum kvt_dtype dtype, struct kvt_rng *rng)
{
    static const uint16_t bf16[] = { 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x0001, 0x807f, 0x0000, 0x8000, 0x7f7f };
    static const uint16_t fp16[] = { 0x7c00, 0xfc00, 0x7e01, 0xffff, 0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff };
    static const uint16_t fp8[] = { 0x7f, 0xff, 0x01, 0x87, 0x00, 0x80, 0x7e, 0xfe, 0x08 };
    const uint16_t *values = dtype == KVT_DTYPE_BF16 ? bf16 : dtype == KVT_DTYPE_FP16 ? fp16 : fp8;
    return values[kvt_rng_below(rng, 9)];
}

static uint16_t compose(enum kvt_dtype dtype, uint32_t exponent, uint64_t noise)
{
    if (dtype == KVT_DTYPE_BF16) return (uint16_t)((noise & 0x807f) | (exponent & 255) << 7);
    if (dtype == KVT_DTYPE_FP16) return (uint16_t)((noise & 0x83ff) | (exponent & 31) << 10);
    return (uint16_t)((noise & 0x87) | (exponent & 15) << 3);
}

static uint16_t value_of(enum kvt_dtype dtype, uint32_t channel, enum rank_fill fill, struct kvt_rng *rng)
{
    const uint64_t noise = kvt_rng_next(rng);
    const uint32_t middle = dtype == KVT_DTYPE_BF16 ? 125 : dtype == KVT_DTYPE_FP16 ? 14 : 7;
    switch (fill) {
    case RANK_FILL_RANDOM: return (uint16_t)noise;
    case RANK_FILL_ZERO: return 0;
    case RANK_FILL_CONSTANT: return compose(dtype, middle, 0x3f);
    case RANK_FILL_KV: {
        uint32_t below = 0;
        while (below < 12 && (noise >> (20 + below) & 1)) below++;
        return compose(dtype, middle + channel % 5 - below, noise);
    }
    case RANK_FILL_SPECIAL: return kvt_rng_below(rng, 3) ? special_value(dtype, rng) : compose(dtype, middle, noise);
    case RANK_FILL_TWO: return compose(dtype, noise >> 32 & 1 ? 1 : middle, noise);
    case RANK_FILL_ESCAPES: return compose(dtype, (uint32_t)(noise >> 32) % 40, noise);
    case RANK_FILL_COUNT: break;
    }
    return 0;
}

void rank_fill(uint8_t *target, enum kvt_dtype dtype, uint32_t elements, uint32_t channels, enum rank_fill fill,
               struct kvt_rng *rng)
{
    for (uint32_t i = 0; i < elements; i++) {
        const uint16_t value = value_of(dtype, i % channels, fill, rng);
        if (dtype == KVT_DTYPE_FP8) target[i] = (uint8_t)value;
        else kvt_store_u16(target + 2 * (size_t)i, value);
    }
}

void rank_buffer_init(struct rank_buffer *buffer, size_t size)
{
    buffer->memory = kvt_alloc(1, size + 2 * CANARY_BYTES + 1);
    memset(buffer->memory, CANARY, size + 2 * CANARY_BYTES + 1);
    buffer->bytes = buffer->memory + CANARY_BYTES + 1;
    buffer->size = size;
}

bool rank_buffer_is_intact(const struct rank_buffer *buffer)
{
    for (size_t i = 0; i < CANARY_BYTES; i++)
        if (buffer->bytes[-1 - (ptrdiff_t)i] != CANARY || buffer->bytes[buffer->size + i] != CANARY) return false;
    return true;
}

void rank_buffer_done(struct rank_buffer *buffer) { kvt_free(buffer->memory); }

void rank_case_init(struct rank_case *c, struct kvt_rank_shape shape, bool is_based, enum rank_fill fill,
                    struct kvt_rng *rng)
{
    *c = (struct rank_case){ .shape = shape };
    const size_t plane_bytes = (size_t)shape.elements * kvt_dtype_bytes(shape.dtype);
    for (uint32_t p = 0; p < 2; p++) {
        rank_buffer_init(&c->source[p], plane_bytes);
        rank_buffer_init(&c->target[p], plane_bytes);
        rank_fill(c->source[p].bytes, shape.dtype, shape.elements, shape.channels, fill, rng);
        rank_buffer_init(&c->second[p], kvt_rank_stream_room(&shape));
        rank_buffer_init(&c->third[p], kvt_rank_stream_room(&shape));
        if (!is_based) continue;
        c->bases[p] = kvt_alloc(1, (size_t)shape.channels + KVT_RANK_GROUP);
        for (uint32_t i = 0; i < shape.channels; i++) c->bases[p][i] = (uint8_t)kvt_rng_next(rng);
        if (fill == RANK_FILL_KV) /* what learning would find */
            for (uint32_t i = 0; i < shape.channels; i++) c->bases[p][i] = (uint8_t)(i % 5 + 250);
        for (uint32_t i = 0; i < KVT_RANK_GROUP; i++) c->bases[p][shape.channels + i] = c->bases[p][i];
    }
    rank_buffer_init(&c->rest, kvt_rank_rest_bytes(&shape));
    rank_buffer_init(&c->first, kvt_rank_first_bytes(&shape));
    rank_buffer_init(&c->escapes, (size_t)shape.plane_count * shape.elements + KVT_RANK_SLACK);
}

bool rank_case_is_intact(const struct rank_case *c)
{
    bool is_intact = rank_buffer_is_intact(&c->rest) && rank_buffer_is_intact(&c->first)
        && rank_buffer_is_intact(&c->escapes);
    for (uint32_t p = 0; p < 2; p++) {
        is_intact = is_intact && rank_buffer_is_intact(&c->source[p]) && rank_buffer_is_intact(&c->target[p]);
        is_intact = is_intact && rank_buffer_is_intact(&c->second[p]) && rank_buffer_is_intact(&c->third[p]);
    }
    return is_intact;
}

void rank_case_done(struct rank_case *c)
{
    for (uint32_t p = 0; p < 2; p++) {
        rank_buffer_done(&c->source[p]);
        rank_buffer_done(&c->target[p]);
        rank_buffer_done(&c->second[p]);
        rank_buffer_done(&c->third[p]);
        kvt_free(c->bases[p]);
    }
    rank_buffer_done(&c->rest);
    rank_buffer_done(&c->first);
    rank_buffer_done(&c->escapes);
}

struct kvt_rank_pack rank_case_pack(struct rank_case *c, const struct kvt_rank_ops *ops)
{
    struct kvt_rank_pack args = {
        .shape = c->shape,
        .source = { c->source[0].bytes, c->source[1].bytes },
        .bases = { { c->bases[0], c->bases[1] } },
        .rest = c->rest.bytes,
        .first = c->first.bytes,
        .second = { c->second[0].bytes, c->second[1].bytes },
        .third = { c->third[0].bytes, c->third[1].bytes },
        .escapes = c->escapes.bytes,
    };
    uint32_t histogram[256];
    ops->sample(&args.shape, args.source, &args.bases, histogram);
    (void)kvt_rank_choose(histogram, &args.table);
    ops->pack(&args);
    return args;
}

struct kvt_rank_unpack rank_case_unpack_args(struct rank_case *c, const struct kvt_rank_pack *packed)
{
    struct kvt_rank_unpack args = {
        .shape = c->shape,
        .target = { c->target[0].bytes, c->target[1].bytes },
        .bases = packed->bases,
        .rest = packed->rest,
        .first = packed->first,
        .second = { packed->second[0], packed->second[1] },
        .third = { packed->third[0], packed->third[1] },
        .escapes = packed->escapes,
        .second_count = packed->second_count,
        .third_count = packed->third_count,
        .escape_count = packed->escape_count,
    };
    memcpy(args.symbol, packed->table.symbol, sizeof args.symbol);
    return args;
}

static const uint8_t *exact_copy(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = kvt_alloc(1, size + KVT_RANK_SLACK);
    memcpy(copy, bytes, size);
    memset(copy + size, 0x3c, KVT_RANK_SLACK);
    return copy;
}

bool rank_case_unpack(const struct kvt_rank_ops *ops, struct kvt_rank_unpack args)
{
    for (uint32_t k = 0; k < 2; k++) {
        args.second[k] = exact_copy(args.second[k], ((size_t)args.second_count + 7) / 8);
        args.third[k] = exact_copy(args.third[k], ((size_t)args.third_count + 7) / 8);
    }
    args.escapes = exact_copy(args.escapes, args.escape_count);
    const bool is_ok = ops->unpack(&args);
    for (uint32_t k = 0; k < 2; k++) {
        kvt_free((uint8_t *)(uintptr_t)args.second[k]);
        kvt_free((uint8_t *)(uintptr_t)args.third[k]);
    }
    kvt_free((uint8_t *)(uintptr_t)args.escapes);
    return is_ok;
}
