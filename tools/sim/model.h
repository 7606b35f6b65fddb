/*
 * model: tiers, a device and an engine that move no bytes and compute nothing, on a clock that moves when everyone
 *        waits.
 *
 * The runtime above them is the real one (kvt_runtime_open): the same core, planner, policies and schedule as `kvtier
 * run`.
 *
 *   device   two directions, each in order: a transfer takes the device's own time (a latency, bytes over bandwidth,
 *            packing or unpacking), and not less than its place on the paced link, as kernels/gpu_emulated.c paces it
 *   nvme     the disk's own time, and not less than the paced link's (model_nvme.c); records as the store keeps them
 *            (model_log.c)
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

/* 0 bytes/s: no time. Paces are those of the main job's options, the other figures the machine's. */
struct kvt_model_links {
    uint64_t hbm_pace_bytes_per_s; /* of the emulated device's link, each way */
    uint64_t to_host_bytes_per_s, to_device_bytes_per_s, to_host_latency_ns, to_device_latency_ns;
    double pack_ns_per_byte, unpack_ns_per_byte; /* of raw bytes */
    double pack_ratio;                           /* raw over packed bytes; 1: nothing is packed */
    uint64_t nvme_pace_bytes_per_s;              /* of the store's paced link, both ways together */
    uint64_t nvme_read_bytes_per_s, nvme_write_bytes_per_s, nvme_read_latency_ns, nvme_write_latency_ns;
    bool is_nvme_shared; /* reads and writes share the disk's bandwidth */
    uint32_t nvme_alignment;
    uint64_t wake_ns; /* from the end of a transfer until it is acted on */
};

struct kvt_model_roofline {
    double flops_per_s, bytes_per_s; /* of the GPU */
    double parameters;               /* of the model; each is read once a step and used twice a token */
    uint64_t step_ns;                /* every step takes so long at least; 0: the roofline holds */
    /* of an emulated engine, which works on one CPU; 0: it takes no time */
    double write_ns_per_byte, line_ns; /* KV of new tokens; a look at each block that is attended to */
    uint64_t wake_ns;                  /* that a step sleeps longer than it was told to */
    uint64_t between_ns;               /* from the end of a step to the launch of the next one */
};

#define KVT_MODEL_START_NS UINT64_C(1000000000) /* what a model's clock shows at first */

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
                                                  uint32_t record_bytes_max, uint64_t side_bytes_max,
                                                  const struct kvt_model_clock *clock, struct kvt_tier **ret_tier);
uint64_t kvt_model_nvme_next_ns(const struct kvt_tier *tier);

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

struct kvt_model_steps {
    struct kvt_model_clock *clock;
    const struct kvt_model_shape *shape;
    struct kvt_model_roofline roofline;
    uint64_t tokens, kv_bytes, blocks, written_bytes; /* of the step that is put together */
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
