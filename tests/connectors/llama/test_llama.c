/*
 * The whole library on a made-up engine, whose logits tell whether every cell that a token attends to holds the bytes
 * of exactly these tokens.
 */
#include "connectors/llama/attached.h"
#include "kvtier/llama.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tests/connectors/llama/made_up_engine.h"

enum { LENGTH = 440, BLOCK = 16 };

static char folder[] = "/tmp/kvtier-llama-XXXXXX";
static char lines[4096];

static void collect_line(void *user, int level, const char *line)
{
    (void)user;
    (void)level;
    const size_t length = strlen(lines);
    (void)snprintf(lines + length, sizeof lines - length, "%s\n", line);
}

static struct kvt_llama_config config_of(bool has_store)
{
    struct kvt_llama_config config = kvt_llama_config_default();
    config.host_bytes = 32 * KVT_MIB;
    config.block_tokens = BLOCK;
    config.log = collect_line;
    if (has_store) {
        config.path = folder;
        config.nvme_bytes = 64 * KVT_MIB;
    }
    lines[0] = '\0';
    return config;
}

static struct kvt_llama *attach_with(const struct kvt_llama_config *config, struct llama_context *ctx)
{
    struct kvt_llama *llama = NULL;
    char error[256] = "";
    const enum kvt_status status = kvt_llama_attach(config, ctx, &llama, error, sizeof error);
    if (status != KVT_OK) print_message("attach: %s\n", error);
    assert_int_equal(status, KVT_OK);
    return llama;
}

static struct kvt_llama *attach(struct llama_context *ctx, bool has_store)
{
    const struct kvt_llama_config config = config_of(has_store);
    return attach_with(&config, ctx);
}

static void make_tokens(uint64_t seed, int32_t tokens[LENGTH])
{
    struct kvt_rng rng = { .state = seed };
    for (uint32_t i = 0; i < LENGTH; i++) tokens[i] = (int32_t)kvt_rng_below(&rng, 1000);
}

/* Evaluates [first, end) with a save after each batch, as the window wants it. */
static void evaluate_and_save(struct llama_context *ctx, struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                              uint32_t first, uint32_t end)
{
    uint64_t saved;
    for (uint32_t at = first; at < end; at += 64) {
        const uint32_t count = kvt_min_u32(64, end - at);
        assert_true(made_up_evaluate(ctx, seq, tokens, at, count) != 0);
        assert_int_equal(kvt_llama_save(llama, seq, tokens, at + count, &saved), KVT_OK);
        assert_int_equal(saved, at + count);
    }
}

/* What the engine without any cache says, asked in the same two steps. */
static uint64_t control(const struct made_up_config *config, const int32_t *tokens, uint32_t first, uint32_t count)
{
    struct llama_context *ctx = made_up_create(config);
    if (first > 0) assert_true(made_up_evaluate(ctx, 0, tokens, 0, first) != 0);
    const uint64_t logits = made_up_evaluate(ctx, 0, tokens, first, count - first);
    made_up_destroy(ctx);
    assert_true(logits != 0);
    return logits;
}

/*
 * Restores as much of the prompt as there is, evaluates the rest, and wants the control's logits. Returns what
 * was restored.
 */
static uint64_t check_prompt(struct llama_context *ctx, struct kvt_llama *llama, const struct made_up_config *config,
                             int32_t seq, const int32_t *tokens, uint32_t count)
{
    uint64_t restored = 0;
    const uint64_t matched = kvt_llama_match(llama, tokens, count);
    assert_int_equal(kvt_llama_restore(llama, seq, tokens, count, &restored), KVT_OK);
    assert_true(restored <= matched && restored < count);
    assert_int_equal(made_up_pos_max(ctx, seq), (int32_t)restored - 1);
    const uint64_t logits = made_up_evaluate(ctx, seq, tokens, (uint32_t)restored, count - (uint32_t)restored);
    assert_true(logits == control(config, tokens, (uint32_t)restored, count));
    return restored;
}

static bool nth_config(uint32_t n, struct made_up_config *ret_config)
{
    static const int32_t types[] = { MADE_UP_F32, MADE_UP_F16, MADE_UP_BF16, MADE_UP_Q8_0 };
    if (n >= 32) return false;
    *ret_config = made_up_config();
    ret_config->type_k = types[n % 4];
    ret_config->is_transposed = (n / 4 & 1) != 0;
    ret_config->type_v = ret_config->is_transposed && n % 4 == 3 ? MADE_UP_F16 : types[n % 4];
    ret_config->is_unified = (n / 8 & 1) != 0;
    ret_config->is_swa_full = n % 3 == 0;
    if (n / 16 == 1) ret_config->window = n % 2 ? 0 : 20;
    return true;
}

static void a_restored_sequence_gives_the_logits_of_one_that_never_left(void **state)
{
    (void)state;
    struct made_up_config made_up;
    for (uint32_t n = 0; nth_config(n, &made_up); n++) {
        int32_t tokens[LENGTH];
        make_tokens(n, tokens);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach(ctx, false);
        struct kvt_llama_stats stats;
        kvt_llama_stats(llama, &stats);
        assert_false(stats.is_whole);
        assert_int_equal(stats.groups, made_up.window > 0 ? 2 : 1);
        evaluate_and_save(ctx, llama, 0, tokens, 0, 400);
        assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, 401), 400);
        assert_int_equal(check_prompt(ctx, llama, &made_up, 2, tokens, LENGTH), 400);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

static void b61_a_branch_at_any_token_is_exact_or_computed_from_an_earlier_one(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        struct made_up_config made_up = made_up_config();
        made_up.is_swa_full = variant & 1;
        made_up.is_unified = variant & 2;
        int32_t tokens[LENGTH], branch[LENGTH];
        make_tokens(77, tokens);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach(ctx, false);
        evaluate_and_save(ctx, llama, 0, tokens, 0, 400);
        uint64_t reused = 0;
        for (uint32_t at = 1; at < 400; at++) {
            make_tokens(1000 + at, branch);
            memcpy(branch, tokens, at * sizeof *tokens);
            const uint64_t restored = check_prompt(ctx, llama, &made_up, 1, branch, at + 3);
            assert_true(restored <= at);
            assert_true(restored + BLOCK > at); /* every boundary is there: saved while inside the window */
            reused += restored;
        }
        struct kvt_llama_stats stats;
        kvt_llama_stats(llama, &stats);
        assert_int_equal(stats.hit_tokens, reused);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

/* Only the end was saved: what lies before the window at the end cannot be a branch point, and is not taken for one. */
static void b61_without_its_window_a_prefix_is_not_restored(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH];
    uint64_t saved;
    make_tokens(78, tokens);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, false);
    assert_true(made_up_evaluate(ctx, 0, tokens, 0, 400) != 0);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 400, &saved), KVT_OK);
    for (uint32_t count = 2; count <= 402; count++) {
        const uint64_t restored = check_prompt(ctx, llama, &made_up, 1, tokens, count);
        assert_int_equal(restored, count >= 401 ? 400 : count == 400 ? 399 : 0);
    }
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static void a_turn_costs_its_new_tokens_and_a_shared_prefix_nothing(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH], other[LENGTH];
    struct kvt_llama_stats before, after;
    make_tokens(79, tokens);
    make_tokens(80, other);
    memcpy(other, tokens, 320 * sizeof *tokens);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, false);
    evaluate_and_save(ctx, llama, 0, tokens, 0, 320);
    kvt_llama_stats(llama, &before);
    assert_int_equal(before.saved_blocks, 2 * 320 / BLOCK);
    evaluate_and_save(ctx, llama, 0, tokens, 320, 352);
    kvt_llama_stats(llama, &after);
    assert_int_equal(after.saved_blocks - before.saved_blocks, 2 * 32 / BLOCK);
    evaluate_and_save(ctx, llama, 1, other, 0, 320);
    kvt_llama_stats(llama, &before);
    assert_int_equal(before.saved_blocks, after.saved_blocks);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

/*
 * ---- The disk
 * --------------------------------------------------------------------------------------------------------
 */

static void remove_store(void)
{
    DIR *directory = opendir(folder);
    if (!directory) return;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        (void)unlink(path);
    }
    (void)closedir(directory);
}

static void after_a_restart_all_comes_from_the_disk(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH];
    struct kvt_llama_stats stats;
    remove_store();
    make_tokens(81, tokens);
    for (uint32_t run = 0; run < 3; run++) {
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach(ctx, true);
        if (run == 0) evaluate_and_save(ctx, llama, 0, tokens, 0, 405);
        else assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, LENGTH), 405);
        kvt_llama_stats(llama, &stats);
        assert_int_equal(stats.host_hits, 0);
        if (run > 0) assert_true(stats.nvme_hits > 30);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

static void another_model_type_salt_or_text_finds_nothing(void **state)
{
    (void)state;
    int32_t tokens[LENGTH];
    remove_store();
    make_tokens(82, tokens);
    for (uint32_t run = 0; run < 6; run++) {
        struct made_up_config made_up = made_up_config();
        struct kvt_llama_config config = config_of(true);
        if (run == 1) made_up.weights = 2;
        if (run == 2) made_up.type_k = made_up.type_v = MADE_UP_BF16;
        if (run == 3) config.salt = "tenant", config.salt_bytes = 6;
        if (run == 4) config.model = "with an adapter";
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach_with(&config, ctx);
        if (run == 0) evaluate_and_save(ctx, llama, 0, tokens, 0, 200);
        else assert_int_equal(kvt_llama_match(llama, tokens, LENGTH), run == 5 ? 200 : 0);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

/* One bit in each of many places of the files, where there is something. */
static void flip_bits(uint32_t count, uint64_t seed)
{
    struct kvt_rng rng = { .state = seed };
    DIR *directory = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        char path[512];
        struct stat found;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        const int file = open(path, O_RDWR);
        if (file < 0) continue;
        if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > (64 << 10)) {
            for (uint32_t i = 0, tried = 0; i < count && tried < 100 * count; tried++) {
                const off_t at = 8192 + (off_t)kvt_rng_below(&rng, (uint64_t)found.st_size - 8192);
                uint8_t byte = 0;
                if (pread(file, &byte, 1, at) != 1 || byte == 0) continue;
                byte ^= (uint8_t)(1u << kvt_rng_below(&rng, 8));
                assert_int_equal(pwrite(file, &byte, 1, at), 1);
                i++;
            }
        }
        (void)close(file);
    }
    (void)closedir(directory);
}

/* The largest file loses what is behind so many parts of 60 KiB, or is gone. */
static void shorten_largest(uint32_t parts)
{
    char path[512], largest[512] = "";
    off_t size = 0;
    DIR *directory = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        struct stat found;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size <= size) continue;
        size = found.st_size;
        memcpy(largest, path, sizeof path);
    }
    (void)closedir(directory);
    assert_int_equal(parts == 0 ? unlink(largest) : truncate(largest, 61440 * (off_t)parts), 0);
}

static void b62_damaged_records_are_recomputed_and_replaced_by_the_next_save(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH];
    struct kvt_llama_stats stats;
    make_tokens(83, tokens);
    for (uint32_t damage = 0; damage < 9; damage++) {
        remove_store();
        for (uint32_t run = 0; run < 4; run++) {
            struct llama_context *ctx = made_up_create(&made_up);
            struct kvt_llama *llama = attach(ctx, true);
            uint64_t restored = 0;
            if (run == 0) {
                evaluate_and_save(ctx, llama, 0, tokens, 0, 400);
            } else if (run == 1) {
                restored = check_prompt(ctx, llama, &made_up, 0, tokens, 401);
                assert_true(restored < 400);
                kvt_llama_stats(llama, &stats);
                print_message("damage %u: %lu of 400 tokens, %lu records damaged\n", damage, restored,
                              stats.damaged_blocks);
                if (damage == 0) assert_true(stats.damaged_blocks > 0);
                assert_int_equal(kvt_llama_restore(llama, 0, tokens, 401, &restored), KVT_OK);
                evaluate_and_save(ctx, llama, 0, tokens, (uint32_t)restored, 400);
                assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, 401), 400);
                kvt_llama_stats(llama, &stats);
                assert_int_equal(stats.dropped_blocks, 0);
            } else {
                assert_int_equal(check_prompt(ctx, llama, &made_up, 0, tokens, 401), 400);
            }
            kvt_llama_detach(&llama);
            made_up_destroy(ctx);
            if (run == 0 && damage == 0) flip_bits(12, 5);
            if (run == 0 && damage > 0) shorten_largest(damage - 1);
        }
    }
}

static void host_memory_and_disk_stay_under_their_caps(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    struct kvt_llama_stats stats;
    int32_t tokens[LENGTH];
    remove_store();
    struct kvt_llama_config config = config_of(true);
    config.host_bytes = KVT_MIB;
    config.nvme_bytes = 12 * KVT_MIB;
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach_with(&config, ctx);
    for (uint32_t turn = 0; turn < 40; turn++) {
        uint64_t saved = 0;
        make_tokens(turn % 20, tokens);
        uint64_t restored = check_prompt(ctx, llama, &made_up, 0, tokens, 420);
        assert_int_equal(kvt_llama_restore(llama, 0, tokens, 420, &restored), KVT_OK);
        for (uint32_t at = (uint32_t)restored; at < 420; at += 64) {
            const uint32_t count = kvt_min_u32(64, 420 - at);
            assert_true(made_up_evaluate(ctx, 0, tokens, at, count) != 0);
            assert_int_equal(kvt_llama_save(llama, 0, tokens, at + count, &saved), KVT_OK);
        }
        assert_int_equal(kvt_llama_idle(llama, 0, tokens, 420, &saved), KVT_OK);
        assert_int_equal(made_up_pos_max(ctx, 0), -1);
        kvt_llama_stats(llama, &stats);
        assert_true(stats.host_peak <= config.host_bytes);
        assert_true(stats.nvme_allocated_bytes <= config.nvme_bytes);
    }
    assert_true(stats.host_evictions > 0);
    assert_true(stats.nvme_hits > 0);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static void forgotten_tokens_are_not_found(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH], other[LENGTH];
    remove_store();
    make_tokens(84, tokens);
    make_tokens(85, other);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, true);
    evaluate_and_save(ctx, llama, 0, tokens, 0, 205);
    evaluate_and_save(ctx, llama, 1, other, 0, 205);
    assert_true(kvt_llama_forget(llama, tokens, 205) >= 2 * 205 / BLOCK);
    assert_int_equal(kvt_llama_match(llama, tokens, 206), 0);
    assert_int_equal(kvt_llama_match(llama, other, 206), 205);
    assert_int_equal(kvt_llama_forget_all(llama), KVT_OK);
    assert_int_equal(kvt_llama_match(llama, other, 206), 0);
    evaluate_and_save(ctx, llama, 1, other, 205, 230);
    assert_int_equal(kvt_llama_match(llama, other, 231), 230);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

/*
 * ---- What the engine refuses, and what is refused
 * ----------------------------------------------------------------------
 */

static void b67_a_refused_restore_leaves_an_empty_sequence_and_is_not_offered_again(void **state)
{
    (void)state;
    for (uint32_t is_whole = 0; is_whole < 2; is_whole++) {
        const struct made_up_config made_up = made_up_config();
        struct kvt_llama_config config = config_of(false);
        struct kvt_llama_stats stats;
        int32_t tokens[LENGTH];
        uint64_t restored = 99;
        config.is_whole = is_whole;
        make_tokens(86, tokens);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach_with(&config, ctx);
        evaluate_and_save(ctx, llama, 0, tokens, 0, 200);
        assert_true(made_up_evaluate(ctx, 1, tokens, 0, 30) != 0); /* it is occupied */
        made_up_refuse(ctx, 2);
        assert_int_equal(kvt_llama_restore(llama, 1, tokens, 201, &restored), KVT_OK);
        assert_int_equal(restored, 0);
        assert_int_equal(made_up_pos_max(ctx, 1), -1);
        made_up_refuse(ctx, 0);
        kvt_llama_stats(llama, &stats);
        assert_int_equal(stats.refused_restores, 1);
        const uint32_t offered = made_up_offered(ctx);
        if (!is_whole) assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, 201), 0);
        if (!is_whole) assert_int_equal(made_up_offered(ctx), offered);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

static void b67_without_room_in_the_context_the_state_is_kept_for_later(void **state)
{
    (void)state;
    struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH], other[LENGTH];
    uint64_t restored;
    made_up.is_unified = true;
    made_up.n_ctx = 512;
    make_tokens(87, tokens);
    make_tokens(88, other);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, false);
    evaluate_and_save(ctx, llama, 0, tokens, 0, 300);
    made_up_remove(ctx, 0, 0);
    assert_true(made_up_evaluate(ctx, 1, other, 0, 300) != 0);
    assert_int_equal(kvt_llama_restore(llama, 0, tokens, 301, &restored), KVT_FULL);
    assert_int_equal(made_up_pos_max(ctx, 0), -1);
    made_up_remove(ctx, 1, 0);
    assert_int_equal(check_prompt(ctx, llama, &made_up, 0, tokens, 301), 300);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static void sequences_that_are_not_these_tokens_are_not_kept(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    struct kvt_llama_stats stats;
    int32_t tokens[LENGTH];
    uint64_t saved = 0;
    make_tokens(89, tokens);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, false);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 10, &saved), KVT_INVAL); /* it holds none */
    assert_true(made_up_evaluate(ctx, 0, tokens, 0, 100) != 0);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 99, &saved), KVT_INVAL);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 101, &saved), KVT_INVAL);
    assert_int_equal(kvt_llama_save(llama, 7, tokens, 100, &saved), KVT_INVAL);
    made_up_shift(ctx, 0, 50, 20); /* a gap */
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 120, &saved), KVT_INVAL);
    made_up_shift(ctx, 0, 50, -20);
    kvt_llama_taint(llama, 0);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 100, &saved), KVT_INVAL);
    assert_int_equal(kvt_llama_match(llama, tokens, 200), 0);
    kvt_llama_stats(llama, &stats);
    assert_int_equal(stats.refused_saves, 5);
    assert_int_equal(check_prompt(ctx, llama, &made_up, 0, tokens, 20), 0); /* emptied by restore: no longer tainted */
    assert_int_equal(kvt_llama_save(llama, 0, tokens, 20, &saved), KVT_OK);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static void a_shifted_sequence_is_not_kept_and_a_branch_is(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        struct made_up_config made_up = made_up_config();
        int32_t tokens[LENGTH], other[LENGTH];
        uint64_t count = 0;
        made_up.is_transposed = variant & 1;
        made_up.window = variant & 2 ? 400 : 0;
        make_tokens(94, tokens);
        make_tokens(95, other);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach(ctx, false);
        evaluate_and_save(ctx, llama, 0, tokens, 0, 200);
        assert_int_equal(kvt_llama_restore(llama, 1, tokens, 201, &count), KVT_OK);
        /* Both, the one that was saved and the one that was restored, lose 50 tokens in the middle and go on. */
        memmove(tokens + 50, tokens + 100, (LENGTH - 100) * sizeof *tokens);
        for (int32_t seq = 0; seq < 2; seq++) {
            made_up_cut(ctx, seq, 50, 100);
            assert_true(made_up_evaluate(ctx, seq, tokens, 150, 10) != 0);
            assert_int_equal(kvt_llama_save(llama, seq, tokens, 160, &count), KVT_INVAL);
        }
        assert_true(kvt_llama_match(llama, tokens, 160) <= 50);
        memcpy(other, tokens, 50 * sizeof *tokens);
        assert_int_equal(kvt_llama_restore(llama, 0, other, LENGTH, &count), KVT_OK);
        evaluate_and_save(ctx, llama, 0, other, (uint32_t)count, 200);
        made_up_remove(ctx, 0, 120);
        other[120] += 1;
        evaluate_and_save(ctx, llama, 0, other, 120, 160);
        assert_int_equal(check_prompt(ctx, llama, &made_up, 1, other, 161), 160);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

/* A part of a state is gone, and another sequence saves the same tokens: its bytes differ. What save said is true. */
static void b67_a_whole_state_is_never_of_two_saves(void **state)
{
    (void)state;
    enum { COUNT = 1600 };
    int32_t tokens[COUNT + 1];
    for (uint32_t i = 0; i <= COUNT; i++) tokens[i] = (int32_t)(i * 7919 % 1000);
    struct made_up_config made_up = made_up_config();
    made_up.type_k = made_up.type_v = MADE_UP_F32;
    made_up.n_ctx = 3 * 2048;
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama_config config = config_of(false);
    config.is_whole = true;
    struct kvt_llama *llama = attach_with(&config, ctx);
    uint64_t saved = 0, restored = 0;
    assert_true(made_up_evaluate(ctx, 0, tokens, 0, COUNT) != 0);
    assert_int_equal(kvt_llama_save(llama, 0, tokens, COUNT, &saved), KVT_OK);
    assert_int_equal(kvt_llama_restore(llama, 2, tokens, COUNT + 1, &restored), KVT_OK);
    assert_int_equal(restored, COUNT);
    const struct kvt_key end = llama->chain[COUNT / BLOCK];
    const struct kvt_key first = kvt_llama_record_key(KVT_LLAMA_RECORD_WHOLE, 0, 0, end);
    assert_true(kvt_llama_vault_has(llama->vault, kvt_llama_record_key(KVT_LLAMA_RECORD_WHOLE, 0, 1, end)));
    assert_true(kvt_llama_vault_forget(llama->vault, first)); /* as the LRU takes one */
    assert_true(made_up_evaluate(ctx, 1, tokens, 0, COUNT) != 0);
    assert_int_equal(kvt_llama_save(llama, 1, tokens, COUNT, &saved), KVT_OK);
    assert_int_equal(saved, COUNT);
    assert_int_equal(kvt_llama_restore(llama, 2, tokens, COUNT + 1, &restored), KVT_OK);
    assert_int_equal(restored, COUNT);
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static void states_of_unknown_layout_or_with_recurrent_layers_are_kept_whole_and_it_is_said(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 2; variant++) {
        struct made_up_config made_up = made_up_config();
        struct kvt_llama_stats stats;
        int32_t tokens[LENGTH];
        made_up.is_odd_layout = variant == 0;
        made_up.is_recurrent = variant == 1;
        make_tokens(90, tokens);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach(ctx, false);
        kvt_llama_stats(llama, &stats);
        assert_true(stats.is_whole);
        assert_non_null(strstr(lines, "kept whole"));
        evaluate_and_save(ctx, llama, 0, tokens, 0, 200);
        assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, 220), 200);
        assert_int_equal(check_prompt(ctx, llama, &made_up, 1, tokens, 193), 192);
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

static void b64_a_state_larger_than_the_caps_is_refused_and_nothing_leaves(void **state)
{
    (void)state;
    for (uint32_t is_whole = 0; is_whole < 2; is_whole++) {
        struct made_up_config made_up = made_up_config();
        struct kvt_llama_config config = config_of(false);
        struct kvt_llama_stats before, after;
        int32_t tokens[LENGTH], large[8192];
        uint64_t saved = 0;
        made_up.window = 0;
        made_up.type_k = made_up.type_v = MADE_UP_F32;
        made_up.n_ctx = 3 * 2048;
        config.is_whole = is_whole;
        config.host_bytes = KVT_MIB;
        make_tokens(91, tokens);
        for (uint32_t i = 0; i < 2048; i++) large[i] = (int32_t)(i * 5 % 1000);
        struct llama_context *ctx = made_up_create(&made_up);
        struct kvt_llama *llama = attach_with(&config, ctx);
        assert_true(made_up_evaluate(ctx, 0, tokens, 0, 100) != 0);
        assert_int_equal(kvt_llama_save(llama, 0, tokens, 100, &saved), KVT_OK);
        kvt_llama_stats(llama, &before);
        assert_true(made_up_evaluate(ctx, 1, large, 0, 2047) != 0); /* 2 MiB */
        assert_int_equal(kvt_llama_save(llama, 1, large, 2047, &saved), is_whole ? KVT_FULL : KVT_OK);
        kvt_llama_stats(llama, &after);
        if (is_whole) {
            assert_int_equal(after.too_large, 1);
            assert_int_equal(after.host_evictions, before.host_evictions);
            assert_int_equal(kvt_llama_match(llama, tokens, 101), 100);
            assert_non_null(strstr(lines, "is not kept"));
        }
        kvt_llama_detach(&llama);
        made_up_destroy(ctx);
    }
}

static void impossible_values_are_refused_with_field_value_and_rule(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    struct llama_context *ctx = made_up_create(&made_up);
    for (uint32_t n = 0; n < 6; n++) {
        struct kvt_llama_config config = config_of(false);
        const char *const fields[] = { "size", "version", "host_bytes", "nvme_bytes", "nvme_bytes", "block_tokens" };
        if (n == 0) config.size = 3;
        if (n == 1) config.version = 99;
        if (n == 2) config.host_bytes = 100;
        if (n == 3) config.path = folder;
        if (n == 4) config.nvme_bytes = KVT_GIB;
        if (n == 5) config.block_tokens = 2;
        struct kvt_llama *llama = NULL;
        char error[256] = "";
        assert_int_equal(kvt_llama_attach(&config, ctx, &llama, error, sizeof error), KVT_INVAL);
        assert_null(llama);
        assert_ptr_equal(strstr(error, fields[n]), error);
        assert_non_null(strchr(error, ':'));
    }
    const struct kvt_llama_config config = config_of(false);
    struct kvt_llama *llama = NULL;
    char error[256] = "";
    assert_int_equal(kvt_llama_attach(NULL, ctx, &llama, error, sizeof error), KVT_INVAL);
    assert_string_equal(error, "config, ctx or ret_llama is NULL: none may be");
    assert_int_equal(kvt_llama_attach(&config, NULL, &llama, NULL, 0), KVT_INVAL);
    assert_int_equal(kvt_llama_attach(&config, ctx, NULL, NULL, 0), KVT_INVAL);
    assert_null(llama);
    made_up_destroy(ctx);
}

static void an_engine_that_is_not_there_is_said(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama_config config = config_of(false);
    struct kvt_llama *llama = NULL;
    char error[256] = "";
    config.library_path = "/nonexistent/libllama.so";
    assert_int_equal(kvt_llama_attach(&config, ctx, &llama, error, sizeof error), KVT_UNSUPPORTED);
    assert_non_null(strstr(error, "/nonexistent/libllama.so"));
    config.library_path = "libm.so.6";
    assert_int_equal(kvt_llama_attach(&config, ctx, &llama, error, sizeof error), KVT_UNSUPPORTED);
    assert_non_null(strstr(error, "llama_"));
    made_up_destroy(ctx);
}

/* Whatever allocation fails: a status, nothing leaks, and what is restored is exact. */
static void any_allocation_may_fail(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH];
    make_tokens(92, tokens);
    struct llama_context *ctx = made_up_create(&made_up);
    bool is_through = false;
    for (uint64_t n = 1; !is_through; n++) {
        const struct kvt_llama_config config = config_of(false);
        struct kvt_llama *llama = NULL;
        uint64_t count = 0;
        made_up_remove(ctx, 0, 0);
        made_up_remove(ctx, 1, 0);
        made_up_remove(ctx, 2, 0);
        kvt_alloc_fail_at(n);
        const uint64_t calls = kvt_alloc_calls();
        enum kvt_status status = kvt_llama_attach(&config, ctx, &llama, NULL, 0);
        if (status == KVT_OK) {
            assert_true(made_up_evaluate(ctx, 0, tokens, 0, 90) != 0);
            if (kvt_llama_save(llama, 0, tokens, 90, &count) != KVT_OK) print_message("allocation %lu: not saved\n", n);
            count = 0;
            if (kvt_llama_restore(llama, 1, tokens, 91, &count) != KVT_OK) count = 0;
            is_through = kvt_alloc_calls() - calls < n;
            kvt_alloc_fail_at(0);
            assert_int_equal(made_up_pos_max(ctx, 1), (int32_t)count - 1);
            assert_true(made_up_evaluate(ctx, 1, tokens, (uint32_t)count, 91 - (uint32_t)count)
                        == control(&made_up, tokens, (uint32_t)count, 91));
        }
        kvt_alloc_fail_at(0);
        kvt_llama_detach(&llama);
        assert_true(n < 200);
    }
    made_up_destroy(ctx);
}

static void a_save_is_due_before_window_tokens_would_leave_unsaved(void **state)
{
    (void)state;
    const struct made_up_config made_up = made_up_config();
    int32_t tokens[LENGTH];
    make_tokens(93, tokens);
    struct llama_context *ctx = made_up_create(&made_up);
    struct kvt_llama *llama = attach(ctx, false);
    evaluate_and_save(ctx, llama, 0, tokens, 0, 64);
    assert_false(kvt_llama_is_due(llama, 0, 64, 64));
    assert_true(made_up_evaluate(ctx, 0, tokens, 64, 32) != 0);
    assert_false(kvt_llama_is_due(llama, 0, 96, 64));
    assert_true(kvt_llama_is_due(llama, 0, 96, 65));
    kvt_llama_detach(&llama);
    made_up_destroy(ctx);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    remove_store();
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_sequence_gives_the_logits_of_one_that_never_left),
        cmocka_unit_test(b61_a_branch_at_any_token_is_exact_or_computed_from_an_earlier_one),
        cmocka_unit_test(b61_without_its_window_a_prefix_is_not_restored),
        cmocka_unit_test(a_turn_costs_its_new_tokens_and_a_shared_prefix_nothing),
        cmocka_unit_test(after_a_restart_all_comes_from_the_disk),
        cmocka_unit_test(another_model_type_salt_or_text_finds_nothing),
        cmocka_unit_test(b62_damaged_records_are_recomputed_and_replaced_by_the_next_save),
        cmocka_unit_test(host_memory_and_disk_stay_under_their_caps),
        cmocka_unit_test(forgotten_tokens_are_not_found),
        cmocka_unit_test(b67_a_refused_restore_leaves_an_empty_sequence_and_is_not_offered_again),
        cmocka_unit_test(b67_without_room_in_the_context_the_state_is_kept_for_later),
        cmocka_unit_test(sequences_that_are_not_these_tokens_are_not_kept),
        cmocka_unit_test(a_shifted_sequence_is_not_kept_and_a_branch_is),
        cmocka_unit_test(b67_a_whole_state_is_never_of_two_saves),
        cmocka_unit_test(states_of_unknown_layout_or_with_recurrent_layers_are_kept_whole_and_it_is_said),
        cmocka_unit_test(b64_a_state_larger_than_the_caps_is_refused_and_nothing_leaves),
        cmocka_unit_test(impossible_values_are_refused_with_field_value_and_rule),
        cmocka_unit_test(an_engine_that_is_not_there_is_said),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(a_save_is_due_before_window_tokens_would_leave_unsaved),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
