/* quantise and dequantise: a warp for each row; warps take the rows of a table of pages in turn. */
#include "kernels/cuda/launch_status.cuh"
#include "kernels/quantise_body.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

template <enum kvt_dtype dtype, enum kvt_quant_code code>
static __device__ void quantise_row(const struct kvt_quant_page *of, uint32_t row)
{
    const uint32_t l = threadIdx.x % 32, width = of->shape.width;
    const uint64_t first = (uint64_t)row * width;
    uint32_t largest = 0;
    for (uint32_t i = l; i < width; i += 32) {
        const uint32_t key = kvt_quant_key(dtype, of->page, first + i);
        largest = key > largest ? key : largest;
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    const int32_t k = kvt_quant_exponent(dtype, code, kvt_quant_magnitude(dtype, largest));
    const float power = kvt_quant_power(-k);
    if (l == 0) of->scales[row] = (uint8_t)(k + 127);
    for (uint32_t i = l; i < width; i += 32)
        of->codes[first + i] = (uint8_t)kvt_quant_encode(code, kvt_quant_load(dtype, of->page, first + i), power);
}

template <enum kvt_dtype dtype, enum kvt_quant_code code>
static __device__ void dequantise_row(const struct kvt_quant_page *of, uint32_t row)
{
    const uint32_t width = of->shape.width;
    const uint64_t first = (uint64_t)row * width;
    const float power = kvt_quant_power((int32_t)of->scales[row] - 127);
    for (uint32_t i = threadIdx.x % 32; i < width; i += 32)
        kvt_quant_store(dtype, of->page, first + i, kvt_quant_decode(code, of->codes[first + i], power));
}

template <enum kvt_dtype dtype, enum kvt_quant_code code>
static __device__ void do_row(const struct kvt_quant_page *of, uint32_t row, bool is_back)
{
    if (is_back) dequantise_row<dtype, code>(of, row);
    else quantise_row<dtype, code>(of, row);
}

static __global__ void __launch_bounds__(THREADS)
    do_rows(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max, bool is_back)
{
    const uint64_t rows = (uint64_t)count * rows_max;
    for (uint64_t i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < rows; i += (uint64_t)gridDim.x * WARPS) {
        const struct kvt_quant_page *of = &pages[i / rows_max];
        const uint32_t row = (uint32_t)(i % rows_max);
        if (row >= of->shape.rows) continue;
        const bool is_fp8 = of->shape.code == KVT_QUANT_FP8;
        if (of->shape.dtype == KVT_DTYPE_BF16 && is_fp8) do_row<KVT_DTYPE_BF16, KVT_QUANT_FP8>(of, row, is_back);
        else if (of->shape.dtype == KVT_DTYPE_BF16) do_row<KVT_DTYPE_BF16, KVT_QUANT_INT8>(of, row, is_back);
        else if (of->shape.dtype == KVT_DTYPE_FP16 && is_fp8) do_row<KVT_DTYPE_FP16, KVT_QUANT_FP8>(of, row, is_back);
        else if (of->shape.dtype == KVT_DTYPE_FP16) do_row<KVT_DTYPE_FP16, KVT_QUANT_INT8>(of, row, is_back);
        else if (is_fp8) do_row<KVT_DTYPE_FP32, KVT_QUANT_FP8>(of, row, is_back);
        else do_row<KVT_DTYPE_FP32, KVT_QUANT_INT8>(of, row, is_back);
    }
}

static enum kvt_status launch(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max, bool is_back,
                              uint32_t ctas, void *stream)
{
    const uint64_t rows = (uint64_t)count * rows_max;
    if (rows == 0) return KVT_OK;
    KVT_LAUNCH(do_rows, kvt_cuda_grid((rows + WARPS - 1) / WARPS, ctas), THREADS, stream, pages, count, rows_max,
               is_back);
    return kvt_cuda_launch_status();
}

enum kvt_status kvt_cuda_quantise(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max, uint32_t ctas,
                                  void *stream)
{
    return launch(pages, count, rows_max, false, ctas, stream);
}

enum kvt_status kvt_cuda_dequantise(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max,
                                    uint32_t ctas, void *stream)
{
    return launch(pages, count, rows_max, true, ctas, stream);
}
