/*
 * budget: the less is left of the day's endurance budget, the more a block must have been used to be written.
 *
 *     more than 1/2 left: any block;  more than 1/4: used twice;  more than 1/8: three times;  any: four times;  none:
 *     no block
 *
 * So a burst of what nobody repeats cannot take the writes that what is repeated needs later in the day, and the part
 * that is kept for it halves as the bar rises. A block that a live sequence holds is always admitted: refusing it loses
 * tokens that are in use. Without a budget everything is admitted. It keeps no state, so all its users share one
 * object.
 */
#include "policy/policy.h"

struct kvt_admission {
    uint32_t steps; /* how often the budget is halved before the last step */
};

static enum kvt_status budget_create(uint64_t tier_bytes, uint64_t seed, struct kvt_admission **ret_admission)
{
    static struct kvt_admission halving = { .steps = 3 };
    (void)tier_bytes;
    (void)seed;
    *ret_admission = &halving;
    return KVT_OK;
}

static void budget_destroy(struct kvt_admission *budget) { (void)budget; }

static bool budget_admits(struct kvt_admission *budget, const struct kvt_admission_question *question)
{
    if (question->is_referenced || question->day_bytes_max == 0) return true;
    if (question->day_bytes >= question->day_bytes_max
        || question->bytes > question->day_bytes_max - question->day_bytes)
        return false;
    const uint64_t left = question->day_bytes_max - question->day_bytes;
    uint32_t uses = 1;
    for (uint64_t part = question->day_bytes_max / 2; uses <= budget->steps && left <= part; part /= 2) uses++;
    return question->uses >= uses;
}

const struct kvt_admission_ops kvt_admission_budget = {
    .name = "budget",
    .summary = "the fewer writes the day has left, the more uses a block needs",
    .create = budget_create,
    .destroy = budget_destroy,
    .admits = budget_admits,
};
