#include "tools/bench_codec_samples.h"

#include <lz4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef KVT_HAVE_ZSTD
#include <zstd.h>
#endif

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"
#include "tools/run/pages.h"

enum { CHUNK_BYTES = 64 * 1024, LAYERS_MAX = 32, FILE_BYTES_MAX = 1 << 20 };

/* One layer's pages: [page][K, V][16 tokens][256 channels]. */
struct layer {
    enum kvt_dtype dtype;
    const uint8_t *bytes;
    size_t page_bytes, page_count, pages_a_chunk;
};

struct sums {
    uint64_t raw, plain, tables, lz4, shuffled_lz4, zstd;
    double order0;
};

/* What the measuring of one layer works with. */
struct scratch {
    struct kvt_codec *codec;
    uint8_t *chunk, *shuffled, *packed, *codec_scratch;
    size_t codec_scratch_bytes;
};

enum { PACKED_BYTES = 2 * CHUNK_BYTES };

static void scratch_done(struct scratch *s)
{
    kvt_codec_destroy(&s->codec);
    kvt_table_unmap(s->codec_scratch, s->codec_scratch_bytes);
    kvt_free(s->chunk);
    kvt_free(s->shuffled);
    kvt_free(s->packed);
}

static bool scratch_init(struct scratch *s, const struct layer *layer)
{
    const struct kvt_model_shape shape = {
        .block_tokens = (uint32_t)(layer->pages_a_chunk * KVT_PAGES_TOKENS),
        .group_count = 1,
        .groups = { { .dtype = layer->dtype, .layers = 1, .kv_heads = 1, .head_dim = KVT_PAGES_CHANNELS } }
    };
    *s = (struct scratch){ .chunk = kvt_alloc(1, CHUNK_BYTES),
                           .shuffled = kvt_alloc(1, CHUNK_BYTES),
                           .packed = kvt_alloc(1, PACKED_BYTES) };
    if (!s->chunk || !s->shuffled || !s->packed || kvt_codec_create(&shape, &s->codec) != KVT_OK) return false;
    s->codec_scratch_bytes = kvt_codec_scratch_bytes(s->codec);
    s->codec_scratch = kvt_table_map(s->codec_scratch_bytes);
    return s->codec_scratch != NULL;
}

/* K of all the chunk's tokens, then V. Returns its bytes. */
static size_t load_chunk(struct scratch *s, const struct layer *layer, size_t first_page)
{
    const size_t half = layer->page_bytes / 2, plane = layer->pages_a_chunk * half;
    for (size_t i = 0; i < layer->pages_a_chunk; i++)
        for (size_t p = 0; p < 2; p++)
            memcpy(s->chunk + p * plane + i * half, layer->bytes + (2 * (first_page + i) + p) * half, half);
    return 2 * plane;
}

static uint64_t packed_bytes(struct scratch *s, const struct layer *layer, size_t size)
{
    const struct kvt_chunk_view view = { { s->chunk, s->chunk + size / 2 } };
    const uint32_t length = kvt_codec_pack(s->codec, 0, &view, (uint32_t)(layer->pages_a_chunk * KVT_PAGES_TOKENS),
                                           s->packed, PACKED_BYTES, s->codec_scratch);
    return length ? length : size;
}

static uint64_t lz4_bytes(struct scratch *s, const uint8_t *source, size_t size)
{
    const int stored = LZ4_compress_default((const char *)source, (char *)s->packed, (int)size, PACKED_BYTES);
    return stored > 0 && (size_t)stored < size ? (uint64_t)stored : size;
}

/* Bit b of every element in a plane of its own. */
static void shuffle_bits(struct scratch *s, size_t size, uint32_t element_bytes)
{
    const size_t elements = size / element_bytes;
    memset(s->shuffled, 0, size);
    for (size_t i = 0; i < elements; i++)
        for (uint32_t b = 0; b < 8 * element_bytes; b++)
            if (s->chunk[i * element_bytes + b / 8] >> b % 8 & 1)
                s->shuffled[b * (elements / 8) + i / 8] |= (uint8_t)(1u << i % 8);
}

static uint64_t zstd_bytes(struct scratch *s, size_t size)
{
#ifdef KVT_HAVE_ZSTD
    const size_t stored = ZSTD_compress(s->packed, PACKED_BYTES, s->chunk, size, 1);
    return !ZSTD_isError(stored) && stored < size ? stored : size;
#else
    (void)s;
    return size;
#endif
}

static double order0_bytes(const struct scratch *s, size_t size, enum kvt_dtype dtype)
{
    const uint32_t exponent_bits = dtype == KVT_DTYPE_BF16 ? 8 : dtype == KVT_DTYPE_FP16 ? 5 : 4;
    const uint32_t element_bytes = kvt_dtype_bytes(dtype), shift = 8 * element_bytes - 1 - exponent_bits;
    const double elements = (double)(size / element_bytes);
    double counts[256] = { 0 }, bits = 0;
    for (size_t at = 0; at < size; at += element_bytes) {
        const uint32_t x = element_bytes == 1 ? s->chunk[at] : kvt_load_u16(s->chunk + at);
        counts[x >> shift & ((1u << exponent_bits) - 1)]++;
    }
    for (uint32_t i = 0; i < 256; i++)
        if (counts[i] > 0) bits -= counts[i] * log2(counts[i] / elements);
    return (bits + elements * (8.0 * element_bytes - exponent_bits)) / 8;
}

static bool measure_layer(const struct layer *layer, struct sums *sums)
{
    struct scratch s;
    const bool is_ok = scratch_init(&s, layer);
    const size_t half = layer->page_count / 2;
    for (size_t page = half; is_ok && page + layer->pages_a_chunk <= layer->page_count; page += layer->pages_a_chunk) {
        const size_t size = load_chunk(&s, layer, page);
        sums->raw += size;
        sums->order0 += order0_bytes(&s, size, layer->dtype);
        sums->plain += packed_bytes(&s, layer, size);
        sums->lz4 += lz4_bytes(&s, s.chunk, size);
        shuffle_bits(&s, size, kvt_dtype_bytes(layer->dtype));
        sums->shuffled_lz4 += lz4_bytes(&s, s.shuffled, size);
        sums->zstd += zstd_bytes(&s, size);
    }
    if (is_ok && kvt_codec_learn(s.codec, true) == KVT_OK) {
        for (size_t page = 0; kvt_codec_tables_count(s.codec) == 0;) {
            (void)packed_bytes(&s, layer, load_chunk(&s, layer, page));
            page += layer->pages_a_chunk;
            if (page + layer->pages_a_chunk > half) page = 0;
        }
        for (size_t page = half; page + layer->pages_a_chunk <= layer->page_count; page += layer->pages_a_chunk)
            sums->tables += packed_bytes(&s, layer, load_chunk(&s, layer, page));
    }
    scratch_done(&s);
    return is_ok;
}

static struct layer layer_of(enum kvt_dtype dtype, const uint8_t *bytes, size_t size)
{
    struct layer layer = { .dtype = dtype, .bytes = bytes };
    layer.page_bytes = (size_t)2 * KVT_PAGES_TOKENS * KVT_PAGES_CHANNELS * kvt_dtype_bytes(dtype);
    layer.page_count = size / layer.page_bytes;
    layer.pages_a_chunk = kvt_min_u64(CHUNK_BYTES / layer.page_bytes, layer.page_count / 2);
    return layer;
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

static void measure_embedded(enum kvt_dtype dtype, struct sums *sums)
{
    size_t size;
    const uint8_t *pages = kvt_pages(dtype, &size);
    for (size_t l = 0; l < KVT_PAGES_LAYERS; l++) {
        const struct layer layer = layer_of(dtype, pages + l * (size / KVT_PAGES_LAYERS), size / KVT_PAGES_LAYERS);
        if (!measure_layer(&layer, sums)) return;
    }
}

static void measure_folder(const char *folder, enum kvt_dtype dtype, struct sums *sums)
{
    const char *root = getenv("KVTIER_SHARED");
    uint8_t *bytes = kvt_alloc(1, FILE_BYTES_MAX);
    for (uint32_t l = 0; bytes && l < LAYERS_MAX; l++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/data/%s/%s/layer%02u.bin", root ? root : "../shared", folder,
                       kvt_dtype_name(dtype), l);
        FILE *file = fopen(path, "rb");
        if (!file) continue; /* not every layer was kept */
        const struct layer layer = layer_of(dtype, bytes, fread(bytes, 1, FILE_BYTES_MAX, file));
        (void)fclose(file);
        if (layer.pages_a_chunk > 0 && !measure_layer(&layer, sums)) break;
    }
    kvt_free(bytes);
}

static double ratio(uint64_t raw, uint64_t stored) { return stored ? (double)raw / (double)stored : 0; }

uint32_t kvt_bench_sample_ratios(struct kvt_sample_ratios ret_ratios[KVT_SAMPLE_RATIOS_MAX])
{
    static const char *const samples[] = { "embedded", "kv", "kv_gemma3_270m" };
    static const enum kvt_dtype dtypes[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8 };
    uint32_t count = 0;
    for (uint32_t s = 0; s < KVT_ARRAY_COUNT(samples); s++) {
        for (uint32_t d = 0; d < KVT_ARRAY_COUNT(dtypes); d++) {
            struct sums sums = { 0 };
            if (s == 0) measure_embedded(dtypes[d], &sums);
            else measure_folder(samples[s], dtypes[d], &sums);
            if (sums.raw == 0) continue;
            struct kvt_sample_ratios *r = &ret_ratios[count++];
            *r = (struct kvt_sample_ratios){ .plain = ratio(sums.raw, sums.plain),
                                             .tables = ratio(sums.raw, sums.tables),
                                             .lz4 = ratio(sums.raw, sums.lz4),
                                             .order0 = (double)sums.raw / sums.order0,
                                             .shuffled_lz4 = ratio(sums.raw, sums.shuffled_lz4) };
#ifdef KVT_HAVE_ZSTD
            r->zstd = ratio(sums.raw, sums.zstd);
#endif
            (void)snprintf(r->name, sizeof r->name, "%s %s", samples[s], kvt_dtype_name(dtypes[d]));
        }
    }
    return count;
}
