/*
 * change: the next process is not configured as the last one was: other sizes, policies and options, another model or
 * type, another key, a directory that is away.
 *
 * Two models whose blocks are alike in everything but their names are two worlds: what is computed in one is never found
 * in the other, and is found again when the first is back. The twin knows the world as a part of the salt.
 */
#include "runtime/base/bytes.h"
#include "tests/sim/sim.h"

static uint32_t draw(struct sim *sim, uint32_t bound) { return (uint32_t)kvt_rng_below(&sim->fault_rng, bound); }

/* What host memory needs at least: a chunk for the largest block. */
static uint64_t host_least(const struct sim_plan *plan)
{
    uint64_t block_max = 0;
    for (uint32_t g = 0; g < plan->shape.group_count; g++)
        block_max = kvt_max_u64(block_max, kvt_group_block_bytes(&plan->shape.groups[g], plan->shape.block_tokens));
    return block_max + 4096;
}

static void change_sizes(struct sim *sim)
{
    struct sim_plan *plan = &sim->plan;
    if (plan->host_slot_bytes > 0) {
        const uint64_t bytes = (uint64_t)plan->host_slot_bytes * (50 + draw(sim, 120)) / 100;
        plan->host_slot_bytes = (uint32_t)kvt_align_up(kvt_max_u64(bytes, host_least(plan)), 4096);
    }
    plan->device_slots_min = kvt_max_u32(plan->device_slots_min * (60 + draw(sim, 90)) / 100, 3);
    plan->sequences_max = 2 + draw(sim, 14);
    if (draw(sim, 3) == 0) plan->transfers_max = draw(sim, 2) ? 1 + draw(sim, 6) : 64;
    if (plan->nvme_bytes == 0 || draw(sim, 2)) return;
    /* Less evicts at open; what a store needs at least, it has. */
    const uint32_t needed = kvt_min_u32(sim->nvme_bytes_first, plan->stripes * 400 * (uint32_t)KVT_KIB);
    const uint32_t least = kvt_max_u32(sim->nvme_bytes_first / 10 * 7, needed);
    plan->nvme_bytes = least + draw(sim, sim->nvme_bytes_first - least + 1);
}

static void change_options(struct sim *sim)
{
    static const char *const policies[] = { "lru", "fifo", "clock", "s3fifo", "arc" };
    struct sim_plan *plan = &sim->plan;
    plan->device_policy = policies[draw(sim, KVT_ARRAY_COUNT(policies))];
    plan->host_policy = policies[draw(sim, KVT_ARRAY_COUNT(policies))];
    plan->admission = draw(sim, 2) ? "all" : "adaptive";
    plan->prefetch = (enum kvt_prefetch)draw(sim, 3);
    plan->is_layered = draw(sim, 2);
    if (sim->was_codec_on) {
        plan->is_codec_on = draw(sim, 4) > 0;
        plan->is_codec_tables_off = draw(sim, 3) == 0;
    }
}

/* A type of the same size; what is packed under the one is not readable under the other. */
static enum kvt_dtype like(enum kvt_dtype dtype)
{
    switch ((int)dtype) {
    case KVT_DTYPE_BF16: return KVT_DTYPE_FP16;
    case KVT_DTYPE_FP16: return KVT_DTYPE_BF16;
    case KVT_DTYPE_FP8: return KVT_DTYPE_INT8;
    case KVT_DTYPE_INT8: return KVT_DTYPE_FP8;
    default: return dtype;
    }
}

/* World 0 is the first; 1 has another model, 2 another type, 3 another secret, 4 another rank. */
void sim_world_apply(const struct sim *sim, struct kvt_config *config)
{
    config->model = sim->world == 1 ? "another" : "sim";
    const bool can_change = like(config->shape.groups[0].dtype) != config->shape.groups[0].dtype && !sim->was_codec_on;
    if (sim->world == 2 && can_change) {
        const enum kvt_dtype from = config->shape.groups[0].dtype, to = like(from);
        for (uint32_t g = 0; g < config->shape.group_count; g++) {
            if (config->shape.groups[g].dtype == from) config->shape.groups[g].dtype = to;
        }
    } else if (sim->world == 2) {
        config->model = "a third";
    }
    config->secret = sim->world == 3 ? "secret" : NULL;
    config->secret_bytes = sim->world == 3 ? 6 : 0;
    config->world = sim->world == 4 ? 2 : 0;
    config->rank = sim->world == 4 ? 1 : 0;
}

void sim_change(struct sim *sim)
{
    if (!sim->plan.is_changing || sim->is_calm) return;
    const uint32_t nvme_bytes = sim->plan.nvme_bytes, world = sim->world;
    const bool was_codec_on = sim->plan.is_codec_on;
    if (draw(sim, 2) == 0) change_sizes(sim);
    if (draw(sim, 2) == 0) change_options(sim);
    if (draw(sim, 3) == 0) sim->world = draw(sim, 2) ? 0 : draw(sim, SIM_WORLDS);
    if (draw(sim, 8) == 0 && sim->plan.nvme_bytes > 0) {
        const uint32_t before = sim->key_number;
        sim->key_number = draw(sim, 3);
        /* Over records of another key the store starts empty. */
        if (before != sim->key_number) sim->is_emptied = true;
    }
    /* A smaller store evicts at open, and one with tables of others beside its own is smaller. */
    const bool has_others = sim->world != world || sim->plan.is_codec_on != was_codec_on;
    if (sim->plan.nvme_bytes < nvme_bytes || sim->is_emptied || has_others) sim->durable_run++;
    sim->was_changed = true;
    sim_say(sim, "changed: world %u, key %u, nvme %u, host %u, device %u slots", sim->world, sim->key_number,
            sim->plan.nvme_bytes, sim->plan.host_slot_bytes, sim->plan.device_slots_min);
    sim_configure(sim);
}
