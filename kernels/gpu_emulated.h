/*
 * gpu_emulated: what tests and simulations do to an emulated device beyond the gate and the crank of gpu.h.
 *
 * Faults: the n-th next job of a stream, or each one with some probability, fails or gets stuck. A stuck job holds
 *         up its stream until it is released, as a device that stopped answering does. Close and memory_free, which
 *         wait for all work, release it themselves, and pass closed gates.
 *
 * Time:   with a link speed set, a job that crossed the link is over when its stream's link would have moved its
 *         bytes. Each stream has a link of its own, and one job at a time uses it. In a single-threaded env nobody
 *         sleeps: the job's bytes move when it is run, and kvt_gpu_emulated_run() ends it once env's clock has come
 *         to its end. Only synchronize and close end it at once: nobody could move the clock while they wait.
 *
 * Thread: any.
 */
#ifndef KVT_KERNELS_GPU_EMULATED_H
#define KVT_KERNELS_GPU_EMULATED_H

#include "kernels/gpu.h"

enum kvt_gpu_fault {
    KVT_GPU_FAULT_NONE,
    KVT_GPU_FAULT_FAIL,        /* the job does not run, and is reported as failed */
    KVT_GPU_FAULT_FAIL_LATE,   /* it runs, and is reported as failed all the same */
    KVT_GPU_FAULT_STUCK_START, /* it does not run until it is released: its bytes move late */
    KVT_GPU_FAULT_STUCK_END    /* it runs, but is not over until it is released */
};

/* The n-th job that the stream comes to from now on (1: the next) meets the fault, once. n 0: none does. */
void kvt_gpu_emulated_fault_at(struct kvt_gpu *gpu, uint32_t stream, uint64_t n, enum kvt_gpu_fault fault);

/* Each job that the stream comes to meets the fault with a probability of per_million / 1,000,000. */
void kvt_gpu_emulated_fault_randomly(struct kvt_gpu *gpu, uint32_t stream, uint32_t per_million, uint64_t seed,
                                     enum kvt_gpu_fault fault);

/* True while a stuck job holds up the stream. */
bool kvt_gpu_emulated_is_stuck(struct kvt_gpu *gpu, uint32_t stream);

/* Lets the stuck job go on; it ends as if nothing had happened. False when there is none. */
bool kvt_gpu_emulated_release(struct kvt_gpu *gpu, uint32_t stream);

/* Single-threaded env: the earliest time at which a job that has run is over; UINT64_MAX when there is none. */
uint64_t kvt_gpu_emulated_next_ns(struct kvt_gpu *gpu);

#endif
