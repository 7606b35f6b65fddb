/*
 * gpu: the seam between kvtier and a device: CUDA where the toolkit was there at the build and a driver is there now, and an
 * emulated device in ordinary memory whose streams are asynchronous in the same way, so that every ordering can be tested
 * on a machine without a GPU.
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

#include "kernels/pages.h"
#include "kernels/rank_planes.h"
#include "runtime/base/env.h"
#include "runtime/base/status.h"

#define KVT_GPU_STREAMS_MAX 16

/*
 * An engine's default stream, when it names none: what CUDA calls the legacy one (cudaStreamLegacy). An engine whose
 * default is the per-thread one says so, with cudaStreamPerThread: it is then a stream of the calling thread.
 */
#define KVT_GPU_STREAM_DEFAULT ((void *)(uintptr_t)1)

/* Stream number and serial: (stream + 1) << 56 | serial. 0: nothing to wait for. Serials of a stream only grow. */
typedef uint64_t kvt_mark;

static inline kvt_mark kvt_mark_make(uint32_t stream, uint64_t serial)
{
    return ((uint64_t)(stream + 1) << 56) | serial;
}
static inline uint32_t kvt_mark_stream(kvt_mark mark) { return (uint32_t)(mark >> 56) - 1; }
static inline uint64_t kvt_mark_serial(kvt_mark mark) { return mark & (((uint64_t)1 << 56) - 1); }

/* What a device moves for a job. */
enum kvt_gpu_move_kind {
    KVT_GPU_MOVE_NONE,
    KVT_GPU_MOVE_GATHER,  /* pages -> host */
    KVT_GPU_MOVE_SCATTER, /* host -> pages */
    KVT_GPU_MOVE_COPY,    /* source -> pages, both on the device */
    KVT_GPU_MOVE_PACK,    /* pages -> host, packed on the device; only where can_pack says so */
    KVT_GPU_MOVE_UNPACK   /* host -> pages, the inverse */
};

#define KVT_GPU_BASES_MAX 32 /* sets of bases that a device is given from open to close */

/* How a block is packed (kernels/block_pack.h). Segments are [layer][plane]. */
struct kvt_gpu_pack {
    struct kvt_rank_shape shape; /* of one layer: the valid tokens' elements */
    uint32_t layers, tokens;
    /* what is subtracted from exponents: [layer][plane] rows in host memory that stays, and never changes, until close */
    uint32_t bases_id; /* 0: nothing is */
    const uint8_t *bases;
    uint32_t bases_row_bytes;
    uint32_t length; /* pack: bytes that there is room for; unpack: of the packed block */
};

struct kvt_gpu_move {
    enum kvt_gpu_move_kind kind;
    struct kvt_pages pages; /* their arrays outlive the job; at most segments_max of them */
    struct kvt_pages source;
    void *host; /* a contiguous run; ignored in a staged job */
    struct kvt_gpu_pack pack;
    /* Set before after is called. Pack: the length; 0: it gains too little, or does not fit. Unpack: enum kvt_block_verdict. */
    uint32_t result;
};

/*
 * Work for a stream. The struct lives until its done callback has returned, or, without one, until a later mark is
 * reached.
 *
 * An emulated device calls run, which does all of it. A device whose memory the CPU cannot touch ignores run and does
 * the three parts: before, move, after. Each may be missing.
 */
struct kvt_gpu_job {
    /* Emulated device: runs in the stream's thread when its turn comes; may sleep to model time. */
    void (*run)(struct kvt_gpu_job *job);
    void (*done)(struct kvt_gpu_job *job); /* may be NULL; the stream's thread; must not call the gpu */
    void *user;
    uint64_t link_bytes; /* set by run before it returns: bytes that crossed the link, for pacing; 0: none */
    uint64_t link_ns;    /* set by the device: time that pacing, or the move, took */
    bool is_failed;      /* set by the device before done: what the job would have written is undefined */

    struct kvt_gpu_move move;
    /* The device's own streams only, in the stream's thread. before: false ends the job as failed, without its move. */
    bool (*before)(struct kvt_gpu_job *job);
    void (*after)(struct kvt_gpu_job *job); /* not called when the job failed */
    bool is_staged;                         /* the move's host side is staging, which the device lends until done */
    void *staging;                          /* set by the device: staging_bytes of host memory */

    struct kvt_gpu_job *next; /* the device's */
};

struct kvt_gpu_config {
    uint64_t link_bytes_per_s; /* emulated: each copy stream moves at most this much; 0: as fast as memory */
    uint64_t link_latency_ns;  /* emulated: added to each job that crosses the link */
    uint32_t segments_max;     /* segments of a move at most; 0: 1 */
    uint64_t staging_bytes;    /* of a staged job; 0: there are none */
    uint64_t bases_bytes;      /* of a set of bases at most; 0: nothing is packed on the device */
    uint64_t close_limit_ns;   /* close and free wait so long for a device that does not answer; 0: 10 s */
    /*
     * Moves in fragments of less than this go through a kernel, larger ones by DMA. 0: found by a calibration at open.
     */
    uint64_t fragment_bytes_max;
};

struct kvt_gpu;

struct kvt_gpu_ops {
    const char *name; /* "cuda", "emulated" */
    bool (*is_present)(void);
    enum kvt_status (*open)(const struct kvt_gpu_config *config, const struct kvt_env *env, struct kvt_gpu **ret_gpu);
    void (*close)(struct kvt_gpu *gpu); /* waits for all work to end; of a device that hangs, close_limit_ns */

    /* Device memory; NULL when refused. The emulated one's can be used by the CPU. Free waits for all work first. */
    void *(*memory_alloc)(struct kvt_gpu *gpu, size_t size_bytes);
    void (*memory_free)(struct kvt_gpu *gpu, void *memory, size_t size_bytes);

    /*
     * Host memory that the device may read and write by itself, page-aligned. False: refused; it stays ordinary memory, which
     * works too, through staging. Unpin what was pinned, as it was pinned, with no job in flight that uses it.
     */
    bool (*host_pin)(struct kvt_gpu *gpu, void *memory, size_t size_bytes);
    void (*host_unpin)(struct kvt_gpu *gpu, void *memory, size_t size_bytes);
    bool (*host_is_pinned)(struct kvt_gpu *gpu, const void *memory);

    /*
     * A stream of the device's own (engine_stream NULL), or the number of an engine's stream, the same number each time
     * it is asked for. Numbered from 0 in the order of asking. FULL: more than KVT_GPU_STREAMS_MAX. NOMEM.
     */
    enum kvt_status (*stream)(struct kvt_gpu *gpu, void *engine_stream, uint32_t *ret_stream);

    /* A stream for an engine that has none, owned by the device: the i-th, the same one each time. NULL: refused. */
    void *(*engine_stream)(struct kvt_gpu *gpu, uint32_t i);

    /* A mark after everything submitted to the stream so far. */
    kvt_mark (*mark)(struct kvt_gpu *gpu, uint32_t stream);
    bool (*is_reached)(struct kvt_gpu *gpu, kvt_mark mark); /* 0 is always reached */
    /* what is submitted to stream from now on runs after mark */
    void (*wait)(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark);
    void (*submit)(struct kvt_gpu *gpu, uint32_t stream, struct kvt_gpu_job *job);
    /* Blocks the calling thread until the mark is reached. In a single-threaded env it runs streams until it is. */
    void (*synchronize)(struct kvt_gpu *gpu, kvt_mark mark);

    /* True when it packs and unpacks by itself; the host's side of these moves is pinned. */
    bool (*can_pack)(struct kvt_gpu *gpu);

    /* The device failed for good: jobs fail at once, and every mark is reached. Host memory is as good as before. */
    bool (*is_lost)(struct kvt_gpu *gpu);
    /* One line for people: what it is, and how it chose to copy. */
    void (*describe)(struct kvt_gpu *gpu, char *ret_text, size_t text_bytes);
};

/* The first member of every device. */
struct kvt_gpu {
    const struct kvt_gpu_ops *ops;
};

#define KVT_GPU_ENGINE_STREAMS 8

extern const struct kvt_gpu_ops kvt_gpu_cuda_ops; /* not present where it is not built in, or finds no driver */
extern const struct kvt_gpu_ops kvt_gpu_emulated_ops;

/* The first device of the list in gpu.c that is present: CUDA's, otherwise the emulated one. */
const struct kvt_gpu_ops *kvt_gpu_default_ops(void);

/*
 * The emulated device's hand brake, for tests: a gated stream does not start its next job or pass its next wait until
 * opened. In a single-threaded env nothing runs by itself: kvt_gpu_emulated_run() runs the next thing of one stream,
 * and returns false when that stream is gated, empty, waits for a mark that is not reached, or was never asked for.
 */
void kvt_gpu_emulated_gate(struct kvt_gpu *gpu, uint32_t stream, bool is_closed);
bool kvt_gpu_emulated_run(struct kvt_gpu *gpu, uint32_t stream);

#endif
