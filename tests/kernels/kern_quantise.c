/*
 * Pages to codes and scales and back, of every type and code: rows from noise in every bit (NaN, infinities, subnormals)
 * to narrow ones; the same codes, scales and values as the reference's, and the same codes once more from what came back.
 */
#include "kernels/quantise.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"

static uint32_t cpu_count(void)
{
    uint32_t count = 0;
    while (kvt_quant_ops_at(count)) count++;
    return count;
}

static const char *impl(uint32_t i)
{
    if (i < cpu_count()) return kvt_quant_ops_at(i)->name;
    const struct kern_launches *side = kern_launches_from(i, cpu_count());
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i)
{
    return i < cpu_count() ? kvt_quant_ops_at(i)->is_supported() : kern_launches_from(i, cpu_count())->is_here();
}

static bool run_page(uint32_t i, struct kvt_quant_page *page, bool is_back)
{
    const struct kern_launches *side = kern_launches_from(i, cpu_count());
    if (side) {
        const enum kvt_status status = (is_back ? side->dequantise : side->quantise)(page, 1, page->shape.rows, 3,
                                                                                     NULL);
        return status == KVT_OK && side->finish();
    }
    const struct kvt_quant_ops *ops = kvt_quant_ops_at(i);
    if (is_back) ops->dequantise(&page->shape, page->codes, page->scales, page->page);
    else ops->quantise(&page->shape, page->page, page->codes, page->scales);
    return true;
}

/* ---- Fills ----------------------------------------------------------------------------------------------------- */

enum fill { FILL_NOISE, FILL_NARROW, FILL_SPECIAL, FILL_LARGE, FILL_SMALL, FILL_ZERO, FILLS };
static const char *const fill_names[] = { "noise", "narrow", "special", "large", "small", "zero" };

/* Sign, exponent and fraction as a type has them; exponent is of the type, biased. */
static uint32_t compose(enum kvt_dtype dtype, uint64_t noise, uint32_t exponent)
{
    if (dtype == KVT_DTYPE_FP32) return (uint32_t)(noise & 0x807fffff) | exponent << 23;
    if (dtype == KVT_DTYPE_BF16) return (uint32_t)(noise & 0x807f) | exponent << 7;
    return (uint32_t)(noise & 0x83ff) | exponent << 10;
}

static uint32_t draw(enum kvt_dtype dtype, enum fill fill, struct kvt_rng *rng)
{
    const uint64_t noise = kvt_rng_next(rng);
    const uint32_t top = dtype == KVT_DTYPE_FP16 ? 31 : 255, pick = (uint32_t)kvt_rng_below(rng, 6);
    switch (fill) {
    case FILL_NOISE: return (uint32_t)noise;
    case FILL_NARROW: return compose(dtype, noise, top / 2 - 8 + (uint32_t)kvt_rng_below(rng, 11));
    case FILL_SPECIAL:
        return compose(dtype, pick < 2 ? noise & 0x80008000u : noise,
                       pick % 3 == 0       ? top
                           : pick % 3 == 1 ? 0
                                           : top / 2);
    case FILL_LARGE: return compose(dtype, noise, top - 1 - (pick == 0));
    case FILL_SMALL: return compose(dtype, noise, pick / 2);
    case FILL_ZERO: return compose(dtype, noise & 0x80008000u, 0);
    case FILLS: break;
    }
    return 0;
}

static void fill_page(uint8_t *page, const struct kvt_quant_shape *shape, enum fill fill, struct kvt_rng *rng)
{
    for (size_t i = 0; i < (size_t)shape->rows * shape->width; i++) {
        const uint32_t value = draw(shape->dtype, fill, rng);
        if (shape->dtype == KVT_DTYPE_FP32) kvt_store_u32(page + 4 * i, value);
        else kvt_store_u16(page + 2 * i, (uint16_t)value);
    }
}

/* ---- Check ----------------------------------------------------------------------------------------------------- */

/* A page of an implementation (0) and of the reference (1). */
struct quant_case {
    struct kvt_quant_shape shape;
    enum fill fill;
    struct kern_buffer page[2], codes[2], scales[2], back[2], again_codes, again_scales, table;
};

static bool differs(const struct kern_run *run, const struct quant_case *c, const char *what, size_t index)
{
    return kern_differs(run, "%s at %zu; %s to %s, %u rows of %u, fill %s", what, index, kvt_dtype_name(c->shape.dtype),
                        c->shape.code == KVT_QUANT_FP8 ? "fp8" : "int8", c->shape.rows, c->shape.width,
                        fill_names[c->fill]);
}

static bool same(const struct kern_run *run, const struct quant_case *c, const char *what, const struct kern_buffer *a,
                 const struct kern_buffer *b)
{
    const size_t index = kern_first_difference(a->bytes, b->bytes, a->size);
    return index == a->size || differs(run, c, what, index);
}

static bool quantise_both(uint32_t i, const struct quant_case *c, bool is_back)
{
    struct kvt_quant_page *page = (struct kvt_quant_page *)(void *)c->table.bytes;
    *page = (struct kvt_quant_page){ .shape = c->shape,
                                     .page = is_back ? c->back[0].bytes : c->page[0].bytes,
                                     .codes = c->codes[0].bytes,
                                     .scales = c->scales[0].bytes };
    struct kvt_quant_page wanted = { .shape = c->shape,
                                     .page = is_back ? c->back[1].bytes : c->page[1].bytes,
                                     .codes = c->codes[1].bytes,
                                     .scales = c->scales[1].bytes };
    return run_page(i, page, is_back) && run_page(0, &wanted, is_back);
}

static bool quantise_again(uint32_t i, const struct quant_case *c)
{
    struct kvt_quant_page *page = (struct kvt_quant_page *)(void *)c->table.bytes;
    *page = (struct kvt_quant_page){
        .shape = c->shape, .page = c->back[0].bytes, .codes = c->again_codes.bytes, .scales = c->again_scales.bytes
    };
    return run_page(i, page, false);
}

static bool check_case(uint32_t i, struct kern_run *run, struct quant_case *c)
{
    if (!quantise_both(i, c, false)) return differs(run, c, "the launch failed", 0);
    if (!same(run, c, "scales", &c->scales[0], &c->scales[1])) return false;
    if (!same(run, c, "codes", &c->codes[0], &c->codes[1])) return false;
    if (!quantise_both(i, c, true)) return differs(run, c, "the launch failed", 0);
    if (!same(run, c, "values", &c->back[0], &c->back[1])) return false;
    if (!quantise_again(i, c)) return differs(run, c, "the launch failed", 0);
    if (!same(run, c, "scales of the replay", &c->again_scales, &c->scales[0])) return false;
    if (!same(run, c, "codes of the replay", &c->again_codes, &c->codes[0])) return false;
    const struct kern_buffer *buffers[] = { &c->page[0],     &c->codes[0],     &c->scales[0], &c->back[0],
                                            &c->again_codes, &c->again_scales, &c->table };
    for (uint32_t b = 0; b < KVT_ARRAY_COUNT(buffers); b++)
        if (!kern_buffer_is_intact(buffers[b])) return differs(run, c, "a canary", b);
    return true;
}

static bool check_shape(uint32_t i, struct kern_run *run, struct kvt_quant_shape shape, enum fill fill,
                        struct kvt_rng *rng)
{
    struct quant_case c = { .shape = shape, .fill = fill };
    const size_t elements = (size_t)shape.rows * shape.width, bytes = elements * kvt_dtype_bytes(shape.dtype);
    const size_t misalign = kvt_rng_below(rng, 3) == 0 ? kvt_rng_below(rng, 32) : 0;
    for (uint32_t k = 0; k < 2; k++) {
        const struct kern_launches *side = k == 0 ? kern_launches_from(i, cpu_count()) : NULL;
        kern_buffer_init(&c.page[k], side, bytes, misalign);
        kern_buffer_init(&c.back[k], side, bytes, misalign);
        kern_buffer_init(&c.codes[k], side, elements, misalign);
        kern_buffer_init(&c.scales[k], side, shape.rows, misalign);
    }
    const struct kern_launches *side = kern_launches_from(i, cpu_count());
    kern_buffer_init(&c.again_codes, side, elements, misalign);
    kern_buffer_init(&c.again_scales, side, shape.rows, misalign);
    kern_buffer_init(&c.table, side, sizeof(struct kvt_quant_page), 0);
    fill_page(c.page[0].bytes, &shape, fill, rng);
    memcpy(c.page[1].bytes, c.page[0].bytes, bytes);
    const bool is_ok = check_case(i, run, &c);
    for (uint32_t k = 0; k < 2; k++) {
        kern_buffer_done(&c.page[k]);
        kern_buffer_done(&c.back[k]);
        kern_buffer_done(&c.codes[k]);
        kern_buffer_done(&c.scales[k]);
    }
    kern_buffer_done(&c.again_codes);
    kern_buffer_done(&c.again_scales);
    kern_buffer_done(&c.table);
    run->compared++;
    return is_ok;
}

static bool check(uint32_t i, struct kern_run *run)
{
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP32 };
    static const uint32_t widths[] = { 1, 7, 31, 32, 33, 64, 80, 128 };
    struct kvt_rng rng = { run->seed };
    for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++)
        for (uint32_t w = 0; w < KVT_ARRAY_COUNT(widths); w++)
            for (uint32_t f = 0; f < 2 * FILLS; f++) {
                const struct kvt_quant_shape shape = { .dtype = dtypes[d],
                                                       .code = f % 2 ? KVT_QUANT_INT8 : KVT_QUANT_FP8,
                                                       .rows = 1 + (uint32_t)kvt_rng_below(&rng, 13),
                                                       .width = widths[w] };
                if (!check_shape(i, run, shape, (enum fill)(f / 2), &rng)) return false;
            }
    return true;
}

/* ---- Speed: 8 MiB of bf16 to fp8 ------------------------------------------------------------------------------- */

enum { BENCH_ROWS = 32768, BENCH_WIDTH = 128 };

struct bench {
    uint32_t impl;
    const struct kern_launches *side;
    struct kvt_quant_page *page;
};

static void bench_close(void *user)
{
    struct bench *b = user;
    uint8_t *const memory[] = { b->page->page, b->page->codes, b->page->scales };
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(memory); k++) {
        if (b->side) b->side->device_free(memory[k]);
        else kvt_free(memory[k]);
    }
    if (b->side) b->side->memory_free(b->page);
    else kvt_free(b->page);
    kvt_free(b);
}

static void *bench_open(uint32_t i, uint64_t *ret_bytes)
{
    struct bench *b = kvt_alloc(1, sizeof *b);
    if (!b) return NULL;
    b->impl = i;
    b->side = kern_launches_from(i, cpu_count());
    b->page = b->side ? b->side->memory_alloc(sizeof *b->page) : kvt_alloc(1, sizeof *b->page);
    if (!b->page) {
        kvt_free(b);
        return NULL;
    }
    const size_t elements = (size_t)BENCH_ROWS * BENCH_WIDTH;
    void *(*const take)(size_t) = b->side ? b->side->device_alloc : NULL;
    *b->page = (struct kvt_quant_page){
        .shape = { .dtype = KVT_DTYPE_BF16, .code = KVT_QUANT_FP8, .rows = BENCH_ROWS, .width = BENCH_WIDTH },
        .page = take ? take(2 * elements) : kvt_alloc(2, elements),
        .codes = take ? take(elements) : kvt_alloc(1, elements),
        .scales = take ? take(BENCH_ROWS) : kvt_alloc(1, BENCH_ROWS),
    };
    uint8_t *filled = kvt_alloc(2, elements);
    if (!b->page->page || !b->page->codes || !b->page->scales || !filled) {
        kvt_free(filled);
        bench_close(b);
        return NULL;
    }
    struct kvt_rng rng = { 1 };
    fill_page(filled, &b->page->shape, FILL_NARROW, &rng);
    if (b->side) b->side->copy(b->page->page, filled, 2 * elements);
    else memcpy(b->page->page, filled, 2 * elements);
    kvt_free(filled);
    *ret_bytes = 2 * elements;
    return b;
}

static void bench_pass(void *user)
{
    const struct bench *b = user;
    (void)run_page(b->impl, b->page, false);
}

const struct kern_kernel kern_quantise = {
    .name = "quantise",
    .what = "pages to fp8 or int8 with scales, and back",
    .impl = impl,
    .is_here = is_here,
    .check = check,
    .bench_open = bench_open,
    .bench_pass = bench_pass,
    .bench_close = bench_close,
};
