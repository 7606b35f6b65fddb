/*
 * adaptive: writes all, or waits for the second sight, by what comes back.
 *
 * Keys are remembered as in second-sight, each with whether it was written. Keys that were written and are asked about
 * again were written in vain: they left before they were used. It begins by writing all. When more than 22 % of a window
 * of 2,048 questions are about such keys, it refuses first sights for one window, and counts how many of the first 512
 * that it refuses come back. As soon as 70 % did, it writes all for 16 windows before it may refuse again; when after 4
 * windows fewer did, it refuses first sights from then on, and looks at 512 others every 16 windows. When fewer than 2 %
 * of a window are about what was written in vain, there is room, and it writes all. What a live sequence holds, or was
 * used twice, is always written.
 *
 * Source: ours; the memory is second-sight's (Maggs, Sitaraman, SIGCOMM CCR 45(3), 2015), the regret that of ARC's
 * ghost lists (Megiddo, Modha, FAST 2003).
 */
#include "policy/policy.h"

#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define SET_COUNT (UINT32_C(1) << 18)
#define WAYS 4u
#define WRITTEN 1u /* lowest bits of a fingerprint */
#define WATCHED 2u /* refused, and watched */
#define MARKS (WRITTEN | WATCHED)
#define WINDOW 2048u
#define IN_VAIN_PERCENT_MAX 22u
#define IN_VAIN_PERCENT_MIN 2u
#define RETURN_PERCENT_MAX 70u
#define TRUST_WINDOWS 16u
#define MARKED_MAX 512u
#define MARKED_MIN 128u /* before it is judged */
#define WATCH_WINDOWS 16u
#define SETTLE_WINDOWS 4u

struct kvt_admission {
    uint32_t (*sets)[WAYS]; /* fingerprints, the youngest first; 0: none */
    uint64_t seed;
    bool is_refusing, is_settled;
    uint32_t questions, in_vain; /* of this window */
    uint32_t marked, returned;   /* of the keys that are watched */
    uint32_t windows_left; /* settled writing: until it may refuse; settled refusing: until other keys are watched;
                                    else: until it is settled */
};

static void adaptive_destroy(struct kvt_admission *adaptive)
{
    if (!adaptive) return;
    kvt_table_unmap(adaptive->sets, SET_COUNT * sizeof adaptive->sets[0]);
    kvt_free(adaptive);
}

static enum kvt_status adaptive_create(uint64_t seed, struct kvt_admission **ret_admission)
{
    struct kvt_admission *adaptive = kvt_alloc(1, sizeof *adaptive);
    if (!adaptive) return KVT_NOMEM;
    adaptive->seed = seed;
    adaptive->is_settled = true;
    adaptive->sets = kvt_table_map(SET_COUNT * sizeof adaptive->sets[0]);
    if (!adaptive->sets) {
        adaptive_destroy(adaptive);
        return KVT_NOMEM;
    }
    *ret_admission = adaptive;
    return KVT_OK;
}

/*
 * Moves the key to the front of its set, and returns its fingerprint there; *ret_was: what was remembered of it, or 0.
 */
static uint32_t *remember(struct kvt_admission *adaptive, uint64_t key_hash, uint32_t *ret_was)
{
    const uint64_t mixed = kvt_mix64(key_hash ^ kvt_mix64(adaptive->seed));
    uint32_t *set = adaptive->sets[mixed & (SET_COUNT - 1)];
    const uint32_t fingerprint = ((uint32_t)(mixed >> 32) | 4u) & ~MARKS;
    uint32_t way = 0;
    while (way < WAYS && (set[way] & ~MARKS) != fingerprint) way++;
    *ret_was = way < WAYS ? set[way] : 0;
    memmove(&set[1], &set[0], (way < WAYS ? way : WAYS - 1) * sizeof set[0]);
    set[0] = *ret_was ? *ret_was : fingerprint;
    return &set[0];
}

/* Marks that are left from before are counted with the new ones: few, and they come back or not like the others. */
static void watch(struct kvt_admission *adaptive, uint32_t windows)
{
    adaptive->is_refusing = true;
    adaptive->marked = adaptive->returned = 0;
    adaptive->windows_left = windows;
}

static void write_all(struct kvt_admission *adaptive, uint32_t windows)
{
    adaptive->is_refusing = false;
    adaptive->is_settled = true;
    adaptive->windows_left = windows;
}

static void end_window(struct kvt_admission *adaptive)
{
    const uint32_t in_vain_percent = adaptive->in_vain * 100 / WINDOW;
    adaptive->questions = adaptive->in_vain = 0;
    if (!adaptive->is_settled) {
        adaptive->is_settled = adaptive->is_refusing = --adaptive->windows_left == 0;
        if (adaptive->is_settled) adaptive->windows_left = WATCH_WINDOWS;
    } else if (adaptive->is_refusing) {
        if (in_vain_percent < IN_VAIN_PERCENT_MIN) write_all(adaptive, 0);
        else if (--adaptive->windows_left == 0) watch(adaptive, WATCH_WINDOWS);
    } else if (adaptive->windows_left > 0) {
        adaptive->windows_left--;
    } else if (in_vain_percent > IN_VAIN_PERCENT_MAX) {
        adaptive->is_settled = false;
        watch(adaptive, SETTLE_WINDOWS);
    }
}

static bool adaptive_admits(struct kvt_admission *adaptive, const struct kvt_admission_question *question)
{
    uint32_t was;
    uint32_t *fingerprint = remember(adaptive, question->key_hash, &was);
    const bool is_admitted = !adaptive->is_refusing || was != 0 || question->is_referenced || question->uses >= 2;
    adaptive->questions++;
    adaptive->in_vain += (was & WRITTEN) != 0;
    adaptive->returned += (was & WATCHED) != 0;
    if (is_admitted) {
        *fingerprint = (*fingerprint | WRITTEN) & ~WATCHED;
    } else if (adaptive->marked < MARKED_MAX) {
        *fingerprint |= WATCHED;
        adaptive->marked++;
    }
    const bool is_returning = adaptive->marked >= MARKED_MIN
        && adaptive->returned * 100 > adaptive->marked * RETURN_PERCENT_MAX;
    if ((adaptive->is_refusing || !adaptive->is_settled) && is_returning) write_all(adaptive, TRUST_WINDOWS);
    if (adaptive->questions == WINDOW) end_window(adaptive);
    return is_admitted;
}

const struct kvt_admission_ops kvt_admission_adaptive = {
    .name = "adaptive",
    .summary = "writes all, or what was seen a second time, by what comes back",
    .create = adaptive_create,
    .destroy = adaptive_destroy,
    .admits = adaptive_admits,
};
