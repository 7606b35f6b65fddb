/*
 * adaptive: writes all, or waits for the second sight, by what comes back.
 *
 * Keys are remembered as in second-sight, each with whether it was written. Over windows of 2,048 questions it counts
 * keys that were written and are asked about again (their writes were in vain: they left before they were used), keys
 * seen first, and keys that were refused and come back. It begins by writing all. When more than 22 % of a window's
 * writes are in vain, it refuses first sights; when then more than 60 % of what it refuses comes back, it writes all
 * for the next 64 windows, and when fewer than 2 % of the questions are about what was written in vain, there is room
 * and it writes all again. A block that a live sequence holds, or that was used at least twice, is always written.
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
#define WRITTEN 1u /* lowest bit of a fingerprint */
#define WINDOW 2048u
#define IN_VAIN_PERCENT_MAX 22u
#define IN_VAIN_PERCENT_MIN 2u
#define RETURN_PERCENT_MAX 60u
#define TRUST_WINDOWS 64u

struct kvt_admission {
    uint32_t (*sets)[WAYS]; /* fingerprints, the youngest first; 0: none */
    uint64_t seed;
    bool is_refusing;
    uint32_t questions, in_vain; /* of this window */
    uint32_t firsts, returns;    /* since it refuses */
    uint32_t trust;              /* windows for which it will not refuse */
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
    const uint32_t fingerprint = ((uint32_t)(mixed >> 32) | 2u) & ~WRITTEN;
    uint32_t way = 0;
    while (way < WAYS && (set[way] & ~WRITTEN) != fingerprint) way++;
    *ret_was = way < WAYS ? set[way] : 0;
    memmove(&set[1], &set[0], (way < WAYS ? way : WAYS - 1) * sizeof set[0]);
    set[0] = *ret_was ? *ret_was : fingerprint;
    return &set[0];
}

static void write_all(struct kvt_admission *adaptive, uint32_t trust)
{
    adaptive->is_refusing = false;
    adaptive->trust = trust;
}

static void end_window(struct kvt_admission *adaptive)
{
    const uint32_t in_vain_percent = adaptive->in_vain * 100 / WINDOW;
    adaptive->questions = adaptive->in_vain = 0;
    if (adaptive->is_refusing) {
        const bool is_returning = (uint64_t)adaptive->returns * 100 > (uint64_t)adaptive->firsts * RETURN_PERCENT_MAX;
        if (is_returning) write_all(adaptive, TRUST_WINDOWS);
        else if (in_vain_percent < IN_VAIN_PERCENT_MIN) write_all(adaptive, 0);
    } else if (adaptive->trust > 0) {
        adaptive->trust--;
    } else if (in_vain_percent > IN_VAIN_PERCENT_MAX) {
        adaptive->is_refusing = true;
        adaptive->firsts = adaptive->returns = 0;
    }
}

static bool adaptive_admits(struct kvt_admission *adaptive, const struct kvt_admission_question *question)
{
    uint32_t was;
    uint32_t *fingerprint = remember(adaptive, question->key_hash, &was);
    adaptive->questions++;
    adaptive->in_vain += (was & WRITTEN) != 0;
    adaptive->firsts += was == 0;
    adaptive->returns += was != 0 && !(was & WRITTEN);
    const bool is_admitted = !adaptive->is_refusing || was != 0 || question->is_referenced || question->uses >= 2;
    if (is_admitted) *fingerprint |= WRITTEN;
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
