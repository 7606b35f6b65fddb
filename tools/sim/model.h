/*
 * model: tiers, a device and an engine that move no bytes and compute nothing, on a clock that moves when everyone
 *        waits.
 *
 * The runtime above them is the real one (kvt_runtime_open): the same core, planner, policies and schedule as `kvtier
 * run`.
 *
 *   device   two directions, each in order: a transfer takes the link's latency and its bytes over its bandwidth
 *   nvme     reads and writes, each in order at their own bandwidth; records in segments, the oldest is reclaimed: what
 *   is held
 *            or was read since it was written is carried forward, as in tiers/store_reclaim.c
 *   steps    a roofline: the larger of arithmetic over peak and bytes over memory bandwidth, or a given time
 *
 * Thread: one.
 */
#ifndef KVT_TOOLS_SIM_MODEL_H
#define KVT_TOOLS_SIM_MODEL_H

#include "runtime/options.h"
#include "runtime/runtime.h"
#include "tiers/tier.h"
#include "tools/run/schedule.h"

struct kvt_model_links {
    uint64_t hbm_bytes_per_s, hbm_latency_ns; /* between host and device, each way; 0 bytes/s: no time */
    uint64_t nvme_read_bytes_per_s, nvme_write_bytes_per_s, nvme_latency_ns;
    double pack_ratio; /* raw over packed bytes; 1: nothing is packed */
};

struct kvt_model_roofline {
    double flops_per_s, bytes_per_s; /* of the GPU */
    double parameters;               /* of the model; each is read once a step and used twice a token */
    uint64_t step_ns;                /* every step takes so long; 0: the roofline holds */
};

struct kvt_model_clock {
    uint64_t now_ns;
    struct kvt_tier *device, *nvme;
    struct kvt_runtime *runtime;
};

/* ---- Each tier's own time ---------------------------------------------------------------------------------------- */

KVT_NODISCARD enum kvt_status kvt_model_device_open(const struct kvt_model_links *links,
                                                    const struct kvt_options *options,
                                                    const struct kvt_model_clock *clock, struct kvt_tier **ret_tier,
                                                    struct kvt_gpu **ret_gpu);
/* When the next op in flight is done; UINT64_MAX: none is. */
uint64_t kvt_model_device_next_ns(const struct kvt_tier *tier);
/* Work of the engine on one of its streams: begins when the stream is free and what it waits for is there. */
void kvt_model_device_launch(struct kvt_tier *tier, uint32_t stream, uint64_t took_ns, uint64_t *ret_started_ns,
                             uint64_t *ret_ended_ns);

KVT_NODISCARD enum kvt_status kvt_model_nvme_open(const struct kvt_model_links *links, uint64_t capacity_bytes,
                                                  uint32_t record_bytes_max, const struct kvt_model_clock *clock,
                                                  struct kvt_tier **ret_tier);
uint64_t kvt_model_nvme_next_ns(const struct kvt_tier *tier);

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

struct kvt_model_steps {
    struct kvt_model_clock *clock;
    const struct kvt_model_shape *shape;
    struct kvt_model_roofline roofline;
    uint64_t tokens, kv_bytes; /* of the step that is put together */
    double attention_flops;
    struct kvt_engine_times times;
    uint64_t busy_ns; /* all steps together */
};

/* For kvt_schedule_options; the user is a struct kvt_model_steps. */
extern const struct kvt_step_calls kvt_model_step_calls;

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* env of the model's runtime: its clock is `clock`, and it passes when kvt_wait() waits. Borrowed from clock. */
struct kvt_env kvt_model_env(struct kvt_model_clock *clock, uint64_t seed);

struct kvt_model_open {
    const struct kvt_model_links *links;
    struct kvt_model_clock *clock;
};
/* Opens a runtime on modelled tiers. As kvt_open(). */
KVT_NODISCARD enum kvt_status kvt_model_runtime_open(const struct kvt_config *config,
                                                     const struct kvt_model_links *links, struct kvt_model_clock *clock,
                                                     char *ret_error, size_t error_bytes);

/* ns that so many bytes take on a link; 0 bytes/s: none. */
static inline uint64_t kvt_model_link_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    return bytes_per_s > 0 ? (uint64_t)((double)bytes * 1e9 / (double)bytes_per_s) : 0;
}

#endif
