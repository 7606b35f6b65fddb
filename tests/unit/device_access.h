/*
 * device_access: the device under test, as its tests touch it: memory, and an engine's stream that can be held up.
 *
 * Emulated: memory is the CPU's, kernels run when the test cranks the stream. CUDA: memory is copied to and from; a
 * "kernel" is a copy on the stream, and what holds a stream up is a host function that waits, so that the same test
 * runs on the fake runtime and on a real device. Only one stream is held up at a time: a real device may run all
 * host functions in one thread.
 */
#ifndef KVT_TESTS_UNIT_DEVICE_ACCESS_H
#define KVT_TESTS_UNIT_DEVICE_ACCESS_H

#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/gpu_emulated.h"
#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define DEVICE_SKIPPED 77

#ifdef KVT_TEST_CUDA

#include "kernels/gpu_cuda.h"

#define DEVICE_IS_CUDA true
#define DEVICE_OPS (&kvt_gpu_cuda_ops)

enum { KERNELS_MAX = 4, KERNEL_BYTES = 64 * 1024 };

static cudaStream_t access_stream; /* of the test's own accesses */
static uint8_t *kernel_memory;     /* pinned, taken before anything is held up: taking it may wait for the device */

static inline void must(cudaError_t error)
{
    if (error != cudaSuccess) (void)fprintf(stderr, "%s\n", cudaGetErrorString(error));
    KVT_ASSERT(error == cudaSuccess);
}

/* False: there is no device, and nothing is tested. */
static inline bool device_begin(void)
{
    void *memory;
    if (!kvt_gpu_cuda_ops.is_present()) {
        (void)printf("skipped: no CUDA device\n");
        return false;
    }
    must(cudaStreamCreateWithFlags(&access_stream, cudaStreamNonBlocking));
    must(cudaHostAlloc(&memory, KERNELS_MAX * KERNEL_BYTES, cudaHostAllocDefault));
    kernel_memory = memory;
    return true;
}

static inline void device_end(void)
{
    must(cudaStreamDestroy(access_stream));
    must(cudaFreeHost(kernel_memory));
}

static inline void device_put(void *device, const void *host, size_t bytes)
{
    must(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, access_stream));
    must(cudaStreamSynchronize(access_stream));
}

static inline void device_get(void *host, const void *device, size_t bytes)
{
    must(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, access_stream));
    must(cudaStreamSynchronize(access_stream));
}

static inline void *device_alloc(size_t bytes)
{
    void *memory = NULL;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : NULL;
}

static inline void device_free(void *memory, size_t bytes)
{
    (void)bytes;
    (void)cudaFree(memory);
}

static inline cudaStream_t device_stream_of(struct kvt_gpu *gpu, uint32_t stream)
{
    return ((struct kvt_cuda *)gpu)->streams[stream].handle;
}

#else

#define DEVICE_IS_CUDA false
#define DEVICE_OPS (&kvt_gpu_emulated_ops)

static inline bool device_begin(void) { return true; }
static inline void device_end(void) {}
static inline void device_put(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
static inline void device_get(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
static inline void *device_alloc(size_t bytes) { return kvt_table_map(bytes); }
static inline void device_free(void *memory, size_t bytes)
{
    if (memory) kvt_table_unmap(memory, bytes);
}

#endif

#endif
