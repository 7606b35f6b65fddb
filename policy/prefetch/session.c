/*
 * session: think times are learned from sessions that came back, apart for each kind of session.
 *
 * A kind is whom the next turn waits for (a tool, a person, not known) and which turn ended (the first, one of the next
 * three, a later one, not known). Of each kind there is a histogram of how long sequences were idle until they came
 * back, and one of how long until they ended without: four bins to an octave, 65 us to 39 hours. A forecast is the
 * histogram's part beyond the time that has passed already, within a bin in proportion. The kind's own histogram speaks
 * once it has 8 samples, before that the one of all turns, before that the one of all; with less nothing is foreseen.
 * Samples age: after every 512 those before count half. Who waits for nobody is not expected, and neither is one that
 * has been idle for longer than any that is remembered to have come back.
 *
 * Source: our own; that reuse follows the request's type and turn is the finding of J. Wang et al., "KVCache Cache in
 * the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud Provider", USENIX ATC 2025.
 */
#include "policy/prefetch.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define OCTAVE_FIRST 16u /* 2^16 ns; all that is shorter is in bin 0 */
#define OCTAVE_LAST 46u
#define OCTAVE_BINS 4u
#define BINS (1 + (OCTAVE_LAST - OCTAVE_FIRST + 1) * OCTAVE_BINS)
#define SAMPLE 64u /* weight of a new one: it halves six times before it is forgotten */
#define SAMPLES_MIN 8u
#define SAMPLES_WINDOW 512u

enum { TURN_FIRST, TURN_FEW, TURN_MANY, TURN_UNKNOWN, TURNS };
enum { NEXTS = KVT_POLICY_NEXT_NOBODY + 1 };

struct histogram {
    uint32_t bins[BINS];
    uint32_t sum;
};

struct kind {
    struct histogram returned, ended;
};

struct kvt_prefetcher {
    struct kind kinds[NEXTS][TURNS];
    struct kind all_turns[NEXTS];
    struct kind all;
};

/* ---- Histograms -------------------------------------------------------------------------------------------------- */

static uint32_t bin_of(uint64_t ns)
{
    if (ns < UINT64_C(1) << OCTAVE_FIRST) return 0;
    const uint32_t octave = 63u - (uint32_t)__builtin_clzll(ns);
    if (octave > OCTAVE_LAST) return BINS - 1;
    const uint32_t quarter = (uint32_t)(ns >> (octave - 2)) & (OCTAVE_BINS - 1);
    return 1 + (octave - OCTAVE_FIRST) * OCTAVE_BINS + quarter;
}

/* Where the bin begins; of BINS: where the last one ends. */
static uint64_t bin_begin(uint32_t bin)
{
    if (bin == 0) return 0;
    const uint32_t octave = OCTAVE_FIRST + (bin - 1) / OCTAVE_BINS;
    return (UINT64_C(4) + (bin - 1) % OCTAVE_BINS) << (octave - 2);
}

static void age(struct histogram *histogram)
{
    histogram->sum = 0;
    for (uint32_t i = 0; i < BINS; i++) {
        histogram->bins[i] /= 2;
        histogram->sum += histogram->bins[i];
    }
}

static void learn(struct kind *kind, struct histogram *histogram, uint64_t idle_ns)
{
    histogram->bins[bin_of(idle_ns)] += SAMPLE;
    histogram->sum += SAMPLE;
    if (kind->returned.sum + kind->ended.sum < SAMPLES_WINDOW * SAMPLE) return;
    age(&kind->returned);
    age(&kind->ended);
}

/* The part of the bin that lies beyond a time. */
static double part_beyond(uint32_t bin, uint64_t ns)
{
    const uint64_t begin = bin_begin(bin), end = bin_begin(bin + 1);
    if (ns <= begin) return 1;
    if (ns >= end) return 0;
    return (double)(end - ns) / (double)(end - begin);
}

/* Weight of what lies beyond a time. */
static double beyond(const struct histogram *histogram, uint64_t ns)
{
    const uint32_t first = bin_of(ns);
    uint64_t later = 0;
    for (uint32_t i = first + 1; i < BINS; i++) later += histogram->bins[i];
    return (double)later + (double)histogram->bins[first] * part_beyond(first, ns);
}

/* ---- Kinds ------------------------------------------------------------------------------------------------------- */

static uint32_t turn_class(uint32_t turn)
{
    if (turn == KVT_POLICY_UNKNOWN) return TURN_UNKNOWN;
    if (turn == 0) return TURN_FIRST;
    return turn <= 3 ? TURN_FEW : TURN_MANY;
}

static bool has_enough(const struct kind *kind)
{
    return kind->returned.sum + kind->ended.sum >= SAMPLES_MIN * SAMPLE;
}

/* The narrowest one that has enough samples; NULL: none has, or nobody will come. */
static const struct kind *kind_of(const struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known)
{
    KVT_ASSERT((uint32_t)known->next < NEXTS);
    if (known->next == KVT_POLICY_NEXT_NOBODY) return NULL;
    const struct kind *kind = &prefetch->kinds[known->next][turn_class(known->turn)];
    if (has_enough(kind)) return kind;
    if (has_enough(&prefetch->all_turns[known->next])) return &prefetch->all_turns[known->next];
    return has_enough(&prefetch->all) ? &prefetch->all : NULL;
}

/* ---- The policy -------------------------------------------------------------------------------------------------- */

static void session_destroy(struct kvt_prefetcher *prefetch) { kvt_free(prefetch); }

static enum kvt_status session_create(uint64_t seed, struct kvt_prefetcher **ret_prefetch)
{
    (void)seed;
    struct kvt_prefetcher *prefetch = kvt_alloc(1, sizeof *prefetch);
    if (!prefetch) return KVT_NOMEM;
    *ret_prefetch = prefetch;
    return KVT_OK;
}

static void session_returned(struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known,
                             uint64_t idle_ns)
{
    KVT_ASSERT((uint32_t)known->next < NEXTS);
    struct kind *kind = &prefetch->kinds[known->next][turn_class(known->turn)];
    struct kind *all_turns = &prefetch->all_turns[known->next];
    learn(kind, &kind->returned, idle_ns);
    learn(all_turns, &all_turns->returned, idle_ns);
    learn(&prefetch->all, &prefetch->all.returned, idle_ns);
}

static void session_ended(struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known, uint64_t idle_ns)
{
    KVT_ASSERT((uint32_t)known->next < NEXTS);
    struct kind *kind = &prefetch->kinds[known->next][turn_class(known->turn)];
    struct kind *all_turns = &prefetch->all_turns[known->next];
    learn(kind, &kind->ended, idle_ns);
    learn(all_turns, &all_turns->ended, idle_ns);
    learn(&prefetch->all, &prefetch->all.ended, idle_ns);
}

/* When so much of what lies beyond idle_ns has come, from idle_ns on. */
static uint64_t wait_for(const struct histogram *histogram, uint64_t idle_ns, double weight)
{
    uint64_t last = idle_ns;
    for (uint32_t i = bin_of(idle_ns); i < BINS; i++) {
        const double here = (double)histogram->bins[i] * part_beyond(i, idle_ns);
        if (here <= 0) continue;
        const uint64_t begin = kvt_max_u64(bin_begin(i), idle_ns), end = bin_begin(i + 1);
        last = end;
        if (here < weight) {
            weight -= here;
            continue;
        }
        return begin + (uint64_t)((double)(end - begin) * (weight / here)) - idle_ns;
    }
    return last - idle_ns; /* rounding left a crumb */
}

static void session_forecast(const struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known,
                             uint64_t idle_ns, double share, struct kvt_prefetch_forecast *ret_forecast)
{
    KVT_ASSERT(share > 0);
    KVT_ASSERT(share <= 1);
    *ret_forecast = (struct kvt_prefetch_forecast){ .wait_ns = UINT64_MAX };
    const struct kind *kind = kind_of(prefetch, known);
    if (!kind) return;
    const double to_come = beyond(&kind->returned, idle_ns);
    if (to_come <= 0) return;
    ret_forecast->alive = to_come / (to_come + beyond(&kind->ended, idle_ns));
    ret_forecast->wait_ns = wait_for(&kind->returned, idle_ns, share * to_come);
}

static double session_within(const struct kvt_prefetcher *prefetch, const struct kvt_prefetch_known *known,
                             uint64_t idle_ns, uint64_t within_ns)
{
    const struct kind *kind = kind_of(prefetch, known);
    if (!kind) return 0;
    const double to_come = beyond(&kind->returned, idle_ns);
    if (to_come <= 0) return 0;
    const uint64_t end_ns = within_ns < UINT64_MAX - idle_ns ? idle_ns + within_ns : UINT64_MAX;
    const double later = beyond(&kind->returned, end_ns);
    return (later < to_come ? to_come - later : 0) / (to_come + beyond(&kind->ended, idle_ns));
}

static void verify_histogram(const struct histogram *histogram)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < BINS; i++) sum += histogram->bins[i];
    KVT_ASSERT(sum == histogram->sum);
    KVT_ASSERT(sum < SAMPLES_WINDOW * SAMPLE);
}

static void verify_kind(const struct kind *kind)
{
    verify_histogram(&kind->returned);
    verify_histogram(&kind->ended);
}

static void session_verify(const struct kvt_prefetcher *prefetch)
{
    for (uint32_t next = 0; next < NEXTS; next++) {
        for (uint32_t turn = 0; turn < TURNS; turn++) verify_kind(&prefetch->kinds[next][turn]);
        verify_kind(&prefetch->all_turns[next]);
    }
    verify_kind(&prefetch->all);
}

const struct kvt_prefetcher_ops kvt_prefetcher_session = {
    .name = "session",
    .summary = "idle sequences come back when those like them did, learned for each kind of session",
    .create = session_create,
    .destroy = session_destroy,
    .returned = session_returned,
    .ended = session_ended,
    .forecast = session_forecast,
    .within = session_within,
    .verify = session_verify,
};
