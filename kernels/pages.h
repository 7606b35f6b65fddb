/*
 * pages: the bytes of one block between its segments and one contiguous run.
 *
 * A segment is one (layer, plane) of the block: `bytes` valid bytes at its start, [token][row]. Segment s lies at
 * base[s] + slot * stride[s]. The contiguous run holds the valid bytes of each segment one after the other, in
 * order. What lies behind the valid bytes of a segment is neither read nor written: an engine may be writing it at
 * that moment.
 *
 * Thread: any; no state. Source and target do not overlap.
 */
#ifndef KVT_KERNELS_PAGES_H
#define KVT_KERNELS_PAGES_H

#include <stdint.h>

#include "kernels/pages_body.h"

struct kvt_pages {
    uint32_t count; /* segments */
    void *const *base;
    const uint64_t *stride; /* bytes from a slot to the next */
    uint64_t slot;
    uint64_t bytes; /* valid bytes of each segment */
};

static inline uint8_t *kvt_pages_segment(const struct kvt_pages *pages, uint32_t segment)
{
    return (uint8_t *)pages->base[segment] + pages->slot * pages->stride[segment];
}

/* Every implementation of a move has this prototype. contiguous: count * bytes of it, any alignment. */
typedef void kvt_pages_move_fn(const struct kvt_pages *pages, void *contiguous);

kvt_pages_move_fn kvt_pages_gather_ref;  /* segments -> contiguous */
kvt_pages_move_fn kvt_pages_scatter_ref; /* contiguous -> segments */

/* Segments -> the same segments of another slot; count and bytes of both agree. */
void kvt_pages_copy_ref(const struct kvt_pages *source, const struct kvt_pages *target);

/*
 * The same moves as rows of the table that the GPU kernel takes (pages_body.h): pages->count rows each. Tables of
 * several blocks laid one behind the other are one launch.
 */
void kvt_pages_gather_runs(const struct kvt_pages *pages, void *contiguous, struct kvt_pages_run *ret_runs);
void kvt_pages_scatter_runs(const struct kvt_pages *pages, const void *contiguous, struct kvt_pages_run *ret_runs);
void kvt_pages_copy_runs(const struct kvt_pages *source, const struct kvt_pages *target,
                         struct kvt_pages_run *ret_runs);

/* Every implementation of the table's kernel on the CPU: count rows, none of more than bytes_max bytes. */
typedef void kvt_pages_move_runs_fn(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max);

kvt_pages_move_runs_fn kvt_pages_move_runs_ref;
kvt_pages_move_runs_fn kvt_pages_move_runs_body; /* the GPU's thread body in a loop */

#endif
