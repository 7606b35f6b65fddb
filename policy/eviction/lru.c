/*
 * lru: the slot whose last use is longest ago leaves first.
 *
 * One list, cold end first. Insert and touch are uses; a use lasts until the slot's release, which puts it
 * at the warm end. So insert, and touch of a held slot, change no list; touch of an idle slot moves it. A
 * slot held for a move and released unused keeps its place. The victim is the coldest idle slot.
 *
 * The hot loop of the core is victim, remove, insert, release. It writes the slot's own links and the two ends
 * of the list.
 *
 * Source: P. J. Denning, "The working set model for program behavior", CACM 11(5), 1968.
 */
#include "policy/policy.h"

#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/mem.h"

enum { LRU, LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
};

static void lru_destroy(struct kvt_policy *lru)
{
    if (!lru) return;
    kvt_slots_done(&lru->slots);
    kvt_free(lru);
}

static enum kvt_status lru_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *lru = kvt_alloc(1, sizeof *lru);
    if (!lru) return KVT_NOMEM;
    if (kvt_slots_init(&lru->slots, slot_count, LIST_COUNT) != KVT_OK) {
        lru_destroy(lru);
        return KVT_NOMEM;
    }
    *ret_policy = lru;
    return KVT_OK;
}

static void lru_insert(struct kvt_policy *lru, uint32_t slot, uint64_t key_hash)
{
    (void)key_hash;
    kvt_slots_insert(&lru->slots, slot, LRU);
}

static void lru_touch(struct kvt_policy *lru, uint32_t slot) { kvt_slots_use(&lru->slots, slot, LRU); }
static void lru_hold(struct kvt_policy *lru, uint32_t slot) { kvt_slots_hold(&lru->slots, slot); }
static void lru_release(struct kvt_policy *lru, uint32_t slot) { kvt_slots_release(&lru->slots, slot); }

static void lru_remove(struct kvt_policy *lru, uint32_t slot, enum kvt_policy_why why)
{
    (void)why;
    (void)kvt_slots_remove(&lru->slots, slot);
}

static uint32_t lru_victim(struct kvt_policy *lru) { return kvt_slots_coldest_idle(&lru->slots, LRU); }

static void lru_prefetch(const struct kvt_policy *lru, uint32_t slot) { kvt_slots_prefetch(&lru->slots, slot); }

static void lru_verify(const struct kvt_policy *lru) { (void)kvt_slots_verify(&lru->slots, LIST_COUNT); }

KVT_REPLAY(lru)

const struct kvt_policy_ops kvt_policy_lru = {
    .name = "lru",
    .summary = "least recently used leaves first (default)",
    .create = lru_create,
    .destroy = lru_destroy,
    .insert = lru_insert,
    .touch = lru_touch,
    .hold = lru_hold,
    .release = lru_release,
    .remove = lru_remove,
    .victim = lru_victim,
    .prefetch = lru_prefetch,
    .verify = lru_verify,
    .replay = kvt_replay_lru,
};
