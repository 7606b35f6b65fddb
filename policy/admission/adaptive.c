/*
 * adaptive: writes all, or waits for the second sight, by which of them has more hits.
 *
 * Two shadows see what is asked and what is used, as the tier does, and are as large (shadow.h): one is written all,
 * the other, once full, only what was seen before. While the tier fills, all is written. If fewer than a tenth of the
 * blocks came again meanwhile, first sights are refused from then on, and the tier's own hits less the first shadow's
 * are kept as an account. Uses are taken in lots of an eighth of the tier; of each lot the second shadow's hits less
 * the first's are added up, and their squares, both fading over 64 lots. A sum of so many roots of the squares is more
 * than chance. All is written again when the second shadow is behind by two, or the account is in debt by a sixth of
 * the tier's blocks, or below its best by three tenths and what chance explains. First sights are refused again when
 * the second shadow is ahead by three; an attempt that ended in debt makes the next one harder; and none is made before
 * there were six times as many uses as blocks. What a live sequence holds, or was used twice, is always written.
 *
 * Source: ours; the memory is second-sight's (Maggs, Sitaraman, SIGCOMM CCR 45(3), 2015); shadows that say which of two
 * rules to follow are set dueling's (Qureshi et al., "Adaptive insertion policies for high performance caching", ISCA
 * 2007), the sample SHARDS's (Waldspurger et al., FAST 2015).
 */
#include "policy/policy.h"

#include <string.h>

#include "policy/shadow.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define SET_COUNT (UINT32_C(1) << 18)
#define WAYS 4u

#define LOTS_A_TIER 8u
#define LOT_MIN 64u
#define LOTS_KEPT 64.0    /* the sums fade over so many */
#define AGAIN_MAX 0.1     /* of the blocks that came while the tier filled */
#define GO_DEVIATIONS 3.0 /* ahead by so many: refuse */
#define GO_MORE_A_FAILURE 1.5
#define GO_USES_A_BLOCK 6u  /* of the tier, at least */
#define AHEAD_MIN 0.001     /* of the uses kept */
#define BACK_DEVIATIONS 2.0 /* behind by so many: write all */
#define DEBT_MAX 0.16       /* of the tier's blocks, in hits, and */
#define DEBT_MIN 100.0      /* so many, however small the tier */
#define FALL_MAX 0.3        /* of the tier's blocks, below the best, and */
#define FALL_DEVIATIONS 2.0

enum { ALL, SIGHT }; /* sides of the shadow */

enum sight { FIRST, SECOND, LATER };

/* Hits of second sight (ahead), and of the tier (gained), less those of writing all. */
struct lot {
    uint32_t uses;
    int32_t ahead, gained;
};

struct kvt_admission {
    uint32_t (*sets)[WAYS]; /* fingerprints, the youngest first; 0: none; an odd one was seen twice or more */
    uint64_t seed;
    struct kvt_shadow shadow;
    uint32_t block_bytes; /* of the last block that was asked about */
    struct lot lot;
    uint64_t all_uses;
    uint32_t came, came_again; /* blocks, while the tier filled */
    double uses, ahead, ahead_squared; /* of the lots before, fading */
    bool is_refusing;
    uint32_t failures;
    int64_t account, account_best; /* of refusing, since it began */
};

static void adaptive_destroy(struct kvt_admission *adaptive)
{
    if (!adaptive) return;
    kvt_shadow_done(&adaptive->shadow);
    kvt_table_unmap(adaptive->sets, SET_COUNT * sizeof adaptive->sets[0]);
    kvt_free(adaptive);
}

static enum kvt_status adaptive_create(uint64_t tier_bytes, uint64_t seed, struct kvt_admission **ret_admission)
{
    struct kvt_admission *adaptive = kvt_alloc(1, sizeof *adaptive);
    if (!adaptive) return KVT_NOMEM;
    adaptive->seed = seed;
    adaptive->sets = kvt_table_map(SET_COUNT * sizeof adaptive->sets[0]);
    if (!adaptive->sets || kvt_shadow_init(&adaptive->shadow, tier_bytes) != KVT_OK) {
        adaptive_destroy(adaptive);
        return KVT_NOMEM;
    }
    *ret_admission = adaptive;
    return KVT_OK;
}

/* The key is remembered from now on, in front of its set. */
static enum sight look(struct kvt_admission *adaptive, uint64_t mixed)
{
    uint32_t *set = adaptive->sets[mixed & (SET_COUNT - 1)];
    const uint32_t once = ((uint32_t)(mixed >> 32) | 2u) & ~1u;
    uint32_t way = 0;
    while (way < WAYS && (set[way] & ~1u) != once) way++;
    const bool was_known = way < WAYS;
    const enum sight sight = !was_known ? FIRST : set[way] == once ? SECOND : LATER;
    memmove(&set[1], &set[0], (was_known ? way : WAYS - 1) * sizeof set[0]);
    set[0] = was_known ? once | 1u : once;
    return sight;
}

/* ---- Which is better --------------------------------------------------------------------------------------------- */

/* The sum of the lots is above so many of its standard deviations, were each as likely to have the other sign. */
static bool is_above(const struct kvt_admission *adaptive, double sum, double deviations)
{
    return sum > 0 && sum * sum > deviations * deviations * adaptive->ahead_squared;
}

static bool is_worth_it(const struct kvt_admission *adaptive, uint32_t slots)
{
    const double deviations = GO_DEVIATIONS + adaptive->failures * GO_MORE_A_FAILURE;
    if (adaptive->all_uses < (uint64_t)GO_USES_A_BLOCK * slots) return false;
    return is_above(adaptive, adaptive->ahead, deviations) && adaptive->ahead > AHEAD_MIN * adaptive->uses;
}

static bool is_over(const struct kvt_admission *adaptive, double slots)
{
    const double debt = -(double)adaptive->account;
    const double fall = (double)(adaptive->account_best - adaptive->account) - FALL_MAX * slots;
    if (debt > DEBT_MIN && debt > DEBT_MAX * slots) return true;
    return is_above(adaptive, -adaptive->ahead, BACK_DEVIATIONS) || is_above(adaptive, fall, FALL_DEVIATIONS);
}

static void end_lot(struct kvt_admission *adaptive, uint32_t slots)
{
    const struct lot lot = adaptive->lot;
    const double kept = 1 - 1 / LOTS_KEPT;
    adaptive->lot = (struct lot){ 0 };
    adaptive->uses = adaptive->uses * kept + lot.uses;
    adaptive->ahead = adaptive->ahead * kept + lot.ahead;
    adaptive->ahead_squared = adaptive->ahead_squared * kept + (double)lot.ahead * lot.ahead;
    if (!adaptive->is_refusing) {
        adaptive->is_refusing = is_worth_it(adaptive, slots);
        adaptive->account = adaptive->account_best = 0;
        return;
    }
    adaptive->account += lot.gained;
    if (adaptive->account > adaptive->account_best) adaptive->account_best = adaptive->account;
    if (!is_over(adaptive, slots)) return;
    adaptive->is_refusing = false;
    if (adaptive->account < 0) adaptive->failures++;
    else if (adaptive->failures > 0) adaptive->failures--;
}

/* A use while the tier fills. What comes again so soon is worth its first write. */
static void see_filling(struct kvt_admission *adaptive, enum sight sight)
{
    adaptive->came += sight == FIRST;
    adaptive->came_again += sight == SECOND;
    if (adaptive->shadow.sides[ALL].is_full)
        adaptive->is_refusing = adaptive->came_again < AGAIN_MAX * adaptive->came;
}

/* A use, of what the tier had or not. Hits are compared from when the tier would have been full. */
static void see(struct kvt_admission *adaptive, uint64_t mixed, enum sight sight, bool was_seen, bool is_hit)
{
    struct kvt_shadow *shadow = &adaptive->shadow;
    const uint64_t key = kvt_mix64(mixed); /* of other bits than the memory's */
    if (!kvt_shadow_has_sampled(shadow, key, adaptive->block_bytes)) return;
    adaptive->all_uses++;
    const bool is_counted = shadow->sides[ALL].is_full;
    const bool is_second_admitting = was_seen || !shadow->sides[SIGHT].is_full;
    const uint32_t admitting = 1u << ALL | (uint32_t)is_second_admitting << SIGHT;
    const uint32_t had = kvt_shadow_use(shadow, key, adaptive->block_bytes, admitting);
    if (!is_counted) {
        see_filling(adaptive, sight);
        return;
    }
    const int32_t all = had >> ALL & 1, second = had >> SIGHT & 1;
    adaptive->lot.uses++;
    adaptive->lot.ahead += second - all;
    adaptive->lot.gained += is_hit - all;
    const uint32_t slots = shadow->sides[ALL].count;
    if (adaptive->lot.uses >= kvt_max_u32(LOT_MIN, slots / LOTS_A_TIER)) end_lot(adaptive, slots);
}

static uint64_t mix(const struct kvt_admission *adaptive, uint64_t key_hash)
{
    return kvt_mix64(key_hash ^ kvt_mix64(adaptive->seed));
}

static bool adaptive_admits(struct kvt_admission *adaptive, const struct kvt_admission_question *question)
{
    const bool is_always_written = question->is_referenced || question->uses >= 2;
    if (question->is_asked_again) return !adaptive->is_refusing || is_always_written;
    const uint64_t mixed = mix(adaptive, question->key_hash);
    const enum sight sight = look(adaptive, mixed);
    const bool was_seen = sight != FIRST || is_always_written;
    adaptive->block_bytes = kvt_max_u32(1, question->bytes);
    see(adaptive, mixed, sight, was_seen, false);
    return !adaptive->is_refusing || was_seen;
}

/* What was never asked about is the tier's from an earlier life; it tells nothing. */
static void adaptive_used(struct kvt_admission *adaptive, uint64_t key_hash)
{
    const uint64_t mixed = mix(adaptive, key_hash);
    const enum sight sight = look(adaptive, mixed);
    if (adaptive->block_bytes > 0) see(adaptive, mixed, sight, sight != FIRST, true);
}

const struct kvt_admission_ops kvt_admission_adaptive = {
    .name = "adaptive",
    .summary = "writes all, or what was seen a second time, by which would have more hits",
    .create = adaptive_create,
    .destroy = adaptive_destroy,
    .admits = adaptive_admits,
    .used = adaptive_used,
};
