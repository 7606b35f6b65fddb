#include "kvtier/shape.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"

/* A block larger than this is a mistake in the shape, and would overflow the 32-bit lengths of copies. */
#define BLOCK_BYTES_MAX (KVT_GIB)

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [KVT_DTYPE_BF16] = { "bf16", 2 }, [KVT_DTYPE_FP16] = { "fp16", 2 }, [KVT_DTYPE_FP8] = { "fp8", 1 },
    [KVT_DTYPE_FP32] = { "fp32", 4 }, [KVT_DTYPE_INT8] = { "int8", 1 },
};

static bool is_dtype(enum kvt_dtype dtype) { return (uint32_t)dtype < KVT_ARRAY_COUNT(dtypes); }

uint32_t kvt_dtype_bytes(enum kvt_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].bytes : 0; }
const char *kvt_dtype_name(enum kvt_dtype dtype) { return is_dtype(dtype) ? dtypes[dtype].name : "?"; }

bool kvt_dtype_parse(const char *text, enum kvt_dtype *ret_dtype)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(dtypes); i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *ret_dtype = (enum kvt_dtype)i;
            return true;
        }
    }
    return false;
}

static uint32_t planes_of(const struct kvt_group_shape *group) { return group->planes ? group->planes : 2; }

static enum kvt_status refuse(char *ret_error, uint32_t error_bytes, const char *field, uint64_t value,
                              const char *rule)
{
    if (ret_error) (void)snprintf(ret_error, error_bytes, "%s is %llu: %s", field, (unsigned long long)value, rule);
    return KVT_INVAL;
}

static enum kvt_status check_sizes(const struct kvt_model_shape *shape, const struct kvt_group_shape *group,
                                   char *ret_error, uint32_t error_bytes)
{
    uint64_t bytes = group->layers;
    bool fits;
    if (group->kind == KVT_GROUP_STATE) {
        fits = kvt_multiply(bytes, group->state_bytes, &bytes);
    } else {
        fits = kvt_multiply(bytes, planes_of(group), &bytes) && kvt_multiply(bytes, group->kv_heads, &bytes)
            && kvt_multiply(bytes, group->head_dim, &bytes)
            && kvt_multiply(bytes, kvt_dtype_bytes(group->dtype), &bytes)
            && kvt_multiply(bytes, shape->block_tokens, &bytes);
    }
    if (!fits) return refuse(ret_error, error_bytes, "block bytes", UINT64_MAX, "the product must fit in 64 bits");
    if (bytes > BLOCK_BYTES_MAX) return refuse(ret_error, error_bytes, "block bytes", bytes, "at most 1 GiB a block");
    return KVT_OK;
}

static enum kvt_status check_group(const struct kvt_model_shape *shape, const struct kvt_group_shape *group,
                                   char *ret_error, uint32_t error_bytes)
{
    if ((uint32_t)group->kind > KVT_GROUP_STATE)
        return refuse(ret_error, error_bytes, "kind", (uint64_t)group->kind, "full, window or state");
    if (!is_dtype(group->dtype))
        return refuse(ret_error, error_bytes, "dtype", (uint64_t)group->dtype, "bf16, fp16, fp8, fp32 or int8");
    if (group->layers == 0) return refuse(ret_error, error_bytes, "layers", 0, "at least 1");
    if (group->kind == KVT_GROUP_STATE) {
        if (group->state_bytes == 0)
            return refuse(ret_error, error_bytes, "state_bytes", 0, "at least 1 in a state group");
        return check_sizes(shape, group, ret_error, error_bytes);
    }
    if (group->planes > 2) return refuse(ret_error, error_bytes, "planes", group->planes, "1 or 2");
    if (group->kv_heads == 0) return refuse(ret_error, error_bytes, "kv_heads", 0, "at least 1");
    if (group->head_dim == 0) return refuse(ret_error, error_bytes, "head_dim", 0, "at least 1");
    if (group->kind == KVT_GROUP_WINDOW && group->window_tokens == 0)
        return refuse(ret_error, error_bytes, "window", 0, "at least 1 token");
    return check_sizes(shape, group, ret_error, error_bytes);
}

enum kvt_status kvt_shape_check(const struct kvt_model_shape *shape, char *ret_error, uint32_t error_bytes)
{
    if (shape->block_tokens == 0 || shape->block_tokens > UINT16_MAX)
        return refuse(ret_error, error_bytes, "block_tokens", shape->block_tokens, "1 to 65535");
    if (shape->group_count == 0 || shape->group_count > KVT_GROUPS_MAX)
        return refuse(ret_error, error_bytes, "group_count", shape->group_count, "1 to 4");
    for (uint32_t g = 0; g < shape->group_count; g++) {
        const enum kvt_status status = check_group(shape, &shape->groups[g], ret_error, error_bytes);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

uint64_t kvt_group_row_bytes(const struct kvt_group_shape *group)
{
    if (group->kind == KVT_GROUP_STATE) return group->state_bytes;
    return (uint64_t)group->kv_heads * group->head_dim * kvt_dtype_bytes(group->dtype);
}

uint64_t kvt_group_bytes_per_token(const struct kvt_group_shape *group)
{
    if (group->kind == KVT_GROUP_STATE) return 0;
    return kvt_group_row_bytes(group) * planes_of(group) * group->layers;
}

uint64_t kvt_group_block_bytes(const struct kvt_group_shape *group, uint32_t tokens)
{
    if (group->kind == KVT_GROUP_STATE) return group->state_bytes * group->layers;
    return kvt_group_bytes_per_token(group) * tokens;
}

uint64_t kvt_group_blocks_kept(const struct kvt_group_shape *group, uint32_t block_tokens, uint64_t tokens)
{
    if (tokens == 0 || block_tokens == 0) return 0;
    const uint64_t last = (tokens - 1) / block_tokens;
    switch (group->kind) {
    case KVT_GROUP_FULL: return last + 1;
    case KVT_GROUP_STATE: return 1;
    case KVT_GROUP_WINDOW: break;
    }
    if (tokens <= group->window_tokens) return last + 1;
    const uint64_t first = (tokens - group->window_tokens) / block_tokens;
    const uint64_t sinks = ((uint64_t)group->sink_tokens + block_tokens - 1) / block_tokens;
    return last + 1 - first + kvt_min_u64(sinks, first);
}

uint64_t kvt_group_bytes_kept(const struct kvt_group_shape *group, uint64_t tokens)
{
    if (tokens == 0) return 0;
    if (group->kind == KVT_GROUP_STATE) return group->state_bytes * group->layers;
    if (group->kind == KVT_GROUP_WINDOW)
        tokens = kvt_min_u64(tokens, (uint64_t)group->window_tokens + group->sink_tokens);
    return kvt_group_bytes_per_token(group) * tokens;
}
