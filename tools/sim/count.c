#include "tools/sim/count.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/sim/belady.h"

#define NONE KVT_POLICY_NONE
/* So many accesses early the memory is asked for what the pool, and then what the policy will read. */
enum { AHEAD = 12, POLICY_AHEAD = 6 };

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
    bool is_used_told; /* the admission policy wants to know of hits */
    bool *is_hit;      /* [access_count], of the round under way; NULL: it is not replayed */
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

/* Puts a block that is not there into a slot, its number being its key; *ret_evicted is the block that made room, or NONE. */
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
    pool->ops->insert(pool->policy, slot, block);
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
        if (counter->is_used_told) counter->job->admission->used(counter->admission, kvt_mix64(block));
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

/* What the trace says of a request, for the policies that ask. */
static struct kvt_policy_hint hint_of(const struct kvt_accesses *accesses, uint32_t request, uint32_t length)
{
    struct kvt_policy_hint hint = {
        .offset = KVT_POLICY_UNKNOWN,
        .length = length,
        .found = KVT_POLICY_UNKNOWN,
        .turn = KVT_POLICY_UNKNOWN,
        .next = KVT_POLICY_NEXT_UNKNOWN,
    };
    if (!accesses->infos) return hint;
    const struct kvt_access_info *info = &accesses->infos[request];
    hint.turn = info->turn;
    hint.now_ms = info->arrival_ms;
    if (info->stop == KVT_STOP_TOOL_USE) hint.next = KVT_POLICY_NEXT_TOOL;
    if (info->stop == KVT_STOP_END_TURN) hint.next = KVT_POLICY_NEXT_PERSON;
    return hint;
}

static void give_hint(struct counter *counter, const struct kvt_policy_hint *hint)
{
    for (uint32_t t = 0; t < counter->job->tier_count; t++) counter->pools[t].ops->hint(counter->pools[t].policy, hint);
}

/* Tokens of so many blocks of a request. has_last: its last block is one of them, which need not be full. */
static uint64_t tokens_of(const struct kvt_accesses *accesses, uint32_t request, uint64_t blocks, bool has_last)
{
    const uint64_t block_tokens = kvt_max_u32(1, accesses->block_tokens);
    const bool is_short = has_last && blocks > 0 && accesses->infos;
    return blocks * block_tokens - (is_short ? block_tokens - accesses->infos[request].last_tokens : 0);
}

static inline void look_ahead(const struct pool *pool, uint32_t block)
{
    const uint32_t slot = pool->slot_of[block];
    if (slot == NONE) pool->ops->prefetch_key(pool->policy, block);
    else if (pool->ops->prefetch) pool->ops->prefetch(pool->policy, slot);
}

/* Hits of one request, without prefixes; *ret_is_last: its last block was one. */
static inline uint32_t use_flat(struct counter *counter, uint32_t begin, uint32_t end, bool *ret_is_last)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const uint32_t *blocks = accesses->blocks;
    const uint32_t *slot_of = counter->pools[0].slot_of;
    /* What looks no keys up has small tables, and is not asked. */
    const bool is_policy_asked = counter->pools[0].ops->prefetch_key != NULL;
    uint32_t hits = 0;
    bool is_hit = false;
    for (uint32_t i = begin; i < end; i++) {
        if (i + AHEAD < accesses->access_count) __builtin_prefetch(&slot_of[blocks[i + AHEAD]]);
        if (is_policy_asked && i + POLICY_AHEAD < accesses->access_count)
            look_ahead(&counter->pools[0], blocks[i + POLICY_AHEAD]);
        is_hit = slot_of[blocks[i]] != NONE;
        hits += is_hit;
        access_one(counter, blocks[i]);
    }
    *ret_is_last = is_hit;
    return hits;
}

static void count_flat(struct counter *counter, uint32_t request, uint32_t begin, uint32_t end, bool is_counted)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    bool is_last;
    const uint32_t hits = use_flat(counter, begin, end, &is_last);
    if (!is_counted) return;
    counter->result.tier_hits[0] += hits;
    counter->result.hit_tokens += tokens_of(accesses, request, hits, is_last);
}

static void count_prefix(struct counter *counter, uint32_t request, uint32_t begin, uint32_t end, bool is_counted)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const bool is_tail = counter->job->order == KVT_COUNT_TAIL;
    const bool is_hinted = counter->pools[0].ops->hint != NULL;
    struct kvt_policy_hint hint = hint_of(accesses, request, end - begin);
    uint32_t found = begin;
    while (found < end && pool_has(&counter->pools[0], accesses->blocks[found])) found++;
    hint.found = found - begin;
    if (is_counted) {
        counter->result.tier_hits[0] += found - begin;
        counter->result.hit_tokens += tokens_of(accesses, request, found - begin, found == end);
    }
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t at = is_tail ? begin + end - 1 - i : i;
        hint.offset = at - begin;
        if (is_hinted) give_hint(counter, &hint);
        access_one(counter, accesses->blocks[at]);
    }
}

static void count_tiers(struct counter *counter, uint32_t request, uint32_t begin, uint32_t end, bool is_counted)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const bool is_flat = counter->job->mode == KVT_COUNT_FLAT;
    const bool is_tail = counter->job->order == KVT_COUNT_TAIL && !is_flat;
    const bool is_hinted = counter->pools[0].ops->hint != NULL;
    const uint32_t tier_count = counter->job->tier_count;
    struct kvt_policy_hint hint = hint_of(accesses, request, end - begin);
    bool is_prefix = true;
    for (uint32_t i = begin; i < end && !is_flat; i++) {
        const uint32_t t = find_tier(counter, accesses->blocks[i]);
        if (t == tier_count) is_prefix = false;
        if (!is_prefix || !is_counted) break;
        counter->result.tier_hits[t]++;
        counter->result.hit_tokens += tokens_of(accesses, request, 1, i + 1 == end);
    }
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t at = is_tail ? begin + end - 1 - i : i;
        const uint32_t t = is_flat && is_counted ? find_tier(counter, accesses->blocks[at]) : tier_count;
        if (t < tier_count) {
            counter->result.tier_hits[t]++;
            counter->result.hit_tokens += tokens_of(accesses, request, 1, at + 1 == end);
        }
        if (!is_flat) hint.offset = at - begin;
        if (is_hinted) give_hint(counter, &hint);
        access_tiers(counter, accesses->blocks[at]);
    }
}

static bool is_full(const struct counter *counter)
{
    for (uint32_t t = 0; t < counter->job->tier_count; t++) {
        if (counter->pools[t].used < counter->job->capacities[t]) return false;
    }
    return true;
}

static void count_request(struct counter *counter, uint32_t request, uint32_t begin, uint32_t end, bool is_counted)
{
    const struct kvt_count_job *job = counter->job;
    if (is_counted) {
        counter->result.accesses += end - begin;
        counter->result.tokens += tokens_of(job->accesses, request, end - begin, true);
    }
    if (job->tier_count > 1) {
        count_tiers(counter, request, begin, end, is_counted);
    } else if (job->mode == KVT_COUNT_PREFIX) {
        count_prefix(counter, request, begin, end, is_counted);
    } else {
        if (counter->pools[0].ops->hint) {
            const struct kvt_policy_hint hint = hint_of(job->accesses, request, end - begin);
            give_hint(counter, &hint);
        }
        count_flat(counter, request, begin, end, is_counted);
    }
}

/* The requests that only fill the tiers are over: what they wrote is not counted either. */
static void begin_counting(struct counter *counter)
{
    counter->result.is_filled_before = is_full(counter);
    counter->result.writes = counter->result.evictions = 0;
}

/* ---- The fast way ------------------------------------------------------------------------------------------------ */

static bool is_replayed(const struct kvt_count_job *job)
{
    return job->tier_count == 1 && job->mode == KVT_COUNT_FLAT && !job->admission && job->policy->replay;
}

static uint32_t count_true(const bool *values, uint32_t count)
{
    uint32_t sum = 0, i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, &values[i], sizeof eight);
        sum += (uint32_t)((eight * UINT64_C(0x0101010101010101)) >> 56);
    }
    for (; i < count; i++) sum += values[i];
    return sum;
}

/*
 * Flat accesses [begin, end), by the loop that was compiled together with the policy; call by call while the pool is
 * not full, and for the trace's last few, behind which there is nothing to be looked at early.
 */
static void replay_span(struct counter *counter, uint32_t begin, uint32_t end)
{
    const struct kvt_accesses *accesses = counter->job->accesses;
    const uint32_t *blocks = accesses->blocks;
    struct pool *pool = &counter->pools[0];
    const uint32_t replayed_end = kvt_min_u32(
        end, accesses->access_count - kvt_min_u32(accesses->access_count, KVT_REPLAY_AHEAD));
    for (uint32_t i = begin; i < end; i++) {
        if (pool->used == pool->slot_count && i < replayed_end) {
            pool->ops->replay(pool->policy, pool->slot_of, pool->block_of, &blocks[i], replayed_end - i,
                              &counter->is_hit[i]);
            i = replayed_end;
            if (i == end) return;
        }
        counter->is_hit[i] = pool_has(pool, blocks[i]);
        access_one(counter, blocks[i]);
    }
}

/* What is_hit says of a round. Returns its misses. A sum over many requests is as fast as counting. */
static uint64_t tally(struct counter *counter, uint32_t round)
{
    const struct kvt_count_job *job = counter->job;
    const struct kvt_accesses *accesses = job->accesses;
    struct kvt_count_result *result = &counter->result;
    const uint32_t first = round == 0 ? kvt_min_u32(job->warmup_requests, accesses->request_count) : 0;
    const uint32_t begin = first > 0 ? accesses->request_ends[first - 1] : 0;
    const uint32_t hits = count_true(&counter->is_hit[begin], accesses->access_count - begin);
    /* Last blocks have so many tokens less than the others. */
    uint64_t lacking = 0, hits_lacking = 0;
    for (uint32_t r = first, before = begin; accesses->infos && r < accesses->request_count; r++) {
        const uint32_t end = accesses->request_ends[r];
        const uint64_t lacks = tokens_of(accesses, r, 1, false) - tokens_of(accesses, r, 1, true);
        if (end > before) {
            lacking += lacks;
            hits_lacking += counter->is_hit[end - 1] * lacks;
        }
        before = end;
    }
    result->accesses += accesses->access_count - begin;
    result->tokens += tokens_of(accesses, 0, accesses->access_count - begin, false) - lacking;
    result->tier_hits[0] += hits;
    result->hit_tokens += tokens_of(accesses, 0, hits, false) - hits_lacking;
    return accesses->access_count - begin - hits;
}

/* In one go; request by request where the policy is told of each; in two where counting begins later. */
static void replay_round(struct counter *counter, uint32_t round)
{
    const struct kvt_count_job *job = counter->job;
    const struct kvt_accesses *accesses = job->accesses;
    const uint32_t warmup = kvt_min_u32(job->warmup_requests, accesses->request_count);
    uint64_t writes_before = counter->result.writes;
    uint32_t begin = 0;
    for (uint32_t r = 0; r < accesses->request_count;) {
        uint32_t next = round == 0 && r < warmup ? warmup : accesses->request_count;
        if (round == 0 && r == job->warmup_requests) {
            begin_counting(counter);
            writes_before = 0;
        }
        if (job->policy->hint) {
            next = r + 1;
            const struct kvt_policy_hint hint = hint_of(accesses, r, accesses->request_ends[r] - begin);
            give_hint(counter, &hint);
        }
        replay_span(counter, begin, accesses->request_ends[next - 1]);
        begin = accesses->request_ends[next - 1];
        r = next;
    }
    if (round == 0 && job->warmup_requests >= accesses->request_count) return;
    /* A miss in a full pool is a write and an eviction; those before are counted. */
    const uint64_t replayed = tally(counter, round) - (counter->result.writes - writes_before);
    counter->result.writes += replayed;
    counter->result.evictions += replayed;
}

/* ---- Over the rounds --------------------------------------------------------------------------------------------- */

static void count_round(struct counter *counter, uint32_t round)
{
    const struct kvt_count_job *job = counter->job;
    uint32_t begin = 0;
    for (uint32_t r = 0; r < job->accesses->request_count; r++) {
        const uint32_t end = job->accesses->request_ends[r];
        if (round == 0 && r == job->warmup_requests) begin_counting(counter);
        count_request(counter, r, begin, end, round > 0 || r >= job->warmup_requests);
        begin = end;
    }
}

static void count_rounds(struct counter *counter)
{
    const struct kvt_count_job *job = counter->job;
    for (uint32_t round = 0; round < job->repeat; round++) {
        if (is_replayed(job)) replay_round(counter, round);
        else count_round(counter, round);
        if (round == 0 && job->warmup_requests >= job->accesses->request_count) begin_counting(counter);
    }
    counter->result.is_filled = is_full(counter);
    for (uint32_t t = 0; t < job->tier_count; t++) counter->result.hits += counter->result.tier_hits[t];
}

static enum kvt_status count_with_policy(const struct kvt_count_job *job, struct kvt_count_result *ret_result)
{
    struct counter counter = { .job = job };
    enum kvt_status status = KVT_OK;
    for (uint32_t t = 0; t < job->tier_count && status == KVT_OK; t++)
        status = pool_init(&counter.pools[t], job, job->capacities[t]);
    if (status == KVT_OK && job->admission)
        status = job->admission->create(job->capacities[0], job->seed, &counter.admission);
    counter.is_used_told = counter.admission && job->admission->used;
    if (status == KVT_OK && is_replayed(job)) {
        counter.is_hit = kvt_table_map((uint64_t)job->accesses->access_count + 1);
        if (!counter.is_hit) status = KVT_NOMEM;
    }
    if (status == KVT_OK) {
        count_rounds(&counter);
        *ret_result = counter.result;
    }
    kvt_table_unmap(counter.is_hit, (uint64_t)job->accesses->access_count + 1);
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
    KVT_ASSERT(KVT_IMPLIES(!job->policy, job->warmup_requests == 0));
    const enum kvt_status status = job->policy ? count_with_policy(job, ret_result) : kvt_belady_count(job, ret_result);
    if (status == KVT_OK) ret_result->seconds = seconds() - begun;
    return status;
}

/* ---- Many jobs --------------------------------------------------------------------------------------------------- */

#define TAKEN (-1.0)

struct crew {
    pthread_mutex_t lock;
    const struct kvt_count_job *jobs;
    uint32_t job_count;
    uint32_t taken, done; /* shared: under lock */
    /* [job_count], shared: under lock. Seconds that a job may take, TAKEN: it was begun. NULL: there was no memory. */
    double *expected;
    struct kvt_count_result *results;
    enum kvt_status *statuses;
    void (*on_done)(void *user, uint32_t done);
    void *user;
};

/*
 * The job to begin next: one whose policy has not been seen, then of those that take longest, so that all threads are
 * busy to the end. Without memory, the next one.
 */
static uint32_t take(struct crew *crew)
{
    uint32_t longest = crew->taken++;
    if (!crew->expected) return longest;
    longest = 0;
    for (uint32_t i = 1; i < crew->job_count; i++) {
        if (crew->expected[i] > crew->expected[longest]) longest = i;
    }
    crew->expected[longest] = TAKEN;
    return longest;
}

/* A job's policy takes about as long in another pool. */
static void learn(struct crew *crew, uint32_t done)
{
    for (uint32_t i = 0; crew->expected && i < crew->job_count; i++) {
        if (crew->jobs[i].policy == crew->jobs[done].policy && crew->expected[i] != TAKEN)
            crew->expected[i] = crew->results[done].seconds;
    }
}

static void *work(void *context)
{
    struct crew *crew = context;
    (void)pthread_mutex_lock(&crew->lock);
    while (crew->taken < crew->job_count) {
        const uint32_t i = take(crew);
        (void)pthread_mutex_unlock(&crew->lock);
        crew->statuses[i] = kvt_count(&crew->jobs[i], &crew->results[i]);
        (void)pthread_mutex_lock(&crew->lock);
        crew->done++;
        if (crew->statuses[i] == KVT_OK) learn(crew, i);
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
    crew.expected = kvt_alloc(job_count, sizeof *crew.expected);
    for (uint32_t i = 0; crew.expected && i < job_count; i++) crew.expected[i] = INFINITY;
    (void)pthread_mutex_init(&crew.lock, NULL);
    const uint32_t helpers = kvt_min_u32(kvt_min_u32(thread_count, job_count), THREADS_MAX + 1);
    /* This thread is one of them; where another one is refused, fewer do the same work. */
    while (started + 1 < helpers && pthread_create(&threads[started], NULL, work, &crew) == 0) started++;
    (void)work(&crew);
    for (uint32_t i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&crew.lock);
    kvt_free(crew.expected);
}
