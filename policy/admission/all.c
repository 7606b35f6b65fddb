/*
 * all: every block may be written to nvme.
 *
 * The default: nothing is lost that fits. It keeps no state, so all its users share one object.
 */
#include "policy/policy.h"

struct kvt_admission {
    bool answer;
};

static enum kvt_status all_create(uint64_t tier_bytes, uint64_t seed, struct kvt_admission **ret_admission)
{
    static struct kvt_admission yes = { .answer = true };
    (void)tier_bytes;
    (void)seed;
    *ret_admission = &yes;
    return KVT_OK;
}

static void all_destroy(struct kvt_admission *all) { (void)all; }

static bool all_admits(struct kvt_admission *all, const struct kvt_admission_question *question)
{
    (void)question;
    return all->answer;
}

const struct kvt_admission_ops kvt_admission_all = {
    .name = "all",
    .summary = "every block may be written (default)",
    .create = all_create,
    .destroy = all_destroy,
    .admits = all_admits,
};
