#include "tools/run/pages.h"

extern const uint8_t kvt_pages_bf16[], kvt_pages_bf16_end[];
extern const uint8_t kvt_pages_fp16[], kvt_pages_fp16_end[];
extern const uint8_t kvt_pages_fp8[], kvt_pages_fp8_end[];

const uint8_t *kvt_pages(enum kvt_dtype dtype, size_t *ret_bytes)
{
    const uint8_t *first = NULL, *end = NULL;
    switch (dtype) {
    case KVT_DTYPE_BF16:
        first = kvt_pages_bf16;
        end = kvt_pages_bf16_end;
        break;
    case KVT_DTYPE_FP16:
        first = kvt_pages_fp16;
        end = kvt_pages_fp16_end;
        break;
    case KVT_DTYPE_FP8:
        first = kvt_pages_fp8;
        end = kvt_pages_fp8_end;
        break;
    case KVT_DTYPE_FP32:
    case KVT_DTYPE_INT8: break;
    }
    *ret_bytes = first ? (size_t)(end - first) : 0;
    return first;
}
