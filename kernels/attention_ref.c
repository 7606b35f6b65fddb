/* The reference of attention: one head, then one token, at a time. It is what the others are measured against. */
#include "kernels/attention.h"

#include "runtime/base/assert.h"

static bool is_supported(void) { return true; }

static float score_of(const struct kvt_attention *args, const float *query, const uint8_t *key)
{
    float score = 0;
    for (uint32_t d = 0; d < args->head_dim; d++) score += query[d] * kvt_attention_element(args->dtype, key, d);
    return score * args->scale;
}

static void add_token(const struct kvt_attention *args, struct kvt_attention_sum *sum, float score,
                      const uint8_t *value, float *out)
{
    const float factor = kvt_attention_sum_raise(sum, score);
    const float weight = kvt_attention_sum_add(sum, score);
    for (uint32_t d = 0; d < args->head_dim; d++)
        out[d] = out[d] * factor + weight * kvt_attention_element(args->dtype, value, d);
}

static void attend_head(const struct kvt_attention *args, uint32_t head)
{
    const float *query = args->query + (uint64_t)head * args->head_dim;
    float *out = args->out + (uint64_t)head * args->head_dim;
    const uint32_t kv_head = head / (args->query_heads / args->kv_heads);
    struct kvt_attention_sum sum = kvt_attention_sum_begin();
    for (uint32_t d = 0; d < args->head_dim; d++) out[d] = 0;
    for (uint32_t i = 0; i < args->count; i++) {
        const uint64_t start = kvt_attention_block(args, i) * args->block_tokens;
        uint32_t row, end;
        kvt_attention_rows(args, i, &row, &end);
        for (; row < end; row++) {
            if (!kvt_attention_is_seen(args, start + row)) continue;
            const float score = score_of(args, query, kvt_attention_key(args, i, row, kv_head));
            add_token(args, &sum, score, kvt_attention_value(args, i, row, kv_head), out);
        }
    }
    args->lse[head] = kvt_attention_sum_lse(&sum);
    for (uint32_t d = 0; d < args->head_dim && sum.sum > 0; d++) out[d] /= sum.sum;
}

static void attend(const struct kvt_attention *args)
{
    KVT_ASSERT(kvt_attention_is_valid(args));
    for (uint32_t head = 0; head < args->query_heads; head++) attend_head(args, head);
}

const struct kvt_attention_ops kvt_attention_ops_ref = {
    .name = "ref",
    .is_supported = is_supported,
    .attend = attend,
};
