/* codec: what real pages shrink by. */
#include "tests/unit/codec_bench.h"

/* ---- Ratios ---------------------------------------------------------------------------------------------------- */

/* Real pages: `count` of them, each [K, V][16 tokens][256 channels]. */
struct pages {
    enum kvt_dtype dtype;
    const uint8_t *bytes;
    size_t count;
};

static size_t plane_of_page_bytes(const struct pages *pages)
{
    return (size_t)KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * kvt_dtype_bytes(pages->dtype);
}

/* Half 0 is Gemma's, half 1 the small model's. */
static struct pages embedded_pages(enum kvt_dtype dtype, uint32_t half)
{
    size_t bytes;
    const uint8_t *all = kvt_pages(dtype, &bytes);
    struct pages pages = { .dtype = dtype, .bytes = all + half * (bytes / 2) };
    pages.count = bytes / 2 / (2 * plane_of_page_bytes(&pages));
    return pages;
}

static struct kvt_group_shape group_of_pages(enum kvt_dtype dtype, uint32_t layers)
{
    return (struct kvt_group_shape){ .dtype = dtype, .layers = layers, .kv_heads = 1, .head_dim = KVT_PAGES_CHANNELS };
}

/* Puts consecutive pages into the block, per_layer of them a layer. */
static void load_pages(struct bench *b, const struct pages *pages, size_t first, size_t per_layer)
{
    const size_t half = plane_of_page_bytes(pages);
    for (size_t i = 0; i < b->layers * per_layer; i++)
        for (uint32_t p = 0; p < 2; p++)
            memcpy(b->views[i / per_layer].plane[p] + i % per_layer * half, pages->bytes + (2 * (first + i) + p) * half,
                   half);
}

struct sizes {
    size_t raw, stored;
};

static double ratio_of(struct sizes sizes) { return (double)sizes.raw / (double)sizes.stored; }

/* Packs what is in the block; it comes back exact. */
static void count_block(struct bench *b, struct sizes *sizes)
{
    const uint32_t length = round_trip(b);
    sizes->raw += raw_bytes(b);
    sizes->stored += length ? length : raw_bytes(b);
}

/* Raw over packed of pages in blocks of so many layers with per_layer pages each. */
static double pages_ratio(struct pages pages, uint32_t layers, uint32_t per_layer)
{
    const struct kvt_group_shape group = group_of_pages(pages.dtype, layers);
    struct sizes sizes = { 0, 0 };
    struct bench b;
    bench_init(&b, &group, KVT_PAGES_TOKENS * per_layer, KVT_PAGES_TOKENS * per_layer);
    for (size_t page = 0; page + layers * per_layer <= pages.count; page += layers * per_layer) {
        load_pages(&b, &pages, page, per_layer);
        count_block(&b, &sizes);
    }
    bench_done(&b);
    return ratio_of(sizes);
}

/* The same pages cut into blocks of consecutive bytes, one layer each, as filling another shape does. */
static double bytes_ratio(enum kvt_dtype dtype, uint32_t block_bytes)
{
    size_t page_bytes;
    const uint8_t *pages = kvt_pages(dtype, &page_bytes);
    const struct kvt_group_shape group = {
        .dtype = dtype, .layers = 1, .kv_heads = 1, .head_dim = block_bytes / (2 * 16 * kvt_dtype_bytes(dtype))
    };
    struct bench b;
    bench_init(&b, &group, 16, 16);
    struct sizes sizes = { 0, 0 };
    for (size_t at = 0; at + block_bytes <= page_bytes; at += block_bytes) {
        memcpy(b.source.bytes, pages + at, block_bytes);
        count_block(&b, &sizes);
    }
    bench_done(&b);
    return ratio_of(sizes);
}

static void real_pages_shrink_by_what_was_measured(void **state)
{
    (void)state;
    const double gemma = pages_ratio(embedded_pages(KVT_DTYPE_BF16, 0), 1, 4),
                 small = pages_ratio(embedded_pages(KVT_DTYPE_BF16, 1), 1, 4);
    const double fp16 = pages_ratio(embedded_pages(KVT_DTYPE_FP16, 1), 1, 2),
                 fp8 = pages_ratio(embedded_pages(KVT_DTYPE_FP8, 1), 1, 2);
    print_message("bf16 in 64 KiB: Gemma %.4f, small %.4f; small in 32 KiB of fp16 %.4f, 16 KiB of fp8 %.4f\n", gemma,
                  small, fp16, fp8);
    assert_true(gemma >= 1.42);
    assert_true(small >= 1.47);
    /* The design's 1.16 and 1.18 are for all layers in 64 KiB (below): layer 0, whose V repeats, is left out here. */
    assert_true(fp16 >= 1.15);
    assert_true(fp8 >= 1.17);
}

static void small_and_large_blocks_of_page_bytes_shrink_too(void **state)
{
    (void)state;
    const double small = bytes_ratio(KVT_DTYPE_BF16, 4096), large = bytes_ratio(KVT_DTYPE_BF16, 256 * 1024);
    print_message("bf16 in 4 KiB %.4f, in 256 KiB %.4f\n", small, large);
    assert_true(small >= 1.42);
    assert_true(large >= 1.42);
}

/* The bytes of a file, NULL when it is not there. The caller frees. */
static uint8_t *read_file(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    uint8_t *bytes = malloc(1 << 20);
    *ret_size = fread(bytes, 1, 1 << 20, file);
    (void)fclose(file);
    return bytes;
}

/*
 * One layer's file: a table from its first half when asked for, sizes of 64 KiB chunks (or the half) of the second
 * half, or of all.
 */
static void count_file(const struct pages *pages, bool is_learned, struct sizes *sizes)
{
    const uint32_t per_layer = kvt_min_u32((uint32_t)(32768 / plane_of_page_bytes(pages)), (uint32_t)pages->count / 2);
    const struct kvt_group_shape group = group_of_pages(pages->dtype, 1);
    struct bench b;
    bench_init(&b, &group, KVT_PAGES_TOKENS * per_layer, KVT_PAGES_TOKENS * per_layer);
    if (is_learned) {
        assert_int_equal(kvt_codec_learn(b.codec, true), KVT_OK);
        for (size_t page = 0; kvt_codec_tables_count(b.codec) == 0; page += per_layer) {
            load_pages(&b, pages, page % (pages->count / 2), per_layer);
            (void)pack(&b);
        }
    }
    for (size_t page = is_learned ? pages->count / 2 : 0; page + per_layer <= pages->count; page += per_layer) {
        load_pages(&b, pages, page, per_layer);
        count_block(&b, sizes);
    }
    bench_done(&b);
}

/* Raw over packed of all layers of a folder of samples; 0 when it is not there. */
static double folder_ratio(const char *folder, enum kvt_dtype dtype, bool is_learned)
{
    const char *root = getenv("KVTIER_SHARED") ? getenv("KVTIER_SHARED") : "../shared";
    struct sizes sizes = { 0, 0 };
    for (uint32_t layer = 0; layer < 18; layer++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/data/%s/%s/layer%02u.bin", root, folder, kvt_dtype_name(dtype), layer);
        size_t size;
        uint8_t *bytes = read_file(path, &size);
        if (!bytes) continue;
        struct pages pages = { .dtype = dtype, .bytes = bytes };
        pages.count = size / (2 * plane_of_page_bytes(&pages));
        count_file(&pages, is_learned, &sizes);
        free(bytes);
    }
    return sizes.stored ? ratio_of(sizes) : 0;
}

static void the_full_samples_shrink_by_what_the_design_asks_for(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        enum kvt_dtype dtype;
        double without, with;
    } rows[] = {
        { "kv", KVT_DTYPE_BF16, 1.47, 1.49 },
        { "kv", KVT_DTYPE_FP16, 1.16, 1.16 },
        { "kv", KVT_DTYPE_FP8, 1.18, 1.19 },
        { "kv_gemma3_270m", KVT_DTYPE_BF16, 1.42, 1.48 },
        { "kv_gemma3_270m", KVT_DTYPE_FP16, 1.12, 1.16 },
        { "kv_gemma3_270m", KVT_DTYPE_FP8, 1.11, 1.185 },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(rows); i++) {
        const double without = folder_ratio(rows[i].folder, rows[i].dtype, false);
        if (without == 0) {
            print_message("skipped: no samples in $KVTIER_SHARED/data or ../shared/data\n");
            skip();
        }
        const double with = folder_ratio(rows[i].folder, rows[i].dtype, true);
        print_message("%s %s: %.4f without tables, %.4f with\n", rows[i].folder, kvt_dtype_name(rows[i].dtype), without,
                      with);
        assert_true(without >= rows[i].without);
        assert_true(with >= rows[i].with);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_pages_shrink_by_what_was_measured),
        cmocka_unit_test(small_and_large_blocks_of_page_bytes_shrink_too),
        cmocka_unit_test(the_full_samples_shrink_by_what_the_design_asks_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
