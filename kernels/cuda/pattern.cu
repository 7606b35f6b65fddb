/* Patterns: CTAs fill or verify the tiles of a table of runs in turn (kernels/pattern.h). */
#include "kernels/cuda/launch_status.cuh"
#include "kernels/pattern.h"

static __global__ void __launch_bounds__(KVT_PATTERN_THREADS)
    fill_tiles(const struct kvt_pattern_run *runs, uint64_t tiles, uint32_t tiles_per_run)
{
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        kvt_pattern_fill_tile(&runs[tile / tiles_per_run], tile % tiles_per_run, threadIdx.x, blockDim.x);
}

static __global__ void start_runs(const struct kvt_pattern_run *runs, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    runs[i].result->bad = 0;
    runs[i].result->first = runs[i].size;
}

static __global__ void __launch_bounds__(KVT_PATTERN_THREADS)
    verify_tiles(const struct kvt_pattern_run *runs, uint64_t tiles, uint32_t tiles_per_run)
{
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const struct kvt_pattern_run *run = &runs[tile / tiles_per_run];
        unsigned long long bad = 0, first = ~0ull;
        kvt_pattern_verify_tile(run, tile % tiles_per_run, threadIdx.x, blockDim.x, &bad, &first);
        if (bad == 0) continue; /* which is nearly always so: no exchange is worth its time */
        atomicAdd(&run->result->bad, bad);
        atomicMin(&run->result->first, first);
    }
}

static uint32_t tiles_of(uint64_t size_max) { return (uint32_t)((size_max + KVT_PATTERN_TILE - 1) / KVT_PATTERN_TILE); }

enum kvt_status kvt_cuda_pattern_fill(const struct kvt_pattern_run *runs, uint32_t count, uint64_t size_max,
                                      uint32_t ctas, void *stream)
{
    const uint64_t tiles = (uint64_t)count * tiles_of(size_max);
    if (tiles == 0) return KVT_OK;
    KVT_LAUNCH(fill_tiles, kvt_cuda_grid(tiles, ctas), KVT_PATTERN_THREADS, stream, runs, tiles, tiles_of(size_max));
    return kvt_cuda_launch_status();
}

enum kvt_status kvt_cuda_pattern_verify(const struct kvt_pattern_run *runs, uint32_t count, uint64_t size_max,
                                        uint32_t ctas, void *stream)
{
    const uint64_t tiles = (uint64_t)count * tiles_of(size_max);
    if (count == 0) return KVT_OK;
    KVT_LAUNCH(start_runs, (count + 31) / 32, 32, stream, runs, count);
    if (tiles > 0)
        KVT_LAUNCH(verify_tiles, kvt_cuda_grid(tiles, ctas), KVT_PATTERN_THREADS, stream, runs, tiles,
                   tiles_of(size_max));
    return kvt_cuda_launch_status();
}
