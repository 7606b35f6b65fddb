/*
 * pages_body: the thread body of page gather, scatter and copy.
 *
 * The kernel moves a table of runs of bytes: a segment to its place in a contiguous block (gather), the other way
 * round (scatter), or a segment to the same one of another slot (copy). One launch takes any number of blocks: the
 * table has a row for each segment of each.
 *
 * Work is cut into tiles of KVT_PAGES_TILE bytes. Tiles of all runs have one numbering, with the same number for each
 * run (that of the longest), so that a CTA finds its tile by one division; tiles past the end of a shorter run are
 * empty. CTAs take tiles in turn: a few of them move everything, and the engine keeps the rest of the GPU.
 *
 * Inside a tile consecutive threads move consecutive vectors. Vectors have 16 bytes where source and target are
 * equally far from alignment, else 4, else 1.
 */
#ifndef KVT_KERNELS_PAGES_BODY_H
#define KVT_KERNELS_PAGES_BODY_H

#include "kernels/body.h"

enum { KVT_PAGES_TILE = 16384, KVT_PAGES_THREADS = 256 };

struct kvt_pages_run {
    const uint8_t *source;
    uint8_t *target;
    uint64_t bytes;
};

/* Tiles that each run counts for. */
KVT_BODY uint32_t kvt_pages_tiles(uint64_t bytes_max)
{
    return (uint32_t)((bytes_max + KVT_PAGES_TILE - 1) / KVT_PAGES_TILE);
}

/* The bytes source[0 .. bytes) to target, those of thread `thread` of `threads`. */
KVT_BODY void kvt_pages_move_body(const uint8_t *source, uint8_t *target, uint64_t bytes, uint32_t thread,
                                  uint32_t threads)
{
    const uint64_t apart = (uint64_t)(uintptr_t)source ^ (uint64_t)(uintptr_t)target;
    const uint32_t width = (apart & 15) == 0 ? 16 : (apart & 3) == 0 ? 4 : 1;
    uint64_t head = (0 - (uint64_t)(uintptr_t)source) & (width - 1); /* bytes before the first aligned vector */
    if (head > bytes) head = bytes;
    const uint64_t vectors = (bytes - head) / width, tail = head + vectors * width;

    for (uint64_t i = thread; i < head; i += threads) target[i] = source[i];
    if (width == 16) {
        const struct kvt_vec16 *from = (const struct kvt_vec16 *)(const void *)(source + head);
        struct kvt_vec16 *to = (struct kvt_vec16 *)(void *)(target + head);
        for (uint64_t i = thread; i < vectors; i += threads) to[i] = from[i];
    } else if (width == 4) {
        const kvt_word_alias *from = (const kvt_word_alias *)(const void *)(source + head);
        kvt_word_alias *to = (kvt_word_alias *)(void *)(target + head);
        for (uint64_t i = thread; i < vectors; i += threads) to[i] = from[i];
    } else {
        for (uint64_t i = thread; i < vectors; i += threads) target[head + i] = source[head + i];
    }
    for (uint64_t i = tail + thread; i < bytes; i += threads) target[i] = source[i];
}

/* Thread `thread` of `threads` does its part of one tile of the table. */
KVT_BODY void kvt_pages_tile_body(const struct kvt_pages_run *runs, uint32_t tiles_per_run, uint64_t tile,
                                  uint32_t thread, uint32_t threads)
{
    const struct kvt_pages_run *run = &runs[tile / tiles_per_run];
    const uint64_t start = tile % tiles_per_run * KVT_PAGES_TILE;
    if (start >= run->bytes) return;
    const uint64_t left = run->bytes - start;
    kvt_pages_move_body(run->source + start, run->target + start, left < KVT_PAGES_TILE ? left : KVT_PAGES_TILE, thread,
                        threads);
}

#endif
