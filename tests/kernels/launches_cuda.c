/* The CUDA kernels on the first GPU. Managed memory: cases look at it from the CPU, between canaries. */
#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "tests/kernels/launches.h"

static bool is_here(void)
{
    int count = 0;
    const bool is_found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    (void)cudaGetLastError();
    return is_found;
}

static void *memory_alloc(size_t size)
{
    void *memory = NULL;
    return cudaMallocManaged(&memory, size, cudaMemAttachGlobal) == cudaSuccess ? memory : NULL;
}

static void *device_alloc(size_t size)
{
    void *memory = NULL;
    return cudaMalloc(&memory, size) == cudaSuccess ? memory : NULL;
}

static void memory_free(void *memory) { (void)cudaFree(memory); }

static void copy(void *target, const void *source, size_t size)
{
    (void)cudaMemcpy(target, source, size, cudaMemcpyDefault);
    (void)cudaDeviceSynchronize();
}

static bool finish(void) { return cudaDeviceSynchronize() == cudaSuccess; }
static void reseed(uint64_t seed) { (void)seed; }

const struct kern_launches kern_launches_cuda = {
    .name = "cuda",
    .is_here = is_here,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .device_alloc = device_alloc,
    .device_free = memory_free,
    .copy = copy,
    .finish = finish,
    .reseed = reseed,
    .attention = kvt_cuda_attention,
    .block_pack = kvt_cuda_block_pack,
    .block_unpack = kvt_cuda_block_unpack,
    .checksum = kvt_cuda_checksum,
    .dequantise = kvt_cuda_dequantise,
    .pages_move = kvt_cuda_pages_move,
    .pattern_fill = kvt_cuda_pattern_fill,
    .pattern_verify = kvt_cuda_pattern_verify,
    .quantise = kvt_cuda_quantise,
};
