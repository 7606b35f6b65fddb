#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/sim/model.h"

#define QUEUE_DEPTH 64
#define MARKS 8192 /* of each stream whose times are kept; older ones are reached */

enum { STREAM_STASH, STREAM_FETCH, OWN_STREAMS };

struct stream {
    const void *engine_stream; /* NULL: the tier's own */
    uint64_t serial;           /* marks so far */
    uint64_t free_ns;          /* when everything submitted so far is done */
    uint64_t link_free_ns;     /* when its link has moved everything so far */
    uint64_t times[MARKS];     /* when mark i is reached; never falls */
};

struct flight {
    struct kvt_tier_op *op;
    uint64_t done_ns;
};

struct model_device {
    struct kvt_tier tier;
    struct kvt_gpu gpu;
    const struct kvt_model_clock *clock;
    struct kvt_model_links links;
    struct kvt_model_shape shape;
    struct stream *streams[KVT_GPU_STREAMS_MAX];
    uint32_t stream_count;
    struct flight flights[QUEUE_DEPTH];
    uint32_t flight_count;
    struct kvt_tier_counters counters;
};

static struct model_device *device_of(struct kvt_tier *tier) { return (struct model_device *)(void *)tier; }

static struct model_device *device_of_gpu(struct kvt_gpu *gpu)
{
    return (struct model_device *)(void *)((char *)gpu - offsetof(struct model_device, gpu));
}

/* ---- Streams and marks ------------------------------------------------------------------------------------------- */

static uint64_t time_of(const struct model_device *device, kvt_mark mark)
{
    if (mark == 0) return 0;
    const struct stream *stream = device->streams[kvt_mark_stream(mark)];
    const uint64_t serial = kvt_mark_serial(mark);
    KVT_ASSERT(serial <= stream->serial);
    return stream->serial - serial < MARKS ? stream->times[serial % MARKS] : 0;
}

static kvt_mark add_mark(struct model_device *device, uint32_t number)
{
    struct stream *stream = device->streams[number];
    stream->serial++;
    stream->times[stream->serial % MARKS] = stream->free_ns;
    return kvt_mark_make(number, stream->serial);
}

static enum kvt_status gpu_stream(struct kvt_gpu *gpu, void *engine_stream, uint32_t *ret_stream)
{
    struct model_device *device = device_of_gpu(gpu);
    for (uint32_t i = OWN_STREAMS; i < device->stream_count && engine_stream; i++) {
        if (device->streams[i]->engine_stream != engine_stream) continue;
        *ret_stream = i;
        return KVT_OK;
    }
    if (device->stream_count == KVT_GPU_STREAMS_MAX) return KVT_FULL;
    struct stream *stream = kvt_alloc(1, sizeof *stream);
    if (!stream) return KVT_NOMEM;
    stream->engine_stream = engine_stream;
    device->streams[device->stream_count] = stream;
    *ret_stream = device->stream_count++;
    return KVT_OK;
}

static kvt_mark gpu_mark(struct kvt_gpu *gpu, uint32_t stream) { return add_mark(device_of_gpu(gpu), stream); }

static bool gpu_is_reached(struct kvt_gpu *gpu, kvt_mark mark)
{
    const struct model_device *device = device_of_gpu(gpu);
    return time_of(device, mark) <= device->clock->now_ns;
}

static void gpu_wait(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark)
{
    struct model_device *device = device_of_gpu(gpu);
    device->streams[stream]->free_ns = kvt_max_u64(device->streams[stream]->free_ns, time_of(device, mark));
}

static const struct kvt_gpu_ops gpu_ops = {
    .name = "model",
    .stream = gpu_stream,
    .mark = gpu_mark,
    .is_reached = gpu_is_reached,
    .wait = gpu_wait,
};

/* The stream is busy for so long, from when it is free and `after` on. Returns the end. */
static uint64_t occupy(struct model_device *device, uint32_t number, uint64_t after_ns, uint64_t took_ns,
                       uint64_t *ret_started_ns)
{
    struct stream *stream = device->streams[number];
    const uint64_t started_ns = kvt_max_u64(kvt_max_u64(stream->free_ns, after_ns), device->clock->now_ns);
    *ret_started_ns = started_ns;
    stream->free_ns = started_ns + took_ns;
    return stream->free_ns;
}

void kvt_model_device_launch(struct kvt_tier *tier, uint32_t stream, uint64_t took_ns, uint64_t *ret_started_ns,
                             uint64_t *ret_ended_ns)
{
    *ret_ended_ns = occupy(device_of(tier), stream, 0, took_ns, ret_started_ns);
}

/* ---- The calls of tier.h ----------------------------------------------------------------------------------------- */

static uint64_t raw_bytes(const struct model_device *device, const struct kvt_tier_op *op)
{
    const struct kvt_group_shape *group = &device->shape.groups[op->group];
    if (group->kind == KVT_GROUP_STATE) return kvt_group_block_bytes(group, device->shape.block_tokens);
    return kvt_group_block_bytes(group, op->tokens);
}

/* Bytes that cross the link, and the time that the device itself takes for the op. */
static uint64_t link_bytes(struct model_device *device, struct kvt_tier_op *op, uint64_t *ret_run_ns)
{
    const struct kvt_model_links *links = &device->links;
    const uint64_t raw = raw_bytes(device, op);
    uint64_t bytes = 0;
    op->codec_ns = 0;
    switch (op->kind) {
    case KVT_OP_STASH:
        bytes = raw;
        op->ret_form = op->form;
        if (op->form == KVT_FORM_PACKED) {
            bytes = (uint64_t)((double)raw / links->pack_ratio);
            op->codec_ns = (uint64_t)((double)raw * links->pack_ns_per_byte);
        }
        op->ret_length = (uint32_t)bytes;
        device->counters.bytes_out += bytes;
        *ret_run_ns = links->to_host_latency_ns + kvt_model_link_ns(bytes, links->to_host_bytes_per_s);
        break;
    case KVT_OP_FETCH:
        bytes = op->length;
        if (op->form == KVT_FORM_PACKED) op->codec_ns = (uint64_t)((double)raw * links->unpack_ns_per_byte);
        device->counters.bytes_in += bytes;
        *ret_run_ns = links->to_device_latency_ns + kvt_model_link_ns(bytes, links->to_device_bytes_per_s);
        break;
    case KVT_OP_COPY: *ret_run_ns = 0; break; /* within HBM: no link */
    }
    return bytes;
}

/*
 * A job begins when its stream is free. Its bytes begin to cross the paced link as soon as that is free, so the link's
 * time and the job's own overlap; the stream goes on when both are over.
 */
static enum kvt_status device_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct model_device *device = device_of(tier);
    uint64_t run_ns, started_ns;
    const uint64_t bytes = link_bytes(device, op, &run_ns);
    const uint64_t after_ns = kvt_max_u64(time_of(device, op->after[0]), time_of(device, op->after[1]));
    uint32_t number = op->kind == KVT_OP_STASH ? STREAM_STASH : STREAM_FETCH;
    if (op->kind == KVT_OP_COPY && op->stream != 0) number = op->stream;
    struct stream *stream = device->streams[number];
    op->link_ns = run_ns;
    uint64_t done_ns = occupy(device, number, after_ns, run_ns + op->codec_ns, &started_ns);
    if (device->links.hbm_pace_bytes_per_s > 0 && bytes > 0) {
        op->link_ns = kvt_model_link_ns(bytes, device->links.hbm_pace_bytes_per_s);
        stream->link_free_ns = kvt_max_u64(kvt_max_u64(stream->link_free_ns, after_ns), device->clock->now_ns)
            + op->link_ns;
        done_ns = stream->free_ns = kvt_max_u64(stream->free_ns, stream->link_free_ns);
    }
    op->status = op->kind == KVT_OP_STASH && op->ret_length > op->host_capacity ? KVT_FULL : KVT_OK;
    op->ret_mark = add_mark(device, number);
    device->flights[device->flight_count++] = (struct flight){ op, done_ns + device->links.wake_ns };
    return KVT_OK;
}

static uint32_t device_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    struct model_device *device = device_of(tier);
    uint32_t count = 0, kept = 0;
    for (uint32_t i = 0; i < device->flight_count; i++) {
        const struct flight flight = device->flights[i];
        if (count < max && flight.done_ns <= device->clock->now_ns) ret_done[count++] = flight.op;
        else device->flights[kept++] = flight;
    }
    device->flight_count = kept;
    return count;
}

uint64_t kvt_model_device_next_ns(const struct kvt_tier *tier)
{
    const struct model_device *device = (const struct model_device *)(const void *)tier;
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < device->flight_count; i++) next_ns = kvt_min_u64(next_ns, device->flights[i].done_ns);
    return next_ns;
}

static void device_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    *ret_counters = device_of(tier)->counters;
}

static void device_close(struct kvt_tier *tier)
{
    struct model_device *device = device_of(tier);
    for (uint32_t i = 0; i < device->stream_count; i++) kvt_free(device->streams[i]);
    kvt_free(device);
}

static const struct kvt_tier_ops device_ops = {
    .name = "model-device",
    .caps = KVT_TIER_COPIES,
    .close = device_close,
    .submit = device_submit,
    .poll = device_poll,
    .counters = device_counters,
};

enum kvt_status kvt_model_device_open(const struct kvt_model_links *links, const struct kvt_options *options,
                                      const struct kvt_model_clock *clock, struct kvt_tier **ret_tier,
                                      struct kvt_gpu **ret_gpu)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&device_ops));
    struct model_device *device = kvt_alloc(1, sizeof *device);
    if (!device) return KVT_NOMEM;
    device->tier = (struct kvt_tier){ .ops = &device_ops, .queue_depth = QUEUE_DEPTH };
    device->gpu.ops = &gpu_ops;
    device->clock = clock;
    device->links = *links;
    device->shape = options->config.shape;
    uint32_t number;
    for (uint32_t i = 0; i < OWN_STREAMS; i++) {
        if (gpu_stream(&device->gpu, NULL, &number) != KVT_OK) {
            device_close(&device->tier);
            return KVT_NOMEM;
        }
    }
    *ret_tier = &device->tier;
    *ret_gpu = &device->gpu;
    return KVT_OK;
}
