/*
 * device_tier: slots in HBM behind a kvt_gpu.
 *
 * Owns:    the slots' memory (unless an engine lends it through a map) and one stream per direction. Who sits in which
 *          slot is the pool's and the core's business.
 * Thread:  as tier.h says. Jobs run in the device's streams.
 * Ops:     STASH packs or copies slot -> host buffer; ret_form and ret_length say what was written. FULL: the packed
 *          block does not fit in host_capacity, or packing gains too little; the caller asks again for KVT_FORM_RAW.
 *          FETCH unpacks or copies host buffer -> slot. COPY copies the valid tokens of source_slot to slot. All wait
 *          for their marks (op->after) on their stream first.
 */
#ifndef KVT_TIERS_DEVICE_TIER_H
#define KVT_TIERS_DEVICE_TIER_H

#include "tiers/tier.h"

struct kvt_codec;

/* The tier's streams on its device. Copies within the device run between fetches: both fill slots for the next step. */
enum { KVT_DEVICE_STREAM_STASH, KVT_DEVICE_STREAM_FETCH, KVT_DEVICE_STREAMS };

/*
 * Where a block's bytes lie on the device, when an engine owns the memory: one segment for each (layer, plane), in
 * layer order; a state group has one for each layer. Segment s of slot n starts at base[s] + n * stride[s] and holds
 * block_tokens rows of the group.
 */
struct kvt_device_segments {
    uint32_t count;
    void *const *base;
    const uint64_t *stride;
};

struct kvt_device_tier_config {
    struct kvt_model_shape shape;
    uint32_t pool_of_group[KVT_GROUPS_MAX]; /* groups with equal block bytes share a pool */
    uint32_t pool_count;
    uint32_t pool_slots[KVT_GROUPS_MAX];                        /* slots of each pool */
    const struct kvt_device_segments *segments[KVT_GROUPS_MAX]; /* NULL: kvtier owns the memory of this group's pool */
    const struct kvt_gpu_ops *gpu;                              /* NULL: kvt_gpu_default_ops() */
    struct kvt_gpu_config gpu_config;
    struct kvt_codec *codec; /* borrowed; NULL: everything stays raw */
    uint32_t queue_depth;    /* ops in flight; 0: 64 */
    struct kvt_wake wake;
};

KVT_NODISCARD enum kvt_status kvt_device_tier_open(const struct kvt_device_tier_config *config,
                                                   const struct kvt_env *env, struct kvt_tier **ret_tier);

/* The device behind the tier: for marks and streams of the core, and for engines on the emulated device. */
struct kvt_gpu *kvt_device_tier_gpu(struct kvt_tier *tier);

#endif
