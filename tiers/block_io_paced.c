/*
 * block_io_paced: a block I/O behind a link of a given speed, for experiments. It wraps any other.
 *
 * The link carries one op at a time, reads and writes alike, urgent reads first, size / bytes_per_s seconds each; a
 * sync takes no time on it. The wrapped I/O does the work at once and in parallel; an op comes back when both the work
 * and the link are done with it. So an op is never early, and when the wrapped I/O is faster than the link, the link
 * alone sets the pace.
 *
 * Waiting: with the real clock a poll waits inside the wrapped I/O, which a completion or a kick ends. With any other
 *          clock
 * time passes only by the hand of the one who owns it, so poll looks again once and returns.
 */
#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/block_io_base.h"
#include "tiers/block_io_queue.h"

#define BATCH 32u

/* What the wrapped I/O sees of an op, and what is known of both. */
struct paced_slot {
    struct kvt_io_op shadow; /* first: a finished shadow is its slot */
    struct kvt_io_op *op;
    uint64_t submitted_ns, due_ns;
    bool is_done, has_crossed; /* by the wrapped I/O; the link */
    uint32_t next_free;
};

struct paced_io {
    struct kvt_block_io io;
    struct kvt_block_io *inner;
    struct kvt_env env;
    uint64_t link_bytes_per_s;
    uint64_t link_free_ns;
    struct kvt_io_queue waiting; /* for the link */
    struct paced_slot *crossing; /* on the link; NULL: none */
    struct kvt_io_fifo done;
    struct paced_slot *slots;
    uint32_t slot_count, first_free, in_flight;
    atomic_bool is_kicked; /* shared: set by kick() in any thread */
};

static struct paced_io *paced_of(struct kvt_block_io *io) { return (struct paced_io *)io; }

static uint64_t crossing_ns(const struct paced_io *paced, const struct kvt_io_op *op)
{
    /* Rounded up, so that a link is never faster than it says. */
    const unsigned __int128 scaled = (unsigned __int128)op->size * 1000000000u + paced->link_bytes_per_s - 1;
    return (uint64_t)(scaled / paced->link_bytes_per_s);
}

static void finish_if_both(struct paced_io *paced, struct paced_slot *slot)
{
    if (!slot->is_done || !slot->has_crossed) return;
    struct kvt_io_op *op = slot->op;
    op->ret_bytes = slot->shadow.ret_bytes;
    op->ret_ns = kvt_max_u64(slot->shadow.ret_ns, slot->due_ns - slot->submitted_ns);
    slot->op = NULL;
    slot->next_free = paced->first_free;
    paced->first_free = (uint32_t)(slot - paced->slots);
    kvt_io_fifo_push(&paced->done, op);
}

/* Lets the link work until now. */
static void advance_link(struct paced_io *paced, uint64_t now_ns)
{
    while (true) {
        if (!paced->crossing) {
            const struct kvt_io_op *op = kvt_io_queue_pop(&paced->waiting, true);
            if (!op) return;
            struct paced_slot *slot = &paced->slots[op->tag];
            slot->due_ns = kvt_max_u64(paced->link_free_ns, slot->submitted_ns) + crossing_ns(paced, op);
            paced->crossing = slot;
        }
        struct paced_slot *slot = paced->crossing;
        if (slot->due_ns > now_ns) return;
        paced->link_free_ns = slot->due_ns;
        paced->crossing = NULL;
        slot->has_crossed = true;
        finish_if_both(paced, slot);
    }
}

static void take_from_inner(struct paced_io *paced, uint64_t wait_ns)
{
    struct kvt_io_op *finished[BATCH];
    uint32_t n;
    do {
        n = paced->inner->ops->poll(paced->inner, finished, BATCH, wait_ns);
        for (uint32_t i = 0; i < n; i++) {
            struct paced_slot *slot = (struct paced_slot *)finished[i];
            slot->is_done = true;
            finish_if_both(paced, slot);
        }
        wait_ns = 0;
    } while (n == BATCH);
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static uint32_t paced_poll(struct kvt_block_io *io, struct kvt_io_op **ret_done, uint32_t max, uint64_t wait_ns)
{
    struct paced_io *paced = paced_of(io);
    const bool is_real_clock = paced->env.now_ns == kvt_env_default().now_ns;
    uint64_t now_ns = kvt_env_now_ns(&paced->env);
    const uint64_t end_ns = now_ns + kvt_min_u64(wait_ns, UINT64_MAX - now_ns);
    take_from_inner(paced, 0);
    advance_link(paced, now_ns);
    while (!paced->done.first && now_ns < end_ns && !atomic_load(&paced->is_kicked)) {
        const uint64_t until_ns = paced->crossing ? kvt_min_u64(end_ns, paced->crossing->due_ns) : end_ns;
        take_from_inner(paced, until_ns - now_ns);
        now_ns = kvt_env_now_ns(&paced->env);
        if (is_real_clock && paced->env.is_single_threaded && paced->crossing && now_ns < until_ns) {
            /* The wrapped I/O does not wait when it has nothing left, and nobody is there to kick. */
            sleep_ns(until_ns - now_ns);
            now_ns = kvt_env_now_ns(&paced->env);
        }
        advance_link(paced, now_ns);
        if (!is_real_clock || paced->env.is_single_threaded) break;
    }
    atomic_store(&paced->is_kicked, false);
    const uint32_t n = kvt_io_fifo_pop_many(&paced->done, ret_done, max);
    paced->in_flight -= n;
    return n;
}

static enum kvt_status paced_submit(struct kvt_block_io *io, struct kvt_io_op *op)
{
    struct paced_io *paced = paced_of(io);
    if (paced->in_flight == paced->slot_count) return KVT_FULL;
    const uint64_t now_ns = kvt_env_now_ns(&paced->env);
    advance_link(paced, now_ns); /* what went before this op does not wait for it */

    const uint32_t index = paced->first_free;
    KVT_ASSERT(index < paced->slot_count);
    struct paced_slot *slot = &paced->slots[index];
    slot->shadow = *op;
    const enum kvt_status status = paced->inner->ops->submit(paced->inner, &slot->shadow);
    if (status != KVT_OK) return status;
    paced->in_flight++;
    paced->first_free = slot->next_free;
    slot->op = op;
    slot->submitted_ns = now_ns;
    slot->due_ns = now_ns;
    slot->is_done = false;
    slot->has_crossed = op->kind == KVT_IO_SYNC;
    op->tag = index;
    if (!slot->has_crossed) kvt_io_queue_push(&paced->waiting, op);
    return KVT_OK;
}

static void paced_kick(struct kvt_block_io *io)
{
    struct paced_io *paced = paced_of(io);
    atomic_store(&paced->is_kicked, true);
    paced->inner->ops->kick(paced->inner);
}

static void paced_close(struct kvt_block_io *io)
{
    struct paced_io *paced = paced_of(io);
    paced->inner->ops->close(paced->inner); /* drains: no shadow is used from here on */
    for (uint32_t i = 0; i < paced->slot_count; i++) {
        if (paced->slots[i].op) paced->slots[i].op->ret_bytes = paced->slots[i].shadow.ret_bytes;
    }
    kvt_free(paced->slots);
    kvt_free(paced);
}

static void paced_facts(struct kvt_block_io *io, struct kvt_block_io_facts *ret_facts)
{
    const struct paced_io *paced = paced_of(io);
    paced->inner->ops->facts(paced->inner, ret_facts);
    kvt_io_facts_add_note(ret_facts, "paced at %llu bytes/s", (unsigned long long)paced->link_bytes_per_s);
}

static enum kvt_status paced_open_file(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                       int *ret_errno)
{
    struct kvt_block_io *inner = paced_of(io)->inner;
    return inner->ops->open_file(inner, name, is_create, ret_file, ret_errno);
}

static void paced_close_file(struct kvt_block_io *io, int file)
{
    struct kvt_block_io *inner = paced_of(io)->inner;
    inner->ops->close_file(inner, file);
}

static enum kvt_status paced_allocate(struct kvt_block_io *io, int file, uint64_t size, int *ret_errno)
{
    struct kvt_block_io *inner = paced_of(io)->inner;
    return inner->ops->allocate(inner, file, size, ret_errno);
}

static enum kvt_status paced_remove_file(struct kvt_block_io *io, const char *name, int *ret_errno)
{
    struct kvt_block_io *inner = paced_of(io)->inner;
    return inner->ops->remove_file(inner, name, ret_errno);
}

static enum kvt_status paced_sync_directory(struct kvt_block_io *io, int *ret_errno)
{
    struct kvt_block_io *inner = paced_of(io)->inner;
    return inner->ops->sync_directory(inner, ret_errno);
}

/* Made by kvt_block_io_pace only: there is nothing to open without an inner one. */
static const struct kvt_block_io_ops paced_ops = {
    .name = "paced",
    .close = paced_close,
    .facts = paced_facts,
    .open_file = paced_open_file,
    .close_file = paced_close_file,
    .allocate = paced_allocate,
    .remove_file = paced_remove_file,
    .sync_directory = paced_sync_directory,
    .submit = paced_submit,
    .poll = paced_poll,
    .kick = paced_kick,
};

enum kvt_status kvt_block_io_pace(struct kvt_block_io *inner, uint32_t queue_depth, uint64_t link_bytes_per_s,
                                  const struct kvt_env *env, struct kvt_block_io **ret_io)
{
    KVT_ASSERT(link_bytes_per_s > 0);
    KVT_ASSERT(queue_depth > 0);
    struct paced_io *paced = kvt_alloc(1, sizeof *paced);
    struct paced_slot *slots = kvt_alloc(queue_depth, sizeof *slots);
    if (!paced || !slots) {
        kvt_free(paced);
        kvt_free(slots);
        return KVT_NOMEM;
    }
    *paced = (struct paced_io){ .io.ops = &paced_ops,
                                .inner = inner,
                                .env = *env,
                                .link_bytes_per_s = link_bytes_per_s,
                                .slots = slots,
                                .slot_count = queue_depth };
    for (uint32_t i = 0; i < queue_depth; i++) slots[i].next_free = i + 1;
    *ret_io = &paced->io;
    return KVT_OK;
}
