/*
 * lirs-duel: LRU, and LIRS wherever LIRS is proven better; by whole requests, and with no more at stake than half a
 * point.
 *
 * Beside the pool two shadows see its uses, caches of its size without bytes: an LRU, and a LIRS (lirs_stack.h) with 1 %
 * for newcomers and keys of twice as many slots. evidence.h says which of them the pool follows. To follow LRU is to
 * evict the slot whose use is longest ago. To follow LIRS is to evict what the shadow does not hold, first what it has
 * evicted first. So after a change the pool becomes what it follows without throwing anything out ahead of need, and in
 * the end evicts exactly as it does. LIRS keeps what comes back again and again, and does best when the pool is
 * small beside what is used; LRU does best where newcomers come back.
 *
 * Sources: LIRS as in lirs_stack.h; the choice after M. K. Qureshi et al., "Adaptive insertion policies for high
 * performance caching" (set dueling), ISCA 2007; to follow one of several caches by evicting what it lacks, after A.
 * Fiat et al., "Competitive paging algorithms", J. Algorithms 12, 1991. The combination is ours.
 */
#include "policy/policy.h"

#include "policy/evidence.h"
#include "policy/lirs_stack.h"
#include "runtime/base/mem.h"

#define GHOSTS_A_SLOT 2u
#define NEWCOMER_PERCENT 1u
#define LEFT_A_SLOT 2u
#define ENTRIES_A_SLOT (3u + LEFT_A_SLOT) /* a key is the pool's, LRU's, LIRS's, or has just left */
#define SLOTS_MAX (KVT_SLOTS_COUNT_MAX / (ENTRIES_A_SLOT + GHOSTS_A_SLOT))

enum { IN_LRU, NOT_IN_LRU, ENTRY_LIST_COUNT };
enum { RECENT, RECENT_COUNT };
enum { SHARED, APART, SIDE_COUNT }; /* with LIRS, or not */

/* A use that waits for its release. */
enum { PENDING = 8 }; /* beside the bits of evidence.h */

struct kvt_policy {
    struct kvt_slots recent;   /* by last use */
    struct kvt_slots sides;    /* APART: in the order in which LIRS evicted them */
    uint32_t *entry_of;        /* by slot; KVT_GHOST_NONE: another slot has the same key */
    uint32_t *offset_of;       /* by slot: of its pending use */
    uint8_t *pending;          /* by slot */
    struct kvt_ghosts entries; /* all known keys; IN_LRU is the LRU shadow */
    uint32_t *slot_of;         /* by entry: slot + 1; 0: it is not in the pool */
    struct kvt_lirs lirs;      /* the LIRS shadow; an entry is a slot of it */
    struct kvt_evidence evidence;
    uint8_t *left;         /* by entry: bits of the shadows that evicted it during the request under way */
    uint32_t *left_before; /* by entry: the one that left before it, + 1; 0: the first */
    uint32_t left_last;    /* entry + 1; 0: none left */
    uint32_t left_count;
    uint32_t offset, found; /* of the uses to come */
};

static uint64_t slots_bytes(uint32_t slot_count) { return ((uint64_t)slot_count + 1) * sizeof(uint32_t); }

static void duel_destroy(struct kvt_policy *duel)
{
    if (!duel) return;
    const uint32_t slot_count = duel->evidence.slot_count;
    kvt_table_unmap(duel->left_before, slots_bytes(duel->entries.capacity));
    kvt_table_unmap(duel->left, (uint64_t)duel->entries.capacity + 1);
    kvt_table_unmap(duel->slot_of, slots_bytes(duel->entries.capacity));
    kvt_table_unmap(duel->pending, (uint64_t)slot_count + 1);
    kvt_table_unmap(duel->offset_of, slots_bytes(slot_count));
    kvt_table_unmap(duel->entry_of, slots_bytes(slot_count));
    kvt_lirs_done(&duel->lirs);
    kvt_ghosts_done(&duel->entries);
    kvt_slots_done(&duel->sides);
    kvt_slots_done(&duel->recent);
    kvt_free(duel);
}

static enum kvt_status init(struct kvt_policy *duel, uint32_t slot_count)
{
    const uint32_t entry_count = ENTRIES_A_SLOT * slot_count + 2; /* one more in each shadow while it makes room */
    const uint32_t lir_max = kvt_lirs_share(slot_count, NEWCOMER_PERCENT);
    KVT_TRY(kvt_slots_init(&duel->recent, slot_count, RECENT_COUNT));
    KVT_TRY(kvt_slots_init(&duel->sides, slot_count, SIDE_COUNT));
    KVT_TRY(kvt_ghosts_init(&duel->entries, entry_count, ENTRY_LIST_COUNT));
    KVT_TRY(kvt_lirs_init(&duel->lirs, entry_count, lir_max, GHOSTS_A_SLOT * slot_count));
    duel->entry_of = kvt_table_map(slots_bytes(slot_count));
    duel->offset_of = kvt_table_map(slots_bytes(slot_count));
    duel->pending = kvt_table_map((uint64_t)slot_count + 1);
    duel->slot_of = kvt_table_map(slots_bytes(entry_count));
    duel->left = kvt_table_map((uint64_t)entry_count + 1);
    duel->left_before = kvt_table_map(slots_bytes(entry_count));
    if (!duel->entry_of || !duel->offset_of || !duel->pending) return KVT_NOMEM;
    return duel->slot_of && duel->left && duel->left_before ? KVT_OK : KVT_NOMEM;
}

/* More slots than SLOTS_MAX have no numbers for all the keys: NOMEM, too. */
static enum kvt_status duel_create(uint32_t slot_count, uint64_t seed, struct kvt_policy **ret_policy)
{
    (void)seed;
    struct kvt_policy *duel = slot_count <= SLOTS_MAX ? kvt_alloc(1, sizeof *duel) : NULL;
    if (!duel) return KVT_NOMEM;
    kvt_evidence_init(&duel->evidence, slot_count);
    duel->offset = duel->found = KVT_POLICY_UNKNOWN;
    if (init(duel, slot_count) != KVT_OK) {
        duel_destroy(duel);
        return KVT_NOMEM;
    }
    *ret_policy = duel;
    return KVT_OK;
}

/* ---- The shadows ------------------------------------------------------------------------------------------------- */

static bool is_in_lru(const struct kvt_policy *duel, uint32_t entry)
{
    return duel->entries.entries[entry].list == IN_LRU;
}

static bool is_in_lirs(const struct kvt_policy *duel, uint32_t entry)
{
    return (duel->lirs.slots.bits[entry] & KVT_SLOT_PRESENT) != 0;
}

/* A key that nobody holds any longer is forgotten. */
static void let_go(struct kvt_policy *duel, uint32_t entry)
{
    if (duel->slot_of[entry] != 0 || duel->left[entry] != 0) return;
    if (is_in_lru(duel, entry) || is_in_lirs(duel, entry)) return;
    kvt_ghosts_forget(&duel->entries, entry);
}

/* The request under way is over: what left during it has left. */
static void forget_left(struct kvt_policy *duel)
{
    while (duel->left_last != 0) {
        const uint32_t entry = duel->left_last - 1;
        duel->left_last = duel->left_before[entry];
        duel->left[entry] = 0;
        let_go(duel, entry);
    }
    duel->left_count = 0;
}

/*
 * A shadow evicted the key to make room for a block of the request under way. Had it been looked up when the request
 * began, it would have been there: it still counts as there. More than two pools of them are not remembered.
 */
static void leave(struct kvt_policy *duel, uint32_t entry, uint32_t shadow)
{
    if (duel->evidence.length > 0 && !duel->evidence.is_lot
        && duel->left_count < LEFT_A_SLOT * duel->evidence.slot_count) {
        if (duel->left[entry] == 0) {
            duel->left_before[entry] = duel->left_last;
            duel->left_last = entry + 1;
            duel->left_count++;
        }
        duel->left[entry] |= (uint8_t)shadow;
    }
    let_go(duel, entry);
}

static void use_in_lru(struct kvt_policy *duel, uint32_t entry)
{
    kvt_ghosts_move(&duel->entries, entry, IN_LRU);
    if (duel->entries.size[IN_LRU] <= duel->evidence.slot_count) return;
    const uint32_t oldest = kvt_ghosts_oldest(&duel->entries, IN_LRU);
    kvt_ghosts_move(&duel->entries, oldest, NOT_IN_LRU);
    leave(duel, oldest, KVT_HIT_LRU);
}

static void use_in_lirs(struct kvt_policy *duel, uint32_t entry)
{
    struct kvt_lirs *lirs = &duel->lirs;
    if (is_in_lirs(duel, entry)) {
        kvt_lirs_touch(lirs, entry);
        return;
    }
    if (lirs->slots.idle_count == duel->evidence.slot_count) {
        const uint32_t victim = kvt_lirs_victim(lirs);
        kvt_lirs_remove(lirs, victim, KVT_POLICY_EVICTED);
        if (duel->slot_of[victim] != 0) kvt_slots_move(&duel->sides, duel->slot_of[victim] - 1, APART);
        leave(duel, victim, KVT_HIT_RIVAL);
    }
    kvt_lirs_insert(lirs, entry, duel->entries.entries[entry].key_hash);
    kvt_slots_release(&lirs->slots, entry);
    const uint32_t slot = duel->slot_of[entry];
    if (slot != 0 && kvt_slots_list(&duel->sides, slot - 1) == APART) kvt_slots_move(&duel->sides, slot - 1, SHARED);
}

/* ---- Uses -------------------------------------------------------------------------------------------------------- */

static uint32_t hits_of(const struct kvt_policy *duel, uint32_t entry)
{
    const uint32_t hits = (is_in_lru(duel, entry) ? KVT_HIT_LRU : 0u) | (is_in_lirs(duel, entry) ? KVT_HIT_RIVAL : 0u);
    return hits | duel->left[entry];
}

static void end_request(struct kvt_policy *duel)
{
    forget_left(duel);
    kvt_evidence_end(&duel->evidence, duel->sides.size[APART]);
}

static void use(struct kvt_policy *duel, uint32_t entry, uint32_t offset, uint32_t hits)
{
    if (!kvt_evidence_continues(&duel->evidence, offset)) end_request(duel);
    const bool is_last = kvt_evidence_use(&duel->evidence, offset, hits);
    use_in_lru(duel, entry);
    use_in_lirs(duel, entry);
    if (is_last) end_request(duel);
}

static void duel_hint(struct kvt_policy *duel, const struct kvt_policy_hint *hint)
{
    if (!kvt_evidence_continues(&duel->evidence, hint->offset)) end_request(duel);
    duel->offset = hint->offset;
    duel->found = hint->found;
}

/* Of the use to come. */
static uint32_t pool_hit(const struct kvt_policy *duel, bool is_hit)
{
    const bool is_known = duel->offset != KVT_POLICY_UNKNOWN && duel->found != KVT_POLICY_UNKNOWN;
    return (is_known ? duel->offset < duel->found : is_hit) ? KVT_HIT_POOL : 0u;
}

static void duel_insert(struct kvt_policy *duel, uint32_t slot, uint64_t key_hash)
{
    kvt_ghosts_prefetch(&duel->lirs.ghosts, key_hash);
    uint32_t entry = kvt_ghosts_find(&duel->entries, key_hash);
    uint32_t hits = pool_hit(duel, false);
    if (entry == KVT_GHOST_NONE) entry = kvt_ghosts_remember(&duel->entries, key_hash, NOT_IN_LRU);
    else hits |= hits_of(duel, entry);
    const bool is_twin = duel->slot_of[entry] != 0;
    const bool is_shared = !is_twin && is_in_lirs(duel, entry);
    kvt_slots_insert(&duel->recent, slot, RECENT);
    kvt_slots_insert(&duel->sides, slot, is_shared ? SHARED : APART);
    duel->entry_of[slot] = is_twin ? KVT_GHOST_NONE : entry;
    duel->pending[slot] = is_twin ? 0 : (uint8_t)(PENDING | hits);
    duel->offset_of[slot] = duel->offset;
    if (!is_twin) duel->slot_of[entry] = slot + 1;
    kvt_ghosts_prefetch_first(&duel->lirs.ghosts, key_hash);
}

static void duel_touch(struct kvt_policy *duel, uint32_t slot)
{
    const uint32_t entry = duel->entry_of[slot];
    kvt_slots_use(&duel->recent, slot, RECENT);
    if (entry == KVT_GHOST_NONE) return;
    const uint32_t hits = pool_hit(duel, true) | hits_of(duel, entry);
    if (!kvt_slots_is_held(&duel->recent, slot)) {
        use(duel, entry, duel->offset, hits);
    } else if (duel->pending[slot] == 0) {
        duel->pending[slot] = (uint8_t)(PENDING | hits);
        duel->offset_of[slot] = duel->offset;
    }
}

static void duel_hold(struct kvt_policy *duel, uint32_t slot)
{
    kvt_slots_hold(&duel->recent, slot);
    kvt_slots_hold(&duel->sides, slot);
}

/* A use lasts until its release, in the shadows, too. */
static void duel_release(struct kvt_policy *duel, uint32_t slot)
{
    const uint32_t pending = duel->pending[slot];
    kvt_slots_release(&duel->recent, slot);
    kvt_slots_release(&duel->sides, slot);
    duel->pending[slot] = 0;
    if (pending != 0) use(duel, duel->entry_of[slot], duel->offset_of[slot], pending & ~(uint32_t)PENDING);
}

/*
 * Evictions mostly come in a row, and each reads one thing after the other: the slot's key, its entry, its bucket. Asks
 * the memory for each of them one eviction earlier than the next.
 */
static void look_ahead(const struct kvt_policy *duel)
{
    const struct kvt_order *order = &duel->recent.order;
    uint32_t slots[4] = { kvt_order_coldest(order, RECENT) };
    for (uint32_t i = 0; i < 3; i++) {
        if (slots[i] == KVT_ORDER_NONE) return;
        slots[i + 1] = kvt_order_number(order, order->links[kvt_order_node(order, slots[i])].warmer);
    }
    if (slots[3] != KVT_ORDER_NONE) __builtin_prefetch(&order->links[kvt_order_node(order, slots[3])], 1);
    __builtin_prefetch(&duel->entry_of[slots[2]]);
    __builtin_prefetch(&duel->sides.bits[slots[2]], 1);
    __builtin_prefetch(&duel->sides.order.links[kvt_order_node(&duel->sides.order, slots[2])], 1);
    const uint32_t second = duel->entry_of[slots[1]], first = duel->entry_of[slots[0]];
    if (second != KVT_GHOST_NONE) {
        __builtin_prefetch(&duel->entries.entries[second], 1);
        __builtin_prefetch(&duel->slot_of[second], 1);
    }
    if (first != KVT_GHOST_NONE) kvt_ghosts_prefetch(&duel->entries, duel->entries.entries[first].key_hash);
}

/* A key whose content ended leaves the shadows, too. */
static void duel_remove(struct kvt_policy *duel, uint32_t slot, enum kvt_policy_why why)
{
    const uint32_t entry = duel->entry_of[slot];
    (void)kvt_slots_remove(&duel->recent, slot);
    (void)kvt_slots_remove(&duel->sides, slot);
    duel->pending[slot] = 0;
    if (entry == KVT_GHOST_NONE) return;
    if (why == KVT_POLICY_EVICTED) look_ahead(duel);
    if (why == KVT_POLICY_DROPPED) {
        if (duel->left[entry] != 0) forget_left(duel);
        if (is_in_lirs(duel, entry)) kvt_lirs_remove(&duel->lirs, entry, KVT_POLICY_DROPPED);
        kvt_lirs_forget_key(&duel->lirs, duel->entries.entries[entry].key_hash);
        if (is_in_lru(duel, entry)) kvt_ghosts_move(&duel->entries, entry, NOT_IN_LRU);
    }
    duel->slot_of[entry] = 0;
    let_go(duel, entry);
}

static uint32_t duel_victim(struct kvt_policy *duel)
{
    if (duel->evidence.is_rival_followed) {
        const uint32_t slot = kvt_slots_coldest_idle(&duel->sides, APART);
        if (slot != KVT_POLICY_NONE) return slot;
    }
    return kvt_slots_coldest_idle(&duel->recent, RECENT);
}

static void duel_prefetch(const struct kvt_policy *duel, uint32_t slot)
{
    kvt_slots_prefetch(&duel->recent, slot);
    __builtin_prefetch(&duel->entry_of[slot]);
}

static void duel_prefetch_key(const struct kvt_policy *duel, uint64_t key_hash)
{
    kvt_ghosts_prefetch(&duel->entries, key_hash);
    kvt_ghosts_prefetch(&duel->lirs.ghosts, key_hash);
}

static void duel_verify(const struct kvt_policy *duel)
{
    const uint32_t slot_count = duel->evidence.slot_count;
    KVT_ASSERT(kvt_slots_verify(&duel->recent, RECENT_COUNT) == kvt_slots_verify(&duel->sides, SIDE_COUNT));
    kvt_ghosts_verify(&duel->entries);
    kvt_lirs_verify(&duel->lirs);
    KVT_ASSERT(duel->entries.size[IN_LRU] <= slot_count);
    KVT_ASSERT(duel->lirs.slots.idle_count <= slot_count);
    for (uint32_t entry = 0; entry < duel->entries.fresh; entry++) {
        if (duel->entries.entries[entry].list == KVT_GHOST_NONE) continue;
        const uint32_t slot = duel->slot_of[entry];
        KVT_ASSERT(slot != 0 || duel->left[entry] != 0 || is_in_lru(duel, entry) || is_in_lirs(duel, entry));
        if (slot == 0) continue;
        KVT_ASSERT(duel->entry_of[slot - 1] == entry);
        KVT_ASSERT((kvt_slots_list(&duel->sides, slot - 1) == SHARED) == is_in_lirs(duel, entry));
    }
}

const struct kvt_policy_ops kvt_policy_lirs_duel = {
    .name = "lirs-duel",
    .summary = "lru, and lirs where it is proven better, with little at stake",
    .create = duel_create,
    .destroy = duel_destroy,
    .insert = duel_insert,
    .touch = duel_touch,
    .hold = duel_hold,
    .release = duel_release,
    .remove = duel_remove,
    .victim = duel_victim,
    .prefetch = duel_prefetch,
    .prefetch_key = duel_prefetch_key,
    .hint = duel_hint,
    .verify = duel_verify,
};
