#include "connectors/llama/blocks.h"

#include <string.h>

#include "kvtier/shape.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/codec.h"

#define MAGIC 0x314c564bu /* "KVL1" */
#define IS_PACKED 0x80000000u
#define NEVER_PACKED UINT32_MAX

/* ggml's numbers of the types that the codec knows more of than that they are bytes. */
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_BF16 = 30 };

static enum kvt_dtype dtype_of(int32_t type, uint32_t row_bytes)
{
    if (type == GGML_F16 && row_bytes % 2 == 0) return KVT_DTYPE_FP16;
    if (type == GGML_BF16 && row_bytes % 2 == 0) return KVT_DTYPE_BF16;
    if (type == GGML_F32 && row_bytes % 4 == 0) return KVT_DTYPE_FP32;
    return KVT_DTYPE_INT8;
}

static bool is_same_kind(const struct kvt_llama_plane *a, const struct kvt_llama_plane *b)
{
    return a->type == b->type && a->row_bytes == b->row_bytes;
}

static bool is_uniform(const struct kvt_llama_cache_layout *cache, uint32_t first, uint32_t count)
{
    for (uint32_t p = 1; p < count; p++)
        if (!is_same_kind(&cache->planes[first], &cache->planes[first + p])) return false;
    return true;
}

static struct kvt_llama_section section_of(const struct kvt_llama_cache_layout *cache, uint32_t first, uint32_t layers,
                                           uint32_t planes_of_layer)
{
    struct kvt_llama_section section = {
        .codec_group = NEVER_PACKED, .plane_first = first, .layers = layers, .planes_of_layer = planes_of_layer
    };
    for (uint32_t p = 0; p < layers * planes_of_layer; p++) section.token_bytes += cache->planes[first + p].row_bytes;
    return section;
}

/*
 * K and V together where they are of one kind, each for itself where only layers are, unpacked where not even
 * these are.
 */
static uint32_t cut_sections(const struct kvt_llama_cache_layout *cache,
                             struct kvt_llama_section sections[KVT_LLAMA_SECTIONS_MAX], bool *ret_is_packable)
{
    const uint32_t layers = cache->layers;
    const bool has_v = cache->plane_count > layers;
    *ret_is_packable = layers > 0;
    if (layers == 0) return 0;
    if (is_uniform(cache, 0, cache->plane_count)) {
        sections[0] = section_of(cache, 0, layers, has_v ? 2 : 1);
        return 1;
    }
    *ret_is_packable = is_uniform(cache, 0, layers) && is_uniform(cache, layers, cache->plane_count - layers);
    if (*ret_is_packable) {
        sections[0] = section_of(cache, 0, layers, 1);
        sections[1] = section_of(cache, layers, layers, 1);
        return 2;
    }
    sections[0] = section_of(cache, 0, cache->plane_count, 1);
    return 1;
}

static void add_codec_group(struct kvt_model_shape *shape, const struct kvt_llama_cache_layout *cache,
                            struct kvt_llama_section *section)
{
    const struct kvt_llama_plane *plane = &cache->planes[section->plane_first];
    struct kvt_group_shape group = { .kind = KVT_GROUP_FULL,
                                     .dtype = dtype_of(plane->type, plane->row_bytes),
                                     .layers = section->layers,
                                     .planes = section->planes_of_layer,
                                     .kv_heads = 1 };
    group.head_dim = plane->row_bytes / kvt_dtype_bytes(group.dtype);
    section->codec_group = shape->group_count;
    shape->groups[shape->group_count++] = group;
}

enum kvt_status kvt_llama_blocks_init(struct kvt_llama_blocks *blocks, const struct kvt_llama_layout *layout,
                                      uint32_t block_tokens, bool is_codec_off)
{
    *blocks = (struct kvt_llama_blocks){ .layout = layout, .block_tokens = block_tokens };
    struct kvt_model_shape shape = { .block_tokens = block_tokens };
    uint64_t token_bytes_max = 1;
    for (uint32_t c = 0; c < layout->cache_count; c++) {
        bool is_packable;
        blocks->section_count[c] = cut_sections(&layout->caches[c], blocks->sections[c], &is_packable);
        for (uint32_t s = 0; s < blocks->section_count[c] && is_packable; s++)
            add_codec_group(&shape, &layout->caches[c], &blocks->sections[c][s]);
        token_bytes_max = kvt_max_u64(token_bytes_max, layout->caches[c].cell_bytes);
    }
    blocks->raw_bytes = token_bytes_max * block_tokens;
    blocks->record_bytes_max = (uint32_t)(blocks->raw_bytes + KVT_LLAMA_BLOCK_HEADER_BYTES);
    blocks->raw = kvt_table_map(blocks->raw_bytes);
    if (!blocks->raw) return KVT_NOMEM;
    /* A shape that the codec has no room for is kept as it is. */
    if (is_codec_off || shape.group_count == 0 || kvt_shape_check(&shape, NULL, 0) != KVT_OK) return KVT_OK;
    KVT_TRY(kvt_codec_create(&shape, &blocks->codec));
    blocks->scratch_bytes = kvt_codec_scratch_bytes(blocks->codec);
    blocks->scratch = kvt_table_map(blocks->scratch_bytes);
    return blocks->scratch ? KVT_OK : KVT_NOMEM;
}

void kvt_llama_blocks_done(struct kvt_llama_blocks *blocks)
{
    kvt_codec_destroy(&blocks->codec);
    if (blocks->scratch) kvt_table_unmap(blocks->scratch, blocks->scratch_bytes);
    if (blocks->raw) kvt_table_unmap(blocks->raw, blocks->raw_bytes);
    *blocks = (struct kvt_llama_blocks){ 0 };
}

/* Where the planes of a section begin in raw; one view per layer of the section. */
static void view_section(const struct kvt_llama_blocks *blocks, uint32_t c, const struct kvt_llama_section *section,
                         uint32_t tokens, struct kvt_chunk_view views[KVT_LLAMA_LAYERS_MAX])
{
    const struct kvt_llama_plane *planes = blocks->layout->caches[c].planes;
    uint8_t *at = blocks->raw;
    for (uint32_t p = 0; p < section->plane_first; p++) at += (size_t)planes[p].row_bytes * tokens;
    for (uint32_t p = 0; p < section->layers * section->planes_of_layer; p++) {
        views[p % section->layers].plane[p / section->layers] = at;
        at += (size_t)planes[section->plane_first + p].row_bytes * tokens;
    }
}

static uint8_t *raw_of(const struct kvt_llama_blocks *blocks, uint32_t c, const struct kvt_llama_section *section,
                       uint32_t tokens)
{
    uint8_t *at = blocks->raw;
    for (uint32_t p = 0; p < section->plane_first; p++)
        at += (size_t)blocks->layout->caches[c].planes[p].row_bytes * tokens;
    return at;
}

uint32_t kvt_llama_blocks_pack(struct kvt_llama_blocks *blocks, uint32_t c, uint32_t from, uint32_t tokens,
                               uint8_t *target)
{
    KVT_ASSERT(tokens > 0 && from + tokens <= blocks->block_tokens);
    struct kvt_chunk_view views[KVT_LLAMA_LAYERS_MAX];
    memset(target, 0, KVT_LLAMA_BLOCK_HEADER_BYTES);
    kvt_store_u32(target, MAGIC);
    kvt_store_u16(target + 4, (uint16_t)tokens);
    kvt_store_u16(target + 6, (uint16_t)from);
    uint32_t at = KVT_LLAMA_BLOCK_HEADER_BYTES;
    for (uint32_t s = 0; s < blocks->section_count[c]; s++) {
        const struct kvt_llama_section *section = &blocks->sections[c][s];
        const uint32_t raw_bytes = (uint32_t)(section->token_bytes * tokens);
        uint32_t length = 0;
        if (blocks->codec && section->codec_group != NEVER_PACKED) {
            view_section(blocks, c, section, tokens, views);
            length = kvt_codec_pack(blocks->codec, section->codec_group, views, tokens, target + at, raw_bytes,
                                    blocks->scratch);
        }
        if (length == 0) memcpy(target + at, raw_of(blocks, c, section, tokens), raw_bytes);
        kvt_store_u32(target + 8 + 4 * s, length ? length | IS_PACKED : raw_bytes);
        at += length ? length : raw_bytes;
    }
    KVT_ASSERT(at <= blocks->record_bytes_max);
    return at;
}

enum kvt_status kvt_llama_blocks_unpack(struct kvt_llama_blocks *blocks, uint32_t c, uint32_t from, uint32_t tokens,
                                        const uint8_t *record, uint32_t length)
{
    KVT_ASSERT(tokens > 0 && from + tokens <= blocks->block_tokens);
    struct kvt_chunk_view views[KVT_LLAMA_LAYERS_MAX];
    if (length < KVT_LLAMA_BLOCK_HEADER_BYTES || kvt_load_u32(record) != MAGIC) return KVT_CORRUPT;
    if (kvt_load_u16(record + 4) != tokens || kvt_load_u16(record + 6) != from) return KVT_CORRUPT;
    uint32_t at = KVT_LLAMA_BLOCK_HEADER_BYTES;
    for (uint32_t s = 0; s < KVT_LLAMA_SECTIONS_MAX; s++) {
        const uint32_t word = kvt_load_u32(record + 8 + 4 * s), bytes = word & ~IS_PACKED;
        if (s >= blocks->section_count[c]) {
            if (word != 0) return KVT_CORRUPT;
            continue;
        }
        const struct kvt_llama_section *section = &blocks->sections[c][s];
        const uint32_t raw_bytes = (uint32_t)(section->token_bytes * tokens);
        if (bytes > length - at) return KVT_CORRUPT;
        if (word & IS_PACKED) {
            if (!blocks->codec || section->codec_group == NEVER_PACKED) return KVT_CORRUPT;
            view_section(blocks, c, section, tokens, views);
            KVT_TRY(kvt_codec_unpack(blocks->codec, section->codec_group, record + at, bytes, tokens, views,
                                     blocks->scratch));
        } else {
            if (bytes != raw_bytes) return KVT_CORRUPT;
            memcpy(raw_of(blocks, c, section, tokens), record + at, raw_bytes);
        }
        at += bytes;
    }
    return at == length ? KVT_OK : KVT_CORRUPT;
}
