#include "tools/sim/model.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "tiers/codec.h"

#define CRUMB_NS UINT64_C(20000) /* what passes when something is due already, so that time always passes */

/* ---- The clock --------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void *user) { return ((const struct kvt_model_clock *)user)->now_ns; }

static void pass(void *user, uint64_t timeout_ns)
{
    struct kvt_model_clock *clock = user;
    const uint64_t end_ns = clock->now_ns + timeout_ns;
    uint64_t next_ns = kvt_model_device_next_ns(clock->device);
    if (clock->nvme) next_ns = kvt_min_u64(next_ns, kvt_model_nvme_next_ns(clock->nvme));
    if (clock->runtime) next_ns = kvt_min_u64(next_ns, kvt_core_next_timer(&clock->runtime->core));
    next_ns = kvt_max_u64(next_ns, clock->now_ns + CRUMB_NS);
    clock->now_ns = kvt_min_u64(next_ns, end_ns);
}

struct kvt_env kvt_model_env(struct kvt_model_clock *clock, uint64_t seed)
{
    return (struct kvt_env){
        .now_ns = now_ns, .clock_user = clock, .is_single_threaded = true, .pass = pass, .seed = seed
    };
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static enum kvt_status open_device(void *user, const struct kvt_options *options, struct kvt_tier **ret_tier,
                                   struct kvt_gpu **ret_gpu)
{
    const struct kvt_model_open *open = user;
    KVT_TRY(kvt_model_device_open(open->links, options, open->clock, ret_tier, ret_gpu));
    open->clock->device = *ret_tier;
    return KVT_OK;
}

static enum kvt_status open_nvme(void *user, const struct kvt_options *options, struct kvt_tier **ret_tier)
{
    const struct kvt_model_open *open = user;
    uint64_t side_bytes = 0;
    if (open->links->pack_ratio > 1) { /* the store keeps room for the codec's tables */
        struct kvt_codec *codec;
        KVT_TRY(kvt_codec_create(&options->config.shape, &codec));
        side_bytes = kvt_codec_tables_bytes(codec);
        kvt_codec_destroy(&codec);
    }
    KVT_TRY(kvt_model_nvme_open(open->links, options->config.nvme_bytes, options->block_bytes_max, side_bytes,
                                open->clock, ret_tier));
    open->clock->nvme = *ret_tier;
    return KVT_OK;
}

enum kvt_status kvt_model_runtime_open(const struct kvt_config *config, const struct kvt_model_links *links,
                                       struct kvt_model_clock *clock, char *ret_error, size_t error_bytes)
{
    struct kvt_config modelled = *config;
    struct kvt_model_open open = { links, clock };
    const struct kvt_runtime_parts parts = {
        .open_device = open_device, .open_nvme = open_nvme, .user = &open, .is_packing = links->pack_ratio > 1
    };
    KVT_ASSERT(config->env && config->env->clock_user == clock);
    modelled.is_codec_off = true;
    return kvt_runtime_open(&modelled, &parts, &clock->runtime, ret_error, error_bytes);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static kvt_stream steps_stream(void *user) { return user; }

static enum kvt_status steps_add(void *user, const struct kvt_engine_item *item)
{
    struct kvt_model_steps *steps = user;
    const uint64_t context = item->committed + item->count;
    steps->tokens += item->count;
    steps->blocks += (context + steps->shape->block_tokens - 1) / steps->shape->block_tokens
        * steps->shape->group_count;
    for (uint32_t g = 0; g < steps->shape->group_count; g++) {
        const struct kvt_group_shape *group = &steps->shape->groups[g];
        steps->kv_bytes += kvt_group_bytes_kept(group, context);
        steps->written_bytes += group->kind == KVT_GROUP_STATE ? kvt_group_block_bytes(group, 1)
                                                               : kvt_group_bytes_per_token(group) * item->count;
        if (group->kind == KVT_GROUP_STATE) continue;
        const uint64_t seen = group->kind == KVT_GROUP_WINDOW ? kvt_min_u64(context, group->window_tokens) : context;
        /* Scores and their product with V, for each KV head: query heads that share one are in the model's parameters' share. */
        steps->attention_flops += 4.0 * (double)item->count * (double)seen * group->layers * group->kv_heads
            * group->head_dim;
    }
    return KVT_OK;
}

static uint64_t step_ns(const struct kvt_model_steps *steps)
{
    const struct kvt_model_roofline *roofline = &steps->roofline;
    const bool is_emulated = roofline->flops_per_s == 0 && (roofline->write_ns_per_byte > 0 || roofline->line_ns > 0);
    if (roofline->step_ns > 0 || is_emulated) {
        const uint64_t work_ns = (uint64_t)(roofline->line_ns * (double)steps->blocks
                                            + roofline->write_ns_per_byte * (double)steps->written_bytes);
        return work_ns > roofline->step_ns ? work_ns : roofline->step_ns + roofline->wake_ns;
    }
    const double flops = 2 * roofline->parameters * (double)steps->tokens + steps->attention_flops;
    const double bytes = 2 * roofline->parameters + (double)steps->kv_bytes;
    const double arithmetic_s = roofline->flops_per_s > 0 ? flops / roofline->flops_per_s : 0;
    const double memory_s = roofline->bytes_per_s > 0 ? bytes / roofline->bytes_per_s : 0;
    return (uint64_t)((arithmetic_s > memory_s ? arithmetic_s : memory_s) * 1e9) + 1;
}

static enum kvt_status steps_launch(void *user)
{
    struct kvt_model_steps *steps = user;
    struct kvt_runtime *runtime = steps->clock->runtime;
    uint32_t stream;
    KVT_TRY(runtime->core.gpu->ops->stream(runtime->core.gpu, steps_stream(user), &stream));
    steps->clock->now_ns += steps->roofline.between_ns;
    steps->times.launched_ns = steps->clock->now_ns;
    kvt_model_device_launch(steps->clock->device, stream, step_ns(steps), &steps->times.started_ns,
                            &steps->times.ended_ns);
    steps->busy_ns += steps->times.ended_ns - steps->times.started_ns;
    steps->tokens = steps->kv_bytes = steps->blocks = steps->written_bytes = 0;
    steps->attention_flops = 0;
    return KVT_OK;
}

static bool steps_wait(void *user, uint64_t timeout_ns, struct kvt_engine_times *ret_times)
{
    const struct kvt_model_steps *steps = user;
    struct kvt_model_clock *clock = steps->clock;
    const uint64_t give_up_ns = clock->now_ns + timeout_ns;
    while (clock->now_ns < steps->times.ended_ns) {
        if (clock->now_ns >= give_up_ns) return false;
        (void)kvt_wait(clock->runtime, kvt_min_u64(steps->times.ended_ns, give_up_ns) - clock->now_ns);
    }
    *ret_times = steps->times;
    return true;
}

const struct kvt_step_calls kvt_model_step_calls = {
    .stream = steps_stream,
    .add = steps_add,
    .launch = steps_launch,
    .wait = steps_wait,
};
