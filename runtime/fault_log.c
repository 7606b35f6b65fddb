#include "runtime/fault_log.h"

#include "runtime/core.h"

#define LINE_NS (UINT64_C(1000000000)) /* between two lines of the same kind */

/* True when a line is to be written now: *ret_count faults since the last one. */
static bool is_due(struct kvt_fault_log *log, uint64_t count, uint64_t *told, uint64_t *told_ns, uint64_t now_ns,
                   bool is_last, uint64_t *ret_count)
{
    if (count == *told) return false;
    if (!is_last && *told != 0 && now_ns - *told_ns < LINE_NS) {
        log->is_owing = true;
        return false;
    }
    *ret_count = count - *told;
    *told = count;
    *told_ns = now_ns;
    return true;
}

static const char *consequence(enum kvt_leg leg)
{
    switch (leg) {
    case KVT_LEG_DEVICE_TO_HOST: return "the blocks stay on the device or are computed again";
    case KVT_LEG_HOST_TO_NVME: return "the blocks are not stored, and stay where they are or are forgotten";
    case KVT_LEG_NVME_TO_HOST: return "misses: the tokens are computed again";
    case KVT_LEG_HOST_TO_DEVICE:
    case KVT_LEG_HOST_TO_DEVICE_PART:
    case KVT_LEG_HOST_TO_WINDOW:
    case KVT_LEG_DEVICE_TO_DEVICE: return "they are tried again, or their tokens computed again";
    }
    return "";
}

static uint64_t faults(const struct kvt_core *core)
{
    uint64_t sum = core->counters.lost_blocks;
    for (uint32_t leg = 0; leg < KVT_LEGS; leg++)
        for (uint32_t f = 0; f < KVT_FAILURE_COUNT; f++) sum += core->metrics.failures[leg][f];
    return sum;
}

void kvt_fault_log_write(struct kvt_fault_log *log, const struct kvt_core *core, const struct kvt_env *env,
                         bool is_last)
{
    if (!env->log) return;
    const uint64_t seen = faults(core);
    if (seen == log->seen && !log->is_owing) return;
    log->seen = seen;
    log->is_owing = false;
    uint64_t count;
    for (uint32_t leg = 0; leg < KVT_LEGS; leg++) {
        for (uint32_t f = 0; f < KVT_FAILURE_COUNT; f++) {
            if (f == KVT_FAILURE_SHUTDOWN) continue; /* a transfer that never began is no fault */
            if (!is_due(log, core->metrics.failures[leg][f], &log->told[leg][f], &log->told_ns[leg][f], core->now_ns,
                        is_last, &count))
                continue;
            kvt_log(env, KVT_LOG_WARN, "%llu transfers %s failed (%s): %s", (unsigned long long)count,
                    kvt_leg_name((enum kvt_leg)leg), kvt_failure_name((enum kvt_failure)f),
                    consequence((enum kvt_leg)leg));
        }
    }
    if (is_due(log, core->counters.lost_blocks, &log->lost_told, &log->lost_told_ns, core->now_ns, is_last, &count))
        kvt_log(env, KVT_LOG_WARN, "%llu blocks of live sequences are lost: their tokens are computed again",
                (unsigned long long)count);
}
