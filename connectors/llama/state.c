#include "connectors/llama/state.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

enum { ROW_BYTES_MAX = 1 << 24, ELEMENT_BYTES_MAX = 64 };

struct reader {
    const uint8_t *bytes;
    size_t size, at;
    bool is_bad;
};

static bool take(struct reader *r, uint64_t count)
{
    if (r->is_bad || count > r->size - r->at) {
        r->is_bad = true;
        return false;
    }
    r->at += (size_t)count;
    return true;
}

static uint32_t take_u32(struct reader *r) { return take(r, 4) ? kvt_load_u32(r->bytes + r->at - 4) : 0; }
static uint64_t take_u64(struct reader *r) { return take(r, 8) ? kvt_load_u64(r->bytes + r->at - 8) : 0; }

static void take_rows(struct reader *r, uint32_t cells, struct kvt_llama_plane *plane, size_t *ret_rows)
{
    plane->type = (int32_t)take_u32(r);
    const uint64_t row_bytes = take_u64(r);
    plane->element_bytes = 0;
    if (row_bytes == 0 || row_bytes > ROW_BYTES_MAX) r->is_bad = true;
    plane->row_bytes = (uint32_t)row_bytes;
    *ret_rows = r->at;
    (void)take(r, (uint64_t)cells * plane->row_bytes);
}

static void take_transposed(struct reader *r, uint32_t cells, struct kvt_llama_plane *plane, size_t *ret_rows)
{
    plane->type = (int32_t)take_u32(r);
    const uint64_t element_bytes = take_u32(r), elements = take_u32(r);
    if (element_bytes == 0 || element_bytes > ELEMENT_BYTES_MAX) r->is_bad = true;
    if (elements == 0 || elements * element_bytes > ROW_BYTES_MAX) r->is_bad = true;
    plane->element_bytes = (uint32_t)element_bytes;
    plane->row_bytes = (uint32_t)(elements * element_bytes);
    *ret_rows = r->at;
    (void)take(r, (uint64_t)cells * plane->row_bytes);
}

static void take_positions(struct reader *r, uint32_t cells, struct kvt_llama_cache_view *view)
{
    view->cells = cells;
    view->positions = r->at;
    if (!take(r, (uint64_t)cells * KVT_LLAMA_CELL_BYTES)) return;
    for (uint32_t i = 0; i < cells; i++) {
        const uint8_t *cell = r->bytes + view->positions + (size_t)i * KVT_LLAMA_CELL_BYTES;
        if ((int32_t)kvt_load_u32(cell) < 0 || kvt_load_u32(cell + 4) != 1) r->is_bad = true;
    }
}

static void take_data(struct reader *r, bool has_v, struct kvt_llama_cache_layout *layout,
                      struct kvt_llama_cache_view *view)
{
    const uint32_t transposed = take_u32(r), layers = take_u32(r);
    if (transposed > 1 || layers > KVT_LLAMA_LAYERS_MAX) r->is_bad = true;
    if (r->is_bad) return;
    layout->is_transposed = transposed != 0;
    layout->layers = layers;
    layout->plane_count = has_v ? 2 * layers : layers;
    layout->cell_bytes = 0;
    for (uint32_t p = 0; p < layout->plane_count && !r->is_bad; p++) {
        if (p >= layers && layout->is_transposed) take_transposed(r, view->cells, &layout->planes[p], &view->rows[p]);
        else take_rows(r, view->cells, &layout->planes[p], &view->rows[p]);
        layout->cell_bytes += layout->planes[p].row_bytes;
    }
}

/* One cache; at most one of its streams has cells, since a sequence lies in one. */
static void take_cache(struct reader *r, bool has_v, struct kvt_llama_cache_layout *layout,
                       struct kvt_llama_cache_view *view)
{
    *view = (struct kvt_llama_cache_view){ .cells = 0 };
    layout->streams = take_u32(r);
    if (layout->streams == 0 || layout->streams > KVT_LLAMA_STREAMS_MAX) r->is_bad = true;
    for (uint32_t s = 0; s < layout->streams && !r->is_bad; s++) {
        const uint32_t cells = take_u32(r);
        if (cells == 0) continue;
        if (view->cells > 0) r->is_bad = true;
        if (r->is_bad) return;
        view->stream = s;
        take_positions(r, cells, view);
        if (!r->is_bad) take_data(r, has_v, layout, view);
    }
}

/* Bit c of with_v: cache c has V. Whether it has cannot be seen in the bytes but by how they come out even. */
static bool learn_as(const uint8_t *bytes, size_t size, uint32_t cache_count, uint32_t with_v,
                     struct kvt_llama_layout *layout)
{
    struct kvt_llama_cache_view view;
    struct reader r = { .bytes = bytes, .size = size };
    layout->magic = take_u32(&r);
    (void)take_u32(&r);
    layout->cache_count = cache_count;
    for (uint32_t c = 0; c < cache_count && !r.is_bad; c++) {
        take_cache(&r, (with_v >> c & 1) != 0, &layout->caches[c], &view);
        if (view.cells == 0) r.is_bad = true;
    }
    return !r.is_bad && r.at == size;
}

enum kvt_llama_parsed kvt_llama_state_learn(const uint8_t *bytes, size_t size, struct kvt_llama_layout *ret_layout)
{
    uint32_t ways = 0, found_caches = 0, found_with_v = 0;
    for (uint32_t caches = 1; caches <= KVT_LLAMA_CACHES_MAX; caches++) {
        for (uint32_t with_v = 0; with_v < 1u << caches; with_v++) {
            if (!learn_as(bytes, size, caches, with_v, ret_layout)) continue;
            /* A cache without layers reads the same with V and without: that is one way. */
            bool is_same = ways > 0 && found_caches == caches;
            for (uint32_t c = 0; is_same && c < caches; c++)
                is_same = ((found_with_v ^ with_v) >> c & 1) == 0 || ret_layout->caches[c].layers == 0;
            ways += is_same ? 0 : 1;
            found_caches = caches;
            found_with_v = with_v;
        }
    }
    if (ways != 1) return KVT_LLAMA_UNKNOWN;
    return learn_as(bytes, size, found_caches, found_with_v, ret_layout) ? KVT_LLAMA_PARSED : KVT_LLAMA_UNKNOWN;
}

/* As take_data, with what is known: nothing is written to the layout. */
static void check_data(struct reader *r, const struct kvt_llama_cache_layout *layout, struct kvt_llama_cache_view *view)
{
    if (take_u32(r) != (layout->is_transposed ? 1 : 0) || take_u32(r) != layout->layers) r->is_bad = true;
    for (uint32_t p = 0; p < layout->plane_count && !r->is_bad; p++) {
        struct kvt_llama_plane plane;
        if (layout->planes[p].element_bytes > 0) take_transposed(r, view->cells, &plane, &view->rows[p]);
        else take_rows(r, view->cells, &plane, &view->rows[p]);
        if (memcmp(&plane, &layout->planes[p], sizeof plane) != 0) r->is_bad = true;
    }
}

static void check_cache(struct reader *r, const struct kvt_llama_cache_layout *layout,
                        struct kvt_llama_cache_view *view)
{
    view->cells = view->stream = 0;
    view->positions = 0;
    if (take_u32(r) != layout->streams) r->is_bad = true;
    for (uint32_t s = 0; s < layout->streams && !r->is_bad; s++) {
        const uint32_t cells = take_u32(r);
        if (cells == 0) continue;
        if (view->cells > 0) r->is_bad = true;
        if (r->is_bad) return;
        view->stream = s;
        take_positions(r, cells, view);
        if (!r->is_bad) check_data(r, layout, view);
    }
}

enum kvt_llama_parsed kvt_llama_state_parse(const struct kvt_llama_layout *layout, const uint8_t *bytes, size_t size,
                                            struct kvt_llama_state_view *ret_view)
{
    struct reader r = { .bytes = bytes, .size = size };
    if (take_u32(&r) != layout->magic) return KVT_LLAMA_UNKNOWN;
    ret_view->seq = (int32_t)take_u32(&r);
    for (uint32_t c = 0; c < layout->cache_count && !r.is_bad; c++)
        check_cache(&r, &layout->caches[c], &ret_view->caches[c]);
    return !r.is_bad && r.at == size ? KVT_LLAMA_PARSED : KVT_LLAMA_UNKNOWN;
}

int32_t kvt_llama_state_position(const uint8_t *bytes, const struct kvt_llama_cache_view *cache, uint32_t cell)
{
    KVT_ASSERT(cell < cache->cells);
    return (int32_t)kvt_load_u32(bytes + cache->positions + (size_t)cell * KVT_LLAMA_CELL_BYTES);
}

/*
 * ---- Putting together
 * ------------------------------------------------------------------------------------------------
 */

static uint64_t cache_bytes(const struct kvt_llama_cache_layout *layout, uint32_t cells)
{
    uint64_t bytes = 4 + 4 * (uint64_t)layout->streams;
    if (cells == 0) return bytes;
    bytes += cells * (KVT_LLAMA_CELL_BYTES + layout->cell_bytes) + 8;
    return bytes + (uint64_t)layout->plane_count * 12;
}

size_t kvt_llama_state_bytes(const struct kvt_llama_layout *layout,
                             const struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX])
{
    uint64_t bytes = KVT_LLAMA_STATE_HEADER_BYTES;
    for (uint32_t c = 0; c < layout->cache_count; c++) bytes += cache_bytes(&layout->caches[c], spans[c].cells);
    return bytes > SIZE_MAX / 2 ? 0 : (size_t)bytes;
}

static size_t put_u32(uint8_t *bytes, size_t at, uint32_t value)
{
    kvt_store_u32(bytes + at, value);
    return at + 4;
}

static size_t write_plane(const struct kvt_llama_plane *plane, uint32_t cells, uint8_t *bytes, size_t at,
                          size_t *ret_rows)
{
    at = put_u32(bytes, at, (uint32_t)plane->type);
    if (plane->element_bytes > 0) {
        at = put_u32(bytes, at, plane->element_bytes);
        at = put_u32(bytes, at, plane->row_bytes / plane->element_bytes);
    } else {
        kvt_store_u64(bytes + at, plane->row_bytes);
        at += 8;
    }
    *ret_rows = at;
    return at + (size_t)cells * plane->row_bytes;
}

static size_t write_cells(const struct kvt_llama_cache_layout *layout, int32_t seq, const struct kvt_llama_span *span,
                          uint8_t *bytes, size_t at, struct kvt_llama_cache_view *view)
{
    view->positions = at;
    for (uint32_t i = 0; i < span->cells; i++) {
        at = put_u32(bytes, at, (uint32_t)span->first + (i + span->cells - span->rotation) % span->cells);
        at = put_u32(bytes, at, 1);
        at = put_u32(bytes, at, (uint32_t)seq);
    }
    at = put_u32(bytes, at, layout->is_transposed ? 1 : 0);
    at = put_u32(bytes, at, layout->layers);
    for (uint32_t p = 0; p < layout->plane_count; p++)
        at = write_plane(&layout->planes[p], span->cells, bytes, at, &view->rows[p]);
    return at;
}

/* With several streams each sequence has the stream of its number. */
static size_t write_cache(const struct kvt_llama_cache_layout *layout, int32_t seq, const struct kvt_llama_span *span,
                          uint8_t *bytes, size_t at, struct kvt_llama_cache_view *view)
{
    view->cells = span->cells;
    view->stream = span->cells > 0 ? (uint32_t)seq % layout->streams : 0;
    at = put_u32(bytes, at, layout->streams);
    for (uint32_t s = 0; s < layout->streams; s++) {
        const bool is_here = span->cells > 0 && s == view->stream;
        at = put_u32(bytes, at, is_here ? span->cells : 0);
        if (is_here) at = write_cells(layout, seq, span, bytes, at, view);
    }
    return at;
}

void kvt_llama_state_write(const struct kvt_llama_layout *layout, int32_t seq,
                           const struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX], uint8_t *bytes,
                           struct kvt_llama_state_view *ret_view)
{
    size_t at = put_u32(bytes, 0, layout->magic);
    at = put_u32(bytes, at, (uint32_t)seq);
    ret_view->seq = seq;
    for (uint32_t c = 0; c < layout->cache_count; c++)
        at = write_cache(&layout->caches[c], seq, &spans[c], bytes, at, &ret_view->caches[c]);
    KVT_ASSERT(at == kvt_llama_state_bytes(layout, spans));
}

/*
 * ---- Rows
 * ------------------------------------------------------------------------------------------------------------
 */

static uint32_t cell_of(const struct kvt_llama_rows *rows, uint32_t i)
{
    return rows->cells ? rows->cells[i] : rows->cell_first + i;
}

/* Element by element: for each element of a row, one of each cell. The usual sizes have loops of their own. */
static void copy_transposed(const struct kvt_llama_rows *rows, const struct kvt_llama_plane *plane, uint8_t *columns,
                            uint8_t *row, bool is_gather)
{
    const uint32_t size = plane->element_bytes, elements = plane->row_bytes / size;
    const size_t column_bytes = (size_t)rows->view->cells * size;
    for (uint32_t i = 0; i < rows->count; i++, row += plane->row_bytes) {
        uint8_t *cell = columns + (size_t)cell_of(rows, i) * size;
        for (uint32_t e = 0; e < elements; e++) {
            uint8_t *in_state = cell + e * column_bytes, *in_buffer = row + (size_t)e * size;
            if (size == 2 && is_gather) memcpy(in_buffer, in_state, 2);
            else if (size == 2) memcpy(in_state, in_buffer, 2);
            else memcpy(is_gather ? in_buffer : in_state, is_gather ? in_state : in_buffer, size);
        }
    }
}

static void copy_rows(const struct kvt_llama_rows *rows, const struct kvt_llama_plane *plane, uint8_t *in_state,
                      uint8_t *in_buffer, bool is_gather)
{
    if (!rows->cells) {
        in_state += (size_t)rows->cell_first * plane->row_bytes;
        const size_t bytes = (size_t)rows->count * plane->row_bytes;
        memcpy(is_gather ? in_buffer : in_state, is_gather ? in_state : in_buffer, bytes);
        return;
    }
    for (uint32_t i = 0; i < rows->count; i++, in_buffer += plane->row_bytes) {
        uint8_t *row = in_state + (size_t)rows->cells[i] * plane->row_bytes;
        memcpy(is_gather ? in_buffer : row, is_gather ? row : in_buffer, plane->row_bytes);
    }
}

static void copy_planes(const struct kvt_llama_rows *rows, uint8_t *state, uint8_t *buffer, bool is_gather)
{
    KVT_ASSERT(rows->buffer_from + rows->count <= rows->buffer_cells);
    for (uint32_t p = 0; p < rows->layout->plane_count; p++) {
        const struct kvt_llama_plane *plane = &rows->layout->planes[p];
        uint8_t *in_state = state + rows->view->rows[p];
        uint8_t *in_buffer = buffer + (size_t)rows->buffer_from * plane->row_bytes;
        if (plane->element_bytes > 0) copy_transposed(rows, plane, in_state, in_buffer, is_gather);
        else copy_rows(rows, plane, in_state, in_buffer, is_gather);
        buffer += (size_t)rows->buffer_cells * plane->row_bytes;
    }
}

void kvt_llama_rows_gather(const struct kvt_llama_rows *rows, const uint8_t *state, uint8_t *buffer)
{
    copy_planes(rows, (uint8_t *)state, buffer, true);
}

void kvt_llama_rows_scatter(const struct kvt_llama_rows *rows, const uint8_t *buffer, uint8_t *state)
{
    copy_planes(rows, state, (uint8_t *)buffer, false);
}
