#include "tools/sim/count.h"

#include <pthread.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/sim/belady.h"

#define NONE KVT_POLICY_NONE
enum { AHEAD = 12 }; /* accesses whose table entries are asked for early */

/* One tier: which block is in which slot. */
struct pool {
    const struct kvt_policy_ops *ops;
    struct kvt_policy *policy;
    uint32_t *slot_of;  /* [block_count]; slot, or NONE */
    uint32_t *block_of; /* [slot_count] */
    uint32_t block_count, slot_count, used;
    uint32_t free_head; /* slots that were left, linked through block_of; NONE: none */
};

struct counter {
    const struct kvt_count_job *job;
    struct pool pools[KVT_COUNT_TIERS_MAX];
    struct kvt_admission *admission;
    struct kvt_count_result result;
};

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- One tier ---------------------------------------------------------------------------------------------------- */

static enum kvt_status pool_init(struct pool *pool, const struct kvt_count_job *job, uint32_t capacity)
{
    const uint32_t block_count = job->accesses->block_count;
    /* A slot more than there are blocks would never be used. */
    const uint32_t slot_count = kvt_max_u32(1, kvt_min_u32(capacity, block_count));
    *pool = (struct pool){
        .ops = job->policy, .block_count = block_count, .slot_count = slot_count, .free_head = NONE
    };
    pool->slot_of = kvt_table_map(((uint64_t)block_count + 1) * sizeof *pool->slot_of);
    pool->block_of = kvt_table_map((uint64_t)slot_count * sizeof *pool->block_of);
    if (!pool->slot_of || !pool->block_of) return KVT_NOMEM;
    for (uint32_t b = 0; b < block_count; b++) pool->slot_of[b] = NONE;
    return pool->ops->create(slot_count, job->seed, &pool->policy);
}

static void pool_done(struct pool *pool)
{
    if (!pool->ops) return;
    pool->ops->destroy(pool->policy);
    kvt_table_unmap(pool->slot_of, ((uint64_t)pool->block_count + 1) * sizeof *pool->slot_of);
    kvt_table_unmap(pool->block_of, (uint64_t)pool->slot_count * sizeof *pool->block_of);
}

static inline bool pool_has(const struct pool *pool, uint32_t block) { return pool->slot_of[block] != NONE; }

static inline void pool_touch(struct pool *pool, uint32_t block)
{
    pool->ops->touch(pool->policy, pool->slot_of[block]);
}

/* Puts a block that is not there into a slot; *ret_evicted is the block that made room, or NONE. */
static inline void pool_insert(struct pool *pool, uint32_t block, uint32_t *ret_evicted)
{
    uint32_t slot;
    *ret_evicted = NONE;
    if (pool->used < pool->slot_count) {
        slot = pool->used++;
    } else if (pool->free_head != NONE) {
        slot = pool->free_head;
        pool->free_head = pool->block_of[slot];
    } else {
        slot = pool->ops->victim(pool->policy);
        KVT_ASSERT(slot < pool->slot_count);
        pool->ops->remove(pool->policy, slot, KVT_POLICY_EVICTED);
        *ret_evicted = pool->block_of[slot];
        pool->slot_of[*ret_evicted] = NONE;
    }
    pool->slot_of[block] = slot;
    pool->block_of[slot] = block;
    pool->ops->insert(pool->policy, slot, kvt_mix64(block));
    pool->ops->release(pool->policy, slot);
}

/* The block goes to another tier. */
static void pool_leave(struct pool *pool, uint32_t block)
{
    const uint32_t slot = pool->slot_of[block];
    pool->ops->remove(pool->policy, slot, KVT_POLICY_DROPPED);
    pool->slot_of[block] = NONE;
    pool->block_of[slot] = pool->free_head;
    pool->free_head = slot;
}

/* ---- An access --------------------------------------------------------------------------------------------------- */

static inline bool is_admitted(struct counter *counter, uint32_t block)
{
    if (!counter->admission) return true;
    const struct kvt_admission_question question = { .key_hash = kvt_mix64(block), .bytes = 1, .uses = 1 };
    return counter->job->admission->admits(counter->admission, &question);
}

/* The block becomes the newest of the first tier. */
static inline void access_one(struct counter *counter, uint32_t block)
{
    struct pool *pool = &counter->pools[0];
    if (pool_has(pool, block)) {
        pool_touch(pool, block);
        return;
    }
    if (!is_admitted(counter, block)) return;
    uint32_t evicted;
    pool_insert(pool, block, &evicted);
    counter->result.writes++;
    counter->result.evictions += evicted != NONE;
}

/* The tier that holds a block, or tier_count. */
static uint32_t find_tier(const struct counter *counter, uint32_t block)
{
    uint32_t t = 0;
    while (t < counter->job->tier_count && !pool_has(&counter->pools[t], block)) t++;
    return t;
}

static void access_tiers(struct counter *counter, uint32_t block)
{
    const uint32_t found = find_tier(counter, block);
    if (found == 0) {
        pool_touch(&counter->pools[0], block);
        return;
    }
    if (found < counter->job->tier_count) pool_leave(&counter->pools[found], block);
    counter->result.writes++;
    for (uint32_t t = 0; t < counter->job->tier_count && block != NONE; t++) {
        uint32_t evicted;
        pool_insert(&counter->pools[t], block, &evicted);
        block = evicted;
    }
    counter->result.evictions += block != NONE;
}

/* ---- Over the accesses ------------------------------------------------------------------------------------------- */

static void count_flat(struct counter *counter)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const uint32_t *blocks = accesses->blocks;
    const uint32_t *slot_of = counter->pools[0].slot_of;
    uint64_t hits = 0;
    for (uint32_t i = 0; i < accesses->access_count; i++) {
        if (i + AHEAD < accesses->access_count) __builtin_prefetch(&slot_of[blocks[i + AHEAD]]);
        hits += slot_of[blocks[i]] != NONE;
        access_one(counter, blocks[i]);
    }
    counter->result.tier_hits[0] += hits;
}

static void count_prefix(struct counter *counter)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const bool is_tail = counter->job->order == KVT_COUNT_TAIL;
    uint32_t begin = 0;
    for (uint32_t r = 0; r < accesses->request_count; r++) {
        const uint32_t end = accesses->request_ends[r];
        uint32_t found = begin;
        while (found < end && pool_has(&counter->pools[0], accesses->blocks[found])) found++;
        counter->result.tier_hits[0] += found - begin;
        for (uint32_t i = begin; i < end; i++) access_one(counter, accesses->blocks[is_tail ? begin + end - 1 - i : i]);
        begin = end;
    }
}

static void count_tiers(struct counter *counter)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const bool is_flat = counter->job->mode == KVT_COUNT_FLAT;
    const bool is_tail = counter->job->order == KVT_COUNT_TAIL;
    const uint32_t tier_count = counter->job->tier_count;
    uint32_t begin = 0;
    for (uint32_t r = 0; r < accesses->request_count; r++) {
        const uint32_t end = accesses->request_ends[r];
        for (uint32_t i = begin; i < end && !is_flat; i++) {
            const uint32_t t = find_tier(counter, accesses->blocks[i]);
            if (t == tier_count) break;
            counter->result.tier_hits[t]++;
        }
        for (uint32_t i = begin; i < end; i++) {
            const uint32_t block = accesses->blocks[is_tail && !is_flat ? begin + end - 1 - i : i];
            const uint32_t t = is_flat ? find_tier(counter, block) : tier_count;
            if (t < tier_count) counter->result.tier_hits[t]++;
            access_tiers(counter, block);
        }
        begin = end;
    }
}

static void count_rounds(struct counter *counter)
{
    const struct kvt_count_job *job = counter->job;
    for (uint32_t round = 0; round < job->repeat; round++) {
        if (job->tier_count > 1) count_tiers(counter);
        else if (job->mode == KVT_COUNT_FLAT) count_flat(counter);
        else count_prefix(counter);
    }
    counter->result.accesses = (uint64_t)job->accesses->access_count * job->repeat;
    counter->result.is_filled = true;
    for (uint32_t t = 0; t < job->tier_count; t++) {
        counter->result.hits += counter->result.tier_hits[t];
        if (counter->pools[t].used < job->capacities[t]) counter->result.is_filled = false;
    }
}

static enum kvt_status count_with_policy(const struct kvt_count_job *job, struct kvt_count_result *ret_result)
{
    struct counter counter = { .job = job };
    enum kvt_status status = KVT_OK;
    for (uint32_t t = 0; t < job->tier_count && status == KVT_OK; t++)
        status = pool_init(&counter.pools[t], job, job->capacities[t]);
    if (status == KVT_OK && job->admission) status = job->admission->create(job->seed, &counter.admission);
    if (status == KVT_OK) {
        count_rounds(&counter);
        *ret_result = counter.result;
    }
    if (counter.admission) job->admission->destroy(counter.admission);
    for (uint32_t t = 0; t < job->tier_count; t++) pool_done(&counter.pools[t]);
    return status;
}

enum kvt_status kvt_count(const struct kvt_count_job *job, struct kvt_count_result *ret_result)
{
    KVT_ASSERT(job->tier_count >= 1);
    KVT_ASSERT(job->tier_count <= KVT_COUNT_TIERS_MAX);
    KVT_ASSERT(KVT_IMPLIES(job->admission, job->tier_count == 1));
    const double begun = seconds();
    const enum kvt_status status = job->policy ? count_with_policy(job, ret_result) : kvt_belady_count(job, ret_result);
    if (status == KVT_OK) ret_result->seconds = seconds() - begun;
    return status;
}

/* ---- Many jobs --------------------------------------------------------------------------------------------------- */

struct crew {
    pthread_mutex_t lock;
    const struct kvt_count_job *jobs;
    uint32_t job_count;
    uint32_t next, done; /* shared: under lock */
    struct kvt_count_result *results;
    enum kvt_status *statuses;
    void (*on_done)(void *user, uint32_t done);
    void *user;
};

static void *work(void *context)
{
    struct crew *crew = context;
    (void)pthread_mutex_lock(&crew->lock);
    while (crew->next < crew->job_count) {
        const uint32_t i = crew->next++;
        (void)pthread_mutex_unlock(&crew->lock);
        crew->statuses[i] = kvt_count(&crew->jobs[i], &crew->results[i]);
        (void)pthread_mutex_lock(&crew->lock);
        crew->done++;
        if (crew->on_done) crew->on_done(crew->user, crew->done);
    }
    (void)pthread_mutex_unlock(&crew->lock);
    return NULL;
}

void kvt_count_all(const struct kvt_count_job *jobs, uint32_t job_count, uint32_t thread_count,
                   struct kvt_count_result *ret_results, enum kvt_status *ret_statuses,
                   void (*on_done)(void *user, uint32_t done), void *user)
{
    enum { THREADS_MAX = 64 };
    struct crew crew = { .jobs = jobs,
                         .job_count = job_count,
                         .results = ret_results,
                         .statuses = ret_statuses,
                         .on_done = on_done,
                         .user = user };
    pthread_t threads[THREADS_MAX];
    uint32_t started = 0;
    (void)pthread_mutex_init(&crew.lock, NULL);
    const uint32_t helpers = kvt_min_u32(kvt_min_u32(thread_count, job_count), THREADS_MAX + 1);
    /* This thread is one of them; where another one is refused, fewer do the same work. */
    while (started + 1 < helpers && pthread_create(&threads[started], NULL, work, &crew) == 0) started++;
    (void)work(&crew);
    for (uint32_t i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&crew.lock);
}
