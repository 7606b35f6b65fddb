#include "policy/evidence.h"

#include "policy/policy.h"
#include "runtime/base/bytes.h"

/*
 * One setting for all, found on generated patterns and the published traces. Half a point is what may be lost: the
 * account takes two fifths of it, an attempt may risk four fifths of what is left of the rest.
 */
#define WINDOW_USES_A_SLOT 8.0
#define WINDOW_REQUESTS 200.0
#define REQUESTS_MIN 300u
#define SLOTS_A_REQUEST_MIN 2.5 /* a request that is larger pushes its own blocks out */
#define LOT_MIN 64u
#define SLOTS_A_USE_OF_LOT 4u
#define AHEAD_MIN 0.002     /* of the window */
#define GO_DEVIATIONS 2.0   /* ahead by so many standard deviations: follow the rival */
#define BACK_DEVIATIONS 0.5 /* behind by so many: back to LRU */
#define LOCK_AT 0.002       /* the account's debt over all uses */
#define UNLOCK_AT 0.001
#define RISK_MAX 0.004        /* of all uses, and what the account has */
#define RISK_OF_APART 0.4     /* of LRU's hits on what it holds and the rival does not */
#define RISK_DEVIATIONS 0.5   /* of the hits of the requests in which the content changes */
#define RISK_REQUESTS_MIN 4.0 /* at least so many of them */

void kvt_evidence_init(struct kvt_evidence *evidence, uint32_t slot_count)
{
    *evidence = (struct kvt_evidence){ .slot_count = slot_count };
}

static double greater(double a, double b) { return a > b ? a : b; }

static double uses_a_request(const struct kvt_evidence *evidence)
{
    return (double)evidence->uses / (double)evidence->requests;
}

static bool can_afford(const struct kvt_evidence *evidence, uint32_t apart)
{
    const double left = RISK_MAX * (double)evidence->uses + (double)evidence->account
        - RISK_OF_APART * (double)apart * evidence->lru_hits / evidence->mass;
    const double change_uses = greater(evidence->slot_count, RISK_REQUESTS_MIN * uses_a_request(evidence));
    const double variance = evidence->ahead_squared * change_uses / evidence->mass;
    return left > 0 && left * left >= RISK_DEVIATIONS * RISK_DEVIATIONS * variance;
}

static bool is_worth_it(const struct kvt_evidence *evidence, uint32_t apart)
{
    if (evidence->ahead <= AHEAD_MIN * evidence->window || evidence->requests < REQUESTS_MIN) return false;
    if (SLOTS_A_REQUEST_MIN * uses_a_request(evidence) > evidence->slot_count) return false;
    const double squared = evidence->ahead * evidence->ahead;
    return squared > GO_DEVIATIONS * GO_DEVIATIONS * evidence->ahead_squared && can_afford(evidence, apart);
}

static bool is_behind(const struct kvt_evidence *evidence)
{
    const double squared = evidence->ahead * evidence->ahead;
    return evidence->ahead < 0 && squared > BACK_DEVIATIONS * BACK_DEVIATIONS * evidence->ahead_squared;
}

static void decide(struct kvt_evidence *evidence, uint32_t apart)
{
    const double account = (double)evidence->account, uses = (double)evidence->uses;
    if (evidence->is_locked) {
        evidence->is_locked = account <= -UNLOCK_AT * uses;
    } else if (!evidence->is_rival_followed) {
        evidence->is_rival_followed = is_worth_it(evidence, apart);
    } else {
        evidence->is_locked = account < -LOCK_AT * uses;
        evidence->is_rival_followed = !evidence->is_locked && !is_behind(evidence);
    }
}

void kvt_evidence_end(struct kvt_evidence *evidence, uint32_t apart)
{
    const double length = evidence->length, lru = evidence->runs[1];
    const double ahead = (double)evidence->runs[2] - lru;
    if (evidence->length == 0) return;
    evidence->uses += evidence->length;
    evidence->requests++;
    evidence->account += (int64_t)evidence->runs[0] - (int64_t)evidence->runs[1];
    evidence->length = 0;
    evidence->window = greater(WINDOW_USES_A_SLOT * evidence->slot_count, WINDOW_REQUESTS * uses_a_request(evidence));
    const double kept = evidence->window / (evidence->window + length);
    evidence->mass = evidence->mass * kept + length;
    evidence->lru_hits = evidence->lru_hits * kept + lru;
    evidence->ahead = evidence->ahead * kept + ahead;
    evidence->ahead_squared = evidence->ahead_squared * kept + ahead * ahead;
    decide(evidence, apart);
}

bool kvt_evidence_continues(const struct kvt_evidence *evidence, uint32_t offset)
{
    if (evidence->length == 0) return false;
    if (evidence->is_lot || offset == KVT_POLICY_UNKNOWN) return evidence->is_lot && offset == KVT_POLICY_UNKNOWN;
    return evidence->is_up ? offset == evidence->last_offset + 1 : offset + 1 == evidence->last_offset;
}

bool kvt_evidence_use(struct kvt_evidence *evidence, uint32_t offset, uint32_t hits)
{
    if (evidence->length == 0) {
        evidence->is_lot = offset == KVT_POLICY_UNKNOWN;
        evidence->is_up = offset == 0;
        evidence->alive = hits;
        for (uint32_t i = 0; i < KVT_HIT_PLAYERS; i++) evidence->runs[i] = 0;
    }
    const bool is_sum = evidence->is_lot || evidence->is_up;
    evidence->alive &= hits;
    for (uint32_t i = 0; i < KVT_HIT_PLAYERS; i++) {
        const uint32_t counted = evidence->is_up ? evidence->alive : hits;
        evidence->runs[i] = (is_sum || counted >> i & 1 ? evidence->runs[i] : 0) + (counted >> i & 1);
    }
    evidence->length++;
    evidence->last_offset = offset;
    if (evidence->is_lot) return evidence->length >= kvt_max_u32(LOT_MIN, evidence->slot_count / SLOTS_A_USE_OF_LOT);
    return !evidence->is_up && offset == 0;
}
