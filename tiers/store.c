#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "kvtier/store.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/key.h"
#include "runtime/base/mem.h"
#include "tiers/store_private.h"

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* Tells whoever waits that there is something to poll. */
static void tell_news(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    const bool has_news = store->has_news;
    store->has_news = false;
    if (has_news) {
        if (store->done.head && !store->is_event_set) {
            (void)eventfd_write(store->event, 1);
            store->is_event_set = true;
        }
        (void)pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    if (has_news && store->wake) store->wake(store->wake_user);
}

/* One round of all work; reads go before writes. True: something moved, so another round may do more. */
static bool step(struct kvt_store *store, uint64_t wait_ns)
{
    store->has_moved = false;
    kvt_store_io_collect(store, wait_ns);
    kvt_seal_step(store);
    kvt_store_start_gets(store);
    kvt_store_io_pump(store);
    kvt_store_reclaim_step(store);
    kvt_store_closer_step(store);
    kvt_store_place_puts(store);
    kvt_store_commit_step(store);
    kvt_store_syncer_step(store);
    kvt_store_io_pump(store);
    tell_news(store);
    return store->has_moved;
}

/* ---- Who drives -------------------------------------------------------------------------------------------------- */

/*
 * One thread at a time runs steps. It is the I/O thread, unless a caller blocks: then the caller drives, for as long as
 * it waits, because two threads that wake each other for every batch cost more than the work on a busy machine. When
 * the caller has left, the I/O thread goes on after a moment: a caller that waits again at once finds the turn free.
 */
#define GRACE_NS 500000u
#define LOOK_NS_MAX 2000000u /* between two looks at callers that come and go */

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Under the lock. False: the time has come. */
static bool wait_on(struct kvt_store *store, pthread_cond_t *condition, uint64_t until_ns)
{
    const struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000u),
                                    .tv_nsec = (long)(until_ns % 1000000000u) };
    return pthread_cond_timedwait(condition, &store->lock, &until) != ETIMEDOUT;
}

/*
 * Under the lock, which it gives back meanwhile. A step, and if there was nothing to do and nobody asked, one that
 * sleeps.
 */
static bool drive_round(struct kvt_store *store, uint64_t sleep_ns)
{
    KVT_ASSERT(!store->is_driven);
    store->is_driven = true;
    store->has_requests = false;
    pthread_mutex_unlock(&store->lock);
    bool has_moved = step(store, 0);
    pthread_mutex_lock(&store->lock);
    if (!has_moved && !store->has_requests && sleep_ns > 0) {
        /* A request from here on finds is_asleep and kicks; the kick is kept until this poll. */
        store->is_asleep = true;
        pthread_mutex_unlock(&store->lock);
        has_moved = step(store, sleep_ns);
        pthread_mutex_lock(&store->lock);
        store->is_asleep = false;
    }
    store->is_driven = false;
    return has_moved;
}

/* Under the lock. Returns when it is the I/O thread's turn. */
static void await_turn(struct kvt_store *store)
{
    uint64_t stint = store->stint - 1, look_ns = GRACE_NS;
    while (!store->is_stopping) {
        const uint64_t now = monotonic_ns();
        if (!store->is_driven) {
            if (now >= store->thread_after_ns) return;
            (void)wait_on(store, &store->turn, store->thread_after_ns);
        } else if (stint != store->stint) {
            /* a caller that comes and goes: it is cheaper to look again than to be woken each time */
            stint = store->stint;
            (void)wait_on(store, &store->turn, now + look_ns);
            look_ns = kvt_min_u64(2 * look_ns, LOOK_NS_MAX);
        } else {
            store->is_dozing = true;
            (void)pthread_cond_wait(&store->turn, &store->lock);
            store->is_dozing = false;
        }
    }
}

static void *run(void *user)
{
    enum { IDLE_NS = 100000000 };
    struct kvt_store *store = user;
    pthread_mutex_lock(&store->lock);
    for (;;) {
        await_turn(store);
        store->is_thread_driving = true;
        const bool has_moved = drive_round(store, store->is_stopping || store->callers_waiting > 0 ? 0 : IDLE_NS);
        store->is_thread_driving = false;
        if (!has_moved && store->is_stopping) break;
        if (store->callers_waiting == 0) continue;
        store->thread_after_ns = monotonic_ns() + GRACE_NS;
        (void)pthread_cond_broadcast(&store->changed);
        /* One of them takes the turn, or it is this thread's again after the moment. */
        (void)wait_on(store, &store->turn, store->thread_after_ns);
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

/* Under the lock; gives it back. The I/O thread looks at the queues again. */
static void unlock_and_kick(struct kvt_store *store)
{
    const bool is_asleep = store->is_asleep;
    store->has_requests = true;
    store->is_asleep = false;
    pthread_mutex_unlock(&store->lock);
    if (is_asleep) store->io->ops->kick(store->io);
}

/* Does what is to do in an env without threads. */
static void drive(struct kvt_store *store)
{
    enum { ROUNDS = 64 };
    if (store->has_thread) return;
    for (int round = 0; round < ROUNDS; round++)
        if (!step(store, 0)) return;
}

/* A wait with an end: a time with a thread, a number of rounds in which nothing moved without one. */
struct patience {
    uint64_t deadline_ns; /* CLOCK_MONOTONIC */
    uint32_t idle_rounds;
    bool has_driven;
};

static struct patience patience_for(uint64_t timeout_ns)
{
    const uint64_t now = monotonic_ns();
    return (struct patience){ .deadline_ns = timeout_ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : now + timeout_ns };
}

/* Under the lock. The turn is somebody else's: asks for it, and returns when it may be free or something happened. */
static bool wait_for_turn(struct kvt_store *store, const struct patience *patience)
{
    store->callers_waiting++;
    if (store->is_thread_driving) { /* a caller that drives keeps its turn */
        store->has_requests = true;
        if (store->is_asleep) store->io->ops->kick(store->io);
        store->is_asleep = false;
    }
    const bool is_in_time = wait_on(store, &store->changed, patience->deadline_ns);
    store->callers_waiting--;
    return is_in_time;
}

/* Under the lock. Returns after something may have changed; false: patience is at its end. */
static bool wait_for_change(struct kvt_store *store, struct patience *patience)
{
    enum { IDLE_ROUNDS_MAX = 2000, STEP_NS = 1000000, SLEEP_NS = 100000000 };
    if (store->has_thread) {
        /* Whoever is told by a callback has a thread of its own to keep free. */
        if (store->wake) return wait_on(store, &store->changed, patience->deadline_ns);
        if (store->is_driven) return wait_for_turn(store, patience);
        const uint64_t now = monotonic_ns();
        if (now >= patience->deadline_ns) return false;
        patience->has_driven = true;
        (void)drive_round(store, kvt_min_u64(patience->deadline_ns - now, SLEEP_NS));
        return true;
    }
    pthread_mutex_unlock(&store->lock);
    const bool has_moved = step(store, STEP_NS);
    pthread_mutex_lock(&store->lock);
    patience->idle_rounds = has_moved ? 0 : patience->idle_rounds + 1;
    return patience->idle_rounds <= IDLE_ROUNDS_MAX;
}

/* Under the lock; gives it back. The end of a call that waited: somebody else drives. */
static void unlock_after_wait(struct kvt_store *store, const struct patience *patience)
{
    if (patience->has_driven) {
        store->stint++;
        store->thread_after_ns = monotonic_ns() + GRACE_NS;
        if (store->is_dozing) (void)pthread_cond_signal(&store->turn);
        if (store->callers_waiting > 0) (void)pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

struct kvt_store_config kvt_store_config_default(void)
{
    return (struct kvt_store_config){ .size = sizeof(struct kvt_store_config), .version = KVT_STORE_VERSION };
}

static enum kvt_status check_config(const struct kvt_store_config *config, struct kvt_store_error error)
{
    if (config->size != sizeof *config)
        return kvt_store_refuse(error, KVT_INVAL, "size is %u: it must be sizeof(struct kvt_store_config), %zu",
                                config->size, sizeof *config);
    if (config->version != KVT_STORE_VERSION)
        return kvt_store_refuse(error, KVT_INVAL, "version is %u: it must be %u", config->version, KVT_STORE_VERSION);
    if (config->staging_bytes != 0 && config->staging_bytes < KVT_MIB)
        return kvt_store_refuse(error, KVT_INVAL, "staging_bytes is %llu: at least 1 MiB",
                                (unsigned long long)config->staging_bytes);
    if (config->staging_bytes > KVT_GIB)
        return kvt_store_refuse(error, KVT_INVAL, "staging_bytes is %llu: at most 1 GiB",
                                (unsigned long long)config->staging_bytes);
    if (config->capacity_bytes > (uint64_t)1 << 50)
        return kvt_store_refuse(error, KVT_INVAL, "capacity is %llu bytes: at most 1 PiB",
                                (unsigned long long)config->capacity_bytes);
    if (config->record_bytes_max > KVT_GIB)
        return kvt_store_refuse(error, KVT_INVAL, "record_bytes_max is %u: at most 1 GiB", config->record_bytes_max);
    return KVT_OK;
}

static enum kvt_status init_lock(struct kvt_store *store)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return KVT_NOMEM;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&store->lock, NULL);
    (void)pthread_cond_init(&store->changed, &attributes);
    (void)pthread_cond_init(&store->turn, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return KVT_OK;
}

static enum kvt_status open_io(struct kvt_store *store, uint64_t link_bytes_per_s, struct kvt_store_error error)
{
    const struct kvt_block_io_config config = { .directory = store->path,
                                                .queue_depth = 1024,
                                                .buffers = store->memory,
                                                .buffers_bytes = store->memory_bytes,
                                                .link_bytes_per_s = link_bytes_per_s };
    const enum kvt_status status = kvt_block_io_open(&config, &store->env, &store->io);
    if (status != KVT_OK) {
        store->io = NULL;
        return kvt_store_refuse(error, status == KVT_NOMEM ? KVT_NOMEM : KVT_IO,
                                "path is %s: it cannot be read and written: %s", store->path, kvt_status_text(status));
    }
    store->io->ops->facts(store->io, &store->facts);
    store->alignment = store->facts.alignment;
    KVT_ASSERT(kvt_is_power_of_two(store->alignment));
    return KVT_OK;
}

static enum kvt_status open_parts(struct kvt_store *store, const struct kvt_store_config *config,
                                  struct kvt_store_error error)
{
    KVT_TRY(init_lock(store));
    store->path = config->path ? kvt_strdup(config->path) : kvt_strdup("");
    if (!store->path || kvt_key_init() != KVT_OK) return KVT_NOMEM;
    KVT_TRY(kvt_store_directory_open(store, error));
    store->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (store->event < 0) return KVT_NOMEM;
    KVT_TRY(kvt_store_memory_init(store, config->staging_bytes ? config->staging_bytes : 16 * KVT_MIB));
    KVT_TRY(kvt_store_index_init(&store->index));
    KVT_TRY(open_io(store, config->link_bytes_per_s, error));
    if (config->key) {
        KVT_TRY(kvt_seal_open(config->key, &store->seal));
        store->seal_bytes = KVT_SEAL_BYTES;
    }
    KVT_TRY(
        kvt_store_recover(store, config->record_bytes_max ? config->record_bytes_max + store->seal_bytes : 0, error));
    if (store->seal) {
        KVT_TRY(kvt_seal_start(store->seal, store->queue_depth, kvt_store_length_max(store) + store->seal_bytes));
        store->stats.cipher = kvt_seal_cipher(store->seal) == KVT_SEAL_AES_256_GCM ? "AES-256-GCM"
                                                                                   : "XChaCha20-Poly1305";
    }
    store->stats.capacity_bytes = store->capacity_bytes;
    store->stats.segment_bytes = store->segment_bytes;
    store->stats.segments_max = store->segments_max;
    store->stats.io_path = store->facts.path;
    store->stats.is_direct = store->facts.is_direct;
    store->stats.alignment = store->alignment;
    memcpy(store->stats.io_note, store->facts.note, sizeof store->stats.io_note);
    if (!store->env.is_single_threaded) {
        if (pthread_create(&store->thread, NULL, run, store) != 0) return KVT_NOMEM;
        store->has_thread = true;
    }
    return KVT_OK;
}

/* Takes back what is in flight and starts nothing more. False: the disk does not answer. */
static bool drain_io(struct kvt_store *store)
{
    enum { ROUNDS_MAX = 2000, WAIT_NS = 1000000 };
    const uint64_t deadline = monotonic_ns() + KVT_STORE_DEADLINE_NS;
    for (uint32_t round = 0; store->io_in_flight > 0; round++) {
        if (store->env.is_single_threaded ? round > ROUNDS_MAX : monotonic_ns() > deadline) return false;
        kvt_store_io_collect(store, WAIT_NS);
    }
    return true;
}

static void close_io(struct kvt_store *store)
{
    if (!store->io) return;
    /* Files with ops in flight stay open: the block I/O ends the ops in its close. */
    if (drain_io(store)) {
        for (uint32_t i = 0; store->segments && i < store->segment_slots; i++)
            if (store->segments[i].state != KVT_SEGMENT_ABSENT)
                store->io->ops->close_file(store->io, store->segments[i].file);
        if (store->super_file >= 0) store->io->ops->close_file(store->io, store->super_file);
    }
    store->io->ops->close(store->io);
}

static void close_parts(struct kvt_store *store)
{
    close_io(store);
    for (int i = 0; i < 2; i++)
        kvt_table_unmap(store->summaries[i], (uint64_t)store->entries_max * sizeof *store->summaries[i]);
    kvt_table_unmap(store->reclaim.kept, (uint64_t)store->entries_max * sizeof *store->reclaim.kept);
    kvt_seal_close(&store->seal);
    kvt_free(store->segments);
    kvt_store_index_done(&store->index);
    kvt_store_memory_done(store);
    if (store->event >= 0) (void)close(store->event);
    kvt_store_directory_close(store);
    kvt_free(store->path);
    (void)pthread_cond_destroy(&store->turn);
    (void)pthread_cond_destroy(&store->changed);
    (void)pthread_mutex_destroy(&store->lock);
    kvt_free(store);
}

enum kvt_status kvt_store_open_with(const struct kvt_store_config *config, const struct kvt_env *env,
                                    const struct kvt_store_more *more, struct kvt_store **ret_store, char *ret_error,
                                    size_t error_bytes)
{
    const struct kvt_store_error error = { .text = ret_error, .size = error_bytes };
    if (ret_error && error_bytes > 0) ret_error[0] = '\0';
    KVT_TRY(check_config(config, error));
    if (config->path_count > 0) return kvt_stripes_open(config, env, more, ret_store, ret_error, error_bytes);
    struct kvt_store *store = kvt_alloc(1, sizeof *store);
    if (!store) return kvt_store_refuse(error, KVT_NOMEM, "out of memory");
    store->env = env ? *env : kvt_env_default();
    if (!store->env.now_ns) store->env.now_ns = kvt_env_default().now_ns;
    if (more) {
        store->wake = more->wake;
        store->wake_user = more->wake_user;
        store->side_bytes_max = more->side_bytes_max;
        memcpy(store->side_name, more->side_name, sizeof store->side_name);
    }
    store->capacity_bytes = config->capacity_bytes;
    store->reserve_bytes = config->reserve_bytes;
    store->queue_bytes_max = config->queue_bytes ? config->queue_bytes : 64 * KVT_MIB;
    /* What a paced disk writes in a second: a queue is bounded by the time to drain it. */
    store->pace.drain_ns_max = (config->queue_ms ? config->queue_ms : 2000) * UINT64_C(1000000);
    store->wear.budget_bytes = config->bytes_per_day;
    store->held_bytes_max = config->held_bytes_max ? config->held_bytes_max : config->capacity_bytes / 2;
    if (config->link_bytes_per_s)
        store->queue_bytes_max = kvt_min_u64(store->queue_bytes_max, config->link_bytes_per_s);
    store->is_existing = config->is_existing;
    store->queue_depth = config->queue_depth ? config->queue_depth : 256;
    store->open_segment = KVT_STORE_NONE;
    store->super_file = store->event = store->directory = store->lock_file = -1;
    const enum kvt_status status = open_parts(store, config, error);
    if (status != KVT_OK) {
        if (ret_error && error_bytes > 0 && ret_error[0] == '\0')
            (void)kvt_store_refuse(error, status, "%s", kvt_status_text(status));
        kvt_store_directory_undo(store);
        close_parts(store);
        return status;
    }
    *ret_store = store;
    return KVT_OK;
}

enum kvt_status kvt_store_open(const struct kvt_store_config *config, const struct kvt_env *env,
                               struct kvt_store **ret_store, char *ret_error, size_t error_bytes)
{
    return kvt_store_open_with(config, env, NULL, ret_store, ret_error, error_bytes);
}

/*
 * Ops that never ended: the disk did not answer, or they were still queued. The I/O is closed: nothing touches them any
 * more.
 */
static void abandon_ops(struct kvt_store *store)
{
    struct kvt_op_queue *const queues[] = { &store->puts, &store->gets, &store->urgent_gets };
    for (size_t q = 0; q < KVT_ARRAY_COUNT(queues); q++)
        for (struct kvt_store_op *op = queues[q]->head; op; op = op->next) op->status = KVT_SHUTDOWN;
    for (uint32_t i = 0; i < KVT_STORE_GETS_MAX; i++)
        if (store->get_slots[i].op) store->get_slots[i].op->status = KVT_SHUTDOWN;
    if (store->big) store->big->status = KVT_SHUTDOWN;
    if (store->seal) kvt_seal_abandon(store->seal);
    for (uint32_t i = 0; i < store->in_place_put_count; i++)
        if (store->in_place_puts[i].op) store->in_place_puts[i].op->status = KVT_SHUTDOWN;
    for (uint32_t e = 0; e < store->extent_count; e++)
        for (uint32_t i = 0; store->extents[e].state != KVT_EXTENT_FREE && i < store->extents[e].op_count; i++)
            store->extents[e].ops[i]->status = KVT_SHUTDOWN;
}

void kvt_store_close(struct kvt_store **store_pointer)
{
    if (*store_pointer && (*store_pointer)->stripes) {
        kvt_stripes_close(store_pointer);
        return;
    }
    struct kvt_store *store = *store_pointer;
    if (!store) return;
    struct patience patience = patience_for(KVT_STORE_DEADLINE_NS);
    pthread_mutex_lock(&store->lock);
    store->is_closing = true;
    unlock_and_kick(store);
    pthread_mutex_lock(&store->lock);
    while (store->ops_unfinished > 0 && wait_for_change(store, &patience)) {}
    const bool is_drained = store->ops_unfinished == 0;
    unlock_after_wait(store, &patience);
    if (is_drained && kvt_store_sync(store) != KVT_OK)
        kvt_log(&store->env, KVT_LOG_WARN, "%s: the last records could not be made durable", store->path);
    if (store->has_thread) {
        pthread_mutex_lock(&store->lock);
        store->is_stopping = true;
        (void)pthread_cond_signal(&store->turn);
        unlock_and_kick(store);
        (void)pthread_join(store->thread, NULL);
    }
    (void)drain_io(store);
    abandon_ops(store);
    close_parts(store);
    *store_pointer = NULL;
}

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

uint32_t kvt_store_length_max(const struct kvt_store *store)
{
    if (store->stripes) return kvt_stripes_length_max(store->stripes);
    return (uint32_t)(store->segment_bytes - 3 * (uint64_t)KVT_STORE_BLOCK_BYTES - store->alignment
                      - store->seal_bytes);
}

static void queue_op(struct kvt_op_queue *queue, struct kvt_store_op *op)
{
    op->next = NULL;
    if (queue->tail) queue->tail->next = op;
    else queue->head = op;
    queue->tail = op;
}

/* Under the lock. The queue is bounded by what the disk still has to write; one record always goes. */
static bool accepts_put(struct kvt_store *store, const struct kvt_store_op *op)
{
    if (op->length > kvt_store_length_max(store)) return false;
    const uint64_t now_ns = kvt_env_now_ns(&store->env);
    kvt_wear_update(&store->wear, store->stats.written_bytes, now_ns);
    /* With what a segment takes that may have to be closed for it, and another that is begun. */
    const uint64_t written = kvt_store_stored_bytes(op->length, store->alignment) + 4 * (uint64_t)KVT_STORE_BLOCK_BYTES;
    if (!(op->flags & KVT_STORE_NEEDED) && kvt_wear_is_over(&store->wear, store->queued_bytes + written)) {
        store->stats.refused_wear++;
        return false;
    }
    if (!kvt_pace_allows(&store->pace, store->queued_bytes, op->length, now_ns)) {
        store->stats.refused_slow++;
        return false;
    }
    if (store->queued_bytes > 0 && store->queued_bytes + op->length > store->queue_bytes_max) return false;
    return store->paused_until_ns == 0 || now_ns >= store->paused_until_ns;
}

bool kvt_store_op_is_valid(const struct kvt_store_op *op)
{
    const uint32_t flags = KVT_STORE_GENERATION_ANY | KVT_STORE_PRIVATE | KVT_STORE_URGENT | KVT_STORE_NEEDED
        | KVT_STORE_IN_PLACE;
    if ((op->flags & ~flags) != 0) return false;
    if (!op->buffer && op->length > 0) return false;
    if (op->kind == KVT_STORE_GET) return true;
    if (op->kind != KVT_STORE_PUT || op->length == 0) return false;
    return op->form <= KVT_STORE_FORM_MAX && op->tokens <= UINT16_MAX;
}

/* Under the lock. An op that breaks a rule comes back as any other does, and nothing else sees it. */
static void refuse_op(struct kvt_store *store, struct kvt_store_op *op)
{
    op->status = KVT_INVAL;
    queue_op(&store->done, op);
    store->ops_outstanding++;
    store->has_news = true;
}

static bool accept(struct kvt_store *store, struct kvt_store_op *op)
{
    if (store->is_closing || store->ops_outstanding >= store->queue_depth) return false;
    op->os_errno = 0;
    op->ret_length = op->ret_form = op->ret_tokens = 0;
    op->ret_generation = op->ret_link_ns = 0;
    if (!store->is_member) op->ret_number = 0;
    if (!kvt_store_op_is_valid(op)) {
        refuse_op(store, op);
        return true;
    }
    if (op->kind == KVT_STORE_PUT) {
        if (!accepts_put(store, op)) {
            store->stats.refused++;
            return false;
        }
        *kvt_put_state(op) = (struct kvt_put_state){ .epoch = store->epoch,
                                                     .sequence = ++store->record_sequence,
                                                     .phase = (uint8_t)store->phase };
        if (!store->is_member) op->ret_number = kvt_put_state(op)->sequence;
        store->phase_pending[store->phase]++;
        store->queued_bytes += op->length;
        if (!store->seal) queue_op(&store->puts, op);
    } else if (!store->seal) {
        queue_op((op->flags & KVT_STORE_URGENT) ? &store->urgent_gets : &store->gets, op);
    }
    if (store->seal) kvt_seal_queue(store->seal, op);
    store->ops_outstanding++;
    store->ops_unfinished++;
    return true;
}

uint32_t kvt_store_submit(struct kvt_store *store, struct kvt_store_op *const *ops, uint32_t n)
{
    if (store->stripes) return kvt_stripes_submit(store->stripes, ops, n);
    uint32_t accepted = 0;
    pthread_mutex_lock(&store->lock);
    for (; accepted < n; accepted++) {
        if (!accept(store, ops[accepted])) break;
    }
    unlock_and_kick(store);
    return accepted;
}

uint32_t kvt_store_poll(struct kvt_store *store, struct kvt_store_op **ret_done, uint32_t max)
{
    if (store->stripes) return kvt_stripes_poll(store->stripes, ret_done, max);
    drive(store);
    uint32_t count = 0;
    pthread_mutex_lock(&store->lock);
    while (count < max && store->done.head) {
        struct kvt_store_op *op = store->done.head;
        store->done.head = op->next;
        if (!store->done.head) store->done.tail = NULL;
        op->next = NULL;
        ret_done[count++] = op;
    }
    KVT_ASSERT(store->ops_outstanding >= count);
    store->ops_outstanding -= count;
    if (!store->done.head && store->is_event_set) {
        eventfd_t ignored;
        (void)eventfd_read(store->event, &ignored);
        store->is_event_set = false;
    }
    pthread_mutex_unlock(&store->lock);
    return count;
}

int kvt_store_eventfd(struct kvt_store *store)
{
    return store->stripes ? kvt_stripes_eventfd(store->stripes) : store->event;
}

bool kvt_store_wait(struct kvt_store *store, uint64_t timeout_ns)
{
    if (store->stripes) return kvt_stripes_wait(store->stripes, timeout_ns);
    struct patience patience = patience_for(timeout_ns);
    drive(store);
    pthread_mutex_lock(&store->lock);
    while (!store->done.head && wait_for_change(store, &patience)) {}
    const bool has_something = store->done.head != NULL;
    unlock_after_wait(store, &patience);
    return has_something;
}

/* ---- From memory ------------------------------------------------------------------------------------------------- */

uint32_t kvt_store_exists(struct kvt_store *store, const struct kvt_store_name *names, uint32_t n, bool *ret_exists)
{
    if (store->stripes) return kvt_stripes_exists(store->stripes, names, n, ret_exists);
    uint32_t count = 0;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < n; i++) {
        ret_exists[i] = kvt_store_index_find(&store->index, kvt_name_of(&names[i])) != NULL;
        count += ret_exists[i];
    }
    pthread_mutex_unlock(&store->lock);
    return count;
}

uint32_t kvt_store_delete(struct kvt_store *store, const struct kvt_store_name *names, uint32_t n)
{
    if (store->stripes) return kvt_stripes_delete(store->stripes, names, n);
    uint32_t count = 0;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < n; i++) {
        struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(&names[i]));
        if (!entry) continue;
        kvt_store_entry_count(store, entry, -1); /* the caller drops it: nothing is lost that would have to be told */
        kvt_store_index_remove(&store->index, entry);
        count++;
    }
    pthread_mutex_unlock(&store->lock);
    return count;
}

static void describe(const struct kvt_store *store, const struct kvt_store_entry *entry,
                     struct kvt_store_found *ret_found)
{
    *ret_found = (struct kvt_store_found){ .generation = entry->generation,
                                           .length = entry->length - kvt_min_u32(store->seal_bytes, entry->length),
                                           .form = entry->form,
                                           .tokens = entry->tokens };
}

bool kvt_store_find(struct kvt_store *store, const struct kvt_store_name *name, struct kvt_store_found *ret_found)
{
    if (store->stripes) store = kvt_stripes_of(store->stripes, name);
    pthread_mutex_lock(&store->lock);
    const struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(name));
    if (entry && ret_found) describe(store, entry, ret_found);
    pthread_mutex_unlock(&store->lock);
    return entry != NULL;
}

bool kvt_store_hold(struct kvt_store *store, const struct kvt_store_name *name, struct kvt_store_found *ret_found)
{
    if (store->stripes) store = kvt_stripes_of(store->stripes, name);
    pthread_mutex_lock(&store->lock);
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(name));
    const bool is_new = entry && entry->holds == 0;
    const bool is_over = is_new
        && store->stats.held_bytes + kvt_store_stored_bytes(entry->length, store->alignment) > store->held_bytes_max;
    const bool is_held = entry && entry->holds < KVT_STORE_HOLDS_MAX && !is_over;
    if (is_held) {
        kvt_store_entry_count(store, entry, -1);
        entry->holds++;
        kvt_store_entry_count(store, entry, 1);
        if (ret_found) describe(store, entry, ret_found);
    }
    pthread_mutex_unlock(&store->lock);
    return is_held;
}

void kvt_store_release(struct kvt_store *store, const struct kvt_store_name *name)
{
    if (store->stripes) store = kvt_stripes_of(store->stripes, name);
    pthread_mutex_lock(&store->lock);
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(name));
    if (entry && entry->holds > 0) { /* a lost record's holds are gone with it */
        kvt_store_entry_count(store, entry, -1);
        entry->holds--;
        kvt_store_entry_count(store, entry, 1);
    }
    pthread_mutex_unlock(&store->lock);
}

uint32_t kvt_store_poll_lost(struct kvt_store *store, struct kvt_store_name *ret_names, uint32_t max)
{
    if (store->stripes) return kvt_stripes_poll_lost(store->stripes, ret_names, max);
    pthread_mutex_lock(&store->lock);
    const uint32_t count = kvt_store_index_take_lost(&store->index, (struct kvt_name *)(void *)ret_names, max);
    pthread_mutex_unlock(&store->lock);
    return count;
}

/* ---- Durability -------------------------------------------------------------------------------------------------- */

/* Under the lock. Waits for a run of the syncer that starts from now on. */
static enum kvt_status sync_run(struct kvt_store *store, struct patience *patience)
{
    const uint64_t target = kvt_store_want_sync(store);
    unlock_and_kick(store);
    pthread_mutex_lock(&store->lock);
    while (store->sync_finished < target)
        if (!wait_for_change(store, patience)) return KVT_IO;
    return store->sync_failed >= target ? KVT_IO : KVT_OK;
}

static enum kvt_status sync_locked(struct kvt_store *store, struct patience *patience)
{
    const uint64_t target = kvt_store_want_commit(store);
    unlock_and_kick(store);
    pthread_mutex_lock(&store->lock);
    while (store->commit.finished < target)
        if (!wait_for_change(store, patience)) return KVT_IO;
    return store->commit.failed >= target ? KVT_IO : KVT_OK;
}

uint64_t kvt_store_watermark(struct kvt_store *store)
{
    if (store->stripes) return kvt_stripes_watermark(store->stripes);
    pthread_mutex_lock(&store->lock);
    const uint64_t watermark = store->commit.watermark;
    pthread_mutex_unlock(&store->lock);
    return watermark;
}

static enum kvt_status wait_durable_locked(struct kvt_store *store, uint64_t number, struct patience *patience)
{
    if (number > store->record_sequence) return KVT_INVAL;
    if (store->commit.watermark >= number) return KVT_OK;
    const bool is_under_way = store->commit.stage != KVT_COMMIT_IDLE && store->commit.target >= number;
    const uint64_t target = is_under_way ? store->commit.started : kvt_store_want_commit(store);
    unlock_and_kick(store);
    pthread_mutex_lock(&store->lock);
    while (store->commit.watermark < number) {
        if (store->commit.finished >= target) return KVT_IO;
        if (!wait_for_change(store, patience)) return KVT_BUSY;
    }
    return KVT_OK;
}

void kvt_store_commit_begin(struct kvt_store *store, uint64_t number)
{
    pthread_mutex_lock(&store->lock);
    const bool is_under_way = store->commit.stage != KVT_COMMIT_IDLE && store->commit.target >= number;
    if (store->commit.watermark < number && !is_under_way) (void)kvt_store_want_commit(store);
    unlock_and_kick(store);
}

enum kvt_status kvt_store_wait_durable(struct kvt_store *store, uint64_t number, uint64_t timeout_ns)
{
    if (store->stripes) return kvt_stripes_wait_durable(store->stripes, number, timeout_ns);
    struct patience patience = patience_for(timeout_ns);
    pthread_mutex_lock(&store->lock);
    const enum kvt_status status = wait_durable_locked(store, number, &patience);
    unlock_after_wait(store, &patience);
    return status;
}

enum kvt_status kvt_store_sync(struct kvt_store *store)
{
    if (store->stripes) return kvt_stripes_sync(store->stripes);
    struct patience patience = patience_for(KVT_STORE_DEADLINE_NS);
    pthread_mutex_lock(&store->lock);
    const enum kvt_status status = sync_locked(store, &patience);
    unlock_after_wait(store, &patience);
    return status;
}

enum kvt_status kvt_store_reset(struct kvt_store *store)
{
    if (store->stripes) return kvt_stripes_reset(store->stripes);
    struct patience first_patience = patience_for(KVT_STORE_DEADLINE_NS);
    pthread_mutex_lock(&store->lock);
    enum kvt_status first = KVT_OK;
    if (store->is_existing) { /* it looked so far, and now it writes: with numbers of its own */
        store->is_super_dirty = true;
        first = sync_run(store, &first_patience);
    }
    /* From here on nothing of before is found or published; what follows makes it last. */
    store->epoch = store->next_epoch++;
    store->is_super_dirty = true;
    for (uint64_t i = 0; i < store->index.capacity; i++)
        if (store->index.entries[i].state == KVT_ENTRY_LIVE) kvt_store_entry_drop(store, &store->index.entries[i]);
    struct patience patience = patience_for(KVT_STORE_DEADLINE_NS);
    enum kvt_status status = sync_run(store, &patience);
    if (first != KVT_OK) status = first;
    patience.has_driven |= first_patience.has_driven;
    unlock_after_wait(store, &patience);
    return status;
}

enum kvt_status kvt_store_compact(struct kvt_store *store)
{
    if (store->stripes) return kvt_stripes_compact(store->stripes);
    struct patience patience = patience_for(20 * KVT_STORE_DEADLINE_NS);
    struct patience sync_patience = patience_for(KVT_STORE_DEADLINE_NS);
    pthread_mutex_lock(&store->lock);
    enum kvt_status status = KVT_OK;
    if (store->is_existing) { /* it looked so far, and now it writes: with numbers of its own */
        store->is_super_dirty = true;
        status = sync_run(store, &sync_patience);
    }
    store->has_compact_failed = false;
    store->is_compacting = status == KVT_OK;
    unlock_and_kick(store);
    pthread_mutex_lock(&store->lock);
    while (store->is_compacting && wait_for_change(store, &patience)) {}
    if (status == KVT_OK && (store->is_compacting || store->has_compact_failed)) status = KVT_IO;
    if (status == KVT_OK) status = sync_locked(store, &sync_patience);
    patience.has_driven |= sync_patience.has_driven;
    unlock_after_wait(store, &patience);
    return status;
}

uint32_t kvt_store_list(struct kvt_store *store, uint64_t *cursor, struct kvt_store_listed *ret_listed, uint32_t max)
{
    if (store->stripes) return kvt_stripes_list(store->stripes, cursor, ret_listed, max);
    enum { ENTRIES_PER_LOCK = 4096 };
    uint32_t count = 0;
    while (count < max) {
        pthread_mutex_lock(&store->lock);
        const uint64_t capacity = store->index.capacity;
        for (uint32_t i = 0; i < ENTRIES_PER_LOCK && count < max && *cursor < capacity; i++) {
            const struct kvt_store_entry *entry = &store->index.entries[(*cursor)++];
            if (entry->state != KVT_ENTRY_LIVE) continue;
            struct kvt_store_listed *listed = &ret_listed[count++];
            *listed = (struct kvt_store_listed){ .generation = entry->generation,
                                                 .length = entry->length
                                                     - kvt_min_u32(store->seal_bytes, entry->length),
                                                 .form = entry->form,
                                                 .tokens = entry->tokens,
                                                 .is_private = entry->is_private };
            memcpy(&listed->name, &entry->name, sizeof listed->name);
        }
        pthread_mutex_unlock(&store->lock);
        if (*cursor >= capacity) break;
    }
    return count;
}

void kvt_store_digest(const void *bytes, size_t size, uint64_t ret_digest[2])
{
    const struct kvt_key key = kvt_key_digest(bytes, size);
    ret_digest[0] = key.lo;
    ret_digest[1] = key.hi;
}

void kvt_store_stats(struct kvt_store *store, struct kvt_store_stats *ret_stats)
{
    if (store->stripes) {
        kvt_stripes_stats(store->stripes, ret_stats);
        return;
    }
    pthread_mutex_lock(&store->lock);
    kvt_wear_update(&store->wear, store->stats.written_bytes, kvt_env_now_ns(&store->env));
    *ret_stats = store->stats;
    ret_stats->day_bytes = store->wear.day_bytes;
    ret_stats->day_bytes_max = store->wear.budget_bytes;
    ret_stats->write_bytes_per_s = kvt_pace_bytes_per_s(&store->pace);
    ret_stats->write_amplification = store->stats.put_bytes
        ? (double)store->stats.written_bytes / (double)store->stats.put_bytes
        : 0;
    ret_stats->held_bytes_max = store->held_bytes_max;
    ret_stats->watermark = store->commit.watermark;
    ret_stats->directories = 1;
    ret_stats->records = store->index.live;
    ret_stats->index_bytes = store->index.capacity * sizeof *store->index.entries;
    pthread_mutex_unlock(&store->lock);
}
