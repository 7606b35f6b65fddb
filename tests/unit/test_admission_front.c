/*
 * adaptive admission against the front of the plain policies, on many workloads and capacities.
 *
 * As a test it judges a fixed, quick part. With arguments it prints where the policy is worst, for people:
 *
 *   test_admission_front SEEDS FIRST_SEED [-v]     the published traces, and so many seeds of each pattern and generator
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "tests/unit/admission_cells.h"

enum { CAPACITIES_MAX = 20, ADMISSIONS = 3, MODES = 3, JOBS = CAPACITIES_MAX * ADMISSIONS * MODES };

static const char *const admission_names[ADMISSIONS] = { "all", "second-sight", "adaptive" };
static const char *const mode_names[MODES] = { "flat", "tail", "head" };

/* In points of hit ratio; above 0 is better. */
struct margins {
    double front; /* to the line between all and second-sight, at the writes of adaptive */
    double all;   /* to all */
    double best;  /* to what either, or a mixture of both, has with no more writes */
};

struct worst {
    struct margins margins;
    char front_at[96], all_at[96], best_at[96];
    uint32_t cells, below_front, below_best;
    double best_sum;
};

static struct margins margins_of(const struct kvt_count_result results[ADMISSIONS])
{
    const double point = (double)results[0].accesses / 100;
    const double all_hits = (double)results[0].hits, all_writes = (double)results[0].writes;
    const double sight_hits = (double)results[1].hits, sight_writes = (double)results[1].writes;
    const double hits = (double)results[2].hits, writes = (double)results[2].writes;
    double share = all_writes > sight_writes ? (writes - sight_writes) / (all_writes - sight_writes) : 1;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    const double line = sight_hits + share * (all_hits - sight_hits);
    const double best = sight_hits > line && writes >= sight_writes ? sight_hits : line;
    return (struct margins){ (hits - line) / point, (hits - all_hits) / point, (hits - best) / point };
}

static void note(double margin, double *worst, char at[96], const char *what, const char *mode, uint32_t capacity)
{
    if (margin >= *worst) return;
    *worst = margin;
    (void)snprintf(at, 96, "%s, %s, %u blocks", what, mode, capacity);
}

static double percent(uint64_t part, uint64_t whole) { return whole > 0 ? 100 * (double)part / (double)whole : 0; }

/* Counts all capacities in all modes under each of the three. */
static void judge(const struct kvt_accesses *accesses, const char *what, const uint32_t *capacities, uint32_t count,
                  bool is_told, struct worst *worst)
{
    struct kvt_count_job jobs[JOBS];
    struct kvt_count_result results[JOBS];
    enum kvt_status statuses[JOBS];
    uint32_t job_count = 0;
    for (uint32_t c = 0; c < count; c++) {
        for (uint32_t m = 0; m < MODES; m++) {
            for (uint32_t a = 0; a < ADMISSIONS; a++) {
                jobs[job_count++] = (struct kvt_count_job){ .accesses = accesses,
                                                            .policy = kvt_policy_find("lru"),
                                                            .admission = kvt_admission_find(admission_names[a]),
                                                            .mode = m == 0 ? KVT_COUNT_FLAT : KVT_COUNT_PREFIX,
                                                            .order = m == 2 ? KVT_COUNT_HEAD : KVT_COUNT_TAIL,
                                                            .capacities = { capacities[c] },
                                                            .tier_count = 1,
                                                            .repeat = 1 };
            }
        }
    }
    kvt_count_all(jobs, job_count, 2, results, statuses, NULL, NULL);
    for (uint32_t j = 0; j < job_count; j += ADMISSIONS) {
        const struct kvt_count_result *three = &results[j];
        const char *mode = mode_names[j / ADMISSIONS % MODES];
        const uint32_t capacity = jobs[j].capacities[0];
        for (uint32_t a = 0; a < ADMISSIONS; a++) assert_int_equal(statuses[j + a], KVT_OK);
        const struct margins margins = margins_of(three);
        worst->cells++;
        worst->below_front += margins.front < 0;
        worst->below_best += margins.best < 0;
        worst->best_sum += margins.best;
        note(margins.front, &worst->margins.front, worst->front_at, what, mode, capacity);
        note(margins.all, &worst->margins.all, worst->all_at, what, mode, capacity);
        note(margins.best, &worst->margins.best, worst->best_at, what, mode, capacity);
        if (!is_told) continue;
        printf("%-28s %s %6u", what, mode, capacity);
        for (uint32_t a = 0; a < ADMISSIONS; a++)
            printf(" | %6.2f %6.2f", percent(three[a].hits, three[a].accesses),
                   percent(three[a].writes, three[a].accesses));
        printf(" | front %+6.3f all %+6.3f best %+6.3f\n", margins.front, margins.all, margins.best);
    }
}

static void judge_traces(bool is_told, struct worst *worst)
{
    static const uint32_t capacities[] = { 300,   1000,  2000,  3000,  5000,  5859,  7500,  10000, 12500,
                                           15000, 20000, 25000, 30000, 40000, 50000, 70000, 100000 };
    for (uint32_t t = 0; t < KVT_TRACES; t++) {
        struct kvt_accesses accesses;
        if (!kvt_trace_accesses(t, &accesses)) continue;
        judge(&accesses, kvt_trace_name(t), capacities, KVT_ARRAY_COUNT(capacities), is_told, worst);
        kvt_accesses_done(&accesses);
    }
}

static void judge_shares(struct kvt_accesses *accesses, const char *what, bool is_told, struct worst *worst)
{
    static const uint32_t per_mille[] = { 10, 30, 80, 150, 300, 500, 750 };
    uint32_t capacities[CAPACITIES_MAX];
    for (uint32_t c = 0; c < KVT_ARRAY_COUNT(per_mille); c++)
        capacities[c] = kvt_max_u32(1, (uint32_t)((uint64_t)accesses->block_count * per_mille[c] / 1000));
    judge(accesses, what, capacities, KVT_ARRAY_COUNT(per_mille), is_told, worst);
    kvt_accesses_done(accesses);
}

static void judge_generated(uint32_t seeds, uint64_t first_seed, bool is_told, struct worst *patterns,
                            struct worst *generators)
{
    struct kvt_accesses accesses;
    char what[96];
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        for (uint32_t p = 0; p < KVT_PATTERNS; p++) {
            kvt_pattern_accesses(p, seed, 60000 + 40000 * (uint32_t)(seed % 5), &accesses);
            (void)snprintf(what, sizeof what, "%s, seed %lu", kvt_pattern_name(p), (unsigned long)seed);
            judge_shares(&accesses, what, is_told, patterns);
        }
        for (uint32_t g = 0; g < KVT_GENERATORS; g++) {
            static const uint32_t requests[] = { 240, 600, 1200, 3000 };
            const uint32_t count = requests[seed % 4];
            kvt_generator_accesses(g, seed, count, g == 0 || g == 3 ? 16 : 64, &accesses);
            (void)snprintf(what, sizeof what, "%s %u, seed %lu", kvt_generator_name(g), count, (unsigned long)seed);
            judge_shares(&accesses, what, is_told, generators);
        }
    }
}

static void tell(const char *what, const struct worst *worst)
{
    printf("%s, %u cells: below the front %u, worst %+.3f (%s); below all %+.3f (%s); "
           "below the better %u, mean %+.3f, worst %+.3f (%s)\n",
           what, worst->cells, worst->below_front, worst->margins.front, worst->front_at, worst->margins.all,
           worst->all_at, worst->below_best, worst->best_sum / (worst->cells ? worst->cells : 1), worst->margins.best,
           worst->best_at);
}

/* ---- The fixed, quick part --------------------------------------------------------------------------------------- */

/*
 * Goal: at every capacity of the published traces adaptive is on or above the front, and nowhere a point below all. Where
 *       second-sight has more hits with fewer writes, the front is second-sight alone.
 */
static void on_the_published_traces_adaptive_is_on_or_above_the_front(void **state)
{
    (void)state;
    struct worst worst = { 0 };
    judge_traces(false, &worst);
    if (worst.cells == 0) {
        print_message("skipped: no trace can be read; KVTIER_SHARED names the folder that holds data/\n");
        skip();
    }
    tell("traces", &worst);
    assert_true(worst.margins.all >= -1);
    assert_true(worst.margins.front >= 0);
    assert_true(worst.margins.best >= 0);
}

/*
 * Goal: nearly the same on what is generated, where the tier is small or the workload short. What an attempt risks shows
 *       here: refusing saves writes at once, and hits come later, or after the end.
 */
static void on_generated_workloads_adaptive_is_hardly_ever_below_the_front(void **state)
{
    (void)state;
    struct worst patterns = { 0 }, generators = { 0 };
    judge_generated(2, 100, false, &patterns, &generators);
    tell("patterns", &patterns);
    tell("generators", &generators);
    assert_true(patterns.margins.all >= -1);
    assert_true(generators.margins.all >= -1);
    assert_true(patterns.margins.front >= -0.2);
    assert_true(generators.margins.front >= -0.2);
}

/* Prints where it is worst: for people who change it. */
static int judge_all(uint32_t seeds, uint64_t first_seed, bool is_told)
{
    struct worst traces = { 0 }, patterns = { 0 }, generators = { 0 };
    judge_traces(is_told, &traces);
    judge_generated(seeds, first_seed, is_told, &patterns, &generators);
    tell("traces", &traces);
    tell("patterns", &patterns);
    tell("generators", &generators);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_generated_workloads_adaptive_is_hardly_ever_below_the_front),
        cmocka_unit_test(on_the_published_traces_adaptive_is_on_or_above_the_front),
    };
    if (argc >= 3) {
        const uint32_t seeds = (uint32_t)strtoul(argv[1], NULL, 10);
        return judge_all(seeds, strtoul(argv[2], NULL, 10), argc > 3);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
