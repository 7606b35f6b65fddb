/* registry: the policies that registry.c names. Each is defined in the file of its name; nothing else includes this. */
#ifndef KVT_POLICY_REGISTRY_H
#define KVT_POLICY_REGISTRY_H

#include "policy/policy.h"

extern const struct kvt_policy_ops kvt_policy_arc;
extern const struct kvt_policy_ops kvt_policy_clock;
extern const struct kvt_policy_ops kvt_policy_fifo;
extern const struct kvt_policy_ops kvt_policy_gdsf;
extern const struct kvt_policy_ops kvt_policy_lfu;
extern const struct kvt_policy_ops kvt_policy_lirs;
extern const struct kvt_policy_ops kvt_policy_lru;
extern const struct kvt_policy_ops kvt_policy_lru_reward;
extern const struct kvt_policy_ops kvt_policy_s3fifo;
extern const struct kvt_policy_ops kvt_policy_sieve;
extern const struct kvt_policy_ops kvt_policy_two_q;

extern const struct kvt_admission_ops kvt_admission_all;

#endif
