/*
 * registry: which policies there are. One line for each, in the order that --help shows; the first one is the default.
 *
 * A policy defines kvt_policy_<word>, kvt_admission_<word> or kvt_prefetcher_<word>, and nothing but this file names it.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "policy/policy.h"
#include "policy/prefetch.h"
#include "runtime/base/bytes.h"

#define EVICTION_POLICIES(X) \
    X(lru)                   \
    X(lru_reward)            \
    X(fifo)                  \
    X(clock)                 \
    X(lfu)                   \
    X(sieve)                 \
    X(s3fifo)                \
    X(arc)                   \
    X(two_q)                 \
    X(lirs)                  \
    X(lirs_duel)             \
    X(gdsf)                  \
    X(length_aware)          \
    X(workload_aware)

#define ADMISSION_POLICIES(X) \
    X(all)                    \
    X(budget)                 \
    X(second_sight)           \
    X(adaptive)

#define PREFETCHERS(X) X(session)

#define DECLARE_EVICTION(word) extern const struct kvt_policy_ops kvt_policy_##word;
#define DECLARE_ADMISSION(word) extern const struct kvt_admission_ops kvt_admission_##word;
EVICTION_POLICIES(DECLARE_EVICTION)
ADMISSION_POLICIES(DECLARE_ADMISSION)
#define DECLARE_PREFETCHER(word) extern const struct kvt_prefetcher_ops kvt_prefetcher_##word;
PREFETCHERS(DECLARE_PREFETCHER)

#define ADDRESS_OF_EVICTION(word) &kvt_policy_##word,
#define ADDRESS_OF_ADMISSION(word) &kvt_admission_##word,
static const struct kvt_policy_ops *const policies[] = { EVICTION_POLICIES(ADDRESS_OF_EVICTION) };
static const struct kvt_admission_ops *const admissions[] = { ADMISSION_POLICIES(ADDRESS_OF_ADMISSION) };
#define ADDRESS_OF_PREFETCHER(word) &kvt_prefetcher_##word,
static const struct kvt_prefetcher_ops *const prefetchers[] = { PREFETCHERS(ADDRESS_OF_PREFETCHER) };

const struct kvt_policy_ops *kvt_policy_at(uint32_t i) { return i < KVT_ARRAY_COUNT(policies) ? policies[i] : NULL; }

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

const struct kvt_prefetcher_ops *kvt_prefetcher_at(uint32_t i)
{
    return i < KVT_ARRAY_COUNT(prefetchers) ? prefetchers[i] : NULL;
}

const struct kvt_prefetcher_ops *kvt_prefetcher_find(const char *name)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(prefetchers); i++) {
        if (strcmp(prefetchers[i]->name, name) == 0) return prefetchers[i];
    }
    return NULL;
}

static void add_name(char *names, size_t names_bytes, const char *name)
{
    const size_t used = strlen(names);
    (void)snprintf(names + used, names_bytes - used, "%s%s", used > 0 ? ", " : "", name);
}

void kvt_policy_names(char *ret_names, size_t names_bytes)
{
    ret_names[0] = '\0';
    for (uint32_t i = 0; kvt_policy_at(i); i++) add_name(ret_names, names_bytes, kvt_policy_at(i)->name);
}

void kvt_admission_names(char *ret_names, size_t names_bytes)
{
    ret_names[0] = '\0';
    for (uint32_t i = 0; kvt_admission_at(i); i++) add_name(ret_names, names_bytes, kvt_admission_at(i)->name);
}
