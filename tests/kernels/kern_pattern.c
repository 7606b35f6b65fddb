/* Patterns: tables of runs at every alignment and place of a pattern, filled, and verified with bytes changed. */
#include <string.h>

#include "kernels/pattern.h"
#include "runtime/base/bytes.h"
#include "tests/kernels/checkkern.h"
#include "tests/kernels/launches.h"

enum { REF, BODY, LAUNCHES, RUNS_MAX = 8 };

static const char *impl(uint32_t i)
{
    if (i == REF) return "reference";
    if (i == BODY) return "body";
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    return side ? side->name : NULL;
}

static bool is_here(uint32_t i) { return i < LAUNCHES || kern_launches_from(i, LAUNCHES)->is_here(); }

static bool run_table(uint32_t i, const struct kvt_pattern_run *runs, uint32_t count, uint64_t size_max, uint32_t ctas,
                      bool is_fill)
{
    const struct kern_launches *side = kern_launches_from(i, LAUNCHES);
    if (!side) {
        if (is_fill) (i == REF ? kvt_pattern_fill_ref : kvt_pattern_fill_body)(runs, count);
        else (i == REF ? kvt_pattern_verify_ref : kvt_pattern_verify_body)(runs, count);
        return true;
    }
    const enum kvt_status status = (is_fill ? side->pattern_fill : side->pattern_verify)(runs, count, size_max, ctas,
                                                                                         NULL);
    return status == KVT_OK && side->finish();
}

static uint64_t size_of_run(struct kvt_rng *rng)
{
    static const uint64_t sizes[] = {
        0, 1, 7, 8, 9, 255, 4096, KVT_PATTERN_TILE - 1, KVT_PATTERN_TILE, KVT_PATTERN_TILE + 1, 2 * KVT_PATTERN_TILE + 5
    };
    return sizes[kvt_rng_below(rng, KVT_ARRAY_COUNT(sizes))];
}

/* Tables of an implementation (0) and of the reference (1). */
struct pattern_case {
    uint32_t count;
    uint64_t size_max;
    struct kern_buffer bytes[2], table[2], results[2];
};

static struct kvt_pattern_run *runs_of(const struct pattern_case *c, uint32_t k)
{
    return (struct kvt_pattern_run *)(void *)c->table[k].bytes;
}

static void case_init(struct pattern_case *c, const struct kern_launches *side, struct kvt_rng *rng)
{
    uint64_t sizes[RUNS_MAX], total = 0;
    c->count = (uint32_t)kvt_rng_below(rng, RUNS_MAX + 1);
    c->size_max = 0;
    for (uint32_t r = 0; r < c->count; r++) {
        sizes[r] = size_of_run(rng);
        c->size_max = kvt_max_u64(c->size_max, sizes[r]);
        total += sizes[r] + 16;
    }
    for (uint32_t k = 0; k < 2; k++) {
        kern_buffer_init(&c->bytes[k], k ? NULL : side, total, 0);
        kern_buffer_init(&c->table[k], k ? NULL : side, sizeof(struct kvt_pattern_run) * RUNS_MAX, 0);
        kern_buffer_init(&c->results[k], k ? NULL : side, sizeof(struct kvt_pattern_result) * RUNS_MAX, 0);
    }
    uint64_t at = 0;
    for (uint32_t r = 0; r < c->count; r++) {
        const uint64_t gap = kvt_rng_below(rng, 2) * 8 + kvt_rng_below(rng, 2) * kvt_rng_below(rng, 8);
        const uint64_t seed = kvt_rng_next(rng), start = kvt_rng_below(rng, 3) ? kvt_rng_below(rng, 1000) : 0;
        for (uint32_t k = 0; k < 2; k++)
            runs_of(c, k)[r] = (struct kvt_pattern_run){
                .bytes = c->bytes[k].bytes + at + gap,
                .size = sizes[r],
                .seed = seed,
                .start = start,
                .result = (struct kvt_pattern_result *)(void *)c->results[k].bytes + r,
            };
        at += gap + sizes[r];
    }
}

static bool check_case(uint32_t i, struct kern_run *run, struct pattern_case *c, struct kvt_rng *rng)
{
    const uint32_t ctas = (uint32_t)kvt_rng_below(rng, 5);
    if (!run_table(i, runs_of(c, 0), c->count, c->size_max, ctas, true)) return kern_differs(run, "the launch failed");
    kvt_pattern_fill_ref(runs_of(c, 1), c->count);
    const size_t index = kern_first_difference(c->bytes[0].bytes, c->bytes[1].bytes, c->bytes[0].size);
    if (index < c->bytes[0].size) return kern_differs(run, "fill of %u runs, byte %zu", c->count, index);

    const uint64_t damages = c->bytes[0].size ? kvt_rng_below(rng, 6) : 0;
    for (uint64_t n = 0; n < damages; n++) c->bytes[0].bytes[kvt_rng_below(rng, c->bytes[0].size)] ^= 4;
    memcpy(c->bytes[1].bytes, c->bytes[0].bytes, c->bytes[0].size);
    if (!run_table(i, runs_of(c, 0), c->count, c->size_max, ctas, false)) return kern_differs(run, "the launch failed");
    kvt_pattern_verify_ref(runs_of(c, 1), c->count);
    for (uint32_t r = 0; r < c->count; r++) {
        const struct kvt_pattern_result *a = runs_of(c, 0)[r].result, *b = runs_of(c, 1)[r].result;
        if (a->bad != b->bad || a->first != b->first)
            return kern_differs(run, "verify of run %u: %llu bad from %llu on, not %llu from %llu on", r, a->bad,
                                a->first, b->bad, b->first);
    }
    if (!(kern_buffer_is_intact(&c->bytes[0]) && kern_buffer_is_intact(&c->table[0])
          && kern_buffer_is_intact(&c->results[0])))
        return kern_differs(run, "a canary");
    return true;
}

static bool check(uint32_t i, struct kern_run *run)
{
    struct kvt_rng rng = { run->seed };
    bool is_ok = true;
    for (uint32_t round = 0; is_ok && round < 40; round++) {
        struct pattern_case c;
        case_init(&c, kern_launches_from(i, LAUNCHES), &rng);
        is_ok = check_case(i, run, &c, &rng);
        run->compared += c.count;
        for (uint32_t k = 0; k < 2; k++) {
            kern_buffer_done(&c.bytes[k]);
            kern_buffer_done(&c.table[k]);
            kern_buffer_done(&c.results[k]);
        }
    }
    return is_ok;
}

const struct kern_kernel kern_pattern = {
    .name = "pattern",
    .what = "bytes that follow from seed and place: fill, verify",
    .impl = impl,
    .is_here = is_here,
    .check = check,
};
