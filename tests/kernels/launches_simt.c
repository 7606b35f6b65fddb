/* The CUDA sources as the CPU runs them. */
#include <string.h>

#include "runtime/base/mem.h"
#include "tests/kernels/launches.h"
#include "tests/kernels/simt/simt.h"

/* The names that simt.h gives to the launch functions, with the prototypes of kernels/cuda/launch.h. */
#define kvt_cuda_attention kvt_simt_attention
#define kvt_cuda_block_pack kvt_simt_block_pack
#define kvt_cuda_block_unpack kvt_simt_block_unpack
#define kvt_cuda_checksum kvt_simt_checksum
#define kvt_cuda_dequantise kvt_simt_dequantise
#define kvt_cuda_pages_move kvt_simt_pages_move
#define kvt_cuda_pattern_fill kvt_simt_pattern_fill
#define kvt_cuda_pattern_verify kvt_simt_pattern_verify
#define kvt_cuda_quantise kvt_simt_quantise
#include "kernels/cuda/launch.h"

static bool is_here(void) { return true; }
static void *memory_alloc(size_t size) { return kvt_alloc(1, size); }
static void copy(void *target, const void *source, size_t size) { memcpy(target, source, size); }
static bool finish(void) { return true; }

const struct kern_launches kern_launches_simt = {
    .name = "simt",
    .is_here = is_here,
    .memory_alloc = memory_alloc,
    .memory_free = kvt_free,
    .device_alloc = memory_alloc,
    .device_free = kvt_free,
    .copy = copy,
    .finish = finish,
    .reseed = kvt_simt_seed,
    .attention = kvt_simt_attention,
    .block_pack = kvt_simt_block_pack,
    .block_unpack = kvt_simt_block_unpack,
    .checksum = kvt_simt_checksum,
    .dequantise = kvt_simt_dequantise,
    .pages_move = kvt_simt_pages_move,
    .pattern_fill = kvt_simt_pattern_fill,
    .pattern_verify = kvt_simt_pattern_verify,
    .quantise = kvt_simt_quantise,
};
