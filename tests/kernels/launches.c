#include "tests/kernels/launches.h"

#include "runtime/base/bytes.h"

static const struct kern_launches *const registry[] = {
#if defined(KERN_HAVE_SIMT)
    &kern_launches_simt,
#endif
#if defined(KVT_HAVE_CUDA)
    &kern_launches_cuda,
#endif
    NULL,
};

const struct kern_launches *kern_launches_at(uint32_t i) { return i < KVT_ARRAY_COUNT(registry) ? registry[i] : NULL; }
