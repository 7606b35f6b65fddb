/* Page gather, scatter and copy: CTAs take the tiles of a table of runs in turn (kernels/pages_body.h). */
#include "kernels/cuda/launch_status.cuh"

static __global__ void __launch_bounds__(KVT_PAGES_THREADS)
    move_runs(const struct kvt_pages_run *runs, uint64_t tiles, uint32_t tiles_per_run)
{
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        kvt_pages_tile_body(runs, tiles_per_run, tile, threadIdx.x, blockDim.x);
}

enum kvt_status kvt_cuda_pages_move(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max, uint32_t ctas,
                                    void *stream)
{
    const uint32_t tiles_per_run = kvt_pages_tiles(bytes_max);
    const uint64_t tiles = (uint64_t)count * tiles_per_run;
    if (tiles == 0) return KVT_OK;
    KVT_LAUNCH(move_runs, kvt_cuda_grid(tiles, ctas), KVT_PAGES_THREADS, stream, runs, tiles, tiles_per_run);
    return kvt_cuda_launch_status();
}
