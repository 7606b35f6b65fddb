/*
 * second-sight: a block is written once it was asked about, or used, a second time.
 *
 * A block that a live sequence holds is always admitted, and so is one that was used at least twice. Of the others, the
 * first question is answered with no and its key is remembered; when the key comes again while it still is, the answer
 * is yes. Remembered are 32-bit fingerprints in sets of four, the oldest of a set leaves: a million keys in 4 MiB,
 * touched as keys come. One yes in some 10^8 questions is a mistake.
 * Saves most of the bytes written for prompts that nobody repeats; costs the hits of those that return exactly once.
 *
 * Source: the second-request rule of B. M. Maggs, R. K. Sitaraman, "Algorithmic nuggets in content delivery", ACM
 * SIGCOMM CCR 45(3), 2015.
 */
#include "policy/policy.h"

#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define SET_COUNT (UINT32_C(1) << 18)
#define WAYS 4u

struct kvt_admission {
    uint32_t (*sets)[WAYS]; /* fingerprints, the youngest first; 0: none */
    uint64_t seed;
};

static void second_sight_destroy(struct kvt_admission *sight)
{
    if (!sight) return;
    kvt_table_unmap(sight->sets, SET_COUNT * sizeof sight->sets[0]);
    kvt_free(sight);
}

static enum kvt_status second_sight_create(uint64_t tier_bytes, uint64_t seed, struct kvt_admission **ret_admission)
{
    (void)tier_bytes;
    struct kvt_admission *sight = kvt_alloc(1, sizeof *sight);
    if (!sight) return KVT_NOMEM;
    sight->seed = seed;
    sight->sets = kvt_table_map(SET_COUNT * sizeof sight->sets[0]);
    if (!sight->sets) {
        second_sight_destroy(sight);
        return KVT_NOMEM;
    }
    *ret_admission = sight;
    return KVT_OK;
}

/* True: the key was remembered. It is from now on, in front of its set. */
static bool is_known(struct kvt_admission *sight, uint64_t key_hash)
{
    const uint64_t mixed = kvt_mix64(key_hash ^ kvt_mix64(sight->seed));
    uint32_t *set = sight->sets[mixed & (SET_COUNT - 1)];
    const uint32_t fingerprint = (uint32_t)(mixed >> 32) | 1u;
    uint32_t way = 0;
    while (way < WAYS && set[way] != fingerprint) way++;
    const bool was_known = way < WAYS;
    memmove(&set[1], &set[0], (was_known ? way : WAYS - 1) * sizeof set[0]);
    set[0] = fingerprint;
    return was_known;
}

static bool second_sight_admits(struct kvt_admission *sight, const struct kvt_admission_question *question)
{
    if (question->is_referenced) return true;
    if (question->uses >= 2) return true;
    if (question->is_asked_again) return false;
    return is_known(sight, question->key_hash);
}

const struct kvt_admission_ops kvt_admission_second_sight = {
    .name = "second-sight",
    .summary = "a block is written once it was seen a second time",
    .create = second_sight_create,
    .destroy = second_sight_destroy,
    .admits = second_sight_admits,
};
