/*
 * Checksums of many runs: a thread sums a piece and moves it on to the run's end, a CTA xors its tile, and the tiles of a
 * run meet in its result by an atomic xor (kernels/checksum.h says why that is right).
 */
#include "kernels/checksum.h"
#include "kernels/cuda/launch_status.cuh"

static __global__ void start_runs(const struct kvt_checksum_run *runs, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) *runs[i].ret_crc = kvt_checksum_start(&runs[i]);
}

static __global__ void __launch_bounds__(KVT_CHECKSUM_THREADS)
    sum_tiles(const struct kvt_checksum_run *runs, uint64_t tiles, uint32_t tiles_per_run)
{
    __shared__ uint32_t table[256];
    __shared__ uint32_t sum;
    table[threadIdx.x] = kvt_checksum_entry(threadIdx.x);
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const struct kvt_checksum_run *run = &runs[tile / tiles_per_run];
        const uint64_t start = tile % tiles_per_run * KVT_CHECKSUM_TILE;
        if (start >= run->size) continue;
        if (threadIdx.x == 0) sum = 0;
        __syncthreads(); /* the table is there, too */
        const uint32_t mine = __reduce_xor_sync(
            0xffffffffu, kvt_checksum_piece(run, start + (uint64_t)threadIdx.x * KVT_CHECKSUM_PIECE, table));
        if (threadIdx.x % 32 == 0) atomicXor(&sum, mine);
        __syncthreads();
        if (threadIdx.x == 0) atomicXor(run->ret_crc, sum); /* and thread 0 alone clears it for the next tile */
    }
}

enum kvt_status kvt_cuda_checksum(const struct kvt_checksum_run *runs, uint32_t count, uint64_t size_max, uint32_t ctas,
                                  void *stream)
{
    const uint32_t tiles_per_run = (uint32_t)((size_max + KVT_CHECKSUM_TILE - 1) / KVT_CHECKSUM_TILE);
    const uint64_t tiles = (uint64_t)count * tiles_per_run;
    if (count == 0) return KVT_OK;
    KVT_LAUNCH(start_runs, (count + 31) / 32, 32, stream, runs, count);
    if (tiles > 0)
        KVT_LAUNCH(sum_tiles, kvt_cuda_grid(tiles, ctas), KVT_CHECKSUM_THREADS, stream, runs, tiles, tiles_per_run);
    return kvt_cuda_launch_status();
}
