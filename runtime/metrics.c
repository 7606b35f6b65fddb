#include "runtime/metrics.h"

#include "runtime/base/assert.h"

void kvt_histogram_add(struct kvt_histogram *histogram, uint64_t ns)
{
    uint32_t i = 0;
    while (i < KVT_HISTOGRAM_BOUNDS && ns > kvt_histogram_bound_ns(i)) i++;
    histogram->counts[i]++;
    histogram->sum_ns += ns;
}

const char *kvt_leg_name(enum kvt_leg leg)
{
    switch (leg) {
    case KVT_LEG_DEVICE_TO_HOST: return "device_to_host";
    case KVT_LEG_HOST_TO_NVME: return "host_to_nvme";
    case KVT_LEG_NVME_TO_HOST: return "nvme_to_host";
    case KVT_LEG_HOST_TO_DEVICE: return "host_to_device";
    case KVT_LEG_DEVICE_TO_DEVICE: return "device_to_device";
    case KVT_LEG_HOST_TO_DEVICE_PART: return "host_to_device_part";
    case KVT_LEG_HOST_TO_WINDOW: return "host_to_window";
    }
    return "?";
}

const char *kvt_failure_name(enum kvt_failure failure)
{
    static const char *const names[KVT_FAILURE_COUNT] = {
        [KVT_FAILURE_IO] = "io",     [KVT_FAILURE_CORRUPT] = "corrupt",   [KVT_FAILURE_NOTFOUND] = "notfound",
        [KVT_FAILURE_FULL] = "full", [KVT_FAILURE_SHUTDOWN] = "shutdown", [KVT_FAILURE_DEADLINE] = "deadline",
    };
    KVT_ASSERT(failure < KVT_FAILURE_COUNT);
    return names[failure];
}

enum kvt_failure kvt_failure_of(enum kvt_status status)
{
    switch ((int)status) {
    case KVT_CORRUPT: return KVT_FAILURE_CORRUPT;
    case KVT_NOTFOUND: return KVT_FAILURE_NOTFOUND;
    case KVT_FULL: return KVT_FAILURE_FULL;
    case KVT_SHUTDOWN: return KVT_FAILURE_SHUTDOWN;
    default: return KVT_FAILURE_IO;
    }
}

void kvt_metrics_leg_done(struct kvt_metrics *metrics, const struct kvt_transfer *transfer, uint64_t ns,
                          bool is_failure)
{
    const struct kvt_tier_op *op = &transfer->op;
    const enum kvt_leg leg = transfer->leg;
    if (op->status == KVT_OK) {
        kvt_histogram_add(&metrics->whole[leg], ns);
        kvt_histogram_add(&metrics->link[leg], op->link_ns);
        if (op->codec_ns > 0) kvt_histogram_add(&metrics->codec[leg], op->codec_ns);
    } else if (is_failure) {
        metrics->failures[leg][kvt_failure_of(op->status)]++;
    }
}
