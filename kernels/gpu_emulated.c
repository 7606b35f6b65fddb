/*
 * The emulated device: ordinary memory, and streams that are as asynchronous as a device's.
 *
 * 1. A stream is a ring of items, jobs and waits; an item's serial is its number in the stream. Items start in
 *    order, and one is over before the next one starts. `finished` is the serial of the last one that is over.
 * 2. A mark is the serial of the last item at the moment it is taken, so it costs nothing: it is reached
 *    when finished >= serial. Its done callbacks have returned by then.
 * 3. A mark names only items submitted before it, so waits cannot form a circle: with every gate open and no job
 *    stuck, some stream can always go on.
 * 4. One lock guards all of it, and is given up while a job runs, sleeps or reports that it is done.
 */
#include "kernels/gpu_emulated.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

/*
 * Items that a stream takes before submit blocks its caller; a real device's queue is shorter. Untouched ones cost
 * nothing.
 */
#define RING_ITEMS 16384u

/* A clock that is not the system's is looked at this often while a job is on the link. */
#define FOREIGN_CLOCK_SLICE_NS 200000u

struct item {
    struct kvt_gpu_job *job; /* NULL: a wait for mark */
    kvt_mark mark;
    uint64_t submitted_ns;
};

enum stage {
    STAGE_IDLE,    /* the next item has not been looked at */
    STAGE_DRAWN,   /* it is a job, and its fault is known */
    STAGE_RUNNING, /* the lock is given up, run is being called */
    STAGE_LINK,    /* its bytes are on the link until end_ns */
    STAGE_ENDING   /* the lock is given up, done is being called */
};

struct stream {
    struct emulated *gpu;
    pthread_t thread;
    pthread_cond_t wake; /* the stream's thread sleeps here when it cannot go on */
    bool has_thread;
    void *engine_stream; /* NULL: a stream of the device's own */
    struct item *ring;   /* RING_ITEMS of them */
    uint64_t submitted;  /* serial of the last item */
    uint64_t finished;
    bool is_gated;
    bool is_blocked; /* its next item is a wait that was looked at and not passed */
    enum stage stage;
    uint64_t ready_ns;     /* when what held the stream up, other than the link, was over */
    uint64_t link_free_ns; /* when the link has moved everything before */
    uint64_t end_ns;       /* STAGE_LINK: when the job is over */

    enum kvt_gpu_fault fault; /* of the job at hand */
    uint64_t fault_in;        /* jobs until the planned fault; 0: none is planned */
    enum kvt_gpu_fault fault_at;
    uint32_t fault_per_million;
    enum kvt_gpu_fault fault_random;
    struct kvt_rng rng;
};

struct emulated {
    struct kvt_gpu gpu;
    struct kvt_gpu_config config;
    struct kvt_env env;
    bool is_system_clock;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* an item is over: synchronize and blocked submitters sleep here */
    uint32_t progress_waiters;
    bool is_hurried;  /* single-threaded: somebody waits in synchronize or close */
    bool is_draining; /* gates and faults do not hold: all work is being waited for */
    bool is_closing;
    uint32_t stream_count;
    struct stream streams[KVT_GPU_STREAMS_MAX];
};

static struct emulated *emulated_of(struct kvt_gpu *gpu)
{
    KVT_ASSERT(gpu->ops == &kvt_gpu_emulated_ops);
    return (struct emulated *)gpu;
}

static uint64_t now_ns(const struct emulated *e) { return kvt_env_now_ns(&e->env); }

static struct stream *stream_of(struct emulated *e, uint32_t stream)
{
    KVT_ASSERT(stream < e->stream_count);
    return &e->streams[stream];
}

static bool mark_is_reached(struct emulated *e, kvt_mark mark)
{
    if (mark == 0) return true;
    const struct stream *s = stream_of(e, kvt_mark_stream(mark));
    KVT_ASSERT(kvt_mark_serial(mark) <= s->submitted);
    return s->finished >= kvt_mark_serial(mark);
}

static struct item *next_item(struct stream *s) { return &s->ring[(s->finished + 1) % RING_ITEMS]; }

/* The item at hand is over: whoever waits for it may go on. */
static void finish_item(struct stream *s)
{
    struct emulated *e = s->gpu;
    s->finished++;
    s->stage = STAGE_IDLE;
    for (uint32_t i = 0; i < e->stream_count; i++) {
        struct stream *other = &e->streams[i];
        if (other->is_blocked && mark_is_reached(e, next_item(other)->mark)) (void)pthread_cond_signal(&other->wake);
    }
    if (e->progress_waiters > 0) (void)pthread_cond_broadcast(&e->progress);
}

static enum kvt_gpu_fault draw_fault(struct stream *s)
{
    if (s->gpu->is_draining) return KVT_GPU_FAULT_NONE;
    if (s->fault_in > 0 && --s->fault_in == 0) return s->fault_at;
    if (s->fault_per_million > 0 && kvt_rng_below(&s->rng, 1000000) < s->fault_per_million) return s->fault_random;
    return KVT_GPU_FAULT_NONE;
}

/*
 * When the link has moved the job's bytes. A job that was queued while the link was busy follows the one before
 * without a gap, even when the thread came to it late, so that the link's speed does not depend on how well threads
 * sleep.
 */
static uint64_t link_end_ns(struct stream *s, const struct item *item, struct kvt_gpu_job *job)
{
    const struct kvt_gpu_config *config = &s->gpu->config;
    const bool is_paced = config->link_bytes_per_s > 0 || config->link_latency_ns > 0;
    job->link_ns = 0;
    if (job->link_bytes == 0 || !is_paced) return 0;

    uint64_t start = kvt_max_u64(s->link_free_ns, item->submitted_ns);
    start = kvt_max_u64(start, s->ready_ns);
    job->link_ns = config->link_latency_ns;
    if (config->link_bytes_per_s > 0) {
        const unsigned __int128 scaled = (unsigned __int128)job->link_bytes * 1000000000u;
        job->link_ns += (uint64_t)((scaled + config->link_bytes_per_s - 1) / config->link_bytes_per_s);
    }
    s->link_free_ns = start + job->link_ns;
    return s->link_free_ns;
}

/* Sleeps, without the lock, until env's clock shows end_ns. */
static void sleep_until(const struct emulated *e, uint64_t end_ns)
{
    for (;;) {
        const uint64_t now = now_ns(e);
        if (now >= end_ns) return;
        uint64_t wake_ns = end_ns;
        int flags = TIMER_ABSTIME;
        if (!e->is_system_clock) {
            wake_ns = kvt_min_u64(end_ns - now, FOREIGN_CLOCK_SLICE_NS);
            flags = 0;
        }
        const struct timespec ts = { (time_t)(wake_ns / 1000000000u), (long)(wake_ns % 1000000000u) };
        (void)clock_nanosleep(CLOCK_MONOTONIC, flags, &ts, NULL);
    }
}

static void run_job(struct stream *s)
{
    struct emulated *e = s->gpu;
    const struct item item = *next_item(s);
    struct kvt_gpu_job *job = item.job;
    const bool is_run = s->fault != KVT_GPU_FAULT_FAIL;
    job->is_failed = s->fault == KVT_GPU_FAULT_FAIL || s->fault == KVT_GPU_FAULT_FAIL_LATE;
    job->link_bytes = 0;
    s->stage = STAGE_RUNNING;
    (void)pthread_mutex_unlock(&e->lock);
    if (is_run) job->run(job);
    (void)pthread_mutex_lock(&e->lock);
    s->end_ns = link_end_ns(s, &item, job);
    s->stage = STAGE_LINK;
}

static void end_job(struct stream *s)
{
    struct emulated *e = s->gpu;
    struct kvt_gpu_job *job = next_item(s)->job;
    s->stage = STAGE_ENDING;
    (void)pthread_mutex_unlock(&e->lock);
    if (job->done) job->done(job); /* the job may be gone from here on */
    (void)pthread_mutex_lock(&e->lock);
    if (s->end_ns == 0) s->ready_ns = now_ns(e);
    finish_item(s);
}

/* True when the job at hand, already run, is over or has been waited for. */
static bool link_is_over(struct stream *s)
{
    struct emulated *e = s->gpu;
    if (s->end_ns == 0 || e->is_hurried || now_ns(e) >= s->end_ns) return true;
    if (e->env.is_single_threaded) return false;
    const uint64_t end_ns = s->end_ns;
    (void)pthread_mutex_unlock(&e->lock);
    sleep_until(e, end_ns);
    (void)pthread_mutex_lock(&e->lock);
    return true;
}

/* The next thing of the stream, with the lock held. False: there is nothing that could go on now. */
static bool advance(struct stream *s)
{
    struct emulated *e = s->gpu;
    if (s->finished == s->submitted) return false;
    const struct item *item = next_item(s);
    switch (s->stage) {
    case STAGE_IDLE:
        if (s->is_gated && !e->is_draining) return false;
        if (!item->job) {
            const bool was_blocked = s->is_blocked;
            s->is_blocked = !mark_is_reached(e, item->mark);
            if (s->is_blocked) return false;
            if (was_blocked) s->ready_ns = now_ns(e);
            finish_item(s);
            return true;
        }
        s->fault = draw_fault(s);
        s->stage = STAGE_DRAWN;
        __attribute__((fallthrough));
    case STAGE_DRAWN:
        if (s->fault == KVT_GPU_FAULT_STUCK_START) return false;
        run_job(s);
        if (s->fault == KVT_GPU_FAULT_STUCK_END) return true;
        if (link_is_over(s)) end_job(s);
        return true;
    case STAGE_LINK:
        if (s->fault == KVT_GPU_FAULT_STUCK_END) return false;
        if (!link_is_over(s)) return false;
        end_job(s);
        return true;
    case STAGE_RUNNING:
    case STAGE_ENDING: break;
    }
    KVT_ASSERT(!"a job calls back into its own stream");
    return false;
}

static void *stream_main(void *user)
{
    struct stream *s = user;
    struct emulated *e = s->gpu;
    (void)prctl(PR_SET_TIMERSLACK, 1); /* pacing sleeps for microseconds; the default slack is 50 of them */
    (void)pthread_mutex_lock(&e->lock);
    while (!e->is_closing || s->finished < s->submitted) {
        if (!advance(s)) (void)pthread_cond_wait(&s->wake, &e->lock);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* Single-threaded: one turn for every stream. False when none could go on. */
static bool advance_all(struct emulated *e)
{
    bool is_progress = false;
    for (uint32_t i = 0; i < e->stream_count; i++) {
        if (advance(&e->streams[i])) is_progress = true;
    }
    return is_progress;
}

/* Waits, with the lock held, until `serial` of the stream is over. */
static void wait_finished(struct stream *s, uint64_t serial)
{
    struct emulated *e = s->gpu;
    if (e->env.is_single_threaded) {
        e->is_hurried = true;
        while (s->finished < serial) {
            const bool is_progress = advance_all(e);
            KVT_ASSERT(is_progress); /* a gate or a stuck job is in the way, and nobody is there to open it */
            if (!is_progress) break;
        }
        e->is_hurried = false;
        return;
    }
    e->progress_waiters++;
    while (s->finished < serial) (void)pthread_cond_wait(&e->progress, &e->lock);
    e->progress_waiters--;
}

/*
 * Waits, with the lock held, for everything submitted so far. Neither a gate nor a stuck job keeps it from coming
 * to an end.
 */
static void drain(struct emulated *e)
{
    e->is_draining = true;
    for (uint32_t i = 0; i < e->stream_count; i++) {
        e->streams[i].fault = KVT_GPU_FAULT_NONE;
        (void)pthread_cond_signal(&e->streams[i].wake);
    }
    for (uint32_t i = 0; i < e->stream_count; i++) wait_finished(&e->streams[i], e->streams[i].submitted);
    e->is_draining = false;
}

static void push_item(struct stream *s, struct kvt_gpu_job *job, kvt_mark mark)
{
    struct emulated *e = s->gpu;
    KVT_ASSERT(!e->is_closing);
    while (s->submitted - s->finished == RING_ITEMS) wait_finished(s, s->finished + 1);
    s->submitted++;
    s->ring[s->submitted % RING_ITEMS] = (struct item){ .job = job, .mark = mark, .submitted_ns = now_ns(e) };
    if (s->has_thread) (void)pthread_cond_signal(&s->wake);
}

/* ---- The calls of gpu.h ---------------------------------------------------------------------- */

static bool emulated_is_present(void) { return true; }

static enum kvt_status emulated_open(const struct kvt_gpu_config *config, const struct kvt_env *env,
                                     struct kvt_gpu **ret_gpu)
{
    const struct kvt_env real = kvt_env_default();
    struct emulated *e = kvt_alloc(1, sizeof *e);
    if (!e) return KVT_NOMEM;
    e->gpu.ops = &kvt_gpu_emulated_ops;
    e->config = *config;
    e->env = *env;
    if (!e->env.now_ns) e->env.now_ns = real.now_ns;
    e->is_system_clock = e->env.now_ns == real.now_ns;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->progress, NULL);
    *ret_gpu = &e->gpu;
    return KVT_OK;
}

static void emulated_close(struct kvt_gpu *gpu)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    drain(e);
    e->is_closing = true;
    for (uint32_t i = 0; i < e->stream_count; i++) (void)pthread_cond_signal(&e->streams[i].wake);
    (void)pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < e->stream_count; i++) {
        struct stream *s = &e->streams[i];
        if (s->has_thread) (void)pthread_join(s->thread, NULL);
        (void)pthread_cond_destroy(&s->wake);
        kvt_free(s->ring);
    }
    (void)pthread_cond_destroy(&e->progress);
    (void)pthread_mutex_destroy(&e->lock);
    kvt_free(e);
}

static void *emulated_memory_alloc(struct kvt_gpu *gpu, size_t size_bytes)
{
    (void)gpu;
    return kvt_table_map(size_bytes);
}

static void emulated_memory_free(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    struct emulated *e = emulated_of(gpu);
    if (!memory) return;
    /* As cudaFree does: what is still running may use it. */
    (void)pthread_mutex_lock(&e->lock);
    drain(e);
    (void)pthread_mutex_unlock(&e->lock);
    kvt_table_unmap(memory, size_bytes);
}

/* Ordinary memory is as good as any other to it. */
static bool emulated_host_pin(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    (void)emulated_of(gpu);
    return memory && size_bytes > 0;
}

static void emulated_host_unpin(struct kvt_gpu *gpu, void *memory, size_t size_bytes)
{
    (void)emulated_of(gpu);
    KVT_ASSERT(memory && size_bytes > 0);
}

static bool emulated_host_is_pinned(struct kvt_gpu *gpu, const void *memory)
{
    (void)emulated_of(gpu);
    return memory != NULL;
}

/* Appends a stream, with the lock held. */
static enum kvt_status add_stream(struct emulated *e, void *engine_stream)
{
    if (e->stream_count == KVT_GPU_STREAMS_MAX) return KVT_FULL;
    struct stream *s = &e->streams[e->stream_count];
    *s = (struct stream){ .gpu = e, .engine_stream = engine_stream };
    s->ring = kvt_alloc(RING_ITEMS, sizeof *s->ring);
    if (!s->ring) return KVT_NOMEM;
    (void)pthread_cond_init(&s->wake, NULL);
    if (!e->env.is_single_threaded) {
        if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
            (void)pthread_cond_destroy(&s->wake);
            kvt_free(s->ring);
            return KVT_NOMEM;
        }
        s->has_thread = true;
    }
    e->stream_count++;
    return KVT_OK;
}

static enum kvt_status emulated_stream(struct kvt_gpu *gpu, void *engine_stream, uint32_t *ret_stream)
{
    struct emulated *e = emulated_of(gpu);
    enum kvt_status status = KVT_OK;
    (void)pthread_mutex_lock(&e->lock);
    uint32_t stream = 0;
    while (stream < e->stream_count && (!engine_stream || e->streams[stream].engine_stream != engine_stream)) stream++;
    if (stream == e->stream_count) status = add_stream(e, engine_stream);
    if (status == KVT_OK) *ret_stream = stream;
    (void)pthread_mutex_unlock(&e->lock);
    return status;
}

static void *emulated_engine_stream(struct kvt_gpu *gpu, uint32_t i)
{
    static char names[KVT_GPU_ENGINE_STREAMS]; /* only their addresses matter */
    (void)emulated_of(gpu);
    return i < KVT_GPU_ENGINE_STREAMS ? &names[i] : NULL;
}

static kvt_mark emulated_mark(struct kvt_gpu *gpu, uint32_t stream)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    const kvt_mark mark = kvt_mark_make(stream, stream_of(e, stream)->submitted);
    (void)pthread_mutex_unlock(&e->lock);
    return mark;
}

static bool emulated_is_reached(struct kvt_gpu *gpu, kvt_mark mark)
{
    if (mark == 0) return true;
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    const bool is_reached = mark_is_reached(e, mark);
    (void)pthread_mutex_unlock(&e->lock);
    return is_reached;
}

static void emulated_wait(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark)
{
    /* A stream is behind its own marks by itself. */
    if (mark == 0 || kvt_mark_stream(mark) == stream) return;
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    if (!mark_is_reached(e, mark)) push_item(stream_of(e, stream), NULL, mark);
    (void)pthread_mutex_unlock(&e->lock);
}

static void emulated_submit(struct kvt_gpu *gpu, uint32_t stream, struct kvt_gpu_job *job)
{
    struct emulated *e = emulated_of(gpu);
    KVT_ASSERT(job->run != NULL);
    (void)pthread_mutex_lock(&e->lock);
    push_item(stream_of(e, stream), job, 0);
    (void)pthread_mutex_unlock(&e->lock);
}

static void emulated_synchronize(struct kvt_gpu *gpu, kvt_mark mark)
{
    if (mark == 0) return;
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    struct stream *s = stream_of(e, kvt_mark_stream(mark));
    KVT_ASSERT(kvt_mark_serial(mark) <= s->submitted);
    wait_finished(s, kvt_mark_serial(mark));
    (void)pthread_mutex_unlock(&e->lock);
}

/* Packing is the CPU's here, too: run does it. */
static bool emulated_can_pack(struct kvt_gpu *gpu)
{
    (void)emulated_of(gpu);
    return false;
}

static bool emulated_is_lost(struct kvt_gpu *gpu)
{
    (void)emulated_of(gpu);
    return false;
}

static void emulated_describe(struct kvt_gpu *gpu, char *ret_text, size_t text_bytes)
{
    const struct kvt_gpu_config *config = &emulated_of(gpu)->config;
    if (config->link_bytes_per_s == 0) {
        (void)snprintf(ret_text, text_bytes, "emulated: ordinary memory, copied by the CPU");
        return;
    }
    (void)snprintf(ret_text, text_bytes, "emulated: ordinary memory behind a link of %.2f GB/s each way",
                   (double)config->link_bytes_per_s * 1e-9);
}

const struct kvt_gpu_ops kvt_gpu_emulated_ops = {
    .name = "emulated",
    .is_present = emulated_is_present,
    .open = emulated_open,
    .close = emulated_close,
    .memory_alloc = emulated_memory_alloc,
    .memory_free = emulated_memory_free,
    .host_pin = emulated_host_pin,
    .host_unpin = emulated_host_unpin,
    .host_is_pinned = emulated_host_is_pinned,
    .stream = emulated_stream,
    .engine_stream = emulated_engine_stream,
    .mark = emulated_mark,
    .is_reached = emulated_is_reached,
    .wait = emulated_wait,
    .submit = emulated_submit,
    .synchronize = emulated_synchronize,
    .can_pack = emulated_can_pack,
    .is_lost = emulated_is_lost,
    .describe = emulated_describe,
};

/* ---- For tests and simulations --------------------------------------------------------------- */

void kvt_gpu_emulated_gate(struct kvt_gpu *gpu, uint32_t stream, bool is_closed)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    struct stream *s = stream_of(e, stream);
    if (s->is_gated && !is_closed) s->ready_ns = now_ns(e);
    s->is_gated = is_closed;
    if (!is_closed) (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&e->lock);
}

bool kvt_gpu_emulated_run(struct kvt_gpu *gpu, uint32_t stream)
{
    struct emulated *e = emulated_of(gpu);
    KVT_ASSERT(e->env.is_single_threaded);
    (void)pthread_mutex_lock(&e->lock);
    const bool is_progress = stream < e->stream_count && advance(&e->streams[stream]);
    (void)pthread_mutex_unlock(&e->lock);
    return is_progress;
}

void kvt_gpu_emulated_fault_at(struct kvt_gpu *gpu, uint32_t stream, uint64_t n, enum kvt_gpu_fault fault)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    stream_of(e, stream)->fault_in = n;
    stream_of(e, stream)->fault_at = fault;
    (void)pthread_mutex_unlock(&e->lock);
}

void kvt_gpu_emulated_fault_randomly(struct kvt_gpu *gpu, uint32_t stream, uint32_t per_million, uint64_t seed,
                                     enum kvt_gpu_fault fault)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    struct stream *s = stream_of(e, stream);
    s->fault_per_million = per_million;
    s->fault_random = fault;
    s->rng.state = seed;
    (void)pthread_mutex_unlock(&e->lock);
}

static bool is_stuck(const struct stream *s)
{
    return (s->stage == STAGE_DRAWN && s->fault == KVT_GPU_FAULT_STUCK_START)
        || (s->stage == STAGE_LINK && s->fault == KVT_GPU_FAULT_STUCK_END);
}

bool kvt_gpu_emulated_is_stuck(struct kvt_gpu *gpu, uint32_t stream)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    const bool result = is_stuck(stream_of(e, stream));
    (void)pthread_mutex_unlock(&e->lock);
    return result;
}

bool kvt_gpu_emulated_release(struct kvt_gpu *gpu, uint32_t stream)
{
    struct emulated *e = emulated_of(gpu);
    (void)pthread_mutex_lock(&e->lock);
    struct stream *s = stream_of(e, stream);
    const bool was_stuck = is_stuck(s);
    if (was_stuck) {
        s->fault = KVT_GPU_FAULT_NONE;
        s->ready_ns = now_ns(e);
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return was_stuck;
}

uint64_t kvt_gpu_emulated_next_ns(struct kvt_gpu *gpu)
{
    struct emulated *e = emulated_of(gpu);
    uint64_t next = UINT64_MAX;
    (void)pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->stream_count; i++) {
        const struct stream *s = &e->streams[i];
        if (s->stage == STAGE_LINK && !is_stuck(s)) next = kvt_min_u64(next, s->end_ns);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return next;
}
