#include "runtime/foresight.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/core.h"
#include "runtime/flow.h"
#include "runtime/planner.h"
#include "runtime/residency.h"

#define SHARE_EARLY 0.05         /* brought before all but this share of the returns that are to come */
#define ALIVE_MIN 0.05           /* who is less likely to come at all is not looked at any more */
#define LIKELIER 2.0             /* so many times as likely to come as the holder of what is forgotten */
#define WORTH_MIN 0.25           /* that a copy is used while it stays: otherwise it is not brought */
#define STAY_WINDOW 32u          /* the mean stay is one over so many copies, fading */
#define STAY_GROWTH 2048u         /* by this part it is taken for longer after each refusal, so that it is tried again */
#define LOOK_GAP_NS 20000000u    /* between two looks at a sequence, and at least: */
#define LOOK_GAP_SHARE 8u        /* this part of the time that it has been idle */
#define LOOKS_MAX 64u            /* in one round */
#define BLOCKS_MAX 512u          /* looked at in one round */
#define STARTS_MAX 16u           /* in one round */
#define MAKING_MAX 4u            /* device slots that are made at a time by sending copies down */
#define LINK_DEPTH 6u            /* transfers in flight on a link, of all kinds: then it has enough to do */
#define HOST_FREE_SHARE (1024u / 8u) /* of host memory stays free for stashes */

static bool is_on(const struct kvt_core *core) { return core->foresight.ops != NULL; }

static size_t blocks_bytes(const struct kvt_core *core)
{
    return (size_t)core->config.blocks_max * sizeof *core->foresight.blocks;
}

static size_t looks_bytes(const struct kvt_core *core)
{
    return (size_t)core->config.sequences_max * sizeof *core->foresight.looks;
}

enum kvt_status kvt_foresight_init(struct kvt_core *core)
{
    struct kvt_foresight *foresight = &core->foresight;
    if (!core->config.prefetcher || !core->config.host) return KVT_OK; /* without a tier below nothing can be brought */
    foresight->blocks = kvt_table_map(blocks_bytes(core));
    foresight->looks = kvt_table_map(looks_bytes(core));
    if (!foresight->blocks || !foresight->looks) return KVT_NOMEM;
    KVT_TRY(core->config.prefetcher->create(core->config.seed, &foresight->prefetcher));
    foresight->ops = core->config.prefetcher;
    return KVT_OK;
}

void kvt_foresight_done(struct kvt_core *core)
{
    struct kvt_foresight *foresight = &core->foresight;
    if (foresight->prefetcher) core->config.prefetcher->destroy(foresight->prefetcher);
    kvt_table_unmap(foresight->looks, looks_bytes(core));
    kvt_table_unmap(foresight->blocks, blocks_bytes(core));
    *foresight = (struct kvt_foresight){ 0 };
}

/* ---- The heap of looks ------------------------------------------------------------------------------------------- */

static void heap_put(struct kvt_core *core, uint32_t at, uint32_t sequence)
{
    core->foresight.looks[at] = sequence;
    core->sequences[sequence].look_place = at + 1;
}

static uint64_t look_ns(const struct kvt_core *core, uint32_t at)
{
    return core->sequences[core->foresight.looks[at]].look_ns;
}

static void sift_up(struct kvt_core *core, uint32_t at)
{
    const uint32_t sequence = core->foresight.looks[at];
    for (; at > 0 && look_ns(core, (at - 1) / 2) > core->sequences[sequence].look_ns; at = (at - 1) / 2)
        heap_put(core, at, core->foresight.looks[(at - 1) / 2]);
    heap_put(core, at, sequence);
}

static void sift_down(struct kvt_core *core, uint32_t at)
{
    const uint32_t sequence = core->foresight.looks[at];
    for (uint32_t child = 2 * at + 1; child < core->foresight.look_count; child = 2 * at + 1) {
        if (child + 1 < core->foresight.look_count && look_ns(core, child + 1) < look_ns(core, child)) child++;
        if (look_ns(core, child) >= core->sequences[sequence].look_ns) break;
        heap_put(core, at, core->foresight.looks[child]);
        at = child;
    }
    heap_put(core, at, sequence);
}

static void heap_remove(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (sequence->look_place == 0) return;
    const uint32_t at = sequence->look_place - 1;
    const uint32_t last = core->foresight.looks[--core->foresight.look_count];
    sequence->look_place = 0;
    if (at == core->foresight.look_count) return;
    heap_put(core, at, last);
    sift_up(core, at);
    sift_down(core, core->sequences[last].look_place - 1);
}

static void heap_insert(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t at_ns)
{
    heap_remove(core, sequence);
    sequence->look_ns = at_ns;
    heap_put(core, core->foresight.look_count++, (uint32_t)(sequence - core->sequences));
    sift_up(core, sequence->look_place - 1);
}

/* ---- When to look ------------------------------------------------------------------------------------------------ */

static struct kvt_prefetch_known known_of(const struct kvt_sequence *sequence)
{
    return (struct kvt_prefetch_known){ .next = (enum kvt_policy_next)sequence->idle_next, .turn = sequence->idle_turn };
}

static uint64_t idle_for(const struct kvt_core *core, const struct kvt_sequence *sequence)
{
    return core->now_ns - kvt_min_u64(core->now_ns, sequence->idle_ns);
}

static void forecast_of(const struct kvt_core *core, const struct kvt_sequence *sequence, double share,
                        struct kvt_prefetch_forecast *ret_forecast)
{
    const struct kvt_prefetch_known known = known_of(sequence);
    core->foresight.ops->forecast(core->foresight.prefetcher, &known, idle_for(core, sequence), share, ret_forecast);
}

/* The next look is early enough to bring the whole sequence before most of those like it come back. */
static void plan_look(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t gap_ns)
{
    struct kvt_prefetch_forecast forecast;
    forecast_of(core, sequence, SHARE_EARLY, &forecast);
    if (forecast.wait_ns == UINT64_MAX || forecast.alive < ALIVE_MIN) {
        heap_remove(core, sequence);
        return;
    }
    const uint64_t lead_ns = kvt_planner_fetch_ns(core, sequence) + core->step_ns;
    const uint64_t wait_ns = forecast.wait_ns > lead_ns ? forecast.wait_ns - lead_ns : 0;
    heap_insert(core, sequence, core->now_ns + kvt_max_u64(wait_ns, gap_ns));
}

static void plan_another_look(struct kvt_core *core, struct kvt_sequence *sequence)
{
    plan_look(core, sequence, kvt_max_u64(LOOK_GAP_NS, idle_for(core, sequence) / LOOK_GAP_SHARE));
}

uint64_t kvt_foresight_next_ns(const struct kvt_core *core)
{
    return core->foresight.look_count > 0 ? look_ns(core, 0) : UINT64_MAX;
}

/* ---- What becomes of sequences ----------------------------------------------------------------------------------- */

void kvt_foresight_idle(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (!is_on(core) || sequence->is_streamed) return;
    sequence->idle_ns = kvt_max_u64(core->now_ns, 1);
    /* What was told for an earlier pause says nothing about this one: an engine also sets sequences idle for room. */
    sequence->idle_next = sequence->is_hint_fresh ? sequence->next_use : (uint8_t)KVT_POLICY_NEXT_UNKNOWN;
    sequence->idle_turn = sequence->is_hint_fresh ? sequence->turn : KVT_POLICY_UNKNOWN;
    sequence->has_left = true; /* the first look finds out */
    plan_look(core, sequence, 0);
}

static void forget(struct kvt_core *core, struct kvt_sequence *sequence)
{
    heap_remove(core, sequence);
    if (sequence->list == KVT_LIST_FORESEEN) kvt_sequence_list_remove(core, sequence);
    sequence->idle_ns = 0;
}

void kvt_foresight_back(struct kvt_core *core, struct kvt_sequence *sequence)
{
    sequence->is_hint_fresh = false;
    if (!is_on(core) || sequence->idle_ns == 0) return;
    const struct kvt_prefetch_known known = known_of(sequence);
    const uint64_t idle_ns = idle_for(core, sequence);
    /* Idle for no time at all is no pause, but a truncation that needed the room. */
    if (idle_ns > 0) core->foresight.ops->returned(core->foresight.prefetcher, &known, idle_ns);
    forget(core, sequence);
}

void kvt_foresight_end(struct kvt_core *core, struct kvt_sequence *sequence)
{
    if (!is_on(core) || sequence->idle_ns == 0) return;
    const struct kvt_prefetch_known known = known_of(sequence);
    core->foresight.ops->ended(core->foresight.prefetcher, &known, idle_for(core, sequence));
    forget(core, sequence);
}

/* ---- What becomes of blocks -------------------------------------------------------------------------------------- */

void kvt_foresight_unclaimed(struct kvt_core *core, uint32_t block, const struct kvt_sequence *sequence)
{
    if (!is_on(core)) return;
    const bool is_alone = kvt_core_block(core, block)->refs == 1;
    core->foresight.blocks[block].holder = is_alone ? (uint32_t)(sequence - core->sequences) + 1 : 0;
}

void kvt_foresight_claimed(struct kvt_core *core, uint32_t block)
{
    if (!is_on(core)) return;
    struct kvt_foresight_block *known = &core->foresight.blocks[block];
    core->counters.foreseen_used_blocks += (uint32_t)__builtin_popcount(known->brought);
    *known = (struct kvt_foresight_block){ 0 };
}

static uint32_t brief_ms(uint64_t ns) { return (uint32_t)(ns / 1000000u) & ((1u << 30) - 1); }

static void learn_stay(struct kvt_core *core, const struct kvt_foresight_block *known, uint32_t tier)
{
    uint64_t *mean_ns = &core->foresight.stay_ns[tier];
    const uint32_t stay_ms = (brief_ms(core->now_ns) - known->brought_at_ms) & ((1u << 30) - 1);
    const uint64_t stay_ns = kvt_max_u64((uint64_t)stay_ms * 1000000u, 1);
    *mean_ns = *mean_ns == 0 ? stay_ns : *mean_ns - *mean_ns / STAY_WINDOW + stay_ns / STAY_WINDOW;
}

void kvt_foresight_left(struct kvt_core *core, uint32_t block, uint32_t tier)
{
    if (!is_on(core)) return;
    struct kvt_foresight_block *known = &core->foresight.blocks[block];
    const uint32_t bit = tier == KVT_TIER_DEVICE ? KVT_BROUGHT_DEVICE : KVT_BROUGHT_HOST;
    if (known->brought & bit) {
        core->counters.foreseen_wasted_blocks++;
        learn_stay(core, known, tier);
    }
    known->brought &= ~bit & 3u;
    if (known->holder != 0) core->sequences[known->holder - 1].has_left = true;
}

/* ---- Room -------------------------------------------------------------------------------------------------------- */

/* One sequence whose blocks are brought. */
struct bringing {
    struct kvt_core *core;
    struct kvt_sequence *sequence;
    double likely; /* that it comes within_ns from now */
    uint64_t within_ns;
    bool is_worth[2]; /* to bring it to the device, to host memory */
};

/* That the sequence comes within that time from now. */
static double likely_within(const struct kvt_core *core, const struct kvt_sequence *sequence, uint64_t within_ns)
{
    const struct kvt_prefetch_known known = known_of(sequence);
    return core->foresight.ops->within(core->foresight.prefetcher, &known, idle_for(core, sequence), within_ns);
}

/* It is likely enough to come while a copy that is brought stays where it was brought. */
static bool is_worth_it(struct kvt_core *core, const struct kvt_sequence *sequence, uint32_t tier)
{
    uint64_t *stay_ns = &core->foresight.stay_ns[tier];
    if (*stay_ns == 0 || likely_within(core, sequence, *stay_ns) >= WORTH_MIN) return true;
    /* Who is too unlikely to come at all is refused however long copies stay, and would let it grow without end. */
    if (likely_within(core, sequence, UINT64_MAX) >= WORTH_MIN) *stay_ns += *stay_ns / STAY_GROWTH + 1;
    return false;
}

static struct bringing bring_for(struct kvt_core *core, struct kvt_sequence *sequence)
{
    struct kvt_prefetch_forecast forecast;
    forecast_of(core, sequence, 0.5, &forecast);
    struct bringing bringing = { .core = core, .sequence = sequence };
    if (forecast.wait_ns == UINT64_MAX) return bringing;
    /* Until it is there with even odds, and its blocks would have been fetched. */
    bringing.within_ns = forecast.wait_ns + kvt_planner_fetch_ns(core, sequence);
    bringing.likely = likely_within(core, sequence, bringing.within_ns);
    bringing.is_worth[KVT_TIER_DEVICE] = is_worth_it(core, sequence, KVT_TIER_DEVICE);
    bringing.is_worth[KVT_TIER_HOST] = is_worth_it(core, sequence, KVT_TIER_HOST);
    return bringing;
}

/* The copy of a block that its policy would evict next may go for the one that is brought. */
static bool may_evict(const struct bringing *bringing, uint32_t index, uint32_t tier)
{
    const struct kvt_core *core = bringing->core;
    const struct kvt_block *block = kvt_core_block(core, index);
    if (block->users > 0 || block->readers[tier] > 0) return false;
    if (block->refs == 0) return block->uses == 0;
    const uint32_t holder = core->foresight.blocks[index].holder;
    if (holder == 0 || block->refs > 1) return false;
    const struct kvt_sequence *sequence = &core->sequences[holder - 1];
    if (sequence == bringing->sequence || sequence->mode != KVT_SEQUENCE_IDLE) return false;
    if (sequence->idle_ns == 0 || sequence->list == KVT_LIST_EXPECTED) return false;
    return bringing->likely > LIKELIER * likely_within(core, sequence, bringing->within_ns);
}

static bool make_host_room(const struct bringing *bringing, uint32_t bytes)
{
    struct kvt_core *core = bringing->core;
    struct kvt_host_pool *host = &core->host;
    if (kvt_host_pool_free_share(host) > HOST_FREE_SHARE && kvt_host_pool_has_room(host, bytes)) return true;
    const uint32_t slot = host->policy_ops->victim(host->policy);
    if (slot == KVT_POLICY_NONE || !kvt_host_pool_is_fitting(host, slot, bytes)) return false;
    const uint32_t victim = kvt_host_pool_owner(host, slot);
    const bool is_elsewhere = kvt_block_has_copy_besides(kvt_core_block(core, victim), KVT_TIER_HOST);
    if (!is_elsewhere || !may_evict(bringing, victim, KVT_TIER_HOST)) return false;
    kvt_host_drop(core, victim, KVT_POLICY_EVICTED);
    kvt_block_settle(core, victim);
    return kvt_host_pool_has_room(host, bytes);
}

enum room { ROOM_THERE, ROOM_NONE, ROOM_COMES };

/* The copy goes: at once when another tier has the block, otherwise through host memory. */
static enum room evict(const struct bringing *bringing, uint32_t victim, uint32_t *making)
{
    struct kvt_core *core = bringing->core;
    const struct kvt_block *block = kvt_core_block(core, victim);
    if (kvt_block_has_copy_besides(block, KVT_TIER_DEVICE)) {
        kvt_device_drop(core, victim, KVT_POLICY_EVICTED);
        kvt_block_settle(core, victim);
        return ROOM_THERE;
    }
    const bool is_packed = core->config.is_packing && !kvt_block_has(block, KVT_BLOCK_RAW_ONLY);
    const uint32_t raw = kvt_block_raw_bytes(core, block, block->tokens);
    if (!make_host_room(bringing, kvt_host_pool_wanted_bytes(&core->host, block->group, raw, is_packed)))
        return ROOM_NONE;
    if (kvt_flow_stash_to_host(core, victim, KVT_PRIORITY_WRITE_BACK) != KVT_FLOW_STARTED) return ROOM_NONE;
    kvt_device_leave(core, victim);
    (*making)++;
    return ROOM_COMES;
}

static enum room make_device_room(const struct bringing *bringing, const struct kvt_block *block)
{
    struct kvt_core *core = bringing->core;
    struct kvt_pool *pool = kvt_core_pool(core, block);
    uint32_t *making = &core->foresight.making[pool - core->pools];
    if (!bringing->is_worth[KVT_TIER_DEVICE]) return ROOM_NONE;
    if (pool->wanted > 0 || kvt_pool_promised(pool, core->now_ns) > 0) return ROOM_NONE;
    if (pool->free_count > pool->high) return ROOM_THERE;
    if (*making > 0 && pool->free_count > pool->low) {
        (*making)--;
        return ROOM_THERE;
    }
    if (pool->leaving == 0) *making = 0; /* somebody else took what had been made */
    if (*making >= MAKING_MAX) return ROOM_COMES;
    const uint32_t slot = pool->policy_ops->victim(pool->policy);
    if (slot == KVT_POLICY_NONE) return ROOM_NONE;
    const uint32_t victim = pool->slots[slot].owner;
    return may_evict(bringing, victim, KVT_TIER_DEVICE) ? evict(bringing, victim, making) : ROOM_NONE;
}

/* ---- Bringing ---------------------------------------------------------------------------------------------------- */

enum brought { BROUGHT_ONE, BROUGHT_NONE, BROUGHT_NO_ROOM, BROUGHT_BUSY };

static bool is_link_busy(const struct kvt_core *core, uint32_t tier)
{
    return core->transfers.tier_in_flight[tier] >= LINK_DEPTH;
}

static enum brought started(struct kvt_core *core, uint32_t index, enum kvt_flow flow, uint32_t bit)
{
    if (flow == KVT_FLOW_BUSY) return BROUGHT_BUSY;
    if (flow == KVT_FLOW_NO_DEVICE_SLOT || flow == KVT_FLOW_NO_HOST_SLOT) return BROUGHT_NO_ROOM;
    if (flow != KVT_FLOW_STARTED) return BROUGHT_NONE;
    KVT_ASSERT((core->foresight.blocks[index].brought & bit) == 0);
    core->foresight.blocks[index].brought |= bit & 3u;
    core->foresight.blocks[index].brought_at_ms = brief_ms(core->now_ns);
    core->counters.foreseen_blocks++;
    return BROUGHT_ONE;
}

/* One step nearer: to the device when there is room, otherwise from nvme to host memory. */
static enum brought bring(const struct bringing *bringing, uint32_t index)
{
    struct kvt_core *core = bringing->core;
    const struct kvt_block *block = kvt_core_block(core, index);
    if (block->users > 0) return BROUGHT_NONE; /* an active sequence claims it, and fetches it in its own time */
    const bool is_in_host = kvt_copy_is_resident(block, KVT_TIER_HOST);
    const bool is_in_nvme = kvt_copy_is_resident(block, KVT_TIER_NVME);
    const bool is_moving = !is_in_host && kvt_copy_state(block, KVT_TIER_HOST) != KVT_COPY_EMPTY;
    if (kvt_copy_state(block, KVT_TIER_DEVICE) != KVT_COPY_EMPTY || is_moving || (!is_in_host && !is_in_nvme))
        return BROUGHT_NONE;
    if (is_link_busy(core, is_in_host ? KVT_TIER_DEVICE : KVT_TIER_NVME)) return BROUGHT_BUSY;
    const enum room room = make_device_room(bringing, block);
    if (is_in_host && room != ROOM_THERE) return room == ROOM_COMES ? BROUGHT_BUSY : BROUGHT_NO_ROOM;
    if (!is_in_host && !make_host_room(bringing, block->nvme_length)) return BROUGHT_NO_ROOM;
    if (room != ROOM_THERE && !bringing->is_worth[KVT_TIER_HOST]) return BROUGHT_NO_ROOM;
    if (room == ROOM_THERE)
        return started(core, index, kvt_flow_fetch(core, index, KVT_PRIORITY_PREFETCH), KVT_BROUGHT_DEVICE);
    return started(core, index, kvt_flow_lift(core, index, KVT_PRIORITY_PREFETCH), KVT_BROUGHT_HOST);
}

enum advance { ADVANCE_DONE, ADVANCE_BUSY, ADVANCE_BATCH };

struct budget {
    uint32_t starts, blocks;
};

/* Goes through the sequence's blocks from where it stopped. What finds no room now is looked for again at the next look. */
static enum advance advance(struct kvt_core *core, struct kvt_sequence *sequence, struct budget *budget)
{
    const struct bringing bringing = bring_for(core, sequence);
    struct kvt_sequence_cursor *cursor = &sequence->near;
    const bool is_worth_it_at_all = bringing.is_worth[KVT_TIER_DEVICE] || bringing.is_worth[KVT_TIER_HOST];
    if (bringing.likely <= 0 || !is_worth_it_at_all) {
        sequence->has_left = true; /* look again */
        return ADVANCE_DONE;
    }
    uint32_t index;
    for (; kvt_planner_block_at(core, sequence, cursor, &index); cursor->index++) {
        if (budget->starts == 0 || budget->blocks == 0) return ADVANCE_BATCH;
        budget->blocks--;
        if (index == KVT_NO_BLOCK) continue;
        if (core->transfers.prefetch_bytes >= core->config.prefetch_bytes_max) return ADVANCE_BUSY;
        switch (bring(&bringing, index)) {
        case BROUGHT_ONE:
            budget->starts--;
            if (core->foresight.blocks[index].brought & KVT_BROUGHT_HOST) sequence->has_left = sequence->is_coming = true;
            break;
        case BROUGHT_NONE: break;
        case BROUGHT_NO_ROOM: sequence->has_left = true; break;
        case BROUGHT_BUSY: return ADVANCE_BUSY;
        }
    }
    return ADVANCE_DONE;
}

/* Sequences whose time to be looked at has come. True: more of them are left. */
static bool take_due(struct kvt_core *core)
{
    for (uint32_t n = 0; n < LOOKS_MAX; n++) {
        if (kvt_foresight_next_ns(core) > core->now_ns) return false;
        struct kvt_sequence *sequence = &core->sequences[core->foresight.looks[0]];
        KVT_ASSERT(sequence->idle_ns > 0);
        const bool is_told = sequence->mode != KVT_SEQUENCE_IDLE || sequence->list != KVT_LIST_NONE;
        if (is_told || !sequence->has_left) {
            plan_another_look(core, sequence);
            continue;
        }
        heap_remove(core, sequence);
        sequence->near = (struct kvt_sequence_cursor){ 0, 0 };
        sequence->has_left = sequence->is_coming = false;
        kvt_sequence_list_append(core, sequence, KVT_LIST_FORESEEN);
    }
    return true;
}

bool kvt_foresight_start(struct kvt_core *core, bool is_busy)
{
    if (!is_on(core)) return false;
    const bool is_more = take_due(core);
    /* Half of the transfers are for those who wait. */
    if (is_busy || 2 * core->transfers.in_flight >= core->transfers.capacity) return is_more;
    struct budget budget = { STARTS_MAX, BLOCKS_MAX };
    while (core->foreseen.head != KVT_NO_SEQUENCE) {
        struct kvt_sequence *sequence = &core->sequences[core->foreseen.head];
        const enum advance result = advance(core, sequence, &budget);
        if (result == ADVANCE_BATCH) return true;
        if (result == ADVANCE_BUSY) break;
        kvt_sequence_list_remove(core, sequence);
        /* What came as far as host memory may go on soon. */
        if (sequence->is_coming) heap_insert(core, sequence, core->now_ns + LOOK_GAP_NS);
        else plan_another_look(core, sequence);
    }
    return is_more || budget.starts < STARTS_MAX;
}

/* ---- Verify ------------------------------------------------------------------------------------------------------ */

void kvt_foresight_verify(const struct kvt_core *core)
{
    if (!is_on(core)) return;
    uint64_t waiting = 0;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        const uint32_t brought = core->foresight.blocks[b].brought;
        waiting += (uint32_t)__builtin_popcount(brought);
        KVT_ASSERT(KVT_IMPLIES(brought & KVT_BROUGHT_DEVICE, block->device_slot != KVT_NO_SLOT));
        KVT_ASSERT(KVT_IMPLIES(brought & KVT_BROUGHT_HOST, block->host_slot != KVT_NO_SLOT));
        KVT_ASSERT(KVT_IMPLIES(brought != 0, block->users == 0));
    }
    const struct kvt_counters *counters = &core->counters;
    KVT_ASSERT(counters->foreseen_blocks
               == counters->foreseen_used_blocks + counters->foreseen_wasted_blocks + waiting);
    for (uint32_t at = 0; at < core->foresight.look_count; at++) {
        const struct kvt_sequence *sequence = &core->sequences[core->foresight.looks[at]];
        KVT_ASSERT(sequence->look_place == at + 1);
        KVT_ASSERT(sequence->mode == KVT_SEQUENCE_IDLE || sequence->mode == KVT_SEQUENCE_WARMING);
        KVT_ASSERT(sequence->idle_ns > 0);
        KVT_ASSERT(at == 0 || look_ns(core, (at - 1) / 2) <= sequence->look_ns);
    }
    core->foresight.ops->verify(core->foresight.prefetcher);
}
