/* state: what reads as a sequence state, and what comes back when it is taken apart and put together. */
#include "connectors/llama/state.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/rng.h"
#include "tests/connectors/llama/made_up_engine.h"
#include "connectors/llama/engine.h"

size_t llama_state_seq_get_size_ext(struct llama_context *ctx, int32_t seq, uint32_t flags);
size_t llama_state_seq_get_data_ext(struct llama_context *ctx, uint8_t *target, size_t size, int32_t seq,
                                    uint32_t flags);

struct sample {
    uint8_t *bytes;
    size_t size;
};

static struct sample take_sample(const struct made_up_config *config, int32_t seq, uint32_t tokens)
{
    struct llama_context *ctx = made_up_create(config);
    int32_t ids[256];
    for (uint32_t i = 0; i < tokens; i++) ids[i] = (int32_t)(i * 7 % 900);
    assert_true(made_up_evaluate(ctx, seq, ids, 0, tokens) != 0);
    struct sample sample = { .size = llama_state_seq_get_size_ext(ctx, seq, 0) };
    sample.bytes = malloc(sample.size);
    assert_int_equal(llama_state_seq_get_data_ext(ctx, sample.bytes, sample.size, seq, 0), sample.size);
    made_up_destroy(ctx);
    return sample;
}

/* Every kind of context, one after the other. */
static bool nth_config(uint32_t n, struct made_up_config *ret_config)
{
    static const int32_t types[] = { MADE_UP_F32, MADE_UP_F16, MADE_UP_BF16, MADE_UP_Q8_0 };
    if (n >= 64) return false;
    *ret_config = made_up_config();
    ret_config->type_k = types[n % 4];
    ret_config->type_v = types[n / 4 % 4 == 3 ? 1 : n / 4 % 4];
    ret_config->is_transposed = (n / 16 & 1) != 0;
    ret_config->is_unified = (n / 32 & 1) != 0;
    if (n % 5 == 0) ret_config->window = 0;
    return true;
}

static struct kvt_llama_layout layout, again;
static struct kvt_llama_state_view view, made;

static void a_state_put_together_from_its_rows_has_the_same_bytes(void **state)
{
    (void)state;
    struct made_up_config config;
    for (uint32_t n = 0; nth_config(n, &config); n++) {
        const struct sample sample = take_sample(&config, 2, 40);
        assert_int_equal(kvt_llama_state_learn(sample.bytes, sample.size, &layout), KVT_LLAMA_PARSED);
        assert_int_equal(layout.cache_count, config.window > 0 ? 2 : 1);
        assert_int_equal(kvt_llama_state_parse(&layout, sample.bytes, sample.size, &view), KVT_LLAMA_PARSED);
        assert_int_equal(view.seq, 2);
        struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX] = { { .cells = 40 }, { .cells = 40 } };
        const size_t size = kvt_llama_state_bytes(&layout, spans);
        assert_int_equal(size, sample.size);
        uint8_t *bytes = malloc(size), *rows = malloc(size);
        memset(bytes, 0x5a, size);
        kvt_llama_state_write(&layout, 2, spans, bytes, &made);
        for (uint32_t c = 0; c < layout.cache_count; c++) {
            for (uint32_t at = 0; at < 40; at += 9) {
                struct kvt_llama_rows move = { .layout = &layout.caches[c], .view = &view.caches[c], .cell_first = at };
                move.count = move.buffer_cells = kvt_min_u32(9, 40 - at);
                kvt_llama_rows_gather(&move, sample.bytes, rows);
                move.view = &made.caches[c];
                kvt_llama_rows_scatter(&move, rows, bytes);
            }
        }
        assert_memory_equal(bytes, sample.bytes, size);
        free(bytes);
        free(rows);
        free(sample.bytes);
    }
}

static void a_state_without_v_is_read_as_such(void **state)
{
    (void)state;
    struct made_up_config config = made_up_config();
    config.is_v_missing = true;
    const struct sample sample = take_sample(&config, 0, 20);
    assert_int_equal(kvt_llama_state_learn(sample.bytes, sample.size, &layout), KVT_LLAMA_PARSED);
    for (uint32_t c = 0; c < 2; c++) assert_int_equal(layout.caches[c].plane_count, layout.caches[c].layers);
    free(sample.bytes);
}

static void a_layout_that_is_not_known_is_unknown(void **state)
{
    (void)state;
    struct made_up_config config = made_up_config();
    config.is_odd_layout = true;
    const struct sample sample = take_sample(&config, 0, 20);
    assert_int_equal(kvt_llama_state_learn(sample.bytes, sample.size, &layout), KVT_LLAMA_UNKNOWN);
    free(sample.bytes);
}

static void b67_a_state_cut_anywhere_is_unknown(void **state)
{
    (void)state;
    const struct made_up_config config = made_up_config();
    const struct sample sample = take_sample(&config, 1, 12);
    assert_int_equal(kvt_llama_state_learn(sample.bytes, sample.size, &layout), KVT_LLAMA_PARSED);
    for (size_t size = 0; size < sample.size; size++) {
        uint8_t *cut = malloc(size ? size : 1); /* of its own size, so that a byte read behind it is seen */
        memcpy(cut, sample.bytes, size);
        assert_int_equal(kvt_llama_state_parse(&layout, cut, size, &view), KVT_LLAMA_UNKNOWN);
        /* Cut behind the first cache it is the state of a model without window layers. */
        if (kvt_llama_state_learn(cut, size, &again) == KVT_LLAMA_PARSED) assert_int_equal(again.cache_count, 1);
        free(cut);
    }
    free(sample.bytes);
}

/* Under the sanitizers nothing is read but what is there; what is accepted has every byte in its place. */
static void hostile_states_are_read_inside_their_bounds(void **state)
{
    (void)state;
    const char *seconds = getenv("KVTIER_FUZZ_SECONDS");
    const uint32_t rounds = seconds ? 200000 : 20000;
    const struct made_up_config config = made_up_config();
    const struct sample sample = take_sample(&config, 1, 12);
    assert_int_equal(kvt_llama_state_learn(sample.bytes, sample.size, &layout), KVT_LLAMA_PARSED);
    struct kvt_rng rng = { .state = 7 };
    uint8_t *bytes = malloc(sample.size + 16);
    uint32_t accepted = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        memcpy(bytes, sample.bytes, sample.size);
        size_t size = sample.size;
        const uint32_t changes = 1 + (uint32_t)kvt_rng_below(&rng, 4);
        for (uint32_t i = 0; i < changes; i++) {
            const size_t at = kvt_rng_below(&rng, 3) ? kvt_rng_below(&rng, 256) : kvt_rng_below(&rng, sample.size);
            bytes[at] = (uint8_t)kvt_rng_next(&rng);
        }
        if (kvt_rng_below(&rng, 4) == 0) size = kvt_rng_below(&rng, sample.size + 1);
        uint8_t *exact = malloc(size ? size : 1);
        memcpy(exact, bytes, size);
        if (kvt_llama_state_learn(exact, size, &again) == KVT_LLAMA_PARSED)
            assert_int_equal(kvt_llama_state_parse(&again, exact, size, &view), KVT_LLAMA_PARSED);
        accepted += kvt_llama_state_parse(&layout, exact, size, &view) == KVT_LLAMA_PARSED;
        free(exact);
    }
    print_message("%u of %u damaged states still read as states\n", accepted, rounds);
    assert_true(accepted < rounds);
    free(bytes);
    free(sample.bytes);
}

static void a_rotated_span_has_each_position_once(void **state)
{
    (void)state;
    for (uint32_t cells = 1; cells < 40; cells++) {
        for (uint32_t rotation = 0; rotation < cells; rotation++) {
            const struct kvt_llama_span span = { .cells = cells, .rotation = rotation, .first = 100 };
            bool is_seen[40] = { false };
            for (uint32_t i = 0; i < cells; i++) {
                const uint32_t cell = kvt_llama_span_cell(&span, 100 + i);
                assert_true(cell < cells);
                assert_false(is_seen[cell]);
                is_seen[cell] = true;
            }
            assert_int_equal(kvt_llama_span_cell(&span, 100), rotation);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_put_together_from_its_rows_has_the_same_bytes),
        cmocka_unit_test(a_state_without_v_is_read_as_such),
        cmocka_unit_test(a_layout_that_is_not_known_is_unknown),
        cmocka_unit_test(b67_a_state_cut_anywhere_is_unknown),
        cmocka_unit_test(hostile_states_are_read_inside_their_bounds),
        cmocka_unit_test(a_rotated_span_has_each_position_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
