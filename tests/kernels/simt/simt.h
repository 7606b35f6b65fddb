/*
 * simt: CUDA sources on the CPU, thread by thread, so that what a CTA's threads tell each other is tested without a GPU.
 *
 * The .cu files are compiled as C++ with this header before them (-include, -DKVT_SIMT). A thread of the grid is a
 * coroutine; CTAs run one after the other. A thread runs until it waits for others: at a barrier, or in a warp's ballot
 * or reduction. Who goes on next is drawn from a seed, so that a missing barrier shows as a difference in some order. A
 * wait that nobody can end, such as a barrier that some threads never reach, ends the program with a line that says so.
 *
 * What it does not show: weak memory order, coalescing, and warps that diverge without a wait.
 */
#ifndef KVT_TESTS_KERNELS_SIMT_SIMT_H
#define KVT_TESTS_KERNELS_SIMT_SIMT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvt_simt_index {
    unsigned x, y;
};

extern struct kvt_simt_index kvt_simt_thread, kvt_simt_block, kvt_simt_block_size, kvt_simt_grid_size;

enum kvt_simt_exchange { KVT_SIMT_OR, KVT_SIMT_ADD, KVT_SIMT_MAX, KVT_SIMT_XOR, KVT_SIMT_BALLOT };

/* Runs body(user) as every thread of a grid; dynamic shared memory is there for a CTA at kvt_simt_shared. */
void kvt_simt_run(unsigned grid_x, unsigned grid_y, unsigned threads, size_t shared_bytes, void (*body)(void *user),
                  void *user);
extern void *kvt_simt_shared;
/* The order in which threads go on. */
void kvt_simt_seed(uint64_t seed);

/* __syncthreads_or(value): the barrier of a CTA. */
int kvt_simt_barrier(int value);
/* A barrier of a warp with an exchange. */
unsigned kvt_simt_warp(enum kvt_simt_exchange what, unsigned value);
/* A shuffle: the value of another lane. */
unsigned kvt_simt_shuffle(unsigned value, unsigned lane);

#ifdef __cplusplus
}
#endif

/* ---- What a .cu sees ------------------------------------------------------------------------------------------- */

#if defined(KVT_SIMT)

#define kvt_cuda_attention kvt_simt_attention
#define kvt_cuda_attention_scratch_floats kvt_simt_attention_scratch_floats
#define kvt_cuda_block_pack kvt_simt_block_pack
#define kvt_cuda_block_unpack kvt_simt_block_unpack
#define kvt_cuda_checksum kvt_simt_checksum
#define kvt_cuda_dequantise kvt_simt_dequantise
#define kvt_cuda_pages_move kvt_simt_pages_move
#define kvt_cuda_pattern_fill kvt_simt_pattern_fill
#define kvt_cuda_pattern_verify kvt_simt_pattern_verify
#define kvt_cuda_quantise kvt_simt_quantise

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)

#define threadIdx kvt_simt_thread
#define blockIdx kvt_simt_block
#define blockDim kvt_simt_block_size
#define gridDim kvt_simt_grid_size

typedef void *cudaStream_t;
enum { cudaSuccess = 0 };
static inline int cudaGetLastError(void) { return cudaSuccess; }

static inline void __syncthreads(void) { (void)kvt_simt_barrier(0); }
static inline int __syncthreads_or(int value) { return kvt_simt_barrier(value); }
static inline void __syncwarp(void) { (void)kvt_simt_warp(KVT_SIMT_OR, 0); }
static inline unsigned __ballot_sync(unsigned, int value) { return kvt_simt_warp(KVT_SIMT_BALLOT, value != 0); }
static inline unsigned __reduce_or_sync(unsigned, unsigned value) { return kvt_simt_warp(KVT_SIMT_OR, value); }
static inline unsigned __reduce_add_sync(unsigned, unsigned value) { return kvt_simt_warp(KVT_SIMT_ADD, value); }

static inline unsigned __reduce_max_sync(unsigned, unsigned value) { return kvt_simt_warp(KVT_SIMT_MAX, value); }

static inline unsigned __reduce_xor_sync(unsigned, unsigned value) { return kvt_simt_warp(KVT_SIMT_XOR, value); }

template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int other)
{
    static_assert(sizeof value == sizeof(unsigned), "a shuffle of one register");
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    bits = kvt_simt_shuffle(bits, (kvt_simt_thread.x ^ (unsigned)other) % 32);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Threads do not run at the same time here. */
template <typename T> static inline T atomicOr(T *at, T value)
{
    const T before = *at;
    *at = before | value;
    return before;
}
template <typename T> static inline T atomicAdd(T *at, T value)
{
    const T before = *at;
    *at = before + value;
    return before;
}
template <typename T> static inline T atomicXor(T *at, T value)
{
    const T before = *at;
    *at = before ^ value;
    return before;
}
template <typename T> static inline T atomicMax(T *at, T value)
{
    const T before = *at;
    if (value > before) *at = value;
    return before;
}
template <typename T> static inline T atomicMin(T *at, T value)
{
    const T before = *at;
    if (value < before) *at = value;
    return before;
}

template <typename F> static void kvt_simt_call(void *user) { (*static_cast<F *>(user))(); }
template <typename F>
static void kvt_simt_launch(unsigned grid_x, unsigned grid_y, unsigned threads, size_t shared_bytes, F body)
{
    kvt_simt_run(grid_x, grid_y, threads, shared_bytes, kvt_simt_call<F>, &body);
}
#define KVT_LAUNCH(kernel, grid, threads, stream, ...) KVT_LAUNCH_WIDE(kernel, grid, 1, threads, 0, stream, __VA_ARGS__)
#define KVT_LAUNCH_WIDE(kernel, grid_x, grid_y, threads, shared_bytes, stream, ...) \
    ((void)(stream), kvt_simt_launch((grid_x), (grid_y), (threads), (shared_bytes), [=]() { kernel(__VA_ARGS__); }))
#define KVT_LAUNCH_SHARED(type, name) type *const name = static_cast<type *>(kvt_simt_shared)

#endif
#endif
