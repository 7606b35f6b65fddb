#include "tests/fakes/cudart_fake.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

#include "kernels/block_pack.h"
#include "kernels/cuda/launch.h"
#include "kernels/pages.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { STREAMS_MAX = 64, RANGES_MAX = 512, NAMES_MAX = 32, PER_THREAD_MAX = 16 };

enum task_kind { TASK_RUN, TASK_COPY, TASK_KERNEL, TASK_RECORD, TASK_WAIT };

struct CUevent_st {
    uint64_t recorded, done; /* records that were queued; that were reached */
    struct CUevent_st *next;
};

struct task {
    enum task_kind kind;
    void (*run)(void *user);
    void *user;
    const void *source;
    void *target;
    uint64_t bytes; /* of a copy; the longest run of a kernel */
    const struct kvt_pages_run *runs;
    uint32_t count;
    struct CUevent_st *event;
    uint64_t record;
    struct task *next;
};

struct CUstream_st {
    pthread_t thread;
    pthread_cond_t wake;
    struct task *first, **last;
    bool is_gated, is_busy, is_user_made, is_gone;
    uint64_t queued, done;
    pthread_t owner; /* of a per-thread stream */
};

enum range_kind { RANGE_DEVICE, RANGE_HOST_ALLOCATED, RANGE_REGISTERED };

struct range {
    uintptr_t first;
    uint64_t bytes;
    enum range_kind kind;
};

struct name {
    const char *function;
    uint32_t calls, fail_in;
    cudaError_t error;
    bool is_failing, is_always, is_sticky;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t progress;
    bool is_hidden, is_ending;
    cudaError_t sticky;
    struct CUstream_st *streams[STREAMS_MAX];
    uint32_t stream_count;
    struct CUstream_st *legacy;
    struct CUstream_st *per_thread[PER_THREAD_MAX];
    uint32_t per_thread_count;
    struct CUevent_st *events;
    uint32_t event_count;
    struct range ranges[RANGES_MAX];
    uint32_t range_count;
    struct name names[NAMES_MAX];
    uint32_t name_count;
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER };

static __thread cudaError_t last_error;

/* ---- Errors ---------------------------------------------------------------------------------- */

static struct name *name_of(const char *function)
{
    for (uint32_t i = 0; i < fake.name_count; i++)
        if (strcmp(fake.names[i].function, function) == 0) return &fake.names[i];
    KVT_ASSERT(fake.name_count < NAMES_MAX);
    struct name *name = &fake.names[fake.name_count++];
    *name = (struct name){ .function = function };
    return name;
}

static cudaError_t say(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

static void become_sticky(cudaError_t error)
{
    fake.sticky = error;
    for (uint32_t i = 0; i < fake.stream_count; i++) (void)pthread_cond_broadcast(&fake.streams[i]->wake);
    (void)pthread_cond_broadcast(&fake.progress);
}

/* Every call begins with it, with the lock taken here: what it should return, if that is not its own affair. */
static cudaError_t enter(const char *function)
{
    (void)pthread_mutex_lock(&fake.lock);
    struct name *name = name_of(function);
    name->calls++;
    if (fake.sticky != cudaSuccess) return say(fake.sticky);
    if (fake.is_hidden) return say(cudaErrorInsufficientDriver);
    if (!name->is_failing) return cudaSuccess;
    if (!name->is_always && --name->fail_in > 0) return cudaSuccess;
    if (!name->is_always) name->is_failing = false;
    if (name->is_sticky) become_sticky(name->error);
    return say(name->error);
}

static cudaError_t leave(cudaError_t error)
{
    (void)pthread_mutex_unlock(&fake.lock);
    return say(error);
}

#define ENTER(function)                                  \
    do {                                                 \
        const cudaError_t error_ = enter(function);      \
        if (error_ != cudaSuccess) return leave(error_); \
    } while (0)

void cudart_fake_fail(const char *function, uint32_t n, int error, bool is_sticky)
{
    (void)pthread_mutex_lock(&fake.lock);
    struct name *name = name_of(function);
    name->fail_in = n;
    name->is_failing = error != cudaSuccess;
    name->is_always = n == 0;
    name->error = (cudaError_t)error;
    name->is_sticky = is_sticky;
    (void)pthread_mutex_unlock(&fake.lock);
}

void cudart_fake_lose(int error)
{
    (void)pthread_mutex_lock(&fake.lock);
    become_sticky((cudaError_t)error);
    (void)pthread_mutex_unlock(&fake.lock);
}

void cudart_fake_hide(bool is_hidden)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.is_hidden = is_hidden;
    (void)pthread_mutex_unlock(&fake.lock);
}

uint32_t cudart_fake_calls(const char *function)
{
    (void)pthread_mutex_lock(&fake.lock);
    const uint32_t calls = name_of(function)->calls;
    (void)pthread_mutex_unlock(&fake.lock);
    return calls;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static struct range *range_of(const void *memory)
{
    for (uint32_t i = 0; i < fake.range_count; i++) {
        struct range *range = &fake.ranges[i];
        if ((uintptr_t)memory >= range->first && (uintptr_t)memory < range->first + range->bytes) return range;
    }
    return NULL;
}

static bool can_device_touch(const void *memory, uint64_t bytes)
{
    const struct range *range = range_of(memory);
    return range && (uintptr_t)memory + bytes <= range->first + range->bytes;
}

static void add_range(void *memory, uint64_t bytes, enum range_kind kind)
{
    KVT_ASSERT(fake.range_count < RANGES_MAX);
    fake.ranges[fake.range_count++] = (struct range){ (uintptr_t)memory, bytes, kind };
}

static cudaError_t allocate(void **ret_memory, size_t bytes, enum range_kind kind)
{
    void *memory = kvt_table_map(bytes);
    if (!memory) return cudaErrorMemoryAllocation;
    add_range(memory, bytes, kind);
    *ret_memory = memory;
    return cudaSuccess;
}

static cudaError_t release(void *memory, enum range_kind kind)
{
    if (!memory) return cudaSuccess;
    struct range *range = range_of(memory);
    if (!range || range->kind != kind || range->first != (uintptr_t)memory) return cudaErrorInvalidValue;
    if (kind != RANGE_REGISTERED) kvt_table_unmap(memory, range->bytes);
    *range = fake.ranges[--fake.range_count];
    return cudaSuccess;
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* Without the lock. */
static void run_task(const struct task *task)
{
    switch (task->kind) {
    case TASK_RUN: task->run(task->user); break;
    case TASK_COPY: memcpy(task->target, task->source, task->bytes); break;
    case TASK_KERNEL: kvt_pages_move_runs_body(task->runs, task->count, task->bytes); break;
    case TASK_RECORD:
    case TASK_WAIT: break;
    }
}

static bool is_kernel_legal(const struct task *task)
{
    if (!can_device_touch(task->runs, task->count * sizeof *task->runs)) return false;
    for (uint32_t i = 0; i < task->count; i++) {
        const struct kvt_pages_run *run = &task->runs[i];
        if (!can_device_touch(run->source, run->bytes) || !can_device_touch(run->target, run->bytes)) return false;
    }
    return true;
}

static bool can_start(const struct CUstream_st *s)
{
    if (!s->first) return false;
    if (fake.is_ending || fake.sticky != cudaSuccess) return true;
    if (s->is_gated) return false;
    return s->first->kind != TASK_WAIT || s->first->event->done >= s->first->record;
}

static void pack_now(void *user);

static void do_task(struct CUstream_st *s)
{
    struct task *task = s->first;
    s->first = task->next;
    if (!s->first) s->last = &s->first;
    const bool is_dropped = fake.is_ending || fake.sticky != cudaSuccess;
    if (!is_dropped && task->kind == TASK_KERNEL && !is_kernel_legal(task)) {
        become_sticky(cudaErrorIllegalAddress);
    } else if (!is_dropped) {
        s->is_busy = true;
        (void)pthread_mutex_unlock(&fake.lock);
        run_task(task);
        (void)pthread_mutex_lock(&fake.lock);
        s->is_busy = false;
    }
    if (task->kind == TASK_RECORD) {
        task->event->done = kvt_max_u64(task->event->done, task->record);
        for (uint32_t i = 0; i < fake.stream_count; i++) (void)pthread_cond_broadcast(&fake.streams[i]->wake);
    }
    if (is_dropped && task->run == pack_now) kvt_free(task->user);
    kvt_free(task);
    s->done++;
    (void)pthread_cond_broadcast(&fake.progress);
}

static void *stream_main(void *user)
{
    struct CUstream_st *s = user;
    (void)pthread_mutex_lock(&fake.lock);
    while (!fake.is_ending || s->first) {
        if (can_start(s)) do_task(s);
        else (void)pthread_cond_wait(&s->wake, &fake.lock);
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static struct CUstream_st *make_stream(bool is_user_made)
{
    for (uint32_t i = 0; i < fake.stream_count; i++) {
        struct CUstream_st *old = fake.streams[i];
        if (!old->is_gone || old->done < old->queued) continue;
        old->is_gone = false;
        old->is_gated = false;
        return old;
    }
    KVT_ASSERT(fake.stream_count < STREAMS_MAX);
    struct CUstream_st *s = kvt_alloc(1, sizeof *s);
    KVT_ASSERT(s != NULL);
    s->last = &s->first;
    s->is_user_made = is_user_made;
    s->owner = pthread_self();
    (void)pthread_cond_init(&s->wake, NULL);
    fake.streams[fake.stream_count++] = s;
    KVT_ASSERT(pthread_create(&s->thread, NULL, stream_main, s) == 0);
    return s;
}

static bool is_default(const void *stream) { return (uintptr_t)stream <= (uintptr_t)cudaStreamPerThread; }

static struct CUstream_st *find(void *stream)
{
    if (!is_default(stream)) {
        struct CUstream_st *s = stream;
        KVT_ASSERT(!s->is_gone);
        return s;
    }
    if (stream != (void *)cudaStreamPerThread) {
        if (!fake.legacy) fake.legacy = make_stream(false);
        return fake.legacy;
    }
    for (uint32_t i = 0; i < fake.per_thread_count; i++)
        if (pthread_equal(fake.per_thread[i]->owner, pthread_self())) return fake.per_thread[i];
    KVT_ASSERT(fake.per_thread_count < PER_THREAD_MAX);
    return fake.per_thread[fake.per_thread_count++] = make_stream(false);
}

static void queue(struct CUstream_st *s, struct task task)
{
    struct task *copy = kvt_alloc(1, sizeof *copy);
    KVT_ASSERT(copy != NULL);
    *copy = task;
    *s->last = copy;
    s->last = &copy->next;
    s->queued++;
    (void)pthread_cond_broadcast(&s->wake);
}

/* Waits, with the lock held, until the stream has done what is queued now. */
static void wait_for(const struct CUstream_st *s)
{
    const uint64_t queued = s->queued;
    while (s->done < queued) (void)pthread_cond_wait(&fake.progress, &fake.lock);
}

void cudart_fake_gate(void *stream, bool is_closed)
{
    (void)pthread_mutex_lock(&fake.lock);
    struct CUstream_st *s = find(stream);
    s->is_gated = is_closed;
    (void)pthread_cond_broadcast(&s->wake);
    (void)pthread_mutex_unlock(&fake.lock);
}

void cudart_fake_launch(void *stream, void (*run)(void *user), void *user)
{
    (void)pthread_mutex_lock(&fake.lock);
    if (fake.sticky == cudaSuccess) queue(find(stream), (struct task){ .kind = TASK_RUN, .run = run, .user = user });
    (void)pthread_mutex_unlock(&fake.lock);
}

void cudart_fake_settle(void *stream)
{
    (void)pthread_mutex_lock(&fake.lock);
    const struct CUstream_st *s = find(stream);
    while (s->is_busy || can_start(s)) (void)pthread_cond_wait(&fake.progress, &fake.lock);
    (void)pthread_mutex_unlock(&fake.lock);
}

void cudart_fake_begin(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    KVT_ASSERT(fake.stream_count == 0);
    fake.sticky = cudaSuccess;
    fake.is_hidden = false;
    fake.is_ending = false;
    fake.range_count = 0;
    fake.name_count = 0;
    fake.event_count = 0;
    last_error = cudaSuccess;
    (void)pthread_mutex_unlock(&fake.lock);
}

static struct cudart_fake_left count_left(void)
{
    struct cudart_fake_left left = { .events = fake.event_count };
    for (uint32_t i = 0; i < fake.stream_count; i++)
        left.streams += fake.streams[i]->is_user_made && !fake.streams[i]->is_gone;
    for (uint32_t i = 0; i < fake.range_count; i++) {
        left.device_allocations += fake.ranges[i].kind == RANGE_DEVICE;
        left.host_allocations += fake.ranges[i].kind == RANGE_HOST_ALLOCATED;
        left.registrations += fake.ranges[i].kind == RANGE_REGISTERED;
    }
    return left;
}

struct cudart_fake_left cudart_fake_left(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    const struct cudart_fake_left left = count_left();
    (void)pthread_mutex_unlock(&fake.lock);
    return left;
}

struct cudart_fake_left cudart_fake_end(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    const struct cudart_fake_left left = count_left();
    fake.is_ending = true;
    for (uint32_t i = 0; i < fake.stream_count; i++) (void)pthread_cond_broadcast(&fake.streams[i]->wake);
    (void)pthread_mutex_unlock(&fake.lock);
    for (uint32_t i = 0; i < fake.stream_count; i++) {
        (void)pthread_join(fake.streams[i]->thread, NULL);
        (void)pthread_cond_destroy(&fake.streams[i]->wake);
        kvt_free(fake.streams[i]);
    }
    fake.stream_count = 0;
    fake.per_thread_count = 0;
    fake.legacy = NULL;
    while (fake.events) {
        struct CUevent_st *event = fake.events;
        fake.events = event->next;
        kvt_free(event);
    }
    while (fake.range_count > 0) {
        struct range *range = &fake.ranges[--fake.range_count];
        if (range->kind != RANGE_REGISTERED) kvt_table_unmap((void *)range->first, range->bytes);
    }
    return left;
}

/* ---- The runtime's functions: the device and its errors -------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER("cudaGetDeviceCount");
    *count = 1;
    return leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER("cudaSetDevice");
    return leave(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER("cudaDeviceGetAttribute");
    (void)device;
    *value = attribute == cudaDevAttrCanUseHostPointerForRegisteredMem;
    return leave(cudaSuccess);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "an error of the fake"; }

/* Tests hold streams up with it. kvtier does not: its calls are counted (B60). */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    ENTER("cudaLaunchHostFunc");
    queue(find(stream), (struct task){ .kind = TASK_RUN, .run = fn, .user = userData });
    return leave(cudaSuccess);
}

/* ---- Streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    ENTER("cudaStreamCreateWithFlags");
    KVT_ASSERT(flags == cudaStreamNonBlocking); /* a blocking one would wait for the legacy stream */
    *stream = make_stream(true);
    return leave(cudaSuccess);
}

/* Its work goes on, as the real one's does. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER("cudaStreamDestroy");
    KVT_ASSERT(!is_default(stream));
    KVT_ASSERT(!stream->is_gone);
    stream->is_gone = true;
    return leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER("cudaStreamSynchronize");
    wait_for(find(stream));
    return leave(fake.sticky);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    ENTER("cudaStreamWaitEvent");
    (void)flags;
    queue(find(stream), (struct task){ .kind = TASK_WAIT, .event = event, .record = event->recorded });
    return leave(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    ENTER("cudaEventCreateWithFlags");
    (void)flags;
    struct CUevent_st *made = kvt_alloc(1, sizeof *made);
    KVT_ASSERT(made != NULL);
    made->next = fake.events;
    fake.events = made;
    fake.event_count++;
    *event = made;
    return leave(cudaSuccess);
}

/* The memory stays until the end: a queued task may still name it. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER("cudaEventDestroy");
    KVT_ASSERT(event != NULL);
    fake.event_count--;
    return leave(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER("cudaEventRecord");
    event->recorded++;
    queue(find(stream), (struct task){ .kind = TASK_RECORD, .event = event, .record = event->recorded });
    return leave(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER("cudaEventQuery");
    return leave(event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER("cudaEventSynchronize");
    while (event->done < event->recorded && fake.sticky == cudaSuccess)
        (void)pthread_cond_wait(&fake.progress, &fake.lock);
    return leave(fake.sticky);
}

/* ---- Memory and copies ----------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **memory, size_t size)
{
    ENTER("cudaMalloc");
    return leave(allocate(memory, size, RANGE_DEVICE));
}

cudaError_t cudaFree(void *memory)
{
    ENTER("cudaFree");
    for (uint32_t i = 0; i < fake.stream_count; i++) wait_for(fake.streams[i]);
    return leave(release(memory, RANGE_DEVICE));
}

cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned int flags)
{
    ENTER("cudaHostAlloc");
    (void)flags;
    return leave(allocate(memory, size, RANGE_HOST_ALLOCATED));
}

cudaError_t cudaFreeHost(void *memory)
{
    ENTER("cudaFreeHost");
    for (uint32_t i = 0; i < fake.stream_count; i++) wait_for(fake.streams[i]);
    return leave(release(memory, RANGE_HOST_ALLOCATED));
}

cudaError_t cudaHostRegister(void *memory, size_t size, unsigned int flags)
{
    ENTER("cudaHostRegister");
    (void)flags;
    if (range_of(memory)) return leave(cudaErrorHostMemoryAlreadyRegistered);
    add_range(memory, size, RANGE_REGISTERED);
    return leave(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *memory)
{
    ENTER("cudaHostUnregister");
    return leave(release(memory, RANGE_REGISTERED));
}

static cudaError_t copy(void *target, const void *source, size_t bytes, cudaStream_t stream)
{
    struct CUstream_st *s = find(stream);
    queue(s, (struct task){ .kind = TASK_COPY, .source = source, .target = target, .bytes = bytes });
    if (!range_of(source) || !range_of(target)) wait_for(s);
    return fake.sticky;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ENTER("cudaMemcpyAsync");
    (void)kind;
    return leave(copy(target, source, bytes, stream));
}

#if CUDART_VERSION >= 12080
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *targets, const void *const *sources, const size_t *sizes, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                 cudaStream_t stream)
#else
cudaError_t cudaMemcpyBatchAsync(void **targets, void **sources, size_t *sizes, size_t count,
                                 struct cudaMemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                 size_t *failed, cudaStream_t stream)
#endif
{
    ENTER("cudaMemcpyBatchAsync");
    if (is_default(stream) || count == 0 || attribute_count != 1 || indices[0] != 0)
        return leave(cudaErrorInvalidValue);
    for (size_t i = 0; i < count; i++) {
        /* Any other order lets the source be read before the stream comes to it. */
        if (attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream) memcpy(targets[i], sources[i], sizes[i]);
        else (void)copy(targets[i], sources[i], sizes[i], stream);
    }
    return leave(fake.sticky);
}
#endif

/* ---- The kernels of kernels/cuda/launch.h: their thread bodies on the CPU -------------------- */

enum kvt_status kvt_cuda_pages_move(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max, uint32_t ctas,
                                    void *stream)
{
    const cudaError_t error = enter("kvt_cuda_pages_move");
    if (error == cudaSuccess && count > 0 && ctas > 0)
        queue(find(stream), (struct task){ .kind = TASK_KERNEL, .runs = runs, .count = count, .bytes = bytes_max });
    (void)leave(error);
    (void)cudaGetLastError();
    return error == cudaSuccess ? KVT_OK : KVT_IO;
}

/* A launch: what the kernel reads of the blocks is read when its turn comes, from where the device can. */
struct packing {
    const struct kvt_block_pack *packs;
    const struct kvt_block_unpack *unpacks;
    uint32_t count;
};

static void pack_now(void *user)
{
    struct packing *packing = user;
    for (uint32_t i = 0; i < packing->count; i++) {
        const struct kvt_rank_shape *shape = packing->packs ? &packing->packs[i].shape : &packing->unpacks[i].shape;
        uint8_t *scratch = kvt_alloc(1, kvt_block_scratch_bytes(shape));
        KVT_ASSERT(scratch != NULL);
        if (packing->packs) kvt_block_pack(&packing->packs[i], kvt_rank_ops_best(), scratch);
        else kvt_block_unpack(&packing->unpacks[i], kvt_rank_ops_best(), scratch);
        kvt_free(scratch);
    }
    kvt_free(packing);
}

static enum kvt_status launch_blocks(const char *function, struct packing wanted, void *stream)
{
    const void *blocks = wanted.packs ? (const void *)wanted.packs : (const void *)wanted.unpacks;
    cudaError_t error = enter(function);
    if (error == cudaSuccess && !can_device_touch(blocks, wanted.count * sizeof(struct kvt_block_unpack)))
        error = cudaErrorIllegalAddress;
    if (error == cudaSuccess) {
        struct packing *packing = kvt_alloc(1, sizeof *packing);
        KVT_ASSERT(packing != NULL);
        *packing = wanted;
        queue(find(stream), (struct task){ .kind = TASK_RUN, .run = pack_now, .user = packing });
    }
    (void)leave(error);
    (void)cudaGetLastError();
    return error == cudaSuccess ? KVT_OK : KVT_IO;
}

enum kvt_status kvt_cuda_block_pack(const struct kvt_block_pack *blocks, uint32_t count, uint32_t layers_max,
                                    uint32_t ctas, void *stream)
{
    KVT_ASSERT(count > 0 && layers_max > 0 && ctas > 0);
    return launch_blocks("kvt_cuda_block_pack", (struct packing){ .packs = blocks, .count = count }, stream);
}

enum kvt_status kvt_cuda_block_unpack(const struct kvt_block_unpack *blocks, uint32_t count, uint32_t layers_max,
                                      uint32_t ctas, void *stream)
{
    KVT_ASSERT(count > 0 && layers_max > 0 && ctas > 0);
    return launch_blocks("kvt_cuda_block_unpack", (struct packing){ .unpacks = blocks, .count = count }, stream);
}
