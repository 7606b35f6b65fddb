/*
 * launch_status: starting a kernel, and what that says, as a status.
 *
 * KVT_LAUNCH stands for kernel<<<grid, threads, 0, stream>>>(...), which only nvcc reads: the same sources are also
 * compiled for the CPU by tests/kernels/simt, which has a KVT_LAUNCH of its own.
 */
#ifndef KVT_KERNELS_CUDA_LAUNCH_STATUS_CUH
#define KVT_KERNELS_CUDA_LAUNCH_STATUS_CUH

#if !defined(KVT_SIMT)
#include <cuda_runtime_api.h>
#define KVT_LAUNCH(kernel, grid, threads, stream, ...) \
    kernel<<<(grid), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
/* A grid of two dimensions, and shared memory by the launch: what KVT_LAUNCH_SHARED names in the kernel. */
#define KVT_LAUNCH_WIDE(kernel, grid_x, grid_y, threads, shared_bytes, stream, ...) \
    kernel<<<dim3((grid_x), (grid_y)), (threads), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define KVT_LAUNCH_SHARED(type, name) extern __shared__ type name[]
#endif

#include "kernels/cuda/launch.h"

static inline enum kvt_status kvt_cuda_launch_status(void)
{
    return cudaGetLastError() == cudaSuccess ? KVT_OK : KVT_IO;
}

/* CTAs for so much work: no more than it has parts, at least one. */
static inline unsigned kvt_cuda_grid(uint64_t parts, uint32_t ctas)
{
    const uint64_t wanted = ctas > 0 ? ctas : 1;
    return (unsigned)(parts < wanted ? parts : wanted);
}

#endif
