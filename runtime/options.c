#include "runtime/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"

#define STAGING_BYTES_MAX (16 * KVT_MIB)
#define STAGING_BYTES_MIN (1 * KVT_MIB)
#define CHUNK_BYTES_MAX (64 * KVT_MIB)
#define CHUNK_ALIGNMENT (4 * KVT_KIB)
#define DEVICE_SLOTS_MAX (UINT32_MAX / 4)
#define BLOCKS_MAX (UINT32_MAX / 4)
#define HOST_SLOTS_MAX (UINT32_MAX / 4)
#define SEQUENCES_MAX (1u << 24)
#define TRANSFERS_MAX (1u << 20)
#define DEADLINE_NS_MAX (UINT64_C(86400) * 1000000000u)
#define STEP_NS_MAX (UINT64_C(3600) * 1000000000u)

struct refusal {
    char *text;
    size_t bytes;
};

static enum kvt_status refuse(struct refusal refusal, const char *format, ...) __attribute__((format(printf, 2, 3)));

static enum kvt_status refuse(struct refusal refusal, const char *format, ...)
{
    if (!refusal.text) return KVT_INVAL;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(refusal.text, refusal.bytes, format, arguments);
    va_end(arguments);
    return KVT_INVAL;
}

static void fill_defaults(struct kvt_config *config)
{
    if (!config->model) config->model = "";
    if (config->world == 0) config->world = 1;
    if (!config->device_policy) config->device_policy = "lru";
    if (!config->host_policy) config->host_policy = config->device_policy;
    if (!config->admission) config->admission = config->nvme_bytes_per_day ? "budget" : "all";
    if (config->sequences_max == 0) config->sequences_max = 4096;
    if (config->transfers_max == 0) config->transfers_max = 1024;
    if (config->prefetch_bytes_max == 0) config->prefetch_bytes_max = 64 * KVT_MIB;
    if (config->transfer_deadline_ns == 0) config->transfer_deadline_ns = 30u * UINT64_C(1000000000);
    if (config->step_ns == 0) config->step_ns = 20u * 1000u * 1000u;
}

static enum kvt_status check(const struct kvt_config *config, struct refusal refusal)
{
    char shape_error[128];
    if (kvt_shape_check(&config->shape, shape_error, sizeof shape_error) != KVT_OK)
        return refuse(refusal, "shape: %s", shape_error);
    if (config->secret_bytes > 64) return refuse(refusal, "secret_bytes is %zu: at most 64", config->secret_bytes);
    if (config->secret_bytes > 0 && !config->secret)
        return refuse(refusal, "secret is NULL: secret_bytes is %zu", config->secret_bytes);
    if (config->rank >= config->world)
        return refuse(refusal, "rank is %u: below world, which is %u", config->rank, config->world);
    if ((uint32_t)config->device > KVT_DEVICE_EMULATED)
        return refuse(refusal, "device is %d: auto, cuda or emulated", (int)config->device);
    if ((uint32_t)config->prefetch > KVT_PREFETCH_SESSION)
        return refuse(refusal, "prefetch is %d: lookahead, demand, off or session", (int)config->prefetch);
    char names[512];
    kvt_policy_names(names, sizeof names);
    if (!kvt_policy_find(config->device_policy))
        return refuse(refusal, "device_policy is '%s': one of %s", config->device_policy, names);
    if (!kvt_policy_find(config->host_policy))
        return refuse(refusal, "host_policy is '%s': one of %s", config->host_policy, names);
    kvt_admission_names(names, sizeof names);
    if (!kvt_admission_find(config->admission))
        return refuse(refusal, "admission is '%s': one of %s", config->admission, names);
    if (config->nvme_path && config->host_bytes == 0)
        return refuse(refusal, "host_bytes is 0: the nvme tier works through host memory");
    if (config->sequences_max > SEQUENCES_MAX)
        return refuse(refusal, "sequences_max is %u: at most %u", config->sequences_max, SEQUENCES_MAX);
    if (config->transfers_max > TRANSFERS_MAX)
        return refuse(refusal, "transfers_max is %u: at most %u", config->transfers_max, TRANSFERS_MAX);
    if (config->transfer_deadline_ns > DEADLINE_NS_MAX)
        return refuse(refusal, "transfer_deadline_ns is %llu: at most a day",
                      (unsigned long long)config->transfer_deadline_ns);
    if (config->step_ns > STEP_NS_MAX)
        return refuse(refusal, "step_ns is %llu: at most an hour", (unsigned long long)config->step_ns);
    if (!config->nvme_path && config->nvme_bytes > 0)
        return refuse(refusal, "nvme_path is NULL: nvme_bytes is %llu", (unsigned long long)config->nvme_bytes);
    return KVT_OK;
}

/*
 * A token's weight in HBM: what it adds while it is needed; a state group's two snapshots count as a thousand tokens'
 * worth.
 */
static double weight_of(const struct kvt_group_shape *group, uint32_t block_tokens)
{
    if (group->kind == KVT_GROUP_STATE) return (double)kvt_group_block_bytes(group, block_tokens) * 2 / 1024;
    return (double)kvt_group_bytes_per_token(group);
}

static const struct kvt_device_map *map_of(const struct kvt_config *config, uint32_t group)
{
    const struct kvt_device_map *map = config->device_maps ? &config->device_maps[group] : NULL;
    return map && map->segment_count > 0 ? map : NULL;
}

/* A map must describe exactly the group's blocks. */
static enum kvt_status check_map(const struct kvt_config *config, uint32_t g, struct refusal refusal)
{
    const struct kvt_device_map *map = map_of(config, g);
    const struct kvt_group_shape *group = &config->shape.groups[g];
    if (!map) return KVT_OK;
    const uint32_t planes = group->kind == KVT_GROUP_STATE || group->planes == 1 ? 1 : 2;
    const uint64_t rows = group->kind == KVT_GROUP_STATE ? 1 : config->shape.block_tokens;
    const uint64_t bytes = rows * kvt_group_row_bytes(group);
    if (map->segment_count != group->layers * planes)
        return refuse(refusal, "device_maps[%u].segment_count is %u: layers * planes, %u", g, map->segment_count,
                      group->layers * planes);
    if (map->bytes != bytes)
        return refuse(refusal, "device_maps[%u].bytes is %llu: block_tokens rows, %llu", g,
                      (unsigned long long)map->bytes, (unsigned long long)bytes);
    if (map->slots == 0 || map->slots > DEVICE_SLOTS_MAX)
        return refuse(refusal, "device_maps[%u].slots is %u: 1 to %u", g, map->slots, DEVICE_SLOTS_MAX);
    if (!map->base || !map->stride) return refuse(refusal, "device_maps[%u].base or stride is NULL", g);
    for (uint32_t s = 0; s < map->segment_count; s++) {
        if (!map->base[s]) return refuse(refusal, "device_maps[%u].base[%u] is NULL", g, s);
        if (map->stride[s] < bytes)
            return refuse(refusal, "device_maps[%u].stride[%u] is %llu: at least bytes, %llu", g, s,
                          (unsigned long long)map->stride[s], (unsigned long long)bytes);
        if (map->slots > 1 && map->stride[s] > (UINT64_MAX - (uintptr_t)map->base[s] - bytes) / (map->slots - 1))
            return refuse(refusal, "device_maps[%u].stride[%u] is %llu: %u slots end within the address space", g, s,
                          (unsigned long long)map->stride[s], map->slots);
    }
    return KVT_OK;
}

/* True when a byte is in both segments, checked already. Slots of one may lie between those of the other. */
static bool is_overlapping(const struct kvt_device_map *a, uint32_t s, const struct kvt_device_map *b, uint32_t t)
{
    if ((uintptr_t)a->base[s] > (uintptr_t)b->base[t]) return is_overlapping(b, t, a, s);
    const uint64_t apart = (uintptr_t)b->base[t] - (uintptr_t)a->base[s], stride = a->stride[s];
    if (apart >= (a->slots - 1) * stride + a->bytes) return false;
    if (stride != b->stride[t]) return false; /* how such places lie in each other is the engine's to know */
    const uint64_t behind = apart % stride; /* a slot of a's begins so far before b's first one */
    const bool has_next = apart / stride + 1 < a->slots;
    return behind < a->bytes || (has_next && stride - behind < b->bytes);
}

/* A byte in two segments would be two blocks'. Groups in one pool have the same segments. */
static enum kvt_status check_overlaps(const struct kvt_config *config, uint32_t g, uint32_t h, struct refusal refusal)
{
    const struct kvt_device_map *a = map_of(config, g), *b = map_of(config, h);
    for (uint32_t s = 0; a && b && s < a->segment_count; s++) {
        for (uint32_t t = 0; t < (g == h ? s : b->segment_count); t++) {
            if (is_overlapping(a, s, b, t))
                return refuse(refusal, "device_maps[%u].base[%u] is %p: it overlaps device_maps[%u].base[%u]", g, s,
                              a->base[s], h, t);
        }
    }
    return KVT_OK;
}

/* True when the blocks of both groups are in the same memory, so that a slot can be either's. */
static bool is_same_memory(const struct kvt_device_map *a, const struct kvt_device_map *b)
{
    if (!a || !b) return a == b;
    if (a->slots != b->slots || a->segment_count != b->segment_count) return false;
    for (uint32_t s = 0; s < a->segment_count; s++)
        if (a->base[s] != b->base[s] || a->stride[s] != b->stride[s]) return false;
    return true;
}

/* The pool of the group: that of an earlier one with equal blocks in the same memory, or a new one. */
static uint32_t pool_of(struct kvt_options *options, uint32_t g)
{
    const struct kvt_config *config = &options->config;
    struct kvt_core_config *core = &options->core;
    const uint64_t bytes = kvt_group_block_bytes(&config->shape.groups[g], config->shape.block_tokens);
    for (uint32_t h = 0; h < g; h++) {
        const uint32_t p = core->pool_of_group[h];
        if (options->slot_bytes[p] == bytes && is_same_memory(map_of(config, h), map_of(config, g))) return p;
    }
    options->slot_bytes[core->pool_count] = bytes;
    return core->pool_count++;
}

/* Groups with equal block bytes share a pool; the others get shares by weight, at least two slots each. */
static enum kvt_status share_out_device(struct kvt_options *options, struct refusal refusal)
{
    const struct kvt_config *config = &options->config;
    struct kvt_core_config *core = &options->core;
    double weight[KVT_GROUPS_MAX] = { 0 };
    double weight_total = 0;
    for (uint32_t g = 0; g < config->shape.group_count; g++) {
        const struct kvt_group_shape *group = &config->shape.groups[g];
        KVT_TRY(check_map(config, g, refusal));
        const uint32_t p = pool_of(options, g);
        core->pool_of_group[g] = p;
        for (uint32_t h = 0; h <= g; h++) {
            if (h == g || core->pool_of_group[h] != p) KVT_TRY(check_overlaps(config, g, h, refusal));
        }
        if (map_of(config, g)) core->pool_slots[p] = map_of(config, g)->slots;
        if (map_of(config, g)) continue;
        weight[p] += weight_of(group, config->shape.block_tokens);
        weight_total += weight_of(group, config->shape.block_tokens);
    }
    for (uint32_t p = 0; p < core->pool_count; p++) {
        if (core->pool_slots[p] > 0) continue; /* the engine's */
        const double share = weight[p] == weight_total ? 1.0 : weight[p] / weight_total;
        const uint64_t slots = (uint64_t)((double)config->device_bytes * share) / options->slot_bytes[p];
        if (slots < 1)
            return refuse(refusal, "device_bytes is %llu: a block alone takes %llu",
                          (unsigned long long)config->device_bytes, (unsigned long long)options->slot_bytes[p]);
        if (slots > DEVICE_SLOTS_MAX)
            return refuse(refusal, "device_bytes is %llu: at most %u blocks", (unsigned long long)config->device_bytes,
                          DEVICE_SLOTS_MAX);
        core->pool_slots[p] = (uint32_t)slots;
    }
    return KVT_OK;
}

/* The host budget covers everything: slots, the store's buffers, the codec's scratch. */
static enum kvt_status share_out_host(struct kvt_options *options, struct refusal refusal)
{
    const struct kvt_config *config = &options->config;
    if (config->host_bytes == 0) return KVT_OK;
    uint64_t raw_max = 0, raw_min = UINT64_MAX;
    for (uint32_t p = 0; p < options->core.pool_count; p++) {
        raw_max = kvt_max_u64(raw_max, options->slot_bytes[p]);
        raw_min = kvt_min_u64(raw_min, options->slot_bytes[p]);
    }
    /* The smallest slots, those of packed tails, are an eighth of a block, and have 32-bit numbers. */
    const uint64_t bytes_max = HOST_SLOTS_MAX * kvt_max_u64(raw_min / 8, 512);
    if (config->host_bytes > bytes_max)
        return refuse(refusal, "host_bytes is %llu: at most %llu with blocks of %llu",
                      (unsigned long long)config->host_bytes, (unsigned long long)bytes_max,
                      (unsigned long long)raw_min);
    if (config->nvme_path) {
        /* A record must fit in a staging buffer, with its header and padding; two of them, so that reads and writes overlap. */
        const uint64_t record = kvt_align_up(raw_max + 8 * KVT_KIB, 4 * KVT_KIB);
        options->staging_bytes = kvt_max_u64(kvt_min_u64(STAGING_BYTES_MAX, config->host_bytes / 8), STAGING_BYTES_MIN);
        options->staging_bytes = kvt_align_up(kvt_max_u64(options->staging_bytes, 4 * record), KVT_MIB);
    }
    const uint64_t overhead = options->staging_bytes + options->scratch_bytes;
    if (config->host_bytes < overhead + raw_max + CHUNK_ALIGNMENT)
        return refuse(refusal, "host_bytes is %llu: at least %llu (a block and the buffers of transfers)",
                      (unsigned long long)config->host_bytes,
                      (unsigned long long)(overhead + raw_max + CHUNK_ALIGNMENT));
    options->host_slot_bytes = config->host_bytes - overhead;
    /* Small chunks pass from one slot class to another quickly; large ones are quick to prepare. */
    uint64_t chunk = kvt_min_u64(CHUNK_BYTES_MAX, options->host_slot_bytes / 32);
    chunk = kvt_max_u64(chunk, kvt_min_u64(4 * raw_max, options->host_slot_bytes / 4));
    chunk = kvt_max_u64(chunk, raw_max);
    options->host_chunk_bytes = kvt_align_up(chunk, CHUNK_ALIGNMENT);
    if (options->host_chunk_bytes > options->host_slot_bytes)
        options->host_chunk_bytes = options->host_slot_bytes & ~(CHUNK_ALIGNMENT - 1);
    return KVT_OK;
}

/* Everything that changes a block's bytes beside its tokens, as text: its digest is the namespace. */
static struct kvt_key space_of(const struct kvt_config *config, uint32_t g)
{
    const struct kvt_group_shape *group = &config->shape.groups[g];
    char text[512];
    const int length = snprintf(
        text, sizeof text,
        "kvtier/1 model=%.128s group=%u/%u kind=%d dtype=%s layers=%u planes=%u heads=%u dim=%u window=%u sinks=%u "
        "state=%llu "
        "block_tokens=%u layout=LPTHD rank=%u/%u",
        config->model, g, config->shape.group_count, (int)group->kind, kvt_dtype_name(group->dtype), group->layers,
        group->planes ? group->planes : 2, group->kv_heads, group->head_dim, group->window_tokens, group->sink_tokens,
        (unsigned long long)group->state_bytes, config->shape.block_tokens, config->rank, config->world);
    struct kvt_key parts[2] = { kvt_key_digest(text, (size_t)length),
                                kvt_key_digest(config->model, strlen(config->model)) };
    return kvt_key_digest(parts, sizeof parts);
}

static void fill_core(struct kvt_options *options)
{
    const struct kvt_config *config = &options->config;
    struct kvt_core_config *core = &options->core;
    core->shape = config->shape;
    for (uint32_t g = 0; g < config->shape.group_count; g++) core->space[g] = space_of(config, g);
    core->secret = config->secret;
    core->secret_bytes = config->secret_bytes;
    core->sequences_max = config->sequences_max;
    core->transfers_max = config->transfers_max;
    core->prefetch_bytes_max = config->prefetch_bytes_max;
    core->transfer_deadline_ns = config->transfer_deadline_ns;
    core->step_ns = config->step_ns;
    core->prefill_tokens_per_s = config->prefill_tokens_per_s;
    core->prefetch = config->prefetch;
    core->is_layered = config->is_layered;
    core->is_packing = !config->is_codec_off;
    core->device_policy = kvt_policy_find(config->device_policy);
    core->host_policy = kvt_policy_find(config->host_policy);
    core->admission = kvt_admission_find(config->admission);
    if (config->prefetch == KVT_PREFETCH_SESSION) core->prefetcher = kvt_prefetcher_find("session");
    core->nvme_bytes_per_day = config->nvme_bytes_per_day;

    /* Blocks on the device, in host memory (packed ones take less than raw ones), and held with a record on nvme alone. */
    uint64_t blocks = 1024;
    uint64_t slot_min = UINT64_MAX;
    for (uint32_t p = 0; p < core->pool_count; p++) {
        blocks += core->pool_slots[p];
        slot_min = kvt_min_u64(slot_min, options->slot_bytes[p]);
    }
    blocks += 8 * (options->host_slot_bytes / slot_min + 1);
    if (config->nvme_path) blocks += 2 * (config->nvme_bytes / slot_min + 1);
    core->blocks_max = (uint32_t)kvt_min_u64(blocks, BLOCKS_MAX);
}

enum kvt_status kvt_options_check_version(const struct kvt_config *config, char *ret_error, size_t error_bytes)
{
    const struct refusal refusal = { ret_error, error_bytes };
    if (config->size == sizeof *config && config->version == KVT_VERSION) return KVT_OK;
    return refuse(refusal, "config size is %u, version %u: %zu and %u here", config->size, config->version,
                  sizeof *config, KVT_VERSION);
}

enum kvt_status kvt_options_resolve(const struct kvt_config *config, uint64_t scratch_bytes,
                                    struct kvt_options *ret_options, char *ret_error, size_t error_bytes)
{
    const struct refusal refusal = { ret_error, error_bytes };
    struct kvt_options options = { .config = *config, .scratch_bytes = config->is_codec_off ? 0 : scratch_bytes };
    fill_defaults(&options.config);
    KVT_TRY(check(&options.config, refusal));
    KVT_TRY(share_out_device(&options, refusal));
    for (uint32_t p = 0; p < options.core.pool_count; p++)
        options.block_bytes_max = kvt_max_u32(options.block_bytes_max, (uint32_t)options.slot_bytes[p]);
    KVT_TRY(share_out_host(&options, refusal));
    fill_core(&options);
    *ret_options = options;
    return KVT_OK;
}
