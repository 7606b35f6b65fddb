/*
 * Open and close: what is refused and how it is said, what a failed open leaves behind, what a child may do after
 * fork(), who may own a directory, and what the next process finds in it.
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/world.h"

enum { TWO = 2 * BLOCK_TOKENS };

/* ---- What a process has ------------------------------------------------------------------------------------------ */

struct belongings {
    uint32_t descriptors, threads;
    uint64_t table_bytes;
};

static uint32_t count_entries(const char *path)
{
    uint32_t count = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory)) count++;
    (void)closedir(directory);
    return count;
}

static struct belongings belongings(void)
{
    return (struct belongings){ count_entries("/proc/self/fd"), count_entries("/proc/self/task"), kvt_table_bytes() };
}

/*
 * A joined thread leaves /proc a moment later: one may still be among those before, and some of those now may be about
 * to go.
 */
static void assert_same(struct belongings before)
{
    struct belongings now = belongings();
    for (uint32_t i = 0; i < 100000 && now.threads > before.threads; i++) {
        (void)sched_yield();
        now = belongings();
    }
    assert_int_equal(now.descriptors, before.descriptors);
    assert_true(now.threads <= before.threads);
    assert_int_equal(now.table_bytes, before.table_bytes);
}

/* The same world on real files with threads and the codec. */
static void make_real(struct world *w)
{
    world_init(w, 8, 0);
    w->env = kvt_env_default();
    w->config.nvme_path = w->path;
    w->config.nvme_bytes = 4 * KVT_MIB;
    w->config.host_bytes = 4 * KVT_MIB;
    w->config.is_codec_off = false;
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

struct refusal {
    const char *field, *value; /* must stand in the error line */
    void (*spoil)(struct kvt_config *config);
};

#define REFUSAL(name, statement) \
    static void spoil_##name(struct kvt_config *config) { statement; }

REFUSAL(size, config->size = 8)
REFUSAL(version, config->version = 77)
REFUSAL(block_tokens_0, config->shape.block_tokens = 0)
REFUSAL(block_tokens_many, config->shape.block_tokens = 65536)
REFUSAL(group_count_0, config->shape.group_count = 0)
REFUSAL(group_count_5, config->shape.group_count = 5)
REFUSAL(kind, config->shape.groups[0].kind = (enum kvt_group_kind)9)
REFUSAL(kind_negative, config->shape.groups[0].kind = (enum kvt_group_kind) - 1)
REFUSAL(dtype, config->shape.groups[0].dtype = (enum kvt_dtype)9)
REFUSAL(layers, config->shape.groups[0].layers = 0)
REFUSAL(planes, config->shape.groups[0].planes = 3)
REFUSAL(kv_heads, config->shape.groups[0].kv_heads = 0)
REFUSAL(head_dim, config->shape.groups[0].head_dim = 0)
REFUSAL(window, config->shape.groups[0].kind = KVT_GROUP_WINDOW)
REFUSAL(state, config->shape.groups[0].kind = KVT_GROUP_STATE)
REFUSAL(
    overflow,
    config->shape.groups[0].layers = config->shape.groups[0].kv_heads = config->shape.groups[0].head_dim = UINT32_MAX)
REFUSAL(huge_block, config->shape.groups[0].head_dim = 1u << 31)
REFUSAL(rank, config->rank = 3; config->world = 3)
REFUSAL(secret, config->secret_bytes = 16)
REFUSAL(secret_bytes, config->secret = "x"; config->secret_bytes = 65)
REFUSAL(device, config->device = (enum kvt_device_kind)7)
REFUSAL(prefetch, config->prefetch = (enum kvt_prefetch)7)
REFUSAL(device_policy, config->device_policy = "most-recently-sad")
REFUSAL(host_policy, config->host_policy = "")
REFUSAL(admission, config->admission = "nobody")
REFUSAL(device_bytes_0, config->device_bytes = 0)
REFUSAL(device_bytes_few, config->device_bytes = BLOCK_BYTES - 1)
REFUSAL(device_bytes_many, config->device_bytes = UINT64_MAX)
REFUSAL(host_bytes_0, config->host_bytes = 0)
REFUSAL(host_bytes_few, config->host_bytes = KVT_MIB)
REFUSAL(host_bytes_many, config->host_bytes = UINT64_MAX)
REFUSAL(nvme_path_missing, config->nvme_path = NULL)
REFUSAL(nvme_path_empty, config->nvme_path = "")
REFUSAL(nvme_path_up, config->nvme_path = "/tmp/..")
REFUSAL(nvme_path_orphan, config->nvme_path = "/nowhere-at-all/kv")
REFUSAL(nvme_path_file, config->nvme_path = "/proc/self/stat")
REFUSAL(nvme_bytes_0, config->nvme_bytes = 0)
REFUSAL(nvme_bytes_few, config->nvme_bytes = 4096)
REFUSAL(nvme_bytes_many, config->nvme_bytes = UINT64_MAX)
REFUSAL(sequences, config->sequences_max = UINT32_MAX)
REFUSAL(transfers, config->transfers_max = UINT32_MAX)
REFUSAL(deadline, config->transfer_deadline_ns = UINT64_MAX)
REFUSAL(step, config->step_ns = UINT64_MAX)

static const struct refusal refusals[] = {
    { "size", "8", spoil_size },
    { "version", "77", spoil_version },
    { "block_tokens", "0", spoil_block_tokens_0 },
    { "block_tokens", "65536", spoil_block_tokens_many },
    { "group_count", "0", spoil_group_count_0 },
    { "group_count", "5", spoil_group_count_5 },
    { "kind", "9", spoil_kind },
    { "kind", "", spoil_kind_negative },
    { "dtype", "9", spoil_dtype },
    { "layers", "0", spoil_layers },
    { "planes", "3", spoil_planes },
    { "kv_heads", "0", spoil_kv_heads },
    { "head_dim", "0", spoil_head_dim },
    { "window", "0", spoil_window },
    { "state_bytes", "0", spoil_state },
    { "block bytes", "64 bits", spoil_overflow },
    { "block bytes", "1 GiB", spoil_huge_block },
    { "rank", "3", spoil_rank },
    { "secret", "16", spoil_secret },
    { "secret_bytes", "65", spoil_secret_bytes },
    { "device", "7", spoil_device },
    { "prefetch", "7", spoil_prefetch },
    { "device_policy", "most-recently-sad", spoil_device_policy },
    { "host_policy", "''", spoil_host_policy },
    { "admission", "nobody", spoil_admission },
    { "device_bytes", "0", spoil_device_bytes_0 },
    { "device_bytes", "4095", spoil_device_bytes_few },
    { "device_bytes", "18446744073709551615", spoil_device_bytes_many },
    { "host_bytes", "0", spoil_host_bytes_0 },
    { "host_bytes", "1048576", spoil_host_bytes_few },
    { "host_bytes", "18446744073709551615", spoil_host_bytes_many },
    { "nvme_path", "NULL", spoil_nvme_path_missing },
    { "nvme_path", "empty", spoil_nvme_path_empty },
    { "nvme_path", "/tmp/..", spoil_nvme_path_up },
    { "nvme_path", "/nowhere-at-all/kv", spoil_nvme_path_orphan },
    { "nvme_path", "/proc/self/stat", spoil_nvme_path_file },
    { "nvme_bytes", "0", spoil_nvme_bytes_0 },
    { "nvme_bytes", "4096", spoil_nvme_bytes_few },
    { "nvme_bytes", "18446744073709551615", spoil_nvme_bytes_many },
    { "sequences_max", "4294967295", spoil_sequences },
    { "transfers_max", "4294967295", spoil_transfers },
    { "transfer_deadline_ns", "18446744073709551615", spoil_deadline },
    { "step_ns", "18446744073709551615", spoil_step },
};

static void b53_an_impossible_value_is_refused_with_its_field_and_rule(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 8, 8);
    world_add_disk(&w, 8, 4 * KVT_MIB);
    world_open(&w); /* as it is, it opens */
    world_shut(&w);
    const struct belongings before = belongings();
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(refusals); i++) {
        struct kvt_config config = w.config;
        struct kvt_runtime *runtime = (struct kvt_runtime *)&w; /* must stay as it is */
        char error[256] = "";
        refusals[i].spoil(&config);
        const enum kvt_status status = kvt_open(&config, &runtime, error, sizeof error);
        const bool is_said = strstr(error, refusals[i].field) && strstr(error, refusals[i].value)
            && strstr(error, ": ");
        if (status != KVT_INVAL || !is_said || strchr(error, '\n'))
            fail_msg("refusal %u (%s, %s): %s, '%s'", i, refusals[i].field, refusals[i].value, kvt_status_text(status),
                     error);
        assert_ptr_equal(runtime, &w);
        assert_int_equal(kvt_open(&config, &runtime, NULL, 0), KVT_INVAL);
        char brief[8];
        assert_int_equal(kvt_open(&config, &runtime, brief, sizeof brief), KVT_INVAL);
        assert_true(strlen(brief) < sizeof brief);
        assert_same(before);
    }
    world_open(&w);
    world_close(&w);
}

/* Values that are not impossible, only extreme, work. */
static void b53_extreme_but_possible_values_open(void **state)
{
    (void)state;
    struct text text;
    text_make(&text, 1, BLOCK_TOKENS);
    for (uint32_t i = 0; i < 6; i++) {
        struct world w;
        world_init(&w, 8, 8);
        if (i == 0) w.config.device_bytes = BLOCK_BYTES;
        if (i == 1) w.config.sequences_max = w.config.transfers_max = 1;
        if (i == 2) w.config.prefetch_bytes_max = UINT64_MAX;
        if (i == 3) w.config.transfer_deadline_ns = w.config.step_ns = 3600 * SECOND;
        if (i == 4) w.config.prefill_tokens_per_s = UINT64_MAX;
        if (i == 5) w.config.rank = UINT32_MAX - 1, w.config.world = UINT32_MAX;
        world_open(&w);
        (void)world_serve(&w, &text);
        world_settle(&w);
        assert_int_equal(world_read(&w, &text), BLOCK_TOKENS);
        assert_int_equal(world_stats(&w).abandoned, 0);
        world_close(&w);
    }
}

/* ---- The host budget --------------------------------------------------------------------------------------------- */

static void b31_the_host_budget_is_taken_once_and_holds_everything(void **state)
{
    (void)state;
    for (uint32_t slots = 16; slots <= 4096; slots *= 4) {
        for (int has_disk = 0; has_disk < 2; has_disk++) {
            struct world w, other;
            world_init(&w, 8, slots);
            if (has_disk) world_add_disk(&w, slots, 8 * KVT_MIB);
            world_open(&w);
            const uint64_t wanted = w.config.host_bytes, chunk = world_core(&w)->host.chunk_bytes;
            const uint64_t taken = world_stats(&w).tiers[KVT_TIER_HOST].capacity_bytes;
            assert_true(taken <= wanted);
            assert_true(taken + chunk > wanted);
            /* A second one takes its own, and nothing of the first one's. */
            world_init(&other, 8, slots);
            world_open(&other);
            assert_int_equal(world_stats(&w).tiers[KVT_TIER_HOST].capacity_bytes, taken);
            world_close(&other);
            world_close(&w);
        }
    }
}

/* ---- Failing allocation ------------------------------------------------------------------------------------------ */

static void a_sequence_without_memory_is_nomem_and_one_too_many_is_full(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 4, 0);
    w.config.sequences_max = 2;
    world_open(&w);
    const struct kvt_seq_params params = { .token_count = 0 };
    kvt_seq first, second, third;
    uint64_t reused;
    kvt_alloc_fail_at(1);
    assert_int_equal(kvt_seq_create(w.runtime, &params, &first, &reused), KVT_NOMEM);
    assert_int_equal(kvt_seq_create(w.runtime, &params, &first, &reused), KVT_OK);
    kvt_alloc_fail_at(1);
    assert_int_equal(kvt_seq_fork(w.runtime, first, &second), KVT_NOMEM);
    assert_int_equal(kvt_seq_fork(w.runtime, first, &second), KVT_OK);
    assert_int_equal(kvt_seq_create(w.runtime, &params, &third, &reused), KVT_FULL);
    assert_int_equal(kvt_seq_fork(w.runtime, first, &third), KVT_FULL);
    world_close(&w);
}

/* Each allocation of an open fails once. Returns how many there were. */
static uint64_t fail_each_allocation(struct world *w)
{
    world_open(w); /* what a first thread brings with it (a sanitizer's own, say) is there from now on */
    kvt_close(&w->runtime);
    const struct belongings before = belongings();
    uint64_t refused = 0;
    for (uint64_t n = 1;; n++) {
        const uint64_t calls_before = kvt_alloc_calls();
        kvt_alloc_fail_at(n);
        const enum kvt_status status = world_try_open(w);
        kvt_alloc_fail_at(0);
        const bool was_reached = kvt_alloc_calls() - calls_before >= n;
        /* OK: something else was taken instead. IO: the memory of the disk in memory. */
        const bool is_disk = status == KVT_IO && strstr(w->error, strerror(ENOMEM));
        if (status != KVT_OK && status != KVT_NOMEM && !is_disk)
            fail_msg("allocation %llu: %s, %s", (unsigned long long)n, kvt_status_text(status), w->error);
        assert_true(status == KVT_OK || was_reached);
        if (status == KVT_OK) kvt_close(&w->runtime);
        assert_null(w->runtime);
        assert_same(before);
        refused += status == KVT_NOMEM;
        if (!was_reached) return refused;
    }
}

static void each_allocation_that_fails_at_open_leaves_nothing_behind(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 8, 8);
    world_add_disk(&w, 8, 4 * KVT_MIB);
    w.config.is_codec_off = false;
    w.config.host_bytes += KVT_MIB;
    assert_true(fail_each_allocation(&w) > 30);
    world_close(&w);

    make_real(&w); /* threads, io_uring, real files */
    assert_true(fail_each_allocation(&w) > 30);
    world_close(&w);
}

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

static void nothing(void *user) { (void)user; }

/* In the child: the number of the first call that was not refused, 0 when all were. */
static int try_every_call(struct world *w, const struct text *text, kvt_seq seq, kvt_step step)
{
    struct kvt_runtime *rt = w->runtime;
    const struct kvt_seq_params params = { .tokens = text->tokens, .token_count = 8 };
    struct kvt_step_entry entry = { .seq = seq };
    struct kvt_block_key key;
    struct kvt_stats stats;
    enum kvt_room room;
    kvt_seq other;
    kvt_step begun;
    uint64_t a, b;
    uint32_t slot;
    if (kvt_seq_create(rt, &params, &other, &a) != KVT_SHUTDOWN) return 1;
    if (kvt_seq_append(rt, seq, 1, &room) != KVT_SHUTDOWN) return 2;
    if (kvt_seq_commit(rt, seq, text->tokens, 1, 0, NULL) != KVT_SHUTDOWN) return 3;
    if (kvt_seq_fork(rt, seq, &other) != KVT_SHUTDOWN) return 4;
    if (kvt_seq_truncate(rt, seq, 0, NULL, &a) != KVT_SHUTDOWN) return 5;
    if (kvt_seq_window(rt, seq, 0, 1) != KVT_SHUTDOWN) return 6;
    if (kvt_seq_idle(rt, seq) != KVT_SHUTDOWN) return 7;
    if (kvt_seq_resume(rt, seq, &room) != KVT_SHUTDOWN) return 8;
    if (kvt_seq_table(rt, seq, 0, &slot, 1, &a, &b) != KVT_SHUTDOWN) return 9;
    if (kvt_seq_keys(rt, seq, 0, &key, 1, &a, &b) != KVT_SHUTDOWN) return 10;
    if (kvt_step_begin(rt, &entry, 1, NULL, &begun) != KVT_SHUTDOWN) return 11;
    if (kvt_step_end(rt, step) != KVT_SHUTDOWN) return 12;
    if (kvt_seq_finish(rt, seq, true) != KVT_SHUTDOWN) return 13;
    if (kvt_reset(rt, &a) != KVT_SHUTDOWN) return 14;
    if (kvt_emulated_launch(rt, NULL, nothing, NULL) != KVT_SHUTDOWN) return 15;
    /* What has no status says nothing, and does nothing. */
    if (kvt_seq_tokens(rt, seq) != 0) return 16;
    if (kvt_wait(rt, UINT64_MAX)) return 17;
    if (kvt_seq_stall(rt, seq) != KVT_STALL_OTHER) return 18;
    kvt_stats(rt, &stats);
    if (stats.blocks != 0 || stats.sequences != 0) return 19;
    kvt_expect(rt, &seq, &slot, 1);
    kvt_emulated_synchronize(rt, NULL);
    kvt_close(&rt);
    return rt ? 20 : 0;
}

static void a_child_is_refused_everything_and_the_parent_goes_on(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        struct world w;
        struct text text;
        kvt_seq seq;
        kvt_step step;
        uint64_t lost_from;
        if (round == 0) {
            world_init(&w, 8, 8);
            world_add_disk(&w, 8, 4 * KVT_MIB);
        } else {
            make_real(&w);
        }
        world_open(&w);
        text_make(&text, 1, TWO);
        (void)world_create(&w, &text, TWO, false, &seq);
        while (world_append(&w, seq, TWO) == KVT_ROOM_PENDING) (void)kvt_wait(w.runtime, SECOND);
        assert_int_equal(world_begin_once(&w, seq, 0, &step, &lost_from), KVT_READY);
        (void)fflush(NULL);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(try_every_call(&w, &text, seq, step));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        world_write(&w, &text, seq, 0, TWO, 0);
        world_end(&w, step);
        kvt_emulated_synchronize(w.runtime, kvt_emulated_stream(w.runtime, 0));
        assert_int_equal(world_begin_once(&w, seq, 0, &step, &lost_from), KVT_READY);
        world_check(&w, &text, seq, TWO, 0);
        world_end(&w, step);
        kvt_emulated_synchronize(w.runtime, kvt_emulated_stream(w.runtime, 0));
        world_finish(&w, seq, true);
        assert_int_equal(w.rows_checked, TWO * 4);
        kvt_close(&w.runtime);
        world_open(&w); /* what it had is still its own */
        world_close(&w);
    }
}

/* ---- The directory ----------------------------------------------------------------------------------------------- */

static void a_directory_has_one_owner_at_a_time(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    make_real(&w);
    const struct belongings before = belongings();
    world_open(&w);
    const struct belongings opened = belongings();
    struct kvt_runtime *second = NULL;
    char error[256];
    assert_int_equal(kvt_open(&w.config, &second, error, sizeof error), KVT_BUSY);
    assert_null(second);
    assert_non_null(strstr(error, w.path));
    assert_same(opened);
    text_make(&text, 1, 0);
    kvt_seq seq;
    (void)world_create(&w, &text, 0, false, &seq);
    world_finish(&w, seq, true);
    kvt_close(&w.runtime);
    assert_same(before);
    world_open(&w);
    kvt_close(&w.runtime);
    world_close(&w);
}

static void a_restart_finds_what_was_stored_with_its_exact_bytes(void **state)
{
    (void)state;
    enum { TEXTS = 6 };
    struct world w;
    struct text texts[TEXTS];
    world_init(&w, 8, 8);
    world_add_disk(&w, 8, 4 * KVT_MIB);
    for (uint32_t round = 0; round < 3; round++) {
        world_open(&w);
        for (uint64_t i = 0; i < TEXTS; i++) {
            text_make(&texts[i], i, (i + 1) * BLOCK_TOKENS + 3);
            const uint64_t reused = world_serve(&w, &texts[i]);
            /* whole blocks; tails die with their process */
            assert_int_equal(reused, round == 0 ? 0 : (i + 1) * BLOCK_TOKENS);
            world_settle(&w);
        }
        world_flush(&w, 100, true);
        world_shut(&w);
    }
    world_close(&w);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

#define CHANGE(name, statement) REFUSAL(name, statement)

CHANGE(other_model, config->model = "another")
CHANGE(no_model, config->model = NULL)
CHANGE(other_dtype, config->shape.groups[0].dtype = KVT_DTYPE_FP16)
CHANGE(other_block_tokens, config->shape.block_tokens = 8; config->device_bytes *= 2)
CHANGE(other_rank, config->rank = 1)
CHANGE(other_world, config->world = 8)
CHANGE(other_layout, config->shape.groups[0].kv_heads = 2; config->shape.groups[0].head_dim = 16)
CHANGE(other_layers, config->shape.groups[0].layers = 4; config->shape.groups[0].planes = 1)
CHANGE(other_secret, config->secret = "a secret"; config->secret_bytes = 8)
CHANGE(other_kind, config->shape.groups[0].kind = KVT_GROUP_WINDOW; config->shape.groups[0].window_tokens = 1024)
CHANGE(more_groups, config->shape.group_count = 2; config->shape.groups[1] = config->shape.groups[0])

static void b15_what_changes_the_bytes_changes_the_name(void **state)
{
    (void)state;
    static void (*const changes[])(struct kvt_config
                                   * config) = { spoil_other_model,        spoil_no_model,     spoil_other_dtype,
                                                 spoil_other_block_tokens, spoil_other_rank,   spoil_other_world,
                                                 spoil_other_layout,       spoil_other_layers, spoil_other_secret,
                                                 spoil_other_kind,         spoil_more_groups };
    struct world w;
    struct text text;
    kvt_seq seq;
    world_init(&w, 8, 8);
    world_add_disk(&w, 8, 4 * KVT_MIB);
    w.config.world = 4;
    const struct kvt_config config = w.config;
    world_open(&w);
    text_make(&text, 1, TWO);
    (void)world_serve(&w, &text);
    world_settle(&w);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(changes); i++) {
        world_shut(&w);
        changes[i](&w.config);
        world_open(&w);
        assert_int_equal(world_create(&w, &text, TWO, true, &seq), 0);
        world_finish(&w, seq, true);
        world_shut(&w);
        w.config = config;
        world_open(&w);
        assert_int_equal(world_read(&w, &text), TWO); /* and it is still there for whom it is */
    }
    world_close(&w);
}

/* Tenants with different salts share nothing, in no tier and not after a restart; with the same salt they do. */
static void b50_another_salt_finds_nothing(void **state)
{
    (void)state;
    static const char *const salts[] = { NULL, "a", "b", "ab" };
    struct world w;
    struct text text;
    kvt_seq seq;
    uint64_t reused;
    world_init(&w, 8, 32);
    world_add_disk(&w, 32, 4 * KVT_MIB);
    world_open(&w);
    text_make(&text, 1, TWO);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < KVT_ARRAY_COUNT(salts); i++) {
            const struct kvt_seq_params params = { .tokens = text.tokens,
                                                   .token_count = TWO + 1,
                                                   .reuse_max = UINT64_MAX,
                                                   .salt = salts[i],
                                                   .salt_bytes = salts[i] ? strlen(salts[i]) : 0 };
            assert_int_equal(kvt_seq_create(w.runtime, &params, &seq, &reused), KVT_OK);
            assert_int_equal(reused, round == 0 ? 0 : TWO);
            world_step(&w, &text, seq, TWO - reused, true);
            world_finish(&w, seq, true);
            world_settle(&w);
        }
        if (round == 1) world_reopen(&w);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_without_memory_is_nomem_and_one_too_many_is_full),
        cmocka_unit_test(b31_the_host_budget_is_taken_once_and_holds_everything),
        cmocka_unit_test(b53_an_impossible_value_is_refused_with_its_field_and_rule),
        cmocka_unit_test(b53_extreme_but_possible_values_open),
        cmocka_unit_test(each_allocation_that_fails_at_open_leaves_nothing_behind),
        cmocka_unit_test(a_child_is_refused_everything_and_the_parent_goes_on),
        cmocka_unit_test(a_directory_has_one_owner_at_a_time),
        cmocka_unit_test(a_restart_finds_what_was_stored_with_its_exact_bytes),
        cmocka_unit_test(b15_what_changes_the_bytes_changes_the_name),
        cmocka_unit_test(b50_another_salt_finds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
