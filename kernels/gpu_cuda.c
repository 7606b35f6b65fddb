/* The rules are in gpu_cuda.h. */
#include "kernels/gpu_cuda.h"

#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"

#define CLOSE_LIMIT_NS_DEFAULT (UINT64_C(10) * 1000000000u)

/* Between two looks at an event: short while things move, longer while they do not. */
#define NAP_NS_MIN 10000u
#define NAP_NS_MAX 200000u

static struct kvt_cuda *cuda_of(struct kvt_gpu *gpu)
{
    KVT_ASSERT(gpu->ops == &kvt_gpu_cuda_ops);
    return (struct kvt_cuda *)gpu;
}

static uint64_t now_ns(const struct kvt_cuda *c) { return kvt_env_now_ns(&c->env); }

static struct kvt_cuda_stream *stream_of(struct kvt_cuda *c, uint32_t stream)
{
    KVT_ASSERT(stream < c->stream_count);
    return &c->streams[stream];
}

static struct kvt_cuda_item *item_of(struct kvt_cuda_stream *s, uint64_t serial)
{
    return &s->ring[serial % KVT_CUDA_RING_ITEMS];
}

static bool is_lost(const struct kvt_cuda *c) { return atomic_load(&c->is_lost); }

static void nap(uint64_t ns)
{
    const struct timespec time = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

bool kvt_cuda_ok(struct kvt_cuda *cuda, cudaError_t error)
{
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError(); /* the engine's next check of its own launch must not find it */
    if (is_lost(cuda)) return false;
    /* An error that stays comes back from a call that has nothing to do with it. */
    if (!cuda->probe || cudaEventQuery(cuda->probe) == cudaSuccess) return false;
    (void)cudaGetLastError();
    if (!atomic_exchange(&cuda->is_lost, true))
        kvt_log(&cuda->env, KVT_LOG_ERROR,
                "the CUDA device is lost (%s): what it held is a miss; host memory and nvme are still served",
                cudaGetErrorString(error));
    return false;
}

/* The device is a property of the thread: ours is made current for a call, and the caller's again afterwards. */
struct current {
    int before;
    bool is_other;
};

static struct current enter(struct kvt_cuda *c)
{
    struct current current = { 0 };
    if (cudaGetDevice(&current.before) == cudaSuccess && current.before != c->device)
        current.is_other = cudaSetDevice(c->device) == cudaSuccess;
    (void)pthread_mutex_lock(&c->lock);
    return current;
}

static void leave(struct kvt_cuda *c, struct current current)
{
    (void)pthread_mutex_unlock(&c->lock);
    if (current.is_other) (void)cudaSetDevice(current.before);
}

/* ---- Per-thread default streams -------------------------------------------------------------- */

/*
 * cudaStreamPerThread names another stream in each thread. Its owner's calls go to it; calls of other threads (the
 * pump's) go to a stand-in that is ordered behind the owner's last item, and the owner's next call behind the
 * stand-in.
 */
static cudaStream_t handle_of(struct kvt_cuda_stream *s)
{
    struct kvt_cuda *c = s->cuda;
    if (!s->is_per_thread) return s->handle;
    bool is_ordered = true;
    if (pthread_equal(pthread_self(), s->owner)) {
        if (s->is_stand_in_used) {
            is_ordered = kvt_cuda_ok(c, cudaEventRecord(s->bridge, s->handle))
                && kvt_cuda_ok(c, cudaStreamWaitEvent(cudaStreamPerThread, s->bridge, 0));
            if (!is_ordered) is_ordered = kvt_cuda_ok(c, cudaStreamSynchronize(s->handle));
        }
        if (is_ordered) s->is_stand_in_used = false;
        return cudaStreamPerThread;
    }
    s->is_stand_in_used = true;
    if (s->owner_serial == s->owner_serial_seen || s->owner_serial <= s->finished) return s->handle;
    struct kvt_cuda_item *item = item_of(s, s->owner_serial);
    is_ordered = kvt_cuda_ok(c, cudaStreamWaitEvent(s->handle, item->event, 0));
    if (!is_ordered) is_ordered = kvt_cuda_ok(c, cudaEventSynchronize(item->event));
    if (is_ordered) s->owner_serial_seen = s->owner_serial;
    return s->handle;
}

/* ---- Items ----------------------------------------------------------------------------------- */

/* Puts the item's event behind everything on the handle. */
static void record(struct kvt_cuda_stream *s, struct kvt_cuda_item *item, cudaStream_t handle)
{
    struct kvt_cuda *c = s->cuda;
    item->is_recorded = false;
    if (!item->event) {
        cudaEvent_t event;
        if (!kvt_cuda_ok(c, cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return;
        item->event = event;
    }
    item->is_recorded = kvt_cuda_ok(c, cudaEventRecord(item->event, handle));
}

/* True when CUDA has done all up to the item, and the item itself. */
static bool is_over(struct kvt_cuda_stream *s, struct kvt_cuda_item *item)
{
    struct kvt_cuda *c = s->cuda;
    if (is_lost(c)) return true;
    if (!item->is_recorded) record(s, item, handle_of(s));
    if (!item->is_recorded) return is_lost(c);
    const cudaError_t error = cudaEventQuery(item->event);
    if (error == cudaSuccess) return true;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    /* An answer that is none: whether the bytes still move is unknown, so the item is not over. */
    (void)kvt_cuda_ok(c, error);
    return is_lost(c);
}

static void item_is_finished(struct kvt_cuda_stream *s)
{
    s->finished++;
    s->ready_ns = now_ns(s->cuda);
    (void)pthread_cond_broadcast(&s->cuda->progress);
}

/* Takes the items at the head that are over and leave nothing to do. True: there were some. */
static bool reap(struct kvt_cuda_stream *s)
{
    const uint64_t before = s->finished;
    while (s->finished < s->issued) {
        struct kvt_cuda_item *item = item_of(s, s->finished + 1);
        if (item->kind == KVT_CUDA_ITEM_JOB || !is_over(s, item)) break;
        item_is_finished(s);
    }
    return s->finished > before;
}

static bool mark_is_issued(struct kvt_cuda *c, kvt_mark mark)
{
    const struct kvt_cuda_stream *s = stream_of(c, kvt_mark_stream(mark));
    KVT_ASSERT(kvt_mark_serial(mark) <= s->submitted);
    return kvt_mark_serial(mark) <= s->issued;
}

static bool mark_is_reached(struct kvt_cuda *c, kvt_mark mark)
{
    if (mark == 0) return true;
    struct kvt_cuda_stream *s = stream_of(c, kvt_mark_stream(mark));
    const uint64_t serial = kvt_mark_serial(mark);
    KVT_ASSERT(serial <= s->submitted);
    if (s->finished < serial) (void)reap(s);
    return s->finished >= serial;
}

/* True when the work behind it on the handle is ordered after the mark. */
static bool order_after(struct kvt_cuda *c, cudaStream_t handle, kvt_mark mark)
{
    /* A serial alone names nothing: each stream has its own (B08). */
    struct kvt_cuda_stream *other = stream_of(c, KVT_PLANTED(MARK_MISFILED) ? 0 : kvt_mark_stream(mark));
    if (kvt_mark_serial(mark) <= other->finished) return true;
    const struct kvt_cuda_item *item = item_of(other, kvt_mark_serial(mark));
    if (!item->is_recorded) return KVT_PLANTED(MARK_MISFILED);
    return kvt_cuda_ok(c, cudaStreamWaitEvent(handle, item->event, 0));
}

static bool is_loaded(const struct kvt_cuda *c, const struct kvt_cuda_stream *s)
{
    for (uint32_t i = 0; i < c->stream_count; i++) {
        const struct kvt_cuda_stream *other = &c->streams[i];
        if (other != s && !other->engine_stream && other->jobs_issued > other->jobs_finished) return true;
    }
    return false;
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static bool is_packing(const struct kvt_gpu_job *job)
{
    return job->move.kind == KVT_GPU_MOVE_PACK || job->move.kind == KVT_GPU_MOVE_UNPACK;
}

/* True when the host's side of the job's move, if it has one, is pinned. */
static bool is_host_pinned(const struct kvt_cuda_stream *s, const struct kvt_gpu_job *job)
{
    if (job->is_staged) return s->is_staging_pinned;
    const bool has_host = job->move.kind != KVT_GPU_MOVE_NONE && job->move.kind != KVT_GPU_MOVE_COPY;
    return !has_host || kvt_cuda_is_pinned(s->cuda, job->move.host);
}

/* True when the next item can be issued now; some want the stream's thread. */
static bool is_ready(const struct kvt_cuda_stream *s, const struct kvt_cuda_item *item, bool is_thread)
{
    struct kvt_cuda *c = s->cuda;
    if (is_lost(c)) return true;
    if (item->kind == KVT_CUDA_ITEM_WAIT) return mark_is_issued(c, item->mark);
    if (item->kind == KVT_CUDA_ITEM_MARK) return true;
    const struct kvt_gpu_job *job = item->job;
    if (s->jobs_issued - s->jobs_finished == KVT_CUDA_TABLES && !KVT_PLANTED(TABLE_TWICE)) return false;
    if (job->is_staged && s->staged_issued - s->staged_finished == KVT_CUDA_STAGING_DEPTH) return false;
    const bool is_unpack = job->move.kind == KVT_GPU_MOVE_UNPACK;
    if (is_unpack && s->unpacks_issued - s->unpacks_finished == KVT_CUDA_UNPACK_DEPTH) return false;
    return is_thread || (!job->before && is_host_pinned(s, job));
}

/* The job's table, and its place in staging. */
static struct kvt_cuda_table *take_places(struct kvt_cuda_stream *s, struct kvt_gpu_job *job)
{
    struct kvt_cuda *c = s->cuda;
    if (job->is_staged)
        job->staging = s->staging + s->staged_issued++ % KVT_CUDA_STAGING_DEPTH * c->config.staging_bytes;
    return &s->tables[s->jobs_issued++ % KVT_CUDA_TABLES];
}

static void issue_job(struct kvt_cuda_stream *s, struct kvt_cuda_item *item)
{
    struct kvt_cuda *c = s->cuda;
    struct kvt_gpu_job *job = item->job;
    struct kvt_cuda_table *table = take_places(s, job);
    if (job->before && !is_lost(c)) {
        s->is_issuing = true;
        (void)pthread_mutex_unlock(&c->lock);
        const bool is_good = job->before(job);
        (void)pthread_mutex_lock(&c->lock);
        s->is_issuing = false;
        item->is_failed = !is_good;
    }
    item->issued_ns = now_ns(c);
    if (job->move.kind == KVT_GPU_MOVE_NONE || item->is_failed || is_lost(c)) return;
    struct kvt_cuda_way way = { .handle = handle_of(s), .host = job->is_staged ? job->staging : job->move.host };
    way.is_pinned = is_host_pinned(s, job);
    way.is_loaded = is_loaded(c, s);
    /*
     * A copy from or to memory that is not pinned blocks until it is over, and with the lock it would block
     * everybody.
     */
    s->is_issuing = !way.is_pinned;
    if (!way.is_pinned) (void)pthread_mutex_unlock(&c->lock);
    const bool is_good = kvt_cuda_issue_move(c, s, table, &job->move, &way);
    if (!way.is_pinned) (void)pthread_mutex_lock(&c->lock);
    s->is_issuing = false;
    item->is_failed = !is_good;
}

static void item_is_issued(struct kvt_cuda_stream *s, struct kvt_cuda_item *item)
{
    if (!is_lost(s->cuda)) record(s, item, handle_of(s));
    if (s->is_per_thread && pthread_equal(pthread_self(), s->owner)) s->owner_serial = s->issued + 1;
    s->issued++;
    (void)pthread_cond_broadcast(&s->cuda->progress);
}

/*
 * Packs, or unpacks, that stand one behind the other become one launch: one block alone does not keep a link busy. While as
 * many launches as are good for it are under way, the next one gathers. False: it gathers.
 */
static bool issue_batch(struct kvt_cuda_stream *s, bool is_thread)
{
    struct kvt_cuda *c = s->cuda;
    struct kvt_cuda_packing blocks[KVT_CUDA_BATCH_MAX];
    uint32_t count = 0;
    if (s->batches_open == KVT_CUDA_BATCHES_OPEN && !is_lost(c)) return false;
    const enum kvt_gpu_move_kind kind = item_of(s, s->issued + 1)->job->move.kind;
    while (count < KVT_CUDA_BATCH_MAX && s->issued + count < s->submitted) {
        struct kvt_cuda_item *item = item_of(s, s->issued + 1 + count);
        if (item->kind != KVT_CUDA_ITEM_JOB || item->job->move.kind != kind || !is_ready(s, item, is_thread)) break;
        if (count > 0 && s->jobs_issued % KVT_CUDA_TABLES == 0) break; /* its table is no neighbour */
        struct kvt_gpu_job *job = item->job;
        struct kvt_cuda_packing *block = &blocks[count++];
        *block = (struct kvt_cuda_packing){ .move = &job->move, .table = take_places(s, job) };
        block->host = job->is_staged ? job->staging : job->move.host;
        if (kind != KVT_GPU_MOVE_UNPACK) continue;
        block->packed = s->packed_device + s->unpacks_issued++ % KVT_CUDA_UNPACK_DEPTH * c->config.staging_bytes;
    }
    KVT_ASSERT(count > 0 && s->packed_device);
    const uint64_t now = now_ns(c);
    const bool is_good = !is_lost(c) && kvt_cuda_issue_packing(c, s, blocks, count, handle_of(s));
    for (uint32_t i = 0; i < count; i++) {
        struct kvt_cuda_item *item = item_of(s, s->issued + 1);
        item->is_failed = !is_good;
        item->issued_ns = now;
        item->ends_batch = i + 1 == count;
        item_is_issued(s, item);
    }
    s->batches_open++;
    return true;
}

/* Issues what is ready, in order. True: there was some. */
static bool issue(struct kvt_cuda_stream *s, bool is_thread)
{
    struct kvt_cuda *c = s->cuda;
    const uint64_t before = s->issued;
    while (s->issued < s->submitted && !s->is_issuing) {
        struct kvt_cuda_item *item = item_of(s, s->issued + 1);
        if (!is_ready(s, item, is_thread)) break;
        /* A wait that CUDA refuses is tried again; nothing goes past it. */
        if (item->kind == KVT_CUDA_ITEM_WAIT && !is_lost(c) && !order_after(c, handle_of(s), item->mark)) break;
        if (item->kind == KVT_CUDA_ITEM_JOB && is_packing(item->job)) {
            if (!issue_batch(s, is_thread)) break;
            continue;
        }
        if (item->kind == KVT_CUDA_ITEM_JOB) issue_job(s, item);
        item_is_issued(s, item);
    }
    return s->issued > before;
}

/* ---- The stream's thread --------------------------------------------------------------------- */

/* Ends the job at the head when it is over: the host's part, and the caller's. True: it was. */
static bool finish_job(struct kvt_cuda_stream *s)
{
    struct kvt_cuda *c = s->cuda;
    if (s->finished == s->issued) return false;
    struct kvt_cuda_item *item = item_of(s, s->finished + 1);
    if (item->kind != KVT_CUDA_ITEM_JOB || !is_over(s, item)) return false;
    struct kvt_gpu_job *job = item->job;
    const bool is_staged = job->is_staged, is_unpack = job->move.kind == KVT_GPU_MOVE_UNPACK;
    const bool ends_batch = item->ends_batch;
    const struct kvt_cuda_table *table = &s->tables[s->jobs_finished % KVT_CUDA_TABLES];
    if (table->result) job->move.result = *(volatile uint32_t *)table->result;
    const uint64_t now = now_ns(c), start_ns = kvt_max_u64(item->issued_ns, s->ready_ns);
    job->link_ns = job->move.kind == KVT_GPU_MOVE_NONE || now < start_ns ? 0 : now - start_ns;
    job->is_failed = item->is_failed || is_lost(c);
    (void)pthread_mutex_unlock(&c->lock);
    if (job->after && !job->is_failed) job->after(job);
    if (job->done) job->done(job); /* the job may be gone from here on */
    (void)pthread_mutex_lock(&c->lock);
    s->jobs_finished++;
    s->jobs_open--;
    if (is_staged) s->staged_finished++;
    if (is_unpack) s->unpacks_finished++;
    if (ends_batch) s->batches_open--;
    item_is_finished(s);
    return true;
}

static void free_device(struct kvt_cuda *c);

static void *stream_main(void *user)
{
    struct kvt_cuda_stream *s = user;
    struct kvt_cuda *c = s->cuda;
    uint64_t nap_ns = NAP_NS_MIN;
    (void)prctl(PR_SET_TIMERSLACK, 1);
    (void)cudaSetDevice(c->device);
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        const bool is_reaped = reap(s), is_finished = finish_job(s), is_issued = issue(s, true);
        if (is_reaped || is_finished || is_issued) {
            nap_ns = NAP_NS_MIN;
            continue;
        }
        /* On an engine's stream marks alone are nobody's hurry. */
        const bool has_work = s->engine_stream ? s->jobs_open > 0 : s->finished < s->submitted;
        if (!has_work && c->is_closing) break;
        if (!has_work) {
            (void)pthread_cond_wait(&s->wake, &c->lock);
            nap_ns = NAP_NS_MIN;
            continue;
        }
        (void)pthread_mutex_unlock(&c->lock);
        nap(nap_ns);
        nap_ns = kvt_min_u64(2 * nap_ns, NAP_NS_MAX);
        (void)pthread_mutex_lock(&c->lock);
    }
    const bool is_last = --c->threads_running == 0 && c->is_abandoned;
    (void)pthread_mutex_unlock(&c->lock);
    if (is_last) free_device(c);
    return NULL;
}

static bool start_thread(struct kvt_cuda_stream *s)
{
    if (s->has_thread) return true;
    s->has_thread = pthread_create(&s->thread, NULL, stream_main, s) == 0;
    if (s->has_thread) s->cuda->threads_running++;
    return s->has_thread;
}

/* Takes a place in the ring, with the lock held; waits for one when there is none. */
static struct kvt_cuda_item *push(struct kvt_cuda_stream *s, enum kvt_cuda_item_kind kind)
{
    struct kvt_cuda *c = s->cuda;
    KVT_ASSERT(!c->is_closing);
    while (s->submitted - s->finished == KVT_CUDA_RING_ITEMS) {
        if (reap(s)) continue;
        (void)pthread_mutex_unlock(&c->lock);
        nap(NAP_NS_MIN);
        (void)pthread_mutex_lock(&c->lock);
    }
    s->submitted++;
    struct kvt_cuda_item *item = item_of(s, s->submitted);
    const cudaEvent_t event = item->event;
    *item = (struct kvt_cuda_item){ .kind = kind, .event = event };
    return item;
}

/* ---- The calls of gpu.h: jobs and marks ------------------------------------------------------ */

static kvt_mark cuda_mark(struct kvt_gpu *gpu, uint32_t stream)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    struct kvt_cuda_stream *s = stream_of(c, stream);
    /* Nothing but us submits to a stream of our own: its last item is the mark. */
    if (s->engine_stream && !is_lost(c)) {
        (void)reap(s);
        if (s->submitted - s->finished < KVT_CUDA_RING_ITEMS) {
            (void)push(s, KVT_CUDA_ITEM_MARK);
            (void)issue(s, false);
        } else {
            /* No place: the last mark moves here. Who has it waits longer, and nobody too short. */
            record(s, item_of(s, s->submitted), handle_of(s));
        }
        const struct kvt_cuda_item *last = item_of(s, s->submitted);
        if (s->issued == s->submitted && !last->is_recorded && !is_lost(c))
            (void)kvt_cuda_ok(c, cudaStreamSynchronize(handle_of(s)));
    }
    const kvt_mark mark = s->submitted > 0 ? kvt_mark_make(stream, s->submitted) : 0;
    leave(c, current);
    return mark;
}

static bool cuda_is_reached(struct kvt_gpu *gpu, kvt_mark mark)
{
    if (mark == 0) return true;
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    const bool is_reached = mark_is_reached(c, mark);
    leave(c, current);
    return is_reached;
}

static void cuda_wait(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark)
{
    if (mark == 0 || kvt_mark_stream(mark) == stream) return;
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    struct kvt_cuda_stream *s = stream_of(c, stream);
    if (!mark_is_reached(c, mark) && !is_lost(c)) {
        if (!s->engine_stream) {
            push(s, KVT_CUDA_ITEM_WAIT)->mark = mark;
            (void)issue(s, false);
            (void)pthread_cond_signal(&s->wake);
        } else {
            /*
             * What an engine launches next is not ours to hold back. So a mark that is not issued yet, behind a
             * codec's work, or a wait that CUDA refuses, is waited for here.
             */
            while (!is_lost(c) && !mark_is_reached(c, mark)) {
                if (mark_is_issued(c, mark) && order_after(c, handle_of(s), mark)) break;
                (void)pthread_mutex_unlock(&c->lock);
                nap(NAP_NS_MIN);
                (void)pthread_mutex_lock(&c->lock);
            }
        }
    }
    leave(c, current);
}

static void cuda_submit(struct kvt_gpu *gpu, uint32_t stream, struct kvt_gpu_job *job)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    struct kvt_cuda_stream *s = stream_of(c, stream);
    KVT_ASSERT(KVT_IMPLIES(s->engine_stream != NULL, !job->before && !job->is_staged));
    KVT_ASSERT(KVT_IMPLIES(job->is_staged, s->staging != NULL));
    const bool has_thread = start_thread(s);
    KVT_ASSERT(has_thread); /* asked for when the stream was made */
    struct kvt_cuda_item *item = push(s, KVT_CUDA_ITEM_JOB);
    item->job = job;
    s->jobs_open++;
    const uint64_t serial = s->submitted;
    (void)issue(s, false);
    /* On an engine's stream what the engine launches next comes behind it, so it cannot be left for later. */
    while (s->engine_stream && s->issued < serial) {
        (void)pthread_mutex_unlock(&c->lock);
        nap(NAP_NS_MIN);
        (void)pthread_mutex_lock(&c->lock);
        (void)issue(s, true);
    }
    (void)pthread_cond_signal(&s->wake);
    leave(c, current);
}

static void cuda_synchronize(struct kvt_gpu *gpu, kvt_mark mark)
{
    uint64_t nap_ns = NAP_NS_MIN;
    while (!cuda_is_reached(gpu, mark)) {
        nap(nap_ns);
        nap_ns = kvt_min_u64(2 * nap_ns, NAP_NS_MAX);
    }
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void free_stream(struct kvt_cuda_stream *s)
{
    for (uint32_t i = 0; s->ring && i < KVT_CUDA_RING_ITEMS; i++)
        if (s->ring[i].event) (void)cudaEventDestroy(s->ring[i].event);
    if (s->bridge) (void)cudaEventDestroy(s->bridge);
    if (s->is_made_here && s->handle) (void)cudaStreamDestroy(s->handle);
    kvt_cuda_tables_done(s);
    kvt_free(s->ring);
    (void)pthread_cond_destroy(&s->wake);
}

static enum kvt_status make_stream(struct kvt_cuda *c, struct kvt_cuda_stream *s)
{
    s->is_per_thread = s->engine_stream == (void *)cudaStreamPerThread;
    s->owner = pthread_self();
    s->handle = (cudaStream_t)s->engine_stream;
    if (!s->engine_stream || s->is_per_thread) {
        s->handle = NULL;
        if (!kvt_cuda_ok(c, cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking))) return KVT_IO;
        s->is_made_here = true;
    }
    if (s->is_per_thread && !kvt_cuda_ok(c, cudaEventCreateWithFlags(&s->bridge, cudaEventDisableTiming)))
        return KVT_IO;
    s->ring = kvt_alloc(KVT_CUDA_RING_ITEMS, sizeof *s->ring);
    if (!s->ring) return KVT_NOMEM;
    KVT_TRY(kvt_cuda_tables_init(c, s));
    return start_thread(s) ? KVT_OK : KVT_NOMEM;
}

static bool is_stream(const struct kvt_cuda_stream *s, void *engine_stream)
{
    if (!engine_stream || s->engine_stream != engine_stream) return false;
    return !s->is_per_thread || pthread_equal(pthread_self(), s->owner);
}

static enum kvt_status cuda_stream(struct kvt_gpu *gpu, void *engine_stream, uint32_t *ret_stream)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    enum kvt_status status = KVT_OK;
    uint32_t stream = 0;
    while (stream < c->stream_count && !is_stream(&c->streams[stream], engine_stream)) stream++;
    if (stream < c->stream_count) {
        (void)handle_of(&c->streams[stream]); /* the owner of a per-thread stream is behind its stand-in from here on */
    } else if (stream == KVT_GPU_STREAMS_MAX) {
        status = KVT_FULL;
    } else {
        struct kvt_cuda_stream *s = &c->streams[stream];
        *s = (struct kvt_cuda_stream){ .cuda = c, .engine_stream = engine_stream };
        (void)pthread_cond_init(&s->wake, NULL);
        status = make_stream(c, s);
        if (status == KVT_OK) c->stream_count++;
        else free_stream(s);
    }
    if (status == KVT_OK) *ret_stream = stream;
    leave(c, current);
    return status;
}

static void *cuda_engine_stream(struct kvt_gpu *gpu, uint32_t i)
{
    struct kvt_cuda *c = cuda_of(gpu);
    if (i >= KVT_GPU_ENGINE_STREAMS) return NULL;
    const struct current current = enter(c);
    cudaStream_t *stream = &c->engine_streams[i];
    if (!*stream && !kvt_cuda_ok(c, cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking))) *stream = NULL;
    void *engine_stream = *stream;
    leave(c, current);
    return engine_stream;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

bool kvt_cuda_is_pinned(const struct kvt_cuda *cuda, const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    for (uint32_t i = 0; i < cuda->pinned_count; i++)
        if (at >= cuda->pinned[i].first && at < cuda->pinned[i].end) return true;
    return false;
}

static void *cuda_memory_alloc(struct kvt_gpu *gpu, size_t size_bytes)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    void *memory = NULL;
    if (!kvt_cuda_ok(c, cudaMalloc(&memory, size_bytes))) memory = NULL;
    leave(c, current);
    return memory;
}

/*
 * Waits, with the lock held, until everything submitted to the streams is finished, or the limit has passed. Engines'
 * streams count as far as jobs and marks of ours are on them.
 */
static bool drain(struct kvt_cuda *c)
{
    const struct kvt_env real = kvt_env_default();
    const uint64_t limit_ns = c->config.close_limit_ns ? c->config.close_limit_ns : CLOSE_LIMIT_NS_DEFAULT;
    const uint64_t end_ns = kvt_env_now_ns(&real) + limit_ns;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        struct kvt_cuda_stream *s = &c->streams[i];
        const uint64_t last = s->submitted;
        while (last > 0 && !mark_is_reached(c, kvt_mark_make(i, last))) {
            if (kvt_env_now_ns(&real) > end_ns) return false;
            (void)pthread_mutex_unlock(&c->lock);
            nap(NAP_NS_MAX);
            (void)pthread_mutex_lock(&c->lock);
        }
    }
    return true;
}

static void cuda_memory_free(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    struct kvt_cuda *c = cuda_of(gpu);
    (void)size_bytes;
    if (!memory) return;
    const struct current current = enter(c);
    /* cudaFree waits for the device, and for ever when that hangs. */
    if (drain(c)) (void)kvt_cuda_ok(c, cudaFree(memory));
    else kvt_log(&c->env, KVT_LOG_ERROR, "the CUDA device does not answer: its memory is not given back");
    leave(c, current);
}

/* Not under the lock: pinning takes milliseconds, and CUDA has locks of its own. */
static bool cuda_host_pin(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    struct kvt_cuda *c = cuda_of(gpu);
    int before = c->device;
    (void)cudaGetDevice(&before);
    if (before != c->device) (void)cudaSetDevice(c->device);
    bool is_pinned = !is_lost(c)
        && kvt_cuda_ok(c, cudaHostRegister(memory, size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    const uintptr_t first = (uintptr_t)memory, end = first + size_bytes;
    (void)pthread_mutex_lock(&c->lock);
    uint32_t i = 0;
    while (is_pinned && i < c->pinned_count && c->pinned[i].end != first) i++;
    const bool is_known = is_pinned && i < KVT_CUDA_PINNED_MAX;
    if (is_known && i == c->pinned_count) {
        c->pinned[i].first = first;
        c->pinned_count++;
    }
    if (is_known) c->pinned[i].end = end;
    (void)pthread_mutex_unlock(&c->lock);
    if (is_pinned && !is_known) {
        (void)kvt_cuda_ok(c, cudaHostUnregister(memory));
        is_pinned = false;
    }
    if (before != c->device) (void)cudaSetDevice(before);
    return is_pinned;
}

static void cuda_host_unpin(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    /* The last piece of a range goes first, so that what stays pinned stays one range. */
    for (uint32_t i = 0; i < c->pinned_count; i++) {
        if ((uintptr_t)memory < c->pinned[i].first || (uintptr_t)memory >= c->pinned[i].end) continue;
        KVT_ASSERT((uintptr_t)memory + size_bytes == c->pinned[i].end);
        c->pinned[i].end = (uintptr_t)memory;
        if (c->pinned[i].end == c->pinned[i].first) c->pinned[i] = c->pinned[--c->pinned_count];
        break;
    }
    leave(c, current);
    (void)kvt_cuda_ok(c, cudaHostUnregister(memory));
}

static bool cuda_host_is_pinned(struct kvt_gpu *gpu, const void *memory)
{
    struct kvt_cuda *c = cuda_of(gpu);
    (void)pthread_mutex_lock(&c->lock);
    const bool is_pinned = kvt_cuda_is_pinned(c, memory);
    (void)pthread_mutex_unlock(&c->lock);
    return is_pinned;
}

/* ---- Open and close -------------------------------------------------------------------------- */

static bool cuda_is_present(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return true;
    (void)cudaGetLastError();
    return false;
}

static enum kvt_status open_device(struct kvt_cuda *c)
{
    int value = 0;
    if (!kvt_cuda_ok(c, cudaGetDevice(&c->device)) || !kvt_cuda_ok(c, cudaSetDevice(c->device))) return KVT_IO;
    cudaEvent_t probe;
    if (!kvt_cuda_ok(c, cudaEventCreateWithFlags(&probe, cudaEventDisableTiming))) return KVT_IO;
    c->probe = probe;
    if (!kvt_cuda_ok(c, cudaDeviceGetAttribute(&value, cudaDevAttrCanUseHostPointerForRegisteredMem, c->device)))
        return KVT_IO;
    c->is_unified = value != 0;
    c->has_batch = true;
    return KVT_OK;
}

static void cuda_describe(struct kvt_gpu *gpu, char *ret_text, size_t text_bytes)
{
    const struct kvt_cuda *c = cuda_of(gpu);
    const struct kvt_cuda_choice *choice = &c->choice;
    (void)snprintf(
        ret_text, text_bytes,
        "cuda device %d: %s; a kernel moves fragments below %llu (to host), %llu (to device) bytes, %llu and "
        "%llu while the other direction is at work",
        c->device, c->has_batch ? "batched DMA" : "DMA", (unsigned long long)choice->kernel_below[KVT_CUDA_TO_HOST][0],
        (unsigned long long)choice->kernel_below[KVT_CUDA_TO_DEVICE][0],
        (unsigned long long)choice->kernel_below[KVT_CUDA_TO_HOST][1],
        (unsigned long long)choice->kernel_below[KVT_CUDA_TO_DEVICE][1]);
}

static enum kvt_status cuda_open(const struct kvt_gpu_config *config, const struct kvt_env *env,
                                 struct kvt_gpu **ret_gpu)
{
    if (env->is_single_threaded) return KVT_UNSUPPORTED; /* a device goes on by itself */
    struct kvt_cuda *c = kvt_alloc(1, sizeof *c);
    if (!c) return KVT_NOMEM;
    c->gpu.ops = &kvt_gpu_cuda_ops;
    c->config = *config;
    c->config.segments_max = kvt_max_u32(config->segments_max, 1);
    c->env = *env;
    if (!c->env.now_ns) c->env.now_ns = kvt_env_default().now_ns;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->progress, NULL);
    const enum kvt_status status = open_device(c);
    if (status != KVT_OK) {
        free_device(c);
        return status;
    }
    kvt_cuda_calibrate(c);
    char text[256];
    cuda_describe(&c->gpu, text, sizeof text);
    kvt_log(&c->env, KVT_LOG_INFO, "%s", text);
    *ret_gpu = &c->gpu;
    return KVT_OK;
}

/* Nothing runs any more. */
static void free_device(struct kvt_cuda *c)
{
    for (uint32_t i = 0; i < c->stream_count; i++) free_stream(&c->streams[i]);
    for (uint32_t i = 0; i < KVT_GPU_ENGINE_STREAMS; i++)
        if (c->engine_streams[i]) (void)cudaStreamDestroy(c->engine_streams[i]);
    if (c->probe) (void)cudaEventDestroy(c->probe);
    (void)cudaGetLastError();
    (void)pthread_cond_destroy(&c->progress);
    (void)pthread_mutex_destroy(&c->lock);
    kvt_free(c);
}

/*
 * A device that hangs cannot be waited for, and may still write to what it was given. Then the threads go on
 * looking, and the last of them cleans up when there has been an answer.
 */
static void cuda_close(struct kvt_gpu *gpu)
{
    struct kvt_cuda *c = cuda_of(gpu);
    const struct current current = enter(c);
    const bool is_drained = drain(c);
    c->is_closing = true;
    c->is_abandoned = !is_drained;
    pthread_t threads[KVT_GPU_STREAMS_MAX];
    uint32_t thread_count = 0;
    for (uint32_t i = 0; i < c->stream_count; i++) {
        if (c->streams[i].has_thread) threads[thread_count++] = c->streams[i].thread;
        (void)pthread_cond_signal(&c->streams[i].wake);
    }
    if (!is_drained) {
        kvt_log(&c->env, KVT_LOG_ERROR, "the CUDA device does not answer: its streams stay open");
        c->env = kvt_env_default(); /* the caller's may end before the threads do */
    }
    leave(c, current);
    /* An abandoned device may be gone from here on. */
    for (uint32_t i = 0; i < thread_count; i++)
        (void)(is_drained ? pthread_join(threads[i], NULL) : pthread_detach(threads[i]));
    if (is_drained) free_device(c);
}

/* Every stream of our own has what it takes, or none is used. */
static bool cuda_can_pack(struct kvt_gpu *gpu)
{
    struct kvt_cuda *c = cuda_of(gpu);
    (void)pthread_mutex_lock(&c->lock);
    bool can_pack = c->is_unified;
    for (uint32_t i = 0; i < c->stream_count; i++)
        if (!c->streams[i].engine_stream && !c->streams[i].packed_device) can_pack = false;
    (void)pthread_mutex_unlock(&c->lock);
    return can_pack;
}

static bool cuda_is_lost(struct kvt_gpu *gpu) { return is_lost(cuda_of(gpu)); }

const struct kvt_gpu_ops kvt_gpu_cuda_ops = {
    .name = "cuda",
    .is_present = cuda_is_present,
    .open = cuda_open,
    .close = cuda_close,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .host_pin = cuda_host_pin,
    .host_unpin = cuda_host_unpin,
    .host_is_pinned = cuda_host_is_pinned,
    .stream = cuda_stream,
    .engine_stream = cuda_engine_stream,
    .mark = cuda_mark,
    .is_reached = cuda_is_reached,
    .wait = cuda_wait,
    .submit = cuda_submit,
    .synchronize = cuda_synchronize,
    .can_pack = cuda_can_pack,
    .is_lost = cuda_is_lost,
    .describe = cuda_describe,
};
