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

#include "kernels/pages_body.h"
#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CTAs that saturate a PCIe or an NVLink-C2C link, about, and leave the rest of the GPU to the engine. */
enum { KVT_CUDA_CTAS_FEW = 16 };

/* Moves count runs (kvt_pages_gather_runs and its like), none of more than bytes_max bytes. count 0: nothing is done. */
KVT_NODISCARD enum kvt_status kvt_cuda_pages_move(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max,
                                                  uint32_t ctas, void *stream);

#ifdef __cplusplus
}
#endif

#endif
