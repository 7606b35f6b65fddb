/* The CPU's turn of the GPU's thread body: the grid as two loops, in the order that a GPU does not promise. */
#include "kernels/pages.h"
#include "runtime/base/assert.h"

void kvt_pages_move_runs_body(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max)
{
    const uint32_t tiles = kvt_pages_tiles(bytes_max);
    for (uint64_t tile = (uint64_t)count * tiles; tile-- > 0;)
        for (uint32_t thread = KVT_PAGES_THREADS; thread-- > 0;)
            kvt_pages_tile_body(runs, tiles, tile, thread, KVT_PAGES_THREADS);
}

void kvt_pages_move_runs_ref(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max)
{
    for (uint32_t i = 0; i < count; i++) {
        KVT_ASSERT(runs[i].bytes <= bytes_max);
        for (uint64_t b = 0; b < runs[i].bytes; b++) runs[i].target[b] = runs[i].source[b];
    }
}

void kvt_pages_gather_runs(const struct kvt_pages *pages, void *contiguous, struct kvt_pages_run *ret_runs)
{
    for (uint32_t s = 0; s < pages->count; s++)
        ret_runs[s] = (struct kvt_pages_run){ .source = kvt_pages_segment(pages, s),
                                              .target = (uint8_t *)contiguous + s * pages->bytes,
                                              .bytes = pages->bytes };
}

void kvt_pages_scatter_runs(const struct kvt_pages *pages, const void *contiguous, struct kvt_pages_run *ret_runs)
{
    for (uint32_t s = 0; s < pages->count; s++)
        ret_runs[s] = (struct kvt_pages_run){ .source = (const uint8_t *)contiguous + s * pages->bytes,
                                              .target = kvt_pages_segment(pages, s),
                                              .bytes = pages->bytes };
}

void kvt_pages_copy_runs(const struct kvt_pages *source, const struct kvt_pages *target, struct kvt_pages_run *ret_runs)
{
    KVT_ASSERT(source->count == target->count);
    KVT_ASSERT(source->bytes == target->bytes);
    for (uint32_t s = 0; s < source->count; s++)
        ret_runs[s] = (struct kvt_pages_run){ .source = kvt_pages_segment(source, s),
                                              .target = kvt_pages_segment(target, s),
                                              .bytes = source->bytes };
}
