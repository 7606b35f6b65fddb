/*
 * block_io_uring: block I/O through io_uring, O_DIRECT and registered buffers where the system grants them.
 *
 * Ops wait in a queue of our own and enter the kernel in poll, urgent reads first, many per system call. At most three
 * quarters of the queue depth may be bulk (writes, syncs, reads that nothing waits for) at a time, so that an urgent
 * read finds room in the kernel at once.
 *
 * Completion rule: an op ends with its own completion, found by an id that no other op has had; a completion with
 * another id is counted and dropped. An op that the kernel never took, because entering it failed for good, ends with
 * that error.
 *
 * Kick: a read of an eventfd is kept in the ring; kick() writes to the eventfd and touches nothing else.
 *
 * Setup flags: several threads may call, one at a time, so IORING_SETUP_SINGLE_ISSUER is out, and so is COOP_TASKRUN,
 * with which a completion waits until the thread that submitted enters the kernel again. In a single-threaded env
 * COOP_TASKRUN with TASKRUN_FLAG is safe: the thread that polls is the one that submitted.
 *
 * Source: Axboe, "Efficient IO with io_uring" (2019); io_uring_enter(2), io_uring_setup(2), io_uring_register(2).
 */
#include <errno.h>
#include <liburing.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/block_io_base.h"
#include "tiers/block_io_queue.h"

#define KICK_ID UINT64_MAX
#define SLICE_BYTES KVT_GIB /* the kernel's limit of one registered buffer */
#define SLICES_MAX 1024u
#define RETRIES_MAX 16u /* of an op that came back with "again" */

struct uring_io {
    struct kvt_io_base base;
    struct io_uring ring;
    struct kvt_io_slots slots; /* ops in the kernel's hands, or in the ring on their way there */
    struct kvt_io_queue queue; /* ops that have not entered the ring */
    struct kvt_io_fifo done;
    uint32_t in_flight; /* from submit until poll hands the op back */
    uint32_t bulk_in_ring, bulk_in_ring_max;
    int error; /* not 0: entering the ring fails for good, with this errno */

    int kick_event;
    uint64_t kick_buffer;
    bool is_kick_armed, is_kicked;

    const uint8_t *buffers; /* NULL: not registered */
    uint64_t buffers_bytes;
    uint64_t *submitted_order; /* per slot: prepared_count when its request was put into the ring */
    uint8_t *retries;          /* per slot */
    uint64_t prepared_count;
};

static struct uring_io *uring_of(struct kvt_block_io *io) { return (struct uring_io *)io; }

static bool is_memlock_unlimited(void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };
    if (syscall(SYS_capget, &header, data) != 0) return false;
    return (data[CAP_IPC_LOCK / 32].effective >> (CAP_IPC_LOCK % 32) & 1) != 0;
}

/* Registers the region in slices; on refusal says so in the facts, and everything works without. */
static void register_buffers(struct uring_io *uring, const struct kvt_block_io_config *config)
{
    struct kvt_block_io_facts *facts = &uring->base.facts;
    if (!config->buffers) return;
    struct rlimit limit;
    if (!is_memlock_unlimited() && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && config->buffers_bytes > limit.rlim_cur) {
        kvt_io_facts_add_note(facts, "buffers not registered: %llu KiB needed, memlock limit %llu KiB",
                              (unsigned long long)(config->buffers_bytes >> 10),
                              (unsigned long long)(limit.rlim_cur >> 10));
        return;
    }
    const uint64_t slice_count = (config->buffers_bytes + SLICE_BYTES - 1) / SLICE_BYTES;
    if (slice_count > SLICES_MAX) {
        kvt_io_facts_add_note(facts, "buffers not registered: more than %u GiB", SLICES_MAX);
        return;
    }
    struct iovec *slices = kvt_alloc(slice_count, sizeof *slices);
    if (!slices) {
        kvt_io_facts_add_note(facts, "buffers not registered: out of memory");
        return;
    }
    for (uint64_t i = 0; i < slice_count; i++) {
        slices[i].iov_base = (uint8_t *)config->buffers + i * SLICE_BYTES;
        slices[i].iov_len = kvt_min_u64(SLICE_BYTES, config->buffers_bytes - i * SLICE_BYTES);
    }
    const int error = -io_uring_register_buffers(&uring->ring, slices, (unsigned)slice_count);
    kvt_free(slices);
    if (error) {
        char text[64];
        kvt_io_facts_add_note(facts, "buffers not registered: %s", strerror_r(error, text, sizeof text));
        return;
    }
    uring->buffers = config->buffers;
    uring->buffers_bytes = config->buffers_bytes;
    facts->is_registered = true;
}

/* The registered slice that holds all of the op's buffer; -1: none, it goes unregistered. */
static int slice_of(const struct uring_io *uring, const struct kvt_io_op *op)
{
    const uint8_t *buffer = op->buffer;
    if (!uring->buffers || buffer < uring->buffers || buffer >= uring->buffers + uring->buffers_bytes) return -1;
    const uint64_t offset = (uint64_t)(buffer - uring->buffers);
    if (op->size > uring->buffers_bytes - offset) return -1;
    if (offset / SLICE_BYTES != (offset + op->size - 1) / SLICE_BYTES) return -1;
    return (int)(offset / SLICE_BYTES);
}

static void finish(struct uring_io *uring, struct kvt_io_op *op, int32_t result)
{
    op->ret_bytes = result;
    op->ret_ns = kvt_env_now_ns(&uring->base.env) - op->ret_ns;
    kvt_io_fifo_push(&uring->done, op);
}

/* An op that has left the ring, by completion or because the kernel never took it. */
static void leave_ring(struct uring_io *uring, const struct kvt_io_op *op)
{
    if (!kvt_io_is_urgent(op)) uring->bulk_in_ring--;
}

static void complete(struct uring_io *uring, const struct io_uring_cqe *cqe)
{
    if (cqe->user_data == KICK_ID) {
        uring->is_kick_armed = false;
        uring->is_kicked = true;
        return;
    }
    struct kvt_io_op *op = kvt_io_slots_match(&uring->slots, cqe->user_data);
    if (!op) return;
    leave_ring(uring, op);
    /* ECANCELED, EFAULT: also what the kernel says of an op that it could not go on with because its thread had ended. */
    const bool is_again = cqe->res == -EAGAIN || cqe->res == -EINTR || cqe->res == -ECANCELED || cqe->res == -EFAULT;
    uint8_t *retries = &uring->retries[(uint32_t)cqe->user_data];
    if (is_again && *retries < RETRIES_MAX && !uring->error) {
        op->next = NULL;
        op->tag = (uint64_t)*retries + 1;
        kvt_io_queue_push_front(&uring->queue, op);
        return;
    }
    finish(uring, op, cqe->res);
}

static void reap(struct uring_io *uring)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        complete(uring, cqe);
        io_uring_cqe_seen(&uring->ring, cqe);
    }
}

static void prepare(struct uring_io *uring, struct io_uring_sqe *sqe, struct kvt_io_op *op)
{
    const uint8_t retries = (uint8_t)op->tag; /* 0 from submit */
    const int slice = op->kind == KVT_IO_SYNC ? -1 : slice_of(uring, op);
    switch (op->kind) {
    case KVT_IO_READ:
        if (slice >= 0) io_uring_prep_read_fixed(sqe, op->file, op->buffer, op->size, op->offset, slice);
        else io_uring_prep_read(sqe, op->file, op->buffer, op->size, op->offset);
        break;
    case KVT_IO_WRITE:
        if (slice >= 0) io_uring_prep_write_fixed(sqe, op->file, op->buffer, op->size, op->offset, slice);
        else io_uring_prep_write(sqe, op->file, op->buffer, op->size, op->offset);
        break;
    case KVT_IO_SYNC: io_uring_prep_fsync(sqe, op->file, IORING_FSYNC_DATASYNC); break;
    }
    kvt_io_slots_take(&uring->slots, op);
    io_uring_sqe_set_data64(sqe, op->tag);
    uring->submitted_order[(uint32_t)op->tag] = uring->prepared_count++;
    uring->retries[(uint32_t)op->tag] = retries;
    if (!kvt_io_is_urgent(op)) uring->bulk_in_ring++;
}

static void fill_ring(struct uring_io *uring)
{
    if (!uring->is_kick_armed) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
        if (!sqe) return;
        io_uring_prep_read(sqe, uring->kick_event, &uring->kick_buffer, sizeof uring->kick_buffer, 0);
        io_uring_sqe_set_data64(sqe, KICK_ID);
        uring->prepared_count++;
        uring->is_kick_armed = true;
    }
    while (true) {
        struct kvt_io_op *op = kvt_io_queue_pop(&uring->queue, uring->bulk_in_ring < uring->bulk_in_ring_max);
        if (!op) return;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
        if (!sqe) {
            kvt_io_queue_push_front(&uring->queue, op);
            return;
        }
        prepare(uring, sqe, op);
    }
}

/*
 * Entering the ring fails for good: whatever the kernel has not taken ends with the error. What it has taken comes
 * back.
 */
static void give_up_ring(struct uring_io *uring, int error)
{
    uring->error = error;
    const uint64_t taken_count = uring->prepared_count - io_uring_sq_ready(&uring->ring);
    bool is_kick_taken = uring->is_kick_armed;
    uint64_t not_taken = io_uring_sq_ready(&uring->ring);
    for (uint32_t i = 0; i < uring->slots.count; i++) {
        struct kvt_io_op *op = uring->slots.slots[i].op;
        if (!op || uring->submitted_order[i] < taken_count) continue;
        (void)kvt_io_slots_match(&uring->slots, op->tag);
        leave_ring(uring, op);
        finish(uring, op, -error);
        not_taken--;
    }
    if (not_taken > 0) is_kick_taken = false; /* the one request that is nobody's op */
    uring->is_kick_armed = is_kick_taken;
    struct kvt_io_op *op;
    while ((op = kvt_io_queue_pop(&uring->queue, true)) != NULL) finish(uring, op, -error);
}

static bool is_passing(int error) { return error == ETIME || error == EINTR || error == EAGAIN || error == EBUSY; }

/*
 * Hands what is in the ring to the kernel and, with wait_ns > 0, waits for a completion. 0, or the errno of a passing
 * trouble.
 */
static int enter(struct uring_io *uring, uint64_t wait_ns)
{
    int result;
    if (wait_ns == 0) {
        result = io_uring_sq_ready(&uring->ring) > 0 ? io_uring_submit(&uring->ring) : 0;
    } else {
        struct __kernel_timespec wait = { .tv_sec = (int64_t)kvt_min_u64(wait_ns / 1000000000u, INT32_MAX),
                                          .tv_nsec = (long long)(wait_ns % 1000000000u) };
        struct io_uring_cqe *cqe;
        result = io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1, &wait, NULL);
    }
    if (result >= 0) return 0;
    if (!is_passing(-result)) give_up_ring(uring, -result);
    return -result;
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static uint32_t uring_poll(struct kvt_block_io *io, struct kvt_io_op **ret_done, uint32_t max, uint64_t wait_ns)
{
    struct uring_io *uring = uring_of(io);
    reap(uring);
    const uint64_t start_ns = kvt_env_now_ns(&uring->base.env);
    uint64_t left_ns = wait_ns;
    while (!uring->error) {
        fill_ring(uring);
        const bool is_waiting = left_ns > 0 && !uring->done.first && !uring->is_kicked;
        const int error = enter(uring, is_waiting ? left_ns : 0);
        reap(uring);
        if (!is_waiting || uring->done.first || uring->is_kicked || error == ETIME) break;
        if (error == EAGAIN || error == EBUSY) {
            /* the kernel is short of memory: what could not enter stays in the ring */
            sleep_ns(kvt_min_u64(left_ns, 1000000));
            break;
        }
        /* Woken without news, by a signal or by an op that starts again: go on with what is left of the time. */
        const uint64_t passed_ns = kvt_env_now_ns(&uring->base.env) - start_ns;
        left_ns = passed_ns < wait_ns ? wait_ns - passed_ns : 0;
    }
    if (uring->error && !uring->done.first && wait_ns > 0) {
        /* A ring that cannot be entered still receives what the kernel had taken. */
        sleep_ns(kvt_min_u64(wait_ns, 1000000));
        reap(uring);
    }
    uring->is_kicked = false;
    const uint32_t n = kvt_io_fifo_pop_many(&uring->done, ret_done, max);
    uring->in_flight -= n;
    return n;
}

static enum kvt_status uring_submit(struct kvt_block_io *io, struct kvt_io_op *op)
{
    struct uring_io *uring = uring_of(io);
    kvt_io_check_op(op, uring->base.facts.alignment);
    if (uring->in_flight == uring->base.queue_depth) return KVT_FULL;
    uring->in_flight++;
    op->ret_ns = kvt_env_now_ns(&uring->base.env);
    op->tag = 0;
    if (uring->error) finish(uring, op, -uring->error);
    else if (kvt_io_is_beyond_limit(op)) finish(uring, op, -EFBIG);
    else kvt_io_queue_push(&uring->queue, op);
    return KVT_OK;
}

static void uring_kick(struct kvt_block_io *io)
{
    const uint64_t one = 1;
    const ssize_t n = write(uring_of(io)->kick_event, &one, sizeof one);
    (void)n; /* it fails only when the counter is at its maximum: then a kick is already there */
}

static void drain(struct uring_io *uring)
{
    struct kvt_io_op *op;
    while (true) {
        while ((op = kvt_io_queue_pop(&uring->queue, true)) != NULL) op->ret_bytes = -ECANCELED;
        reap(uring);
        if (uring->queue.urgent.first || uring->queue.bulk.first) continue;
        if (uring->slots.used == 0 && !uring->is_kick_armed) return;
        uring_kick(&uring->base.io); /* ends the read of the eventfd */
        if (uring->error) sleep_ns(1000000);
        else (void)enter(uring, 10000000);
    }
}

static void uring_close(struct kvt_block_io *io)
{
    struct uring_io *uring = uring_of(io);
    drain(uring);
    /* Leaving the ring frees its pages later; the locked memory is wanted back now. */
    if (uring->buffers) (void)io_uring_unregister_buffers(&uring->ring);
    io_uring_queue_exit(&uring->ring);
    (void)close(uring->kick_event);
    kvt_io_base_done(&uring->base);
    kvt_io_slots_done(&uring->slots);
    kvt_free(uring->submitted_order);
    kvt_free(uring->retries);
    kvt_free(uring);
}

static void uring_facts(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts)
{
    const struct uring_io *uring = uring_of(io);
    kvt_io_base_facts(io, ret_facts);
    if (uring->slots.strangers > 0) {
        kvt_io_facts_add_note(ret_facts, "%llu completions of no op dropped",
                              (unsigned long long)uring->slots.strangers);
    }
}

/* 0 or an errno. */
static int create_ring(struct uring_io *uring)
{
    const unsigned entries = uring->base.queue_depth + 1; /* and the read of the eventfd */
    int result = -EINVAL;
    if (uring->base.env.is_single_threaded) {
        result = io_uring_queue_init(entries, &uring->ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    }
    if (result == -EINVAL) result = io_uring_queue_init(entries, &uring->ring, 0);
    if (result < 0) return -result;
    const unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
    if ((uring->ring.features & needed) != needed) {
        io_uring_queue_exit(&uring->ring);
        return ENOSYS;
    }
    return 0;
}

static enum kvt_status uring_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                  struct kvt_block_io **ret_io)
{
    struct uring_io *uring = kvt_alloc(1, sizeof *uring);
    int error = ENOMEM;
    enum kvt_status status = KVT_NOMEM;
    if (!uring) goto fail;
    status = kvt_io_base_init(&uring->base, &kvt_block_io_uring_ops, "io_uring", config, env);
    if (status != KVT_OK) {
        error = errno;
        goto fail;
    }
    status = KVT_NOMEM;
    uring->submitted_order = kvt_alloc(config->queue_depth, sizeof *uring->submitted_order);
    uring->retries = kvt_alloc(config->queue_depth, sizeof *uring->retries);
    if (!uring->submitted_order || !uring->retries || !kvt_io_slots_init(&uring->slots, config->queue_depth))
        goto fail_base;

    status = KVT_UNSUPPORTED;
    uring->kick_event = eventfd(0, EFD_CLOEXEC);
    error = uring->kick_event < 0 ? errno : 0;
    if (error) goto fail_base;
    error = create_ring(uring);
    if (error) goto fail_event;
    uring->bulk_in_ring_max = kvt_max_u32(config->queue_depth - config->queue_depth / 4, 1);
    register_buffers(uring, config);
    *ret_io = &uring->base.io;
    return KVT_OK;

fail_event:
    (void)close(uring->kick_event);
fail_base:
    kvt_io_base_done(&uring->base);
    kvt_io_slots_done(&uring->slots);
    kvt_free(uring->submitted_order);
    kvt_free(uring->retries);
fail:
    kvt_free(uring);
    errno = error;
    return status;
}

const struct kvt_block_io_ops kvt_block_io_uring_ops = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .facts = uring_facts,
    .open_file = kvt_io_base_open_file,
    .close_file = kvt_io_base_close_file,
    .allocate = kvt_io_base_allocate,
    .remove_file = kvt_io_base_remove_file,
    .sync_directory = kvt_io_base_sync_directory,
    .submit = uring_submit,
    .poll = uring_poll,
    .kick = uring_kick,
};
