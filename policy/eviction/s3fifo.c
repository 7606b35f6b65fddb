/*
 * s3fifo: three queues. Most newcomers are used once, so a small queue throws them out early.
 *
 * Small holds newcomers and is to have a tenth of the slots, Main the rest; Ghost remembers the keys that
 * Small evicted, nine tenths of the number of slots. A slot counts its uses up to 3, its insert apart.
 * Small's coldest goes to Main, its count cleared, when it was used at least twice, else it is the victim
 * and its key goes to Ghost. Main's coldest goes round again with one use less, or is the victim when it has
 * none left. A newcomer whose key is in Ghost goes straight to Main. Small is searched while Main has at
 * most its share, else Main; when that one has no idle slot, the other. Each step of a search moves one slot
 * to Main or takes one use away: O(1) amortised.
 *
 * Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
 */
#include "policy/policy.h"

#include "policy/ghost.h"
#include "policy/replay.h"
#include "policy/slots.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define USES_MAX 3u
#define USES_TO_STAY 2u

enum { SMALL, MAIN, LIST_COUNT };
enum { GHOST, GHOST_LIST_COUNT };

struct kvt_policy {
    struct kvt_slots slots;
    struct kvt_ghosts ghosts;
    uint64_t *keys; /* by slot */
    uint32_t main_max;
    uint32_t ghost_max;
};

static uint64_t keys_bytes(const struct kvt_policy *s3fifo)
{
    return ((uint64_t)s3fifo->slots.slot_count + 1) * sizeof s3fifo->keys[0];
}

static void s3fifo_destroy(struct kvt_policy *s3fifo)
{
    if (!s3fifo) return;
    kvt_table_unmap(s3fifo->keys, keys_bytes(s3fifo));
    kvt_ghosts_done(&s3fifo->ghosts);
    kvt_slots_done(&s3fifo->slots);
    kvt_free(s3fifo);
}

static enum kvt_status s3fifo_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *s3fifo = kvt_alloc(1, sizeof *s3fifo);
    if (!s3fifo) return KVT_NOMEM;
    s3fifo->main_max = slot_count - slot_count / 10;
    s3fifo->ghost_max = slot_count - slot_count / 10;

    if (kvt_slots_init(&s3fifo->slots, slot_count, LIST_COUNT) != KVT_OK) goto fail;
    if (kvt_ghosts_init(&s3fifo->ghosts, s3fifo->ghost_max + 1, GHOST_LIST_COUNT) != KVT_OK) goto fail;
    s3fifo->keys = kvt_table_map(keys_bytes(s3fifo));
    if (!s3fifo->keys) goto fail;
    *ret_policy = s3fifo;
    return KVT_OK;

fail:
    s3fifo_destroy(s3fifo);
    return KVT_NOMEM;
}

static void s3fifo_insert(struct kvt_policy *s3fifo, uint32_t slot, uint64_t key_hash)
{
    const uint32_t ghost = kvt_ghosts_find(&s3fifo->ghosts, key_hash);
    if (ghost != KVT_GHOST_NONE) kvt_ghosts_forget(&s3fifo->ghosts, ghost);
    kvt_slots_insert(&s3fifo->slots, slot, ghost != KVT_GHOST_NONE ? MAIN : SMALL);
    s3fifo->keys[slot] = key_hash;
}

static void s3fifo_touch(struct kvt_policy *s3fifo, uint32_t slot)
{
    KVT_ASSERT(slot < s3fifo->slots.slot_count);
    KVT_ASSERT(s3fifo->slots.bits[slot] & KVT_SLOT_PRESENT);
    kvt_slots_set_own(&s3fifo->slots, slot, kvt_min_u32(kvt_slots_own(&s3fifo->slots, slot) + 1, USES_MAX));
}

static void s3fifo_remove(struct kvt_policy *s3fifo, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t list = kvt_slots_remove(&s3fifo->slots, slot);
    if (why != KVT_POLICY_EVICTED || list != SMALL) return;
    struct kvt_ghosts *ghosts = &s3fifo->ghosts;
    (void)kvt_ghosts_remember(ghosts, s3fifo->keys[slot], GHOST);
    if (ghosts->count > s3fifo->ghost_max) kvt_ghosts_forget(ghosts, kvt_ghosts_oldest(ghosts, GHOST));
}

static uint32_t s3fifo_victim(struct kvt_policy *s3fifo)
{
    struct kvt_slots *slots = &s3fifo->slots;
    if (slots->idle_count == 0) return KVT_POLICY_NONE;
    for (;;) {
        uint32_t list = slots->size[MAIN] > s3fifo->main_max ? MAIN : SMALL;
        uint32_t slot = kvt_slots_coldest_idle(slots, list);
        if (slot == KVT_POLICY_NONE) {
            list = list == MAIN ? SMALL : MAIN;
            slot = kvt_slots_coldest_idle(slots, list);
        }
        const uint32_t uses = kvt_slots_own(slots, slot);
        if (uses < (list == SMALL ? USES_TO_STAY : 1)) return slot;
        kvt_slots_set_own(slots, slot, list == SMALL ? 0 : uses - 1);
        kvt_slots_move(slots, slot, MAIN);
    }
}

static void s3fifo_hold(struct kvt_policy *s3fifo, uint32_t slot) { kvt_slots_hold(&s3fifo->slots, slot); }
static void s3fifo_release(struct kvt_policy *s3fifo, uint32_t slot) { kvt_slots_release(&s3fifo->slots, slot); }

static void s3fifo_verify(const struct kvt_policy *s3fifo)
{
    (void)kvt_slots_verify(&s3fifo->slots, LIST_COUNT);
    kvt_ghosts_verify(&s3fifo->ghosts);
    KVT_ASSERT(s3fifo->ghosts.count <= s3fifo->ghost_max);
}

KVT_REPLAY(s3fifo)

const struct kvt_policy_ops kvt_policy_s3fifo = {
    .name = "s3fifo",
    .summary = "a small queue sorts out what is used once before it costs room",
    .create = s3fifo_create,
    .destroy = s3fifo_destroy,
    .insert = s3fifo_insert,
    .touch = s3fifo_touch,
    .hold = s3fifo_hold,
    .release = s3fifo_release,
    .remove = s3fifo_remove,
    .victim = s3fifo_victim,
    .verify = s3fifo_verify,
    .replay = kvt_replay_s3fifo,
};
