#include <string.h>

#include "kernels/pages.h"
#include "runtime/base/assert.h"

void kvt_pages_gather_ref(const struct kvt_pages *pages, void *contiguous)
{
    uint8_t *target = contiguous;
    for (uint32_t s = 0; s < pages->count; s++) {
        memcpy(target + s * pages->bytes, kvt_pages_segment(pages, s), pages->bytes);
    }
}

void kvt_pages_scatter_ref(const struct kvt_pages *pages, void *contiguous)
{
    const uint8_t *source = contiguous;
    for (uint32_t s = 0; s < pages->count; s++) {
        memcpy(kvt_pages_segment(pages, s), source + s * pages->bytes, pages->bytes);
    }
}

void kvt_pages_copy_ref(const struct kvt_pages *source, const struct kvt_pages *target)
{
    KVT_ASSERT(source->count == target->count);
    KVT_ASSERT(source->bytes == target->bytes);
    for (uint32_t s = 0; s < source->count; s++) {
        memcpy(kvt_pages_segment(target, s), kvt_pages_segment(source, s), source->bytes);
    }
}
