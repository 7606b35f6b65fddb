#include "tests/kernels/simt/simt.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { THREADS_MAX = 1024, LANES = 32, STACK_BYTES = 128 << 10, SHARED_BYTES_MAX = 48 << 10 };

struct kvt_simt_index kvt_simt_thread, kvt_simt_block, kvt_simt_block_size, kvt_simt_grid_size;
void *kvt_simt_shared;

/* A meeting point of a CTA or of a warp. Values of two meetings in turn: who is late still reads those of the last. */
struct meeting {
    unsigned serial, arrived, members;
    unsigned value[2][THREADS_MAX];
    bool is_any
        [2]; /* whether somebody's value was not 0, of those who met: others may have left their values long ago */
};

struct thread {
    ucontext_t context;
    bool is_over;
    const struct meeting *waits_for; /* NULL: it may go on */
    unsigned serial;
};

static struct thread threads[THREADS_MAX];
static struct meeting cta, warps[THREADS_MAX / LANES];
static uint8_t *stacks;
static ucontext_t scheduler;
static struct kvt_rng order = { 1 };
static void (*running_body)(void *user);
static void *running_user;

void kvt_simt_seed(uint64_t seed) { order.state = seed; }

static void die(const char *what)
{
    (void)fprintf(stderr, "simt: %s (CTA %u)\n", what, kvt_simt_block.x);
    abort();
}

/* Everybody who can still come is there. */
static void close_if_full(struct meeting *m)
{
    if (m->arrived == 0 || m->arrived < m->members) return;
    m->arrived = 0;
    m->serial++;
    m->is_any[m->serial % 2] = false;
}

/* Leaves a value, waits for the others; the meeting's values are then at index *ret_turn. */
static void meet(struct meeting *m, unsigned place, unsigned value, unsigned *ret_turn)
{
    const unsigned me = kvt_simt_thread.x, serial = m->serial;
    *ret_turn = serial % 2;
    m->value[serial % 2][place] = value;
    m->is_any[serial % 2] = m->is_any[serial % 2] || value != 0;
    m->arrived++;
    close_if_full(m);
    if (m->serial != serial) return;
    threads[me].waits_for = m;
    threads[me].serial = serial;
    if (swapcontext(&threads[me].context, &scheduler) != 0) die("swapcontext failed");
    kvt_simt_thread.x = me;
}

int kvt_simt_barrier(int value)
{
    unsigned turn;
    meet(&cta, kvt_simt_thread.x, value != 0, &turn);
    return cta.is_any[turn];
}

static struct meeting *my_warp(void) { return &warps[kvt_simt_thread.x / LANES]; }

unsigned kvt_simt_warp(enum kvt_simt_exchange what, unsigned value)
{
    struct meeting *m = my_warp();
    if (m->members != LANES) die("a warp's exchange without all of its lanes");
    unsigned turn, result = 0;
    meet(m, kvt_simt_thread.x % LANES, value, &turn);
    for (unsigned l = 0; l < LANES; l++) {
        if (what == KVT_SIMT_ADD) result += m->value[turn][l];
        else if (what == KVT_SIMT_XOR) result ^= m->value[turn][l];
        else if (what == KVT_SIMT_MAX) result = m->value[turn][l] > result ? m->value[turn][l] : result;
        else result |= what == KVT_SIMT_BALLOT ? m->value[turn][l] << l : m->value[turn][l];
    }
    return result;
}

unsigned kvt_simt_shuffle(unsigned value, unsigned lane)
{
    struct meeting *m = my_warp();
    if (m->members != LANES) die("a warp's exchange without all of its lanes");
    unsigned turn;
    meet(m, kvt_simt_thread.x % LANES, value, &turn);
    return m->value[turn][lane % LANES];
}

static void thread_main(void)
{
    running_body(running_user);
    const unsigned me = kvt_simt_thread.x;
    threads[me].is_over = true;
    cta.members--;
    my_warp()->members--;
    close_if_full(&cta);
    close_if_full(my_warp());
}

static bool may_run(const struct thread *t)
{
    return !t->is_over && (!t->waits_for || t->waits_for->serial != t->serial);
}

static void go_on(unsigned t)
{
    threads[t].waits_for = NULL;
    kvt_simt_thread.x = t;
    if (swapcontext(&scheduler, &threads[t].context) != 0) die("swapcontext failed");
}

/* Runs all threads of a CTA to their ends: in each round all that may, in an order of its own. */
static void run_cta(unsigned count)
{
    for (unsigned left = count; left > 0;) {
        const unsigned start = (unsigned)kvt_rng_below(&order, count);
        const bool is_backwards = kvt_rng_below(&order, 2);
        bool is_moving = false;
        for (unsigned i = 0; i < count; i++) {
            const unsigned t = (start + (is_backwards ? count - i : i)) % count;
            if (!may_run(&threads[t])) continue;
            is_moving = true;
            go_on(t);
            left -= threads[t].is_over;
        }
        if (!is_moving) die("threads wait for others that never come: a barrier in a branch?");
    }
}

/* On its own: getcontext returns twice, and no variable of a loop may live in a register meanwhile. */
__attribute__((noinline)) static void start_thread(struct thread *thread, uint8_t *stack)
{
    if (getcontext(&thread->context) != 0) die("getcontext failed");
    thread->is_over = false;
    thread->waits_for = NULL;
    thread->context.uc_stack.ss_sp = stack;
    thread->context.uc_stack.ss_size = STACK_BYTES;
    thread->context.uc_link = &scheduler;
    makecontext(&thread->context, thread_main, 0);
}

static void start_cta(unsigned count)
{
    memset(&cta, 0, sizeof cta);
    memset(warps, 0, sizeof warps);
    cta.members = count;
    for (unsigned t = 0; t < count; t++) {
        warps[t / LANES].members++;
        start_thread(&threads[t], stacks + (size_t)t * STACK_BYTES);
    }
}

void kvt_simt_run(unsigned grid_x, unsigned grid_y, unsigned count, size_t shared_bytes, void (*body)(void *user),
                  void *user)
{
    static uint64_t shared[SHARED_BYTES_MAX / sizeof(uint64_t)];
    if (count == 0 || count > THREADS_MAX || grid_x == 0 || grid_y == 0) die("an empty grid, or too large a CTA");
    if (shared_bytes > SHARED_BYTES_MAX) die("more shared memory than a CTA gets without asking for it");
    if (!stacks) stacks = kvt_table_map((size_t)THREADS_MAX * STACK_BYTES);
    if (!stacks) die("no memory for stacks");
    kvt_simt_shared = shared;
    running_body = body;
    running_user = user;
    kvt_simt_block_size.x = count;
    kvt_simt_grid_size = (struct kvt_simt_index){ grid_x, grid_y };
    for (unsigned b = 0; b < grid_x * grid_y; b++) {
        kvt_simt_block = (struct kvt_simt_index){ b % grid_x, b / grid_x };
        start_cta(count);
        run_cta(count);
    }
}
