/*
 * body: what a kernel's thread body is written with, so that one source compiles for the GPU and for the CPU.
 *
 * A body is the work of one thread, or of one warp in lockstep, without any exchange with others: which bytes it reads
 * and writes, and what it makes of them. The CUDA file calls it from its threads; the "body" implementation of the
 * same kernel calls it from a loop, so that the arithmetic is tested on a machine without a GPU.
 *
 * Headers with bodies are plain C that is also C++: no designated initialisers, no compound literals, no flexible
 * arrays, a cast for each pointer conversion.
 */
#ifndef KVT_KERNELS_BODY_H
#define KVT_KERNELS_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define KVT_BODY static inline __host__ __device__
#else
#define KVT_BODY static inline
#endif

#if defined(__CUDA_ARCH__)
#define KVT_BODY_POPCOUNT64(x) ((uint32_t)__popcll(x))
#else
#define KVT_BODY_POPCOUNT64(x) ((uint32_t)__builtin_popcountll(x))
#endif

/* Sixteen bytes in one access, aligned; may alias anything. */
struct kvt_vec16 {
    uint64_t low, high;
} __attribute__((aligned(16), may_alias));

typedef uint32_t kvt_word_alias __attribute__((may_alias));
typedef uint64_t kvt_long_alias __attribute__((may_alias));

#endif
