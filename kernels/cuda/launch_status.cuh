/* launch_status: what a launch says, as a status. */
#ifndef KVT_KERNELS_CUDA_LAUNCH_STATUS_CUH
#define KVT_KERNELS_CUDA_LAUNCH_STATUS_CUH

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"

static inline enum kvt_status kvt_cuda_launch_status(void)
{
    return cudaGetLastError() == cudaSuccess ? KVT_OK : KVT_IO;
}

#endif
