/* page runs: the GPU's thread body of gather, scatter and copy moves each byte once, and no other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/pages.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { CANARY = 0xa5, GUARD = 32 };

/* Threads add 1 to what they write: a byte that two of them write, or none, shows. */
static void each_byte_of_a_tile_belongs_to_one_thread(void **state)
{
    (void)state;
    struct kvt_rng rng = { 1 };
    for (uint32_t round = 0; round < 600; round++) {
        _Alignas(16) uint8_t source[700], target[700];
        const size_t from = kvt_rng_below(&rng, 32), to = kvt_rng_below(&rng, 2) ? from : kvt_rng_below(&rng, 32);
        const size_t bytes = kvt_rng_below(&rng, 600);
        const uint32_t threads = 1 + (uint32_t)kvt_rng_below(&rng, 40);
        uint32_t writers[700] = { 0 };
        for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(kvt_rng_next(&rng) | 1);
        for (uint32_t thread = 0; thread < threads; thread++) {
            memset(target, 0, sizeof target);
            kvt_pages_move_body(source + from, target + to, bytes, thread, threads);
            for (size_t i = 0; i < sizeof target; i++) {
                if (target[i] == 0) continue;
                assert_true(i >= to && i < to + bytes);
                assert_int_equal(target[i], source[from + (i - to)]);
                writers[i]++;
            }
        }
        for (size_t i = to; i < to + bytes; i++) assert_int_equal(writers[i], 1);
    }
}

/* Segments of many lengths, around a tile's, at any alignment, gathered by the body and by the reference. */
static void a_table_of_unequal_runs_moves_like_the_reference(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {
        0, 1, 15, 16, 17, 4096, KVT_PAGES_TILE - 1, KVT_PAGES_TILE, KVT_PAGES_TILE + 1, 3 * KVT_PAGES_TILE + 5
    };
    enum { RUNS = 10, ROOM = 4 * KVT_PAGES_TILE };
    struct kvt_rng rng = { 2 };
    uint8_t *source = kvt_alloc(RUNS, ROOM), *body = kvt_alloc(RUNS, ROOM), *wanted = kvt_alloc(RUNS, ROOM);
    assert_true(source && body && wanted);
    for (size_t i = 0; i < (size_t)RUNS * ROOM; i++) source[i] = (uint8_t)kvt_rng_next(&rng);
    memset(body, CANARY, (size_t)RUNS * ROOM);
    memset(wanted, CANARY, (size_t)RUNS * ROOM);

    struct kvt_pages_run by_body[RUNS], by_reference[RUNS];
    for (uint32_t i = 0; i < RUNS; i++) {
        const size_t at = (size_t)i * ROOM + GUARD + kvt_rng_below(&rng, 20);
        by_body[i] = (struct kvt_pages_run){ .source = source + (size_t)(RUNS - 1 - i) * ROOM + i,
                                             .target = body + at,
                                             .bytes = lengths[i] };
        by_reference[i] = by_body[i];
        by_reference[i].target = wanted + at;
    }
    kvt_pages_move_runs_body(by_body, RUNS, lengths[RUNS - 1]);
    kvt_pages_move_runs_ref(by_reference, RUNS, lengths[RUNS - 1]);
    assert_memory_equal(body, wanted, (size_t)RUNS * ROOM);
    kvt_free(source);
    kvt_free(body);
    kvt_free(wanted);
}

/* The tables of a block say what the direct calls do. */
static void tables_gather_scatter_and_copy_like_the_calls(void **state)
{
    (void)state;
    enum { SEGMENTS = 6, SLOTS = 3, STRIDE = 320, BYTES = 300 };
    struct kvt_rng rng = { 3 };
    uint8_t memory[2][SEGMENTS][SLOTS * STRIDE], contiguous[2][SEGMENTS * BYTES];
    for (size_t i = 0; i < sizeof memory[0]; i++)
        ((uint8_t *)memory[0])[i] = ((uint8_t *)memory[1])[i] = (uint8_t)kvt_rng_next(&rng);
    void *base[2][SEGMENTS];
    uint64_t stride[SEGMENTS];
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        base[0][s] = memory[0][s];
        base[1][s] = memory[1][s];
        stride[s] = STRIDE;
    }
    struct kvt_pages of[2], next[2];
    for (uint32_t k = 0; k < 2; k++) {
        of[k] = (struct kvt_pages){ .count = SEGMENTS, .base = base[k], .stride = stride, .slot = 1, .bytes = BYTES };
        next[k] = of[k];
        next[k].slot = 2;
    }
    struct kvt_pages_run runs[SEGMENTS];
    kvt_pages_gather_runs(&of[0], contiguous[0], runs);
    kvt_pages_move_runs_body(runs, SEGMENTS, BYTES);
    kvt_pages_gather_ref(&of[1], contiguous[1]);
    assert_memory_equal(contiguous[0], contiguous[1], sizeof contiguous[0]);

    kvt_pages_copy_runs(&of[0], &next[0], runs);
    kvt_pages_move_runs_body(runs, SEGMENTS, BYTES);
    kvt_pages_copy_ref(&of[1], &next[1]);
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);

    for (size_t i = 0; i < sizeof contiguous[0]; i++) contiguous[0][i] = contiguous[1][i] ^= 0x5a;
    kvt_pages_scatter_runs(&next[0], contiguous[0], runs);
    kvt_pages_move_runs_body(runs, SEGMENTS, BYTES);
    kvt_pages_scatter_ref(&next[1], contiguous[1]);
    assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_byte_of_a_tile_belongs_to_one_thread),
        cmocka_unit_test(a_table_of_unequal_runs_moves_like_the_reference),
        cmocka_unit_test(tables_gather_scatter_and_copy_like_the_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
