#include "tools/run/content.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/run/pages.h"

enum { LINE_BYTES = 64 };

#define STREAM_STEP UINT64_C(0x9e3779b97f4a7c15)

/* The bits that hold the mantissa, in eight bytes of elements. */
static uint64_t mantissa_mask(enum kvt_dtype dtype)
{
    switch (dtype) {
    case KVT_DTYPE_BF16: return UINT64_C(0x007f007f007f007f);
    case KVT_DTYPE_FP16: return UINT64_C(0x03ff03ff03ff03ff);
    case KVT_DTYPE_FP8: return UINT64_C(0x0707070707070707);
    case KVT_DTYPE_FP32: return UINT64_C(0x007fffff007fffff);
    case KVT_DTYPE_INT8: break;
    }
    return UINT64_MAX;
}

/* fp32 has bf16's exponents: the sample is the bf16 one with room for a longer mantissa. */
static enum kvt_status widen_pages(struct kvt_content *content, size_t *ret_bytes)
{
    size_t bytes;
    const uint8_t *pages = kvt_pages(KVT_DTYPE_BF16, &bytes);
    if (!content->widened) {
        content->widened = kvt_alloc(bytes, 2);
        if (!content->widened) return KVT_NOMEM;
        for (size_t i = 0; i < bytes / 2; i++) {
            kvt_store_u32(content->widened + 4 * i, (uint32_t)kvt_load_u16(pages + 2 * i) << 16);
        }
    }
    *ret_bytes = 2 * bytes;
    return KVT_OK;
}

enum kvt_status kvt_content_init(struct kvt_content *content, const struct kvt_model_shape *shape)
{
    *content = (struct kvt_content){ .block_tokens = shape->block_tokens, .group_count = shape->group_count };
    for (uint32_t g = 0; g < shape->group_count; g++) {
        const struct kvt_group_shape *from = &shape->groups[g];
        struct kvt_content_group *group = &content->groups[g];
        size_t bytes;
        group->pages = kvt_pages(from->dtype, &bytes);
        if (from->dtype == KVT_DTYPE_FP32) {
            const enum kvt_status status = widen_pages(content, &bytes);
            if (status != KVT_OK) {
                kvt_content_done(content);
                return status;
            }
            group->pages = content->widened;
        }
        group->element_bytes = kvt_dtype_bytes(from->dtype);
        group->mask = mantissa_mask(from->dtype);
        group->row_bytes = kvt_group_row_bytes(from);
        group->layers = from->layers;
        group->is_state = from->kind == KVT_GROUP_STATE;
        group->planes = group->is_state ? 1 : from->planes ? from->planes : 2;
        group->page_layer_bytes = bytes / KVT_PAGES_LAYERS;
        group->page_tokens = bytes / ((uint64_t)KVT_PAGES_LAYERS * 2 * KVT_PAGES_CHANNELS * group->element_bytes);
    }
    return KVT_OK;
}

void kvt_content_done(struct kvt_content *content)
{
    kvt_free(content->widened);
    content->widened = NULL;
}

uint64_t kvt_content_next(uint64_t identity, uint32_t token)
{
    return kvt_mix64(identity * UINT64_C(0xd6e8feb86659fd93) + token + 1);
}

/* ---- One row ----------------------------------------------------------------------------------------------------- */

/* One row: what its bytes are a function of, beside the content. */
struct row {
    const struct kvt_content_group *group;
    uint64_t key;
    uint64_t token; /* of the sample */
    uint64_t round; /* how often the block has used up the sample's tokens before */
    uint32_t layer, plane;
};

static struct row row_of(const struct kvt_content *content, uint32_t group, uint32_t layer, uint32_t plane,
                         uint64_t position, uint64_t identity)
{
    const struct kvt_content_group *of = &content->groups[group];
    const uint64_t place = (uint64_t)group << 56 | (uint64_t)layer << 24 | (uint64_t)(plane + 1);
    const bool has_sample = of->pages != NULL;
    return (struct row){
        .group = of,
        .key = kvt_mix64(identity ^ (place * UINT64_C(0xa0761d6478bd642f))),
        .token = has_sample ? position % of->page_tokens : 0,
        .round = has_sample ? position % content->block_tokens / of->page_tokens : 0,
        .layer = layer,
        .plane = plane,
    };
}

/*
 * The sample of the row's bytes from offset on, and for how many bytes it is contiguous there. A row wider than the
 * sample goes on in the next sample layer, then the next token. Once a block has used up the sample's tokens, a
 * narrower row moves to the next channels, then to the next layer; a block that has not keeps to its channels, as a
 * model's layer does.
 */
static const uint8_t *sample_at(const struct row *row, uint64_t offset, uint64_t *ret_contiguous)
{
    const struct kvt_content_group *group = row->group;
    const uint64_t piece_bytes = (uint64_t)KVT_PAGES_CHANNELS * group->element_bytes;
    const uint64_t in_piece = offset % piece_bytes;
    const uint64_t piece = offset / piece_bytes;
    const uint64_t token = (row->token + piece / KVT_PAGES_LAYERS) % group->page_tokens;
    uint64_t shift = 0, layer = row->layer + piece;

    if (group->row_bytes <= piece_bytes / 2) {
        const uint64_t ways = piece_bytes / group->row_bytes;
        shift = row->round % ways * group->row_bytes;
        layer += row->round / ways;
    } else {
        layer += row->round;
    }
    *ret_contiguous = piece_bytes - in_piece;
    const uint64_t block = token / KVT_PAGES_TOKENS;
    const uint64_t page_row = (block * 2 + row->plane % 2) * KVT_PAGES_TOKENS + token % KVT_PAGES_TOKENS;
    return group->pages + layer % KVT_PAGES_LAYERS * group->page_layer_bytes + page_row * piece_bytes + shift
        + in_piece;
}

static inline uint64_t stream_word(uint64_t key, uint64_t index) { return kvt_mix64(key + (index + 1) * STREAM_STEP); }

/* What bytes [offset, offset + 8) of the row must be; offset is a multiple of 8, sample NULL or at offset. */
static inline uint64_t expected_word(const struct row *row, const uint8_t *sample, uint64_t offset)
{
    const uint64_t under = sample ? kvt_load_u64(sample) : 0;
    return under ^ (stream_word(row->key, offset / 8) & row->group->mask);
}

/* Fewer than eight bytes at the end of a row or of a piece of the sample. */
static uint64_t expected_part(const struct row *row, const uint8_t *sample, uint64_t offset, uint64_t bytes)
{
    uint64_t under = 0;
    if (sample) memcpy(&under, sample, bytes);
    return under ^ (stream_word(row->key, offset / 8) & row->group->mask);
}

static void write_row(const struct row *row, uint8_t *target)
{
    const uint64_t row_bytes = row->group->row_bytes;
    for (uint64_t offset = 0; offset < row_bytes;) {
        uint64_t contiguous = row_bytes;
        const uint8_t *sample = row->group->pages ? sample_at(row, offset, &contiguous) : NULL;
        const uint64_t end = kvt_min_u64(row_bytes, offset + contiguous);
        for (; offset + 8 <= end; offset += 8, sample = sample ? sample + 8 : NULL) {
            kvt_store_u64(target + offset, expected_word(row, sample, offset));
        }
        if (offset < end) {
            const uint64_t word = expected_part(row, sample, offset, end - offset);
            memcpy(target + offset, &word, end - offset);
            offset = end;
        }
    }
}

/* Compares bytes [from, to) of the row: the first that differs, or KVT_CONTENT_SAME. from is a multiple of 8. */
static uint64_t check_row(const struct row *row, const uint8_t *source, uint64_t from, uint64_t to)
{
    for (uint64_t offset = from; offset < to;) {
        uint64_t contiguous = to;
        const uint8_t *sample = row->group->pages ? sample_at(row, offset, &contiguous) : NULL;
        const uint64_t end = kvt_min_u64(to, offset + contiguous);
        for (; offset + 8 <= end; offset += 8, sample = sample ? sample + 8 : NULL) {
            const uint64_t diff = kvt_load_u64(source + offset) ^ expected_word(row, sample, offset);
            if (__builtin_expect(diff != 0, 0)) return offset + (uint64_t)__builtin_ctzll(diff) / 8;
        }
        if (offset < end) {
            const uint64_t word = expected_part(row, sample, offset, end - offset);
            for (uint64_t i = 0; i < end - offset; i++) {
                if (source[offset + i] != (uint8_t)(word >> (8 * i))) return offset + i;
            }
            offset = end;
        }
    }
    return KVT_CONTENT_SAME;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Offset in the block of a token's row. */
static uint64_t row_offset(const struct kvt_content *content, uint32_t group, uint32_t layer, uint32_t plane,
                           uint32_t token)
{
    const struct kvt_content_group *of = &content->groups[group];
    return (((uint64_t)layer * of->planes + plane) * content->block_tokens + token) * of->row_bytes;
}

static struct row run_row(const struct kvt_content *content, const struct kvt_content_run *run, uint32_t layer,
                          uint32_t plane, uint32_t i)
{
    return row_of(content, run->group, layer, plane, run->position + i, run->identities[i]);
}

void kvt_content_write(const struct kvt_content *content, const struct kvt_content_run *run, uint8_t *base)
{
    const struct kvt_content_group *group = &content->groups[run->group];
    KVT_ASSERT(!group->is_state);
    KVT_ASSERT(run->first + run->count <= content->block_tokens);
    for (uint32_t layer = 0; layer < group->layers; layer++) {
        for (uint32_t plane = 0; plane < group->planes; plane++) {
            uint8_t *target = base + row_offset(content, run->group, layer, plane, run->first);
            for (uint32_t i = 0; i < run->count; i++, target += group->row_bytes) {
                const struct row row = run_row(content, run, layer, plane, i);
                write_row(&row, target);
            }
        }
    }
}

uint64_t kvt_content_check(const struct kvt_content *content, const struct kvt_content_run *run, const uint8_t *base)
{
    const struct kvt_content_group *group = &content->groups[run->group];
    KVT_ASSERT(!group->is_state);
    KVT_ASSERT(run->first + run->count <= content->block_tokens);
    for (uint32_t layer = 0; layer < group->layers; layer++) {
        for (uint32_t plane = 0; plane < group->planes; plane++) {
            uint64_t offset = row_offset(content, run->group, layer, plane, run->first);
            for (uint32_t i = 0; i < run->count; i++, offset += group->row_bytes) {
                const struct row row = run_row(content, run, layer, plane, i);
                const uint64_t differs = check_row(&row, base + offset, 0, group->row_bytes);
                if (differs != KVT_CONTENT_SAME) return offset + differs;
            }
        }
    }
    return KVT_CONTENT_SAME;
}

/* The line of a row that `choice` selects. */
static uint64_t check_line(const struct row *row, const uint8_t *base, uint64_t row_at, uint64_t choice)
{
    const uint64_t row_bytes = row->group->row_bytes;
    const uint64_t lines = (row_bytes + LINE_BYTES - 1) / LINE_BYTES;
    const uint64_t from = choice % lines * LINE_BYTES;
    const uint64_t differs = check_row(row, base + row_at, from, kvt_min_u64(row_bytes, from + LINE_BYTES));
    return differs == KVT_CONTENT_SAME ? differs : row_at + differs;
}

uint64_t kvt_content_check_line(const struct kvt_content *content, const struct kvt_content_run *run,
                                const uint8_t *base)
{
    const struct kvt_content_group *group = &content->groups[run->group];
    KVT_ASSERT(!group->is_state);
    KVT_ASSERT(run->count > 0);
    const struct row header = run_row(content, run, 0, 0, 0);
    const uint64_t header_at = row_offset(content, run->group, 0, 0, run->first);
    const uint64_t differs = check_row(&header, base + header_at, 0, kvt_min_u64(8, group->row_bytes));
    if (differs != KVT_CONTENT_SAME) return header_at + differs;

    uint64_t choice = kvt_mix64(run->identities[run->count - 1] + run->group);
    const uint32_t layer = (uint32_t)(choice % group->layers);
    choice /= group->layers;
    const uint32_t plane = (uint32_t)(choice % group->planes);
    choice /= group->planes;
    const uint32_t i = (uint32_t)(choice % run->count);
    choice /= run->count;
    const struct row row = run_row(content, run, layer, plane, i);
    return check_line(&row, base, row_offset(content, run->group, layer, plane, run->first + i), choice);
}

/* ---- One layer of a block ---------------------------------------------------------------------------------------- */

uint64_t kvt_content_check_layer(const struct kvt_content *content, const struct kvt_content_run *run, uint32_t layer,
                                 const uint8_t *chunk)
{
    const struct kvt_content_group *group = &content->groups[run->group];
    KVT_ASSERT(!group->is_state);
    for (uint32_t plane = 0; plane < group->planes; plane++) {
        uint64_t offset = row_offset(content, run->group, 0, plane, run->first);
        for (uint32_t i = 0; i < run->count; i++, offset += group->row_bytes) {
            const struct row row = run_row(content, run, layer, plane, i);
            const uint64_t differs = check_row(&row, chunk + offset, 0, group->row_bytes);
            if (differs != KVT_CONTENT_SAME) return offset + differs;
        }
    }
    return KVT_CONTENT_SAME;
}

uint64_t kvt_content_check_layer_line(const struct kvt_content *content, const struct kvt_content_run *run,
                                      uint32_t layer, const uint8_t *chunk)
{
    const struct kvt_content_group *group = &content->groups[run->group];
    KVT_ASSERT(!group->is_state);
    KVT_ASSERT(run->count > 0);
    const struct row header = run_row(content, run, layer, 0, 0);
    const uint64_t header_at = row_offset(content, run->group, 0, 0, run->first);
    const uint64_t differs = check_row(&header, chunk + header_at, 0, kvt_min_u64(8, group->row_bytes));
    if (differs != KVT_CONTENT_SAME) return header_at + differs;

    uint64_t choice = kvt_mix64(run->identities[run->count - 1] + run->group + layer);
    const uint32_t plane = (uint32_t)(choice % group->planes);
    choice /= group->planes;
    const uint32_t i = (uint32_t)(choice % run->count);
    const struct row row = run_row(content, run, layer, plane, i);
    return check_line(&row, chunk, row_offset(content, run->group, 0, plane, run->first + i), choice / run->count);
}

void kvt_content_write_row(const struct kvt_content *content, uint32_t group, uint32_t layer, uint32_t plane,
                           uint64_t position, uint64_t identity, uint8_t *target)
{
    const struct row row = row_of(content, group, layer, plane, position, identity);
    write_row(&row, target);
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

void kvt_content_write_state(const struct kvt_content *content, uint32_t group, uint64_t identity, uint8_t *base)
{
    const struct kvt_content_group *of = &content->groups[group];
    KVT_ASSERT(of->is_state);
    for (uint32_t layer = 0; layer < of->layers; layer++, base += of->row_bytes) {
        const struct row row = row_of(content, group, layer, 0, identity % 64, identity);
        write_row(&row, base);
    }
}

uint64_t kvt_content_check_state(const struct kvt_content *content, uint32_t group, uint64_t identity,
                                 const uint8_t *base)
{
    const struct kvt_content_group *of = &content->groups[group];
    KVT_ASSERT(of->is_state);
    for (uint32_t layer = 0; layer < of->layers; layer++) {
        const struct row row = row_of(content, group, layer, 0, identity % 64, identity);
        const uint64_t differs = check_row(&row, base + layer * of->row_bytes, 0, of->row_bytes);
        if (differs != KVT_CONTENT_SAME) return layer * of->row_bytes + differs;
    }
    return KVT_CONTENT_SAME;
}

uint64_t kvt_content_check_state_line(const struct kvt_content *content, uint32_t group, uint64_t identity,
                                      const uint8_t *base)
{
    const struct kvt_content_group *of = &content->groups[group];
    KVT_ASSERT(of->is_state);
    const struct row header = row_of(content, group, 0, 0, identity % 64, identity);
    const uint64_t differs = check_row(&header, base, 0, kvt_min_u64(8, of->row_bytes));
    if (differs != KVT_CONTENT_SAME) return differs;
    const uint64_t choice = kvt_mix64(identity);
    const uint32_t layer = (uint32_t)(choice % of->layers);
    const struct row row = row_of(content, group, layer, 0, identity % 64, identity);
    return check_line(&row, base, layer * of->row_bytes, choice / of->layers);
}
