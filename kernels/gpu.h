/*
 * gpu: the seam between kvtier and a device. It is made for CUDA; built in today is an emulated device in ordinary memory whose
 * streams are asynchronous in the same way, so that every ordering can be tested on a machine without a GPU.
 *
 * A stream runs its work in order; two streams know nothing of each other. A mark is a point of a stream: recorded
 * after the work submitted so far, reached when that work is done. Order between streams exists only where one waits
 * for a mark of another.
 *
 * Thread:  any thread may call; each implementation has a lock of its own, held for queue operations only.
 */
#ifndef KVT_KERNELS_GPU_H
#define KVT_KERNELS_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/env.h"
#include "runtime/base/status.h"

#define KVT_GPU_STREAMS_MAX 16

/* Stream number and serial: (stream + 1) << 56 | serial. 0: nothing to wait for. Serials of a stream only grow. */
typedef uint64_t kvt_mark;

static inline kvt_mark kvt_mark_make(uint32_t stream, uint64_t serial)
{
    return ((uint64_t)(stream + 1) << 56) | serial;
}
static inline uint32_t kvt_mark_stream(kvt_mark mark) { return (uint32_t)(mark >> 56) - 1; }
static inline uint64_t kvt_mark_serial(kvt_mark mark) { return mark & (((uint64_t)1 << 56) - 1); }

/*
 * Work for a stream. The struct lives until its done callback has returned, or, without one, until a later mark is
 * reached.
 */
struct kvt_gpu_job {
    /*
     * Emulated device: runs in the stream's thread when its turn comes; may sleep to model time.
     * A CUDA device ignores run and launches what its kernel field asks for instead.
     */
    void (*run)(struct kvt_gpu_job *job);
    void (*done)(struct kvt_gpu_job *job); /* may be NULL; the stream's thread; must not call the gpu */
    void *user;
    uint64_t link_bytes;      /* set by run before it returns: bytes that crossed the link, for pacing; 0: none */
    uint64_t link_ns;         /* set by the device: time that pacing took */
    bool is_failed;           /* set by the device before done: what run would have written is undefined */
    struct kvt_gpu_job *next; /* the device's */
};

struct kvt_gpu_config {
    uint64_t link_bytes_per_s; /* emulated: each copy stream moves at most this much; 0: as fast as memory */
    uint64_t link_latency_ns;  /* emulated: added to each job that crosses the link */
};

struct kvt_gpu;

struct kvt_gpu_ops {
    const char *name; /* "cuda", "emulated" */
    bool (*is_present)(void);
    enum kvt_status (*open)(const struct kvt_gpu_config *config, const struct kvt_env *env, struct kvt_gpu **ret_gpu);
    void (*close)(struct kvt_gpu *gpu); /* waits for all work to end */

    /* Device memory; NULL when refused. The emulated one's can be used by the CPU. Free waits for all work first. */
    void *(*memory_alloc)(struct kvt_gpu *gpu, size_t size_bytes);
    void (*memory_free)(struct kvt_gpu *gpu, void *memory, size_t size_bytes);

    /*
     * A stream of the device's own (engine_stream NULL), or the number of an engine's stream, the same number each time
     * it is asked for. Numbered from 0 in the order of asking. FULL: more than KVT_GPU_STREAMS_MAX. NOMEM.
     */
    enum kvt_status (*stream)(struct kvt_gpu *gpu, void *engine_stream, uint32_t *ret_stream);

    /* A mark after everything submitted to the stream so far. */
    kvt_mark (*mark)(struct kvt_gpu *gpu, uint32_t stream);
    bool (*is_reached)(struct kvt_gpu *gpu, kvt_mark mark); /* 0 is always reached */
    /* what is submitted to stream from now on runs after mark */
    void (*wait)(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark);
    void (*submit)(struct kvt_gpu *gpu, uint32_t stream, struct kvt_gpu_job *job);
    /* Blocks the calling thread until the mark is reached. In a single-threaded env it runs streams until it is. */
    void (*synchronize)(struct kvt_gpu *gpu, kvt_mark mark);
};

/* The first member of every device. */
struct kvt_gpu {
    const struct kvt_gpu_ops *ops;
};

extern const struct kvt_gpu_ops kvt_gpu_emulated_ops;

/* The first device of the list in gpu.c that is present; today the emulated one is the only one. */
const struct kvt_gpu_ops *kvt_gpu_default_ops(void);

/*
 * The emulated device's hand brake, for tests: a gated stream does not start its next job or pass its next wait until
 * opened. In a single-threaded env nothing runs by itself: kvt_gpu_emulated_run() runs the next thing of one stream,
 * and returns false when that stream is gated, empty, waits for a mark that is not reached, or was never asked for.
 */
void kvt_gpu_emulated_gate(struct kvt_gpu *gpu, uint32_t stream, bool is_closed);
bool kvt_gpu_emulated_run(struct kvt_gpu *gpu, uint32_t stream);

#endif
