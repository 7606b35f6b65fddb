#include "kernels/gpu.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

/* In the order of preference; the emulated device is always present. */
static const struct kvt_gpu_ops *const devices[] = {
    &kvt_gpu_cuda_ops,
    &kvt_gpu_emulated_ops,
};

const struct kvt_gpu_ops *kvt_gpu_default_ops(void)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(devices); i++) {
        if (devices[i]->is_present()) return devices[i];
    }
    KVT_ASSERT(!"the emulated device is always present");
    return NULL;
}
