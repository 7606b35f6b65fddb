#include "tiers/tier.h"

#include "runtime/base/assert.h"

bool kvt_tier_ops_are_valid(const struct kvt_tier_ops *ops)
{
    const bool is_indexed = (ops->caps & KVT_TIER_INDEXED) != 0;
    if (!ops->name || !ops->close || !ops->submit || !ops->poll || !ops->counters) return false;
    if ((ops->map != NULL) != ((ops->caps & KVT_TIER_MAPPED) != 0)) return false;
    if ((ops->sync != NULL) != ((ops->caps & KVT_TIER_DURABLE) != 0)) return false;
    if ((ops->find != NULL) != is_indexed) return false;
    if ((ops->hold != NULL) != is_indexed) return false;
    if ((ops->release != NULL) != is_indexed) return false;
    if ((ops->forget != NULL) != is_indexed) return false;
    if ((ops->poll_lost != NULL) != is_indexed) return false;
    return (ops->reset != NULL) == is_indexed;
}

static void check_op(const struct kvt_tier *tier, const struct kvt_tier_op *op)
{
    KVT_ASSERT(!op->is_in_flight);
    KVT_ASSERT(op->group < KVT_GROUPS_MAX);
    KVT_ASSERT(KVT_IMPLIES(op->kind == KVT_OP_COPY, kvt_tier_has(tier, KVT_TIER_COPIES)));
    KVT_ASSERT(KVT_IMPLIES(op->kind != KVT_OP_COPY, op->host != NULL));
    KVT_ASSERT(op->tokens > 0);
}

enum kvt_status kvt_tier_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    check_op(tier, op);
    if (tier->in_flight >= tier->queue_depth) return KVT_FULL;

    /* Before the call: a worker may hand the op back before submit returns. */
    op->is_in_flight = true;
    op->next = NULL;
    op->ret_mark = 0;
    tier->in_flight++;
    const enum kvt_status status = tier->ops->submit(tier, op);
    KVT_ASSERT(status == KVT_OK || status == KVT_FULL);
    if (status != KVT_OK) {
        op->is_in_flight = false;
        tier->in_flight--;
    }
    return status;
}

uint32_t kvt_tier_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    const uint32_t count = tier->ops->poll(tier, ret_done, max);
    KVT_ASSERT(count <= max);
    for (uint32_t i = 0; i < count; i++) {
        KVT_ASSERT(ret_done[i]->is_in_flight);
        KVT_ASSERT(tier->in_flight > 0);
        ret_done[i]->is_in_flight = false;
        tier->in_flight--;
    }
    return count;
}

void kvt_tier_close(struct kvt_tier **tier)
{
    if (!*tier) return;
    KVT_ASSERT((*tier)->in_flight == 0);
    (*tier)->ops->close(*tier);
    *tier = NULL;
}
