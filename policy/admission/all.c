/*
 * all: every block may be written to nvme.
 *
 * The default: nothing is lost that fits. It keeps no state.
 */
#include "policy/policy.h"

#include "runtime/base/mem.h"

struct kvt_admission {
    uint64_t asked_count;
};

static enum kvt_status all_create(uint64_t seed, struct kvt_admission **ret_admission)
{
    (void)seed;
    struct kvt_admission *all = kvt_alloc(1, sizeof *all);
    if (!all) return KVT_NOMEM;
    *ret_admission = all;
    return KVT_OK;
}

static void all_destroy(struct kvt_admission *all) { kvt_free(all); }

static bool all_admits(struct kvt_admission *all, const struct kvt_admission_question *question)
{
    (void)question;
    all->asked_count++;
    return true;
}

const struct kvt_admission_ops kvt_admission_all = {
    .name = "all",
    .summary = "every block may be written (default)",
    .create = all_create,
    .destroy = all_destroy,
    .admits = all_admits,
};
