/* Instead of gpu_cuda.c in a build without the CUDA toolkit: a device that is never there. */
#include "kernels/gpu.h"

static bool absent_is_present(void) { return false; }

static enum kvt_status absent_open(const struct kvt_gpu_config *config, const struct kvt_env *env,
                                   struct kvt_gpu **ret_gpu)
{
    (void)config;
    (void)env;
    (void)ret_gpu;
    return KVT_UNSUPPORTED;
}

/* Nothing opens it, so nothing else can be called. */
const struct kvt_gpu_ops kvt_gpu_cuda_ops = { .name = "cuda", .is_present = absent_is_present, .open = absent_open };
