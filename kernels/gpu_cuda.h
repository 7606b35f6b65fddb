/*
 * gpu_cuda: the CUDA device, as its files share it: gpu_cuda.c has streams, marks, jobs and memory, gpu_cuda_copy.c
 * says how bytes move, gpu_cuda_pack.c how they are packed on their way.
 *
 * 1. A stream is a ring of items; an item's number is its serial. An item is issued (it is in CUDA's queue, an event
 *    behind it) and later finished (the event was seen, and what the host does afterwards has returned).
 * 2. A mark is the serial of the last item. The device may wait for it once it is issued; the host sees it reached
 *    once it is finished.
 * 3. What is ready is issued in the caller's thread. What the host must do something for first, and all that is
 *    behind it, is issued by the stream's own thread, which also sees events and calls done. It asks; it does not block in
 *    CUDA, and CUDA calls no function of ours (B60).
 * 4. Tables that a kernel reads lie in a ring of their own, and are written again when the item that uses them is
 *    finished (B09).
 * 5. A call that failed ends its item as failed, after what was issued of it. An error that stays makes the device
 *    lost: all items are finished as failed, without CUDA.
 * 6. Packs, and unpacks, that stand one behind the other are one launch. Two launches are under way at most; meanwhile the
 *    next one gathers. A job is over when its launch is.
 *
 * Thread:  one lock for all of it, given up while before, after and done run. CUDA is called under it; that may wait
 *          for room in CUDA's queue, never for us.
 */
#ifndef KVT_KERNELS_GPU_CUDA_H
#define KVT_KERNELS_GPU_CUDA_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/gpu.h"

#define KVT_CUDA_RING_ITEMS 1024u
#define KVT_CUDA_TABLES 32u       /* moves of a stream that are issued and not finished */
#define KVT_CUDA_STAGING_DEPTH 3u /* of them, staged ones */
#define KVT_CUDA_UNPACK_DEPTH 8u  /* of them, unpacks */
#define KVT_CUDA_BATCH_MAX 8u     /* packs, or unpacks, of one launch */
#define KVT_CUDA_BATCHES_OPEN 2u  /* launches under way: one moves, the next one stands behind it */
#define KVT_CUDA_PINNED_MAX 256u  /* ranges; neighbours are one */

enum kvt_cuda_item_kind { KVT_CUDA_ITEM_MARK, KVT_CUDA_ITEM_WAIT, KVT_CUDA_ITEM_JOB };

struct kvt_cuda_item {
    enum kvt_cuda_item_kind kind;
    struct kvt_gpu_job *job;
    kvt_mark mark;     /* of a wait */
    cudaEvent_t event; /* made when it is first needed, then kept */
    bool is_recorded;  /* the event is behind the item; otherwise it is tried again */
    bool is_failed;
    bool ends_batch; /* the last one of a launch */
    uint64_t issued_ns;
};

/* What one move hands to CUDA, and must stay as it is until the move is over. */
struct kvt_cuda_table {
    struct kvt_pages_run *runs;        /* pinned */
    struct kvt_pages_run *device_runs; /* where the kernel reads them */
    void **targets;
    void **sources;
    size_t *sizes;
    /* Of a packing or unpacking kernel; NULL where there are none. */
    uint8_t *pack, *device_pack; /* the block and its chunks, pinned, and where the kernel reads them */
    void *device_plans;
    uint32_t *result; /* pinned: written by the kernel */
};

struct kvt_cuda;

struct kvt_cuda_stream {
    struct kvt_cuda *cuda;
    /* Of a per-thread default stream: the stand-in that other threads than its owner use. */
    cudaStream_t handle;
    void *engine_stream; /* NULL: the device's own */
    bool is_made_here;   /* the handle is destroyed at close */
    bool is_per_thread;
    pthread_t owner;            /* of a per-thread stream */
    bool is_stand_in_used;      /* since its owner was last behind it */
    uint64_t owner_serial;      /* last item that the owner recorded */
    uint64_t owner_serial_seen; /* what the stand-in is behind */
    cudaEvent_t bridge;

    struct kvt_cuda_item *ring;
    uint64_t submitted, issued, finished;
    uint64_t jobs_issued, jobs_finished, jobs_open; /* open: submitted and not finished */
    uint64_t staged_issued, staged_finished;
    uint64_t unpacks_issued, unpacks_finished;
    uint32_t batches_open;
    uint64_t ready_ns; /* when the item before was seen to be over */
    bool is_issuing;   /* the thread is in a job's before */

    struct kvt_cuda_table *tables;
    void *table_memory, *table_pinned, *table_device;
    bool has_kernel_tables;    /* a kernel can be given a table */
    bool is_table_pinned_ours; /* CUDA refused: table_pinned is ordinary memory */
    uint8_t *staging;
    size_t staging_bytes; /* all of it */
    bool is_staging_pinned;
    uint8_t *pack_pinned, *pack_device, *packed_device; /* what packing takes; NULL: it is not to be had */
    uint32_t bases_count;
    const uint8_t
        *bases[KVT_GPU_BASES_MAX]; /* the sets that this stream has brought to the device, by their host address */
    uint8_t *bases_pinned, *bases_device;

    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake;
};

enum { KVT_CUDA_TO_HOST, KVT_CUDA_TO_DEVICE, KVT_CUDA_DIRECTIONS };

/* Fragments below this go through a kernel: when nothing else moves, and when the other direction is at work. */
struct kvt_cuda_choice {
    uint64_t kernel_below[KVT_CUDA_DIRECTIONS][2];
};

struct kvt_cuda {
    struct kvt_gpu gpu;
    struct kvt_gpu_config config;
    struct kvt_env env;
    int device;
    _Atomic bool has_batch; /* cudaMemcpyBatchAsync; cleared when the driver does not know it */
    bool has_no_kernels;    /* one was tried and refused: this device has no code of ours */
    bool is_unified;        /* kernels use the host's addresses of pinned memory */
    struct kvt_cuda_choice choice;
    cudaEvent_t probe; /* never recorded: asked whether the device still answers */
    _Atomic bool is_lost;

    pthread_mutex_t lock;
    pthread_cond_t progress; /* an item was issued or finished */
    bool is_closing;
    bool is_abandoned; /* close did not wait: the last thread cleans up */
    uint32_t threads_running;
    uint32_t stream_count;
    struct kvt_cuda_stream streams[KVT_GPU_STREAMS_MAX];
    cudaStream_t engine_streams[KVT_GPU_ENGINE_STREAMS];

    struct {
        uintptr_t first, end;
    } pinned[KVT_CUDA_PINNED_MAX]; /* under the lock */
    uint32_t pinned_count;
};

/* True: it worked. Otherwise the error is taken, and the device is lost when it comes again. */
bool kvt_cuda_ok(struct kvt_cuda *cuda, cudaError_t error);

bool kvt_cuda_is_pinned(const struct kvt_cuda *cuda, const void *memory);

/* ---- gpu_cuda_copy.c ---- */

/* NULL: refused. */
void *kvt_cuda_pinned_alloc(struct kvt_cuda *cuda, size_t size_bytes);
void *kvt_cuda_device_alloc(struct kvt_cuda *cuda, size_t size_bytes);

/* Tables and staging of a stream. NOMEM. done: NULL parts are fine. */
KVT_NODISCARD enum kvt_status kvt_cuda_tables_init(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream);
void kvt_cuda_tables_done(struct kvt_cuda_stream *stream);

struct kvt_cuda_way {
    cudaStream_t handle;
    void *host;     /* the contiguous side */
    bool is_pinned; /* it is; otherwise the call may block until the copy is over */
    bool is_loaded; /* the other direction is at work */
};

/* Puts the move on the handle. False: something of it was refused; the rest may be on its way. */
bool kvt_cuda_issue_move(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream, struct kvt_cuda_table *table,
                         const struct kvt_gpu_move *move, const struct kvt_cuda_way *way);

/* Times kernels and DMA against each other on two streams of its own. What fails leaves DMA for everything. */
void kvt_cuda_calibrate(struct kvt_cuda *cuda);

/* ---- gpu_cuda_pack.c ---- */

/* What packing takes, behind the tables. Without it nothing is packed on the device. */
void kvt_cuda_pack_init(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream);
void kvt_cuda_pack_done(struct kvt_cuda_stream *stream);

/* One block of a launch: its table, and where its packed bytes are: on the host, and of an unpack on the device. */
struct kvt_cuda_packing {
    struct kvt_gpu_move *move;
    struct kvt_cuda_table *table;
    void *host; /* pinned */
    uint8_t *packed;
};

/*
 * Puts the packs, or the unpacks, on the handle as one launch. Their tables are neighbours, the first one's first. False:
 * something of it was refused.
 */
bool kvt_cuda_issue_packing(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream,
                            const struct kvt_cuda_packing *blocks, uint32_t count, cudaStream_t handle);

#endif
