/*
 * checkkern: what a kernel's cases are made of. A kernel is one file here and one line in the registry in checkkern.c.
 *
 * Implementation 0 is the reference; the others are compared with it, bit by bit, over shapes and fills drawn from a
 * seed, with outputs between canaries and at odd addresses too. Where it matters the CUDA sources are implementations of
 * their own, twice: "simt", run on the CPU thread by thread, and "cuda", on a GPU (launches.h).
 */
#ifndef KVT_TESTS_KERNELS_CHECKKERN_H
#define KVT_TESTS_KERNELS_CHECKKERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/rng.h"

/* What is compared in one call of check. */
struct kern_run {
    const char *kernel, *impl;
    uint64_t seed;
    uint64_t compared; /* counted by check */
};

struct kern_kernel {
    const char *name, *what;
    /* The i-th implementation's name; NULL past the last. 0 is the reference. */
    const char *(*impl)(uint32_t i);
    /* False: not on this machine, or not in this build. */
    bool (*is_here)(uint32_t i);
    /* All shapes and fills of implementation i >= 1 with run->seed. False: kern_differs() has said what differs. */
    bool (*check)(uint32_t i, struct kern_run *run);
    /*
     * Speed, or NULL. open: what a pass works on, and the bytes that count; NULL: there is nothing to measure. A pass has
     * ended when it returns.
     */
    void *(*bench_open)(uint32_t i, uint64_t *ret_bytes);
    void (*bench_pass)(void *bench);
    void (*bench_close)(void *bench);
};

/* Prints kernel, implementation, seed and what the format says; false. */
__attribute__((format(printf, 2, 3))) bool kern_differs(const struct kern_run *run, const char *format, ...);

/* The first index at which they differ; size when they do not. */
size_t kern_first_difference(const uint8_t *a, const uint8_t *b, size_t size);

/* ---- Memory between canaries ----------------------------------------------------------------------------------- */

struct kern_launches;

/* side: whose kernels touch it; NULL: the CPU. */
struct kern_buffer {
    const struct kern_launches *side;
    uint8_t *memory, *bytes;
    size_t size;
};

/* misalign: bytes past a multiple of 64 at which it starts. The bytes are filled with a value of their own. */
void kern_buffer_init(struct kern_buffer *buffer, const struct kern_launches *side, size_t size, size_t misalign);
bool kern_buffer_is_intact(const struct kern_buffer *buffer);
void kern_buffer_done(struct kern_buffer *buffer);
/* So that memory of the CPU is there, and is not all the same page of zeros; a GPU's is. */
void kern_touch(const struct kern_launches *side, void *memory, size_t size);
void kern_fill_random(uint8_t *target, size_t size, struct kvt_rng *rng);

extern const struct kern_kernel kern_attention, kern_block_pack, kern_block_unpack, kern_checksum, kern_pages, kern_pattern;
extern const struct kern_kernel kern_quantise, kern_rank_planes;

#endif
