#include "tests/sim/plan.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/rng.h"

#define MS UINT64_C(1000000)

static const struct {
    const char *name, *text;
} faults[SIM_FAULTS] = {
#define X(id, name, text) { name, text },
    SIM_FAULT_LIST(X)
#undef X
};

const char *sim_fault_name(enum sim_fault fault) { return faults[fault].name; }
const char *sim_fault_text(enum sim_fault fault) { return faults[fault].text; }

enum sim_fault sim_fault_find(const char *name, uint32_t length)
{
    uint32_t i = 0;
    while (i < SIM_FAULTS && (strlen(faults[i].name) != length || strncmp(faults[i].name, name, length) != 0)) i++;
    return (enum sim_fault)i;
}

static uint32_t below(struct kvt_rng *rng, uint32_t bound) { return (uint32_t)kvt_rng_below(rng, bound); }

/* Between low and high, small ones as often as large ones. */
static uint32_t spread(struct kvt_rng *rng, uint32_t low, uint32_t high)
{
    uint32_t doublings = 0;
    while (low << (doublings + 1) <= high) doublings++;
    const uint32_t base = low << below(rng, doublings + 1);
    return kvt_min_u32(base + below(rng, base), high);
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static void choose_group(struct kvt_rng *rng, struct kvt_group_shape *group, bool is_codec_on)
{
    static const enum kvt_dtype small[] = { KVT_DTYPE_BF16, KVT_DTYPE_FP16, KVT_DTYPE_FP8, KVT_DTYPE_FP32,
                                            KVT_DTYPE_INT8 };
    *group = (struct kvt_group_shape){ .kind = KVT_GROUP_FULL,
                                       .dtype = small[below(rng, is_codec_on ? 3 : KVT_ARRAY_COUNT(small))],
                                       .layers = 1 + below(rng, 2),
                                       .kv_heads = 1,
                                       .head_dim = is_codec_on ? 128 : 8 + 8 * below(rng, 3),
                                       .planes = 1 + below(rng, 2) };
    if (below(rng, 10) < 4) {
        group->kind = KVT_GROUP_WINDOW;
        group->window_tokens = 1 + below(rng, 12);
        group->sink_tokens = below(rng, 2) ? below(rng, 6) : 0;
    }
}

/*
 * A state group gets a share of the device by what a token needs, which for small shapes is next to nothing. So it has
 * blocks of the size of another group's, and shares its pool.
 */
static void make_state(struct kvt_rng *rng, struct kvt_group_shape *group, const struct kvt_group_shape *like,
                       uint32_t block_tokens)
{
    const uint64_t bytes = kvt_group_block_bytes(like, block_tokens);
    const uint32_t layers = bytes % 2 == 0 && below(rng, 2) ? 2 : 1;
    *group = (struct kvt_group_shape){
        .kind = KVT_GROUP_STATE, .dtype = like->dtype, .layers = layers, .state_bytes = bytes / layers
    };
}

static void choose_shape(struct kvt_rng *rng, struct sim_plan *plan)
{
    struct kvt_model_shape *shape = &plan->shape;
    plan->is_codec_on = below(rng, 6) == 0;
    plan->is_codec_tables_off = below(rng, 3) == 0;
    shape->block_tokens = 1 + below(rng, SIM_BLOCK_TOKENS_MAX);
    shape->group_count = 1 + below(rng, 3);
    choose_group(rng, &shape->groups[0], plan->is_codec_on);
    for (uint32_t g = 1; g < shape->group_count; g++) {
        if (below(rng, 3) == 0) make_state(rng, &shape->groups[g], &shape->groups[0], shape->block_tokens);
        else choose_group(rng, &shape->groups[g], plan->is_codec_on);
    }
    /* Also a model that is nothing but state. */
    if (shape->group_count == 1 && below(rng, 8) == 0) {
        const struct kvt_group_shape like = shape->groups[0];
        make_state(rng, &shape->groups[0], &like, shape->block_tokens);
    }
    for (uint32_t g = 0; g < shape->group_count; g++)
        KVT_ASSERT(kvt_group_row_bytes(&shape->groups[g]) <= SIM_ROW_BYTES_MAX);
}

/* ---- Sizes and policies ------------------------------------------------------------------------------------------ */

static void choose_sizes(struct kvt_rng *rng, struct sim_plan *plan)
{
    uint64_t block_max = 0;
    for (uint32_t g = 0; g < plan->shape.group_count; g++)
        block_max = kvt_max_u64(block_max, kvt_group_block_bytes(&plan->shape.groups[g], plan->shape.block_tokens));
    plan->device_slots_min = below(rng, 6) == 0 ? 200 : 3 + below(rng, 22);
    const uint32_t blocks[] = { 0, 2, 4, 8, 24, 24, 120 };
    const uint32_t host_blocks = blocks[below(rng, KVT_ARRAY_COUNT(blocks))];
    if (host_blocks > 0) {
        const uint64_t bytes = (uint64_t)host_blocks * block_max + 4096;
        plan->host_slot_bytes = (uint32_t)kvt_align_up(bytes, 4096);
    }
    plan->stripes = below(rng, 6) == 0 ? 2 + below(rng, 2) : 1;
    if (host_blocks > 0 && below(rng, 5) > 0)
        plan->nvme_bytes = plan->stripes * (uint32_t)(spread(rng, 330, 900) * KVT_KIB + 8 * block_max);
    plan->sequences_max = 2 + below(rng, 14);
    plan->transfers_max = below(rng, 3) == 0 ? 1 + below(rng, 6) : 64;
}

static void choose_policies(struct kvt_rng *rng, struct sim_plan *plan)
{
    static const char *const policies[] = { "lru",    "lru-reward", "fifo", "clock", "lfu", "sieve",
                                            "s3fifo", "arc",        "2q",   "lirs",  "gdsf" };
    static const char *const admissions[] = { "all", "all", "second-sight", "adaptive", "budget" };
    plan->device_policy = below(rng, 2) ? "lru" : policies[below(rng, KVT_ARRAY_COUNT(policies))];
    plan->host_policy = below(rng, 2) ? "lru" : policies[below(rng, KVT_ARRAY_COUNT(policies))];
    plan->admission = admissions[below(rng, KVT_ARRAY_COUNT(admissions))];
    plan->nvme_bytes_per_day = below(rng, 8) == 0 ? (1 + below(rng, 32)) * KVT_MIB : 0;
    plan->is_encrypted = below(rng, 5) == 0;
    plan->prefetch = (enum kvt_prefetch)below(rng, 3);
    plan->prefill_tokens_per_s = below(rng, 10) == 0 ? 1000 + below(rng, 1000000) : 0;
    if (below(rng, 3) == 0) plan->link_bytes_per_s = spread(rng, 100000, 100000000);
    if (below(rng, 3) == 0) plan->link_latency_ns = below(rng, 2000000);
    plan->haste = below(rng, 3) ? below(rng, 5) : 0;
    plan->check_every = below(rng, 8) == 0 ? 4 : 48;
    plan->is_keeping = below(rng, 2) == 0;
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

/* The most that a fault strikes, and the least when it is chosen at all, per million of what it says in the list. */
static const struct {
    uint32_t least, most;
} ranges[SIM_FAULTS] = {
    [SIM_FAULT_EIO] = { 500, 40000 },      [SIM_FAULT_SHORT] = { 1000, 80000 },
    [SIM_FAULT_DELAY] = { 10000, 500000 }, [SIM_FAULT_REORDER] = { 1000000, 1000000 },
    [SIM_FAULT_QUEUE] = { 5000, 200000 },  [SIM_FAULT_FLIP] = { 1000, 60000 },
    [SIM_FAULT_TORN] = { 500, 20000 },     [SIM_FAULT_MISDIRECT] = { 500, 20000 },
    [SIM_FAULT_NOSPACE] = { 500, 60000 },  [SIM_FAULT_LOST] = { 200, 8000 },
    [SIM_FAULT_STALL] = { 500, 4000 },     [SIM_FAULT_COPY] = { 1000, 60000 },
    [SIM_FAULT_STUCK] = { 500, 15000 },    [SIM_FAULT_DEVICE] = { 200, 800 },
    [SIM_FAULT_MEMORY] = { 2000, 40000 },  [SIM_FAULT_RESTART] = { 300, 1500 },
    [SIM_FAULT_KILL] = { 300, 1500 },      [SIM_FAULT_POWER] = { 300, 1500 },
    [SIM_FAULT_JUMP] = { 500, 4000 },
};

static bool is_of_disk(enum sim_fault fault) { return fault <= SIM_FAULT_STALL; }

static void choose_faults(struct kvt_rng *rng, struct sim_plan *plan, uint32_t without)
{
    const uint32_t percent = (const uint32_t[]){ 0, 15, 15, 30, 60 }[below(rng, 5)];
    for (uint32_t f = 0; f <= SIM_FAULT_JUMP; f++) {
        /* Each is drawn whether or not it is wanted: then a fault that is off moves no other. */
        const uint32_t rate = spread(rng, ranges[f].least, ranges[f].most);
        const bool is_chosen = below(rng, 100) < percent;
        const bool is_off = (without >> f & 1u) != 0 || (is_of_disk((enum sim_fault)f) && plan->nvme_bytes == 0);
        plan->rates[f] = is_chosen && !is_off ? rate : 0;
    }
    /* A restart of a calm world shows what it must bring back whole. */
    if (percent == 0 && below(rng, 2) == 0 && !(without >> SIM_FAULT_RESTART & 1u))
        plan->rates[SIM_FAULT_RESTART] = 600;
    plan->deadline_ns = (200 + below(rng, 800)) * MS;
    /* Where nothing is ever reset, the store fills. */
    plan->reset_share = (const uint32_t[]){ 0, 60, 1000, 1000 }[below(rng, 4)];
}

/* ---- More -------------------------------------------------------------------------------------------------------- */

/* Drawn last: what a seed chose before these came has not moved. */
static void choose_more(struct kvt_rng *rng, struct sim_plan *plan, uint32_t without)
{
    plan->disk_alignment = below(rng, 4) == 0 ? 4096 : 512;
    plan->is_layered = below(rng, 4) == 0;
    plan->is_reading = below(rng, 4) == 0;
    plan->is_hinting = below(rng, 2) == 0;
    plan->is_compacting = below(rng, 6) == 0;
    plan->is_changing = below(rng, 3) == 0;
    const uint32_t away = spread(rng, 500, 4000);
    const bool is_away = below(rng, 2) == 0 && plan->stripes > 1 && plan->nvme_bytes > 0;
    if (is_away && !(without >> SIM_FAULT_AWAY & 1u)) {
        plan->rates[SIM_FAULT_AWAY] = away;
        if (!(without >> SIM_FAULT_RESTART & 1u))
            plan->rates[SIM_FAULT_RESTART] = 1200; /* that one comes back at the next */
    }
}

struct sim_plan sim_plan_of(uint64_t seed, uint32_t ticks, uint32_t without)
{
    struct kvt_rng rng = { kvt_mix64(seed + 0x51a1) };
    struct sim_plan plan = { .seed = seed, .ticks = ticks };
    choose_shape(&rng, &plan);
    choose_sizes(&rng, &plan);
    choose_policies(&rng, &plan);
    choose_faults(&rng, &plan, without);
    choose_more(&rng, &plan, without);
    return plan;
}

bool sim_plan_is_calm(const struct sim_plan *plan)
{
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (plan->rates[f] > 0) return false;
    }
    return true;
}

bool sim_plan_is_calm_disk(const struct sim_plan *plan)
{
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (plan->rates[f] > 0 && is_of_disk((enum sim_fault)f)) return false;
    }
    return true;
}

bool sim_plan_is_lying(const struct sim_plan *plan)
{
    return sim_plan_has(plan, SIM_FAULT_TORN) || sim_plan_has(plan, SIM_FAULT_MISDIRECT);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

void sim_plan_print(const struct sim_plan *plan)
{
    static const char *const kinds[] = { "full", "window", "state" };
    static const char *const prefetches[] = { "lookahead", "demand", "off" };
    (void)printf("seed %llu, %u ticks: blocks of %u tokens;", (unsigned long long)plan->seed, plan->ticks,
                 plan->shape.block_tokens);
    for (uint32_t g = 0; g < plan->shape.group_count; g++) {
        const struct kvt_group_shape *group = &plan->shape.groups[g];
        (void)printf(" %s", kinds[group->kind]);
        if (group->kind == KVT_GROUP_WINDOW) (void)printf(" %u+%u", group->window_tokens, group->sink_tokens);
        (void)printf(" %s, %llu bytes;", kvt_dtype_name(group->dtype),
                     (unsigned long long)kvt_group_block_bytes(group, plan->shape.block_tokens));
    }
    (void)printf(
        "\n  device %u slots at least, host %u bytes, nvme %u bytes in %u; %s, %s, admission %s; prefetch %s\n",
        plan->device_slots_min, plan->host_slot_bytes, plan->nvme_bytes, plan->stripes, plan->device_policy,
        plan->host_policy, plan->admission, prefetches[plan->prefetch]);
    (void)printf("  disk blocks of %u bytes;%s%s%s%s%s\n", plan->disk_alignment,
                 plan->is_layered ? " layer by layer" : "", plan->is_reading ? " through windows" : "",
                 plan->is_hinting ? " hints" : "", plan->is_compacting ? " compact" : "",
                 plan->is_changing ? " changes" : "");
    (void)printf(
        "  codec %s%s, %s; sequences %u, transfers %u, deadline %llu ms\n  faults:", plan->is_codec_on ? "on" : "off",
        plan->is_codec_on && plan->is_codec_tables_off ? " without tables" : "",
        plan->is_encrypted ? "encrypted" : "plain", plan->sequences_max, plan->transfers_max,
        (unsigned long long)(plan->deadline_ns / MS));
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (plan->rates[f]) (void)printf(" %s %u", sim_fault_name((enum sim_fault)f), plan->rates[f]);
    }
    (void)printf("%s\n", sim_plan_is_calm(plan) ? " none" : "");
}
