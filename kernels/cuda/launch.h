/*
 * launch: the CUDA kernels as plain C calls. Each puts one kernel on a stream and returns; nothing waits.
 *
 * stream: a cudaStream_t; NULL is the legacy default stream.
 * Memory: every pointer, those inside of tables too, is one that the device can use at the time the kernel runs:
 *         device memory, or host memory that is registered and mapped. Tables are read by the kernel, not by the
 *         call, and must stay as they are until it is over.
 * Fails:  IO when the launch is refused; the CUDA error was taken (cudaGetLastError), and a sticky one comes back from
 *         the next call. What a kernel does wrong while it runs is seen where the stream is waited for.
 * Thread: any that has the device's context current, as with any launch.
 *
 * Every function here exists only in a build with nvcc (KVT_HAVE_CUDA); each has a reference and a thread body on the
 * CPU with the same result.
 */
#ifndef KVT_KERNELS_CUDA_LAUNCH_H
#define KVT_KERNELS_CUDA_LAUNCH_H

#include <stdint.h>

#include "kernels/attention_body.h"
#include "kernels/block_pack.h"
#include "kernels/checksum.h"
#include "kernels/pages_body.h"
#include "kernels/pattern.h"
#include "kernels/quantise.h"
#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CTAs that saturate a PCIe or an NVLink-C2C link, about, and leave the rest of the GPU to the engine. */
enum { KVT_CUDA_CTAS_FEW = 16 };

/* Moves count runs (kvt_pages_gather_runs and its like), none of more than bytes_max bytes. count 0: nothing is done. */
KVT_NODISCARD enum kvt_status kvt_cuda_pages_move(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max,
                                                  uint32_t ctas, void *stream);

/*
 * Packs, or takes apart, count blocks (kernels/block_pack.h): what a stash, or a fetch, does. None has more than
 * layers_max layers, of an unpack wanted ones. Blocks of one launch may differ in everything. ctas: as many chunks are
 * worked on at a time; 0 counts as 1. The target of pack may be mapped host memory: it is written once, in order within a
 * chunk. The source of unpack is better in HBM: it is read in steps that depend on each other.
 * Results: *ret_length and *ret_verdict of each block are there when the stream has come to this point.
 */
KVT_NODISCARD enum kvt_status kvt_cuda_block_pack(const struct kvt_block_pack *blocks, uint32_t count,
                                                  uint32_t layers_max, uint32_t ctas, void *stream);
KVT_NODISCARD enum kvt_status kvt_cuda_block_unpack(const struct kvt_block_unpack *blocks, uint32_t count,
                                                    uint32_t layers_max, uint32_t ctas, void *stream);

/*
 * count pages, none of more than rows_max rows: page to codes and scales, or back (kernels/quantise.h). A CTA does 8 rows
 * at a time.
 */
KVT_NODISCARD enum kvt_status kvt_cuda_quantise(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max,
                                                uint32_t ctas, void *stream);
KVT_NODISCARD enum kvt_status kvt_cuda_dequantise(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max,
                                                  uint32_t ctas, void *stream);

/* *ret_crc of each of count runs, none of more than size_max bytes (kernels/checksum.h). */
KVT_NODISCARD enum kvt_status kvt_cuda_checksum(const struct kvt_checksum_run *runs, uint32_t count, uint64_t size_max,
                                                uint32_t ctas, void *stream);

/* Fills runs, or says in *result how they differ (kernels/pattern.h). */
KVT_NODISCARD enum kvt_status kvt_cuda_pattern_fill(const struct kvt_pattern_run *runs, uint32_t count,
                                                    uint64_t size_max, uint32_t ctas, void *stream);
KVT_NODISCARD enum kvt_status kvt_cuda_pattern_verify(const struct kvt_pattern_run *runs, uint32_t count,
                                                      uint64_t size_max, uint32_t ctas, void *stream);

/*
 * Attention (kernels/attention.h) by splits CTAs a head, at least 1: each takes a share of the list, and a second kernel
 * merges what they found. scratch: kvt_cuda_attention_scratch_floats() of them in device memory, until the kernels are
 * over. head_dim is at most KVT_CUDA_HEAD_DIM_MAX: UNSUPPORTED otherwise.
 */
enum { KVT_CUDA_HEAD_DIM_MAX = 576 };
uint64_t kvt_cuda_attention_scratch_floats(const struct kvt_attention *args, uint32_t splits);
KVT_NODISCARD enum kvt_status kvt_cuda_attention(const struct kvt_attention *args, uint32_t splits, float *scratch,
                                                 void *stream);

#ifdef __cplusplus
}
#endif

#endif
