#include "policy/registry.h"

#include <string.h>

#include "runtime/base/bytes.h"

/* The first one is the default; the others by name. */
static const struct kvt_policy_ops *const policies[] = {
    &kvt_policy_lru,  &kvt_policy_lru_reward, &kvt_policy_fifo, &kvt_policy_clock,
    &kvt_policy_sieve, &kvt_policy_lfu,        &kvt_policy_gdsf, &kvt_policy_s3fifo,
    &kvt_policy_arc,   &kvt_policy_two_q,      &kvt_policy_lirs,
};

static const struct kvt_admission_ops *const admissions[] = {
    &kvt_admission_all,
};

const struct kvt_policy_ops *kvt_policy_at(uint32_t i)
{
    return i < KVT_ARRAY_COUNT(policies) ? policies[i] : NULL;
}

const struct kvt_policy_ops *kvt_policy_find(const char *name)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(policies); i++) {
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    }
    return NULL;
}

const struct kvt_admission_ops *kvt_admission_at(uint32_t i)
{
    return i < KVT_ARRAY_COUNT(admissions) ? admissions[i] : NULL;
}

const struct kvt_admission_ops *kvt_admission_find(const char *name)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(admissions); i++) {
        if (strcmp(admissions[i]->name, name) == 0) return admissions[i];
    }
    return NULL;
}
