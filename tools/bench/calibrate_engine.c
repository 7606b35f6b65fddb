/*
 * Method: writing and looking at KV is timed by itself. Then the main job runs a few chats on a device too small for them,
 *         over a paced link, with steps of a given time: what its steps take longer than that, what passes between them,
 *         and how much later than its place on the link a transfer is acted on.
 */
#include <string.h>

#include "kvtier/kvtier.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "tools/bench/calibrate.h"
#include "tools/run/content.h"
#include "tools/run/engine.h"
#include "tools/run/schedule.h"
#include "tools/workload/workload.h"

enum { LAYERS = 2, HEAD_DIM = 64, BLOCK_TOKENS = 16, REQUESTS = 24, TRANSFERS_MAX = 4096, STEPS_MAX = 8192 };
#define STEP_NS UINT64_C(2000000)
#define LINK_BYTES_PER_S UINT64_C(100000000)

struct watch {
    double late_ns[TRANSFERS_MAX];
    uint32_t late_count;
    uint64_t ended_ns; /* when the last fetch was over */
    /* medians, so that a moment in which the machine does something else does not count */
    double step_ns[STEPS_MAX], gap_ns[STEPS_MAX];
    uint32_t steps;
    uint64_t step_ended_ns, stalled_ns; /* since that step */
    struct kvt_schedule_watch watch;
};

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static bool measure_bytes(struct kvt_calibration *calibration)
{
    enum { BLOCKS = 64, ROUNDS = 5 };
    const struct kvt_model_shape *shape = &calibration->shape;
    const uint64_t bytes = kvt_group_block_bytes(&shape->groups[0], shape->block_tokens);
    const struct kvt_env env = kvt_env_default();
    struct kvt_content content;
    double write_ns[ROUNDS], line_ns[ROUNDS];
    if (shape->groups[0].kind == KVT_GROUP_STATE) return true;
    uint8_t *blocks = kvt_table_map(BLOCKS * bytes);
    uint64_t *identities = kvt_alloc(shape->block_tokens, sizeof *identities);
    const bool is_ok = blocks && identities && kvt_content_init(&content, shape) == KVT_OK;
    for (uint32_t round = 0; is_ok && round < ROUNDS; round++) {
        struct kvt_content_run run = { .count = shape->block_tokens, .identities = identities };
        uint64_t begun_ns = kvt_env_now_ns(&env), wrong = 0;
        for (uint32_t b = 0; b < BLOCKS; b++) {
            run.position = (uint64_t)b * shape->block_tokens;
            for (uint32_t t = 0; t < shape->block_tokens; t++) identities[t] = kvt_content_next(b, t);
            kvt_content_write(&content, &run, blocks + b * bytes);
        }
        write_ns[round] = (double)(kvt_env_now_ns(&env) - begun_ns) / (double)(BLOCKS * bytes);
        begun_ns = kvt_env_now_ns(&env);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            run.position = (uint64_t)b * shape->block_tokens;
            for (uint32_t t = 0; t < shape->block_tokens; t++) identities[t] = kvt_content_next(b, t);
            wrong += kvt_content_check_line(&content, &run, blocks + b * bytes) != KVT_CONTENT_SAME;
        }
        line_ns[round] = (double)(kvt_env_now_ns(&env) - begun_ns) / BLOCKS;
        if (wrong > 0) line_ns[round] = 0;
    }
    if (is_ok) {
        kvt_content_done(&content);
        calibration->links.engine.write_ns_per_byte = kvt_calibrate_quantile(write_ns, ROUNDS, 0.5);
        calibration->links.engine.line_ns = kvt_calibrate_quantile(line_ns, ROUNDS, 0.5);
    }
    kvt_free(identities);
    kvt_table_unmap(blocks, BLOCKS * bytes);
    return is_ok || kvt_calibrate_fail("out of memory");
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/*
 * A fetch that found its link free is late by what the threads took to see it. (A stash waits for the step that writes
 * its block as well.)
 */
static void on_transfer(void *user, const struct kvt_transfer_event *event)
{
    struct watch *watch = user;
    const uint64_t took_ns = event->ended_ns - event->begun_ns;
    if (event->from != KVT_TIER_HOST || event->to != KVT_TIER_DEVICE) return;
    const bool is_alone = event->begun_ns >= watch->ended_ns;
    watch->ended_ns = event->ended_ns;
    if (!is_alone || event->link_ns == 0 || took_ns < event->link_ns || watch->late_count == TRANSFERS_MAX) return;
    watch->late_ns[watch->late_count++] = (double)(took_ns - event->link_ns);
}

static void on_step(void *user, const struct kvt_step_record *step)
{
    struct watch *watch = user;
    if (watch->step_ended_ns > 0 && watch->steps < STEPS_MAX) {
        const uint64_t gap_ns = step->started_ns - watch->step_ended_ns;
        watch->gap_ns[watch->steps] = (double)(gap_ns - kvt_min_u64(gap_ns, watch->stalled_ns));
        watch->step_ns[watch->steps++] = (double)(step->ended_ns - step->started_ns);
    }
    watch->step_ended_ns = step->ended_ns;
    watch->stalled_ns = 0;
}

static void on_stall(void *user, enum kvt_stall_cause cause, uint64_t from_ns, uint64_t to_ns)
{
    (void)cause;
    ((struct watch *)user)->stalled_ns += to_ns - from_ns;
}

static struct kvt_model_shape small_shape(void)
{
    struct kvt_model_shape shape = { .group_count = 1, .block_tokens = BLOCK_TOKENS };
    shape.groups[0] = (struct kvt_group_shape){
        .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = LAYERS, .kv_heads = 1, .head_dim = HEAD_DIM
    };
    return shape;
}

static bool run_chats(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                      const struct kvt_workload *workload, struct watch *watch)
{
    const struct kvt_engine_options engine_how = { .verify = KVT_VERIFY_OFF,
                                                   .read = KVT_READ_LINE,
                                                   .step_ns = STEP_NS };
    const struct kvt_schedule_watch *const watches[] = { &watch->watch, NULL };
    const struct kvt_schedule_options how = { .arrival = KVT_ARRIVAL_ASAP,
                                              .speed = 1,
                                              .pause_ns = UINT64_MAX,
                                              .batch = 4,
                                              .prefill_chunk = 64,
                                              .step_ns = STEP_NS,
                                              .watches = watches };
    struct kvt_content content;
    struct kvt_engine *engine = NULL;
    struct kvt_schedule_result result = { 0 };
    if (kvt_content_init(&content, shape) != KVT_OK) return false;
    bool is_ok = kvt_engine_create(runtime, shape, &content, &engine_how, &engine) == KVT_OK;
    is_ok = is_ok && kvt_schedule_run(runtime, shape, workload, engine, &how, &result) == KVT_OK
        && result.outcome == KVT_OUTCOME_DONE;
    kvt_engine_destroy(&engine);
    kvt_content_done(&content);
    return is_ok;
}

static bool measure_steps(struct kvt_calibration *calibration, struct watch *watch)
{
    const struct kvt_model_shape shape = small_shape();
    const struct kvt_workload_options what = { .generator = "chat",
                                               .requests_max = REQUESTS,
                                               .block_tokens = BLOCK_TOKENS,
                                               .think_ns = UINT64_MAX,
                                               .context_tokens = 512 };
    struct kvt_env env = kvt_env_default();
    struct kvt_config config = kvt_config_default();
    struct kvt_workload *workload = NULL;
    struct kvt_runtime *runtime = NULL;
    char error[256] = "";
    env.on_transfer = on_transfer;
    env.transfer_user = watch;
    watch->watch = (struct kvt_schedule_watch){ .on_step = on_step, .on_stall = on_stall, .user = watch };
    config.shape = shape;
    config.device = KVT_DEVICE_EMULATED; /* the main job's engine has kernels for it alone */
    config.device_bytes = 512 * KVT_KIB;
    config.host_bytes = 16 * KVT_MIB;
    config.prefetch = KVT_PREFETCH_DEMAND;
    config.link_hbm_bytes_per_s = LINK_BYTES_PER_S;
    config.env = &env;
    if (kvt_workload_create(&what, &workload, error, sizeof error) != KVT_OK)
        return kvt_calibrate_fail("the workload: %s", error);
    bool is_ok = kvt_open(&config, &runtime, error, sizeof error) == KVT_OK;
    if (!is_ok) (void)kvt_calibrate_fail("the runtime: %s", error);
    else if (!(is_ok = run_chats(runtime, &shape, workload, watch))) (void)kvt_calibrate_fail("a run failed");
    kvt_close(&runtime);
    kvt_workload_destroy(&workload);
    if (!is_ok) return false;
    const double step_ns = kvt_calibrate_quantile(watch->step_ns, watch->steps, 0.5);
    calibration->links.engine.oversleep_ns = step_ns > (double)STEP_NS ? step_ns - (double)STEP_NS : 0;
    calibration->links.engine.between_ns = kvt_calibrate_quantile(watch->gap_ns, watch->steps, 0.5);
    calibration->links.engine.wake_ns = kvt_calibrate_quantile(watch->late_ns, watch->late_count, 0.5);
    return true;
}

bool kvt_calibrate_engine(struct kvt_calibration *calibration)
{
    struct watch *watch = kvt_alloc(1, sizeof *watch);
    if (!watch) return kvt_calibrate_fail("out of memory");
    const bool is_ok = measure_bytes(calibration) && measure_steps(calibration, watch);
    kvt_free(watch);
    return is_ok;
}
