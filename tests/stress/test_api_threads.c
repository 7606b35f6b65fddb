/*
 * The public API from many threads at once, over the real store: what a server does to it, and more.
 *
 * Eight engines, each with a stream of its own, share six texts, so they find, compute, fork, cut, park and forget the
 * same blocks at the same time. Steps begin while blocks land (is_layered), and half of the engines read their blocks
 * through a window, too. Each kernel compares every row that it reads with what its tokens make of it. Beside them
 * run a reader of all numbers, a sender of signals, resets, and children of fork(). KVTIER_SOAK_SECONDS says how long
 * (3 by default). Meant for TSan as well; descriptors and memory must not grow.
 */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvtier/kvtier.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/rng.h"

#define SECOND_NS (UINT64_C(1000000000))

enum {
    ENGINES = 8,
    TEXTS = 6,
    SEGMENTS_MAX = 32, /* of a store of that size, and more */
    BLOCK_TOKENS = 16,
    TEXT_TOKENS = 6 * BLOCK_TOKENS,
    ROW_BYTES = 128, /* one layer's K or V of one token */
    PLANES = 4,      /* two layers, K and V */
    BLOCK_BYTES = PLANES * BLOCK_TOKENS * ROW_BYTES
};

struct text {
    uint32_t tokens[TEXT_TOKENS];
    uint64_t chain[TEXT_TOKENS]; /* names the KV of token i: a function of it and of all before it */
};

struct stress {
    struct kvt_runtime *runtime;
    char directory[64], path[80];
    struct text texts[TEXTS];
    atomic_bool is_over;         /* shared */
    atomic_ullong rows, wrong;   /* shared: by the kernels */
    atomic_ullong steps, reused; /* shared */
    atomic_ullong landings, chunks; /* shared: steps that began while blocks landed; layers that came through readers */
    atomic_ullong refused, lost; /* shared: expected outcomes, counted so that they are seen */
    pthread_t engines[ENGINES];
};

struct engine {
    struct stress *stress;
    uint32_t index;
    kvt_stream stream;
    struct kvt_rng rng;
};

/* cmocka's assertions are for the thread that runs the tests. */
#define HOLDS(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            (void)fprintf(stderr, "%s:%d: not: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Rows [from, to) of a sequence: compared below `known`, written from there on. */
struct kernel {
    struct stress *stress;
    const struct text *text;
    uint64_t known, to;
    uint8_t *blocks[TEXT_TOKENS / BLOCK_TOKENS];
};

static uint8_t byte_of(uint64_t chain, uint32_t plane) { return (uint8_t)(kvt_mix64(chain + plane) >> 7); }

static void run_kernel(void *user)
{
    struct kernel *kernel = user;
    uint64_t wrong = 0;
    for (uint64_t t = 0; t < kernel->to; t++) {
        for (uint32_t plane = 0; plane < PLANES; plane++) {
            uint8_t *row = kernel->blocks[t / BLOCK_TOKENS]
                + ((uint64_t)plane * BLOCK_TOKENS + t % BLOCK_TOKENS) * ROW_BYTES;
            const uint8_t byte = byte_of(kernel->text->chain[t], plane);
            if (t >= kernel->known) memset(row, byte, ROW_BYTES);
            else if (row[0] != byte || memcmp(row, row + 1, ROW_BYTES - 1) != 0) wrong++;
        }
    }
    atomic_fetch_add(&kernel->stress->rows, kernel->known * PLANES);
    atomic_fetch_add(&kernel->stress->wrong, wrong);
}

/* In a step. The kernel must have run before it is gone: the caller synchronizes. */
static void launch(struct engine *engine, struct kernel *kernel, kvt_seq seq)
{
    struct kvt_runtime *runtime = engine->stress->runtime;
    uint32_t slots[TEXT_TOKENS / BLOCK_TOKENS];
    uint64_t first, count;
    HOLDS(kvt_seq_table(runtime, seq, 0, slots, KVT_ARRAY_COUNT(slots), &first, &count) == KVT_OK);
    HOLDS(first == 0);
    HOLDS(count * BLOCK_TOKENS >= kernel->to);
    for (uint64_t i = 0; i < count; i++) kernel->blocks[i] = kvt_device_slot(runtime, 0, slots[i]);
    HOLDS(kvt_emulated_launch(runtime, engine->stream, run_kernel, kernel) == KVT_OK);
}

/* ---- One engine -------------------------------------------------------------------------------------------------- */

static bool is_over(const struct engine *engine) { return atomic_load(&engine->stress->is_over); }

/* Takes the device for it again, as far as it does not have it. False: no room for now, or it is over. */
static bool resume(struct engine *engine, kvt_seq seq)
{
    enum kvt_room room;
    for (uint32_t tries = 0; tries < 100 && !is_over(engine); tries++) {
        HOLDS(kvt_seq_resume(engine->stress->runtime, seq, &room) == KVT_OK);
        if (room == KVT_ROOM_OK) return true;
        (void)kvt_wait(engine->stress->runtime, 1000000);
    }
    return false;
}

/* False: refused for now, or it is over. */
static bool reserve(struct engine *engine, kvt_seq seq, uint64_t n)
{
    while (!is_over(engine)) {
        enum kvt_room room;
        HOLDS(kvt_seq_append(engine->stress->runtime, seq, n, &room) == KVT_OK);
        if (room == KVT_ROOM_OK) return true;
        HOLDS(room != KVT_ROOM_TOO_LONG);
        if (room == KVT_ROOM_FULL) return false;
        (void)kvt_wait(engine->stress->runtime, 1000000);
    }
    return false;
}

/* One layer of one block, wherever a reader has it. */
struct chunk {
    struct stress *stress;
    const uint8_t *rows;
    const uint64_t *chain;
    uint32_t layer;
};

static void run_chunk(void *user)
{
    const struct chunk *chunk = user;
    uint64_t wrong = 0;
    for (uint32_t row = 0; row < 2 * BLOCK_TOKENS; row++) {
        const uint8_t *bytes = chunk->rows + (uint64_t)row * ROW_BYTES;
        const uint8_t byte = byte_of(chunk->chain[row % BLOCK_TOKENS], 2 * chunk->layer + row / BLOCK_TOKENS);
        wrong += bytes[0] != byte || memcmp(bytes, bytes + 1, ROW_BYTES - 1) != 0;
    }
    atomic_fetch_add(&chunk->stress->chunks, 1);
    atomic_fetch_add(&chunk->stress->wrong, wrong);
}

/* In a step: its first blocks again, through a window of one slot when there is room for one. */
static void read_through_window(struct engine *engine, const struct text *text, kvt_seq seq, uint64_t blocks)
{
    struct stress *stress = engine->stress;
    struct chunk jobs[TEXT_TOKENS / BLOCK_TOKENS];
    uint32_t chunks[TEXT_TOKENS / BLOCK_TOKENS];
    enum kvt_room room;
    kvt_reader_id reader = 0;
    const enum kvt_status opened = kvt_reader_open(stress->runtime, seq, 0, 1, &room, &reader);
    if (opened != KVT_OK || room != KVT_ROOM_OK) return;
    for (uint32_t layer = 0; layer < PLANES / 2; layer++) {
        struct kvt_piece piece = { .state = KVT_PIECE_PENDING };
        HOLDS(kvt_reader_begin(stress->runtime, reader, layer, 0, blocks) == KVT_OK);
        while (!is_over(engine)) {
            HOLDS(kvt_reader_next(stress->runtime, reader, engine->stream, chunks, KVT_ARRAY_COUNT(chunks), &piece)
                  == KVT_OK);
            if (piece.state == KVT_PIECE_END || piece.state == KVT_PIECE_LOST) break;
            if (piece.state == KVT_PIECE_PENDING) (void)kvt_wait(stress->runtime, 1000000);
            const uint8_t *slots = kvt_device_slot(stress->runtime, 0, 0);
            for (uint32_t i = 0; i < piece.count; i++) {
                jobs[i] = (struct chunk){ stress, slots + (uint64_t)chunks[i] * (BLOCK_BYTES / 2),
                                          text->chain + (piece.first + i) * BLOCK_TOKENS, layer };
                HOLDS(kvt_emulated_launch(stress->runtime, engine->stream, run_chunk, &jobs[i]) == KVT_OK);
            }
            kvt_emulated_synchronize(stress->runtime, engine->stream);
        }
    }
    HOLDS(kvt_reader_close(stress->runtime, &reader) == KVT_INVAL); /* not in a step: it ends with its sequence */
}

/* What is in host memory may still be on its way: each layer is waited for. */
static void wait_for_layers(struct engine *engine, kvt_step handle)
{
    for (uint32_t layer = 0; layer < PLANES / 2; layer++)
        HOLDS(kvt_step_wait_layer(engine->stress->runtime, handle, 0, layer, engine->stream) == KVT_OK);
}

/* Of a step that has run: false when what it read is told to be something else. */
static bool has_landed(struct engine *engine, kvt_seq seq)
{
    enum kvt_ready ready = KVT_NOT_READY;
    uint64_t lost_from;
    while (ready == KVT_NOT_READY) {
        HOLDS(kvt_seq_landed(engine->stress->runtime, seq, &ready, &lost_from) == KVT_OK);
        if (ready == KVT_NOT_READY) (void)kvt_wait(engine->stress->runtime, 1000000);
    }
    return ready == KVT_READY;
}

/* Checks all that the sequence has and computes up to `to`; false: it could not, for a reason that may be. */
static bool step(struct engine *engine, const struct text *text, kvt_seq seq, uint64_t to)
{
    struct stress *stress = engine->stress;
    const uint64_t known = kvt_seq_tokens(stress->runtime, seq);
    /* What was found may have been more than the device has room for: then it is idle. */
    if (!resume(engine, seq) || (to > known && !reserve(engine, seq, to - known))) {
        atomic_fetch_add(&stress->refused, 1);
        return false;
    }
    struct kvt_step_entry entry = { .seq = seq, .ready = KVT_NOT_READY };
    kvt_step handle = 0;
    while (entry.ready == KVT_NOT_READY) {
        HOLDS(kvt_step_begin(stress->runtime, &entry, 1, engine->stream, &handle) == KVT_OK);
        if (entry.ready != KVT_NOT_READY) break;
        if (is_over(engine)) return false;
        (void)kvt_wait(stress->runtime, 1000000);
    }
    if (entry.ready == KVT_LOST) {
        HOLDS(entry.lost_from <= known);
        atomic_fetch_add(&stress->lost, 1);
        return false;
    }
    struct kernel kernel = { .stress = stress, .text = text, .known = known, .to = kvt_max_u64(known, to) };
    if (entry.ready == KVT_LANDING) {
        atomic_fetch_add(&stress->landings, 1);
        wait_for_layers(engine, handle);
    }
    launch(engine, &kernel, seq);
    if (engine->index % 2) read_through_window(engine, text, seq, known / BLOCK_TOKENS);
    if (to > known)
        HOLDS(kvt_seq_commit(stress->runtime, seq, text->tokens + known, to - known, 0, engine->stream) == KVT_OK);
    HOLDS(kvt_step_end(stress->runtime, handle) == KVT_OK);
    kvt_emulated_synchronize(stress->runtime, engine->stream);
    atomic_fetch_add(&stress->steps, 1);
    if (has_landed(engine, seq)) return true;
    atomic_fetch_add(&stress->lost, 1);
    return false;
}

/* Parks it, perhaps says when it is needed, and takes it back. False: no room for it now. */
static bool park(struct engine *engine, kvt_seq seq)
{
    struct kvt_runtime *runtime = engine->stress->runtime;
    HOLDS(kvt_seq_idle(runtime, seq) == KVT_OK);
    if (kvt_rng_below(&engine->rng, 2)) {
        const uint32_t ahead = (uint32_t)kvt_rng_below(&engine->rng, 20);
        kvt_expect(runtime, &seq, &ahead, 1);
    }
    (void)kvt_wait(runtime, kvt_rng_below(&engine->rng, 2000000));
    return resume(engine, seq);
}

static void fork_and_go_on(struct engine *engine, const struct text *text, kvt_seq seq)
{
    struct kvt_runtime *runtime = engine->stress->runtime;
    kvt_seq child;
    if (kvt_seq_fork(runtime, seq, &child) != KVT_OK) return;
    const uint64_t to = kvt_min_u64(TEXT_TOKENS, kvt_seq_tokens(runtime, child) + 1 + kvt_rng_below(&engine->rng, 20));
    (void)step(engine, text, child, to);
    HOLDS(kvt_seq_finish(runtime, child, kvt_rng_below(&engine->rng, 2)) == KVT_OK);
}

static bool cut(struct engine *engine, const struct text *text, kvt_seq seq)
{
    struct kvt_runtime *runtime = engine->stress->runtime;
    const uint64_t to = kvt_rng_below(&engine->rng, kvt_seq_tokens(runtime, seq) + 1);
    uint64_t kept;
    HOLDS(kvt_seq_truncate(runtime, seq, to, text->tokens + to / BLOCK_TOKENS * BLOCK_TOKENS, &kept) == KVT_OK);
    HOLDS(kept <= to);
    return step(engine, text, seq, kvt_min_u64(TEXT_TOKENS, kept + 1 + kvt_rng_below(&engine->rng, 30)));
}

static void serve(struct engine *engine)
{
    struct stress *stress = engine->stress;
    const struct text *text = &stress->texts[kvt_rng_below(&engine->rng, TEXTS)];
    const struct kvt_seq_params params = { .tokens = text->tokens,
                                           .token_count = 1 + kvt_rng_below(&engine->rng, TEXT_TOKENS),
                                           .reuse_max = UINT64_MAX };
    kvt_seq seq;
    uint64_t reused;
    HOLDS(kvt_seq_create(stress->runtime, &params, &seq, &reused) == KVT_OK);
    atomic_fetch_add(&stress->reused, reused);
    bool goes_on = step(engine, text, seq, params.token_count);
    for (uint32_t turn = 0; goes_on && turn < 4; turn++) {
        switch (kvt_rng_below(&engine->rng, 4)) {
        case 0: goes_on = park(engine, seq) && step(engine, text, seq, 0); break;
        case 1: fork_and_go_on(engine, text, seq); break;
        case 2: goes_on = cut(engine, text, seq); break;
        default: goes_on = step(engine, text, seq, kvt_min_u64(TEXT_TOKENS, kvt_seq_tokens(stress->runtime, seq) + 1));
        }
    }
    HOLDS(kvt_seq_finish(stress->runtime, seq, kvt_rng_below(&engine->rng, 4) > 0) == KVT_OK);
}

static void *run_engine(void *user)
{
    struct engine *engine = user;
    while (!is_over(engine)) serve(engine);
    return NULL;
}

/* ---- Beside them ------------------------------------------------------------------------------------------------- */

static void on_signal(int number) { (void)number; }

static uint32_t descriptors(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder)) count++;
    (void)closedir(folder);
    return count;
}

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* b59: a child of fork() is refused everywhere, and ends without touching its parent's runtime. */
static void fork_child(struct stress *stress)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_seq seq;
        uint64_t reused;
        char text[16];
        const struct kvt_seq_params params = { .tokens = stress->texts[0].tokens, .token_count = 20 };
        const bool is_refused = kvt_seq_create(stress->runtime, &params, &seq, &reused) == KVT_SHUTDOWN
            && kvt_metrics_text(stress->runtime, text, sizeof text) == 0 && !kvt_wait(stress->runtime, 1000);
        _exit(is_refused ? 0 : 1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void read_numbers(struct stress *stress)
{
    static char text[128 * 1024];
    struct kvt_stats stats;
    kvt_stats(stress->runtime, &stats);
    for (uint32_t t = 0; t < KVT_TIERS; t++) assert_true(stats.tiers[t].peak_bytes <= stats.tiers[t].capacity_bytes);
    assert_true(kvt_metrics_text(stress->runtime, text, sizeof text) < sizeof text);
}

/* What happens beside the engines, until the time is over: returns how often it went round. */
static uint32_t disturb(struct stress *stress, uint64_t seconds, uint64_t *ret_early_bytes)
{
    const struct kvt_env env = kvt_env_default();
    const uint64_t begin_ns = kvt_env_now_ns(&env), end_ns = begin_ns + seconds * SECOND_NS;
    uint32_t rounds = 0;
    *ret_early_bytes = 0;
    for (struct kvt_rng rng = { 7 }; kvt_env_now_ns(&env) < end_ns; rounds++) {
        (void)pthread_kill(stress->engines[kvt_rng_below(&rng, ENGINES)], SIGUSR1);
        read_numbers(stress);
        if (rounds % 64 == 32) {
            uint64_t kept;
            assert_int_equal(kvt_reset(stress->runtime, &kept), KVT_OK);
        }
        if (rounds % 64 == 0) fork_child(stress);
        (void)kvt_wait(stress->runtime, 3000000);
        if (*ret_early_bytes == 0 && kvt_env_now_ns(&env) >= begin_ns + seconds * SECOND_NS / 3)
            *ret_early_bytes = resident_bytes();
    }
    return rounds;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static void make_texts(struct stress *stress)
{
    struct kvt_rng rng = { 3 };
    for (uint32_t t = 0; t < TEXTS; t++) {
        struct text *text = &stress->texts[t];
        uint64_t chain = 1;
        /* Half of the texts begin as another one does. */
        const uint32_t shared = t % 2 ? TEXT_TOKENS / 2 : 0;
        for (uint32_t i = 0; i < TEXT_TOKENS; i++) {
            text->tokens[i] = i < shared ? stress->texts[t - 1].tokens[i] : (uint32_t)kvt_rng_below(&rng, 1000);
            chain = kvt_mix64(chain * 31 + text->tokens[i]);
            text->chain[i] = chain;
        }
    }
}

static void open_runtime(struct stress *stress)
{
    char error[256] = "";
    const char *base = getenv("TMPDIR");
    (void)snprintf(stress->directory, sizeof stress->directory, "%.40s/kvt-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(stress->directory));
    (void)snprintf(stress->path, sizeof stress->path, "%s/kv", stress->directory);
    struct kvt_config config = kvt_config_default();
    config.device = KVT_DEVICE_EMULATED;
    config.shape = (struct kvt_model_shape){
        .block_tokens = BLOCK_TOKENS,
        .group_count = 1,
        .groups = { { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 64 } }
    };
    config.is_layered = true;
    config.prefetch = KVT_PREFETCH_SESSION;
    config.admission = "adaptive";
    config.device_bytes = 20 * BLOCK_BYTES; /* less than eight engines want */
    config.host_bytes = 4 * KVT_MIB;
    config.nvme_path = stress->path;
    config.nvme_bytes = 16 * KVT_MIB;
    const enum kvt_status status = kvt_open(&config, &stress->runtime, error, sizeof error);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_text(status), error);
}

static int remove_entry(const char *path, const struct stat *status, int flag, struct FTW *walk)
{
    (void)status;
    (void)flag;
    (void)walk;
    return remove(path);
}

static void b59_many_threads_signals_and_forks_get_exact_bytes(void **state)
{
    (void)state;
    static struct stress stress;
    static struct engine engines[ENGINES];
    const char *const more = getenv("KVTIER_SOAK_SECONDS");
    const uint64_t seconds = more ? strtoull(more, NULL, 10) : 3;
    const struct sigaction action = { .sa_handler = on_signal }; /* without SA_RESTART: calls are interrupted */
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    const uint32_t descriptors_before = descriptors();
    make_texts(&stress);
    open_runtime(&stress);
    const uint32_t descriptors_open = descriptors();
    for (uint32_t i = 0; i < ENGINES; i++) {
        engines[i] = (struct engine){ &stress, i, kvt_emulated_stream(stress.runtime, i), { 100 + i } };
        assert_int_equal(pthread_create(&stress.engines[i], NULL, run_engine, &engines[i]), 0);
    }
    uint64_t early_bytes;
    const uint32_t rounds = disturb(&stress, seconds, &early_bytes);
    atomic_store(&stress.is_over, true);
    for (uint32_t i = 0; i < ENGINES; i++) assert_int_equal(pthread_join(stress.engines[i], NULL), 0);
    const uint64_t late_bytes = resident_bytes();

    print_message("%llu s: %llu steps, %llu rows compared, %llu tokens reused, %llu landings, %llu chunks, %llu refused, "
                  "%llu lost, %u rounds; %.1f MiB resident, %.1f MiB before\n",
                  (unsigned long long)seconds, atomic_load(&stress.steps), atomic_load(&stress.rows),
                  atomic_load(&stress.reused), atomic_load(&stress.landings),
                  atomic_load(&stress.chunks), atomic_load(&stress.refused), atomic_load(&stress.lost), rounds,
                  (double)late_bytes / KVT_MIB, (double)early_bytes / KVT_MIB);
    assert_int_equal(atomic_load(&stress.wrong), 0);
    assert_true(atomic_load(&stress.steps) > 0 && atomic_load(&stress.reused) > 0);
    assert_true(atomic_load(&stress.chunks) > 0);
    assert_true(descriptors() <= descriptors_open + SEGMENTS_MAX); /* the store opens its segments as they come */
    /* A leak of one block a step would be many times that. */
    assert_true(late_bytes <= early_bytes + 16 * KVT_MIB);
    kvt_close(&stress.runtime);
    assert_int_equal(descriptors(), descriptors_before);
    assert_int_equal(nftw(stress.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(b59_many_threads_signals_and_forks_get_exact_bytes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
