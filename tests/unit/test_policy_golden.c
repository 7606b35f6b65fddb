/*
 * policy golden: exact hit counts of the eviction policies on traces.
 *
 * A small generated trace is always there; its counts for lru, fifo, clock, lfu, sieve, gdsf and the bound
 * were computed by a second, separate program. The real traces are read in place, from the folder named by
 * KVTIER_SHARED or from ../shared, and their tests are skipped where there is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <json.h>

#include "policy/policy.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

struct trace {
    uint32_t *ids;            /* of blocks, in order of access */
    uint32_t *request_blocks; /* how many of them each request has */
    uint32_t id_count, request_count;
    uint32_t id_capacity, request_capacity;
    uint32_t id_end; /* above every id */
};

static void trace_free(struct trace *trace)
{
    kvt_free(trace->ids);
    kvt_free(trace->request_blocks);
    *trace = (struct trace){ 0 };
}

static void push(uint32_t **array, uint32_t *count, uint32_t *capacity, uint32_t value)
{
    if (*count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 1024;
        *array = kvt_realloc(*array, *capacity, sizeof **array);
        assert_non_null(*array);
    }
    (*array)[(*count)++] = value;
}

static void trace_add(struct trace *trace, uint32_t id)
{
    push(&trace->ids, &trace->id_count, &trace->id_capacity, id);
    trace->id_end = kvt_max_u32(trace->id_end, id + 1);
}

/* A miss finds its slot: a free one, or the victim's. */
static uint32_t make_room(const struct kvt_policy_ops *ops, struct kvt_policy *policy, uint32_t *used,
                          uint32_t slot_count)
{
    if (*used < slot_count) return (*used)++;
    const uint32_t victim = ops->victim(policy);
    assert_true(victim < slot_count);
    ops->remove(policy, victim, KVT_POLICY_EVICTED);
    return victim;
}

struct pool {
    const struct kvt_policy_ops *ops;
    struct kvt_policy *policy;
    uint32_t *slot_of; /* by id; KVT_POLICY_NONE */
    uint32_t *id_of;   /* by slot */
    uint32_t slot_count, used;
};

static void pool_open(struct pool *pool, const char *name, const struct trace *trace, uint32_t slot_count)
{
    *pool = (struct pool){ .ops = kvt_policy_find(name), .slot_count = slot_count };
    assert_non_null(pool->ops);
    assert_int_equal(pool->ops->create(slot_count, 1, &pool->policy), KVT_OK);
    pool->slot_of = kvt_alloc(trace->id_end, sizeof pool->slot_of[0]);
    pool->id_of = kvt_alloc(slot_count, sizeof pool->id_of[0]);
    assert_non_null(pool->slot_of);
    assert_non_null(pool->id_of);
    for (uint32_t id = 0; id < trace->id_end; id++) pool->slot_of[id] = KVT_POLICY_NONE;
}

static void pool_close(struct pool *pool)
{
    pool->ops->verify(pool->policy);
    pool->ops->destroy(pool->policy);
    kvt_free(pool->slot_of);
    kvt_free(pool->id_of);
}

/* A use of a block that is there, or its arrival. True: it was there. */
static bool pool_access(struct pool *pool, uint32_t id)
{
    if (pool->slot_of[id] != KVT_POLICY_NONE) {
        pool->ops->touch(pool->policy, pool->slot_of[id]);
        return true;
    }
    const bool is_full = pool->used == pool->slot_count;
    const uint32_t slot = make_room(pool->ops, pool->policy, &pool->used, pool->slot_count);
    if (is_full) pool->slot_of[pool->id_of[slot]] = KVT_POLICY_NONE;
    pool->slot_of[id] = slot;
    pool->id_of[slot] = id;
    pool->ops->insert(pool->policy, slot, kvt_mix64(id));
    pool->ops->release(pool->policy, slot);
    return false;
}

/* Every id is one access. */
static uint32_t flat_hits(const char *name, const struct trace *trace, uint32_t slot_count)
{
    struct pool pool;
    uint32_t hits = 0;
    pool_open(&pool, name, trace, slot_count);
    for (uint32_t i = 0; i < trace->id_count; i++) hits += pool_access(&pool, trace->ids[i]);
    pool_close(&pool);
    return hits;
}

/* Hits of a request end at its first miss; then all its blocks are used, from the first on or from the last. */
static uint32_t prefix_hits(const char *name, const struct trace *trace, uint32_t slot_count, bool is_tail_first)
{
    struct pool pool;
    uint32_t hits = 0;
    const uint32_t *ids = trace->ids;
    pool_open(&pool, name, trace, slot_count);
    for (uint32_t request = 0; request < trace->request_count; request++) {
        const uint32_t count = trace->request_blocks[request];
        uint32_t found = 0;
        while (found < count && pool.slot_of[ids[found]] != KVT_POLICY_NONE) found++;
        hits += found;
        for (uint32_t i = 0; i < count; i++) (void)pool_access(&pool, ids[is_tail_first ? count - 1 - i : i]);
        ids += count;
    }
    pool_close(&pool);
    return hits;
}

/* Belady's MIN by looking at every resident block: for small traces. */
static uint32_t optimal_hits(const struct trace *trace, uint32_t slot_count)
{
    uint32_t *resident = kvt_alloc(slot_count, sizeof *resident);
    uint32_t *next_use = kvt_alloc(slot_count, sizeof *next_use);
    uint32_t used = 0, hits = 0;
    assert_non_null(resident);
    assert_non_null(next_use);
    for (uint32_t i = 0; i < trace->id_count; i++) {
        uint32_t next = i + 1;
        while (next < trace->id_count && trace->ids[next] != trace->ids[i]) next++;
        uint32_t slot = 0, furthest = 0;
        while (slot < used && resident[slot] != trace->ids[i]) {
            if (next_use[slot] > next_use[furthest]) furthest = slot;
            slot++;
        }
        if (slot < used) hits++;
        else slot = used < slot_count ? used++ : furthest;
        resident[slot] = trace->ids[i];
        next_use[slot] = next;
    }
    kvt_free(resident);
    kvt_free(next_use);
    return hits;
}

/*
 * 200 requests of 1 to 24 blocks: a conversation goes on with what it had and some new blocks, or a new one
 * starts after one of three shared prefixes; now and then a long prompt that nobody repeats.
 */
static void generate(struct trace *trace)
{
    enum { CONVERSATIONS = 12, LENGTH_MAX = 24 };
    uint32_t blocks[CONVERSATIONS][LENGTH_MAX];
    uint32_t lengths[CONVERSATIONS] = { 0 };
    struct kvt_rng rng = { .state = 42 };
    uint32_t next_id = 30;
    *trace = (struct trace){ 0 };
    for (uint32_t request = 0; request < 200; request++) {
        const uint32_t c = (uint32_t)kvt_rng_below(&rng, CONVERSATIONS);
        uint32_t length = lengths[c];
        const uint32_t more = 1 + (uint32_t)kvt_rng_below(&rng, 6);
        if (length + more > LENGTH_MAX || length == 0) {
            const uint32_t prefix = (uint32_t)kvt_rng_below(&rng, 3);
            for (length = 0; length < 4 + 2 * prefix; length++) blocks[c][length] = 10 * prefix + length;
        }
        for (uint32_t i = 0; i < more; i++) blocks[c][length++] = next_id++;
        lengths[c] = length;
        push(&trace->request_blocks, &trace->request_count, &trace->request_capacity, length);
        for (uint32_t i = 0; i < length; i++) trace_add(trace, blocks[c][i]);
        if (request % 20 != 19) continue;
        push(&trace->request_blocks, &trace->request_count, &trace->request_capacity, LENGTH_MAX);
        for (uint32_t i = 0; i < LENGTH_MAX; i++) trace_add(trace, next_id++);
    }
}

static const uint32_t small_capacities[] = { 1, 10, 30, 60, 100, 200 };

struct golden {
    const char *name;
    uint32_t hits[KVT_ARRAY_COUNT(small_capacities)];
};

static const struct golden small_golden[] = {
    { "lru", { 0, 85, 674, 1304, 1755, 2280 } },
    { "fifo", { 0, 75, 646, 1202, 1579, 2113 } },
    { "clock", { 0, 85, 718, 1387, 1794, 2241 } },
    { "lfu", { 0, 408, 890, 1255, 1362, 1602 } },
    { "sieve", { 0, 408, 890, 1255, 1362, 1740 } },
    { "gdsf", { 0, 85, 1200, 1501, 1822, 2197 } },
    { "lru-reward", { 0, 93, 871, 1499, 1845, 2236 } }, /* from here on as they were when they were written */
    { "s3fifo", { 0, 517, 1170, 1497, 1712, 2014 } },
    { "arc", { 0, 417, 1032, 1417, 1810, 2235 } },
    { "2q", { 0, 340, 1025, 1440, 1698, 2063 } },
    { "lirs", { 0, 474, 1074, 1441, 1686, 1958 } },
    { "length-aware", { 0, 408, 890, 1255, 1362, 1602 } },  /* without hints it is lfu */
    { "workload-aware", { 0, 85, 674, 1304, 1755, 2280 } }, /* without hints it is lru */
    { "lirs-duel", { 0, 85, 674, 1304, 1755, 2280 } },
};
static const uint32_t small_optimal[] = { 0, 834, 1621, 2064, 2323, 2385 };

static void counts_on_the_small_trace_are_known(void **state)
{
    (void)state;
    struct trace trace;
    generate(&trace);
    assert_int_equal(trace.id_count, 3366);
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        const char *name = kvt_policy_at(i)->name;
        uint32_t n = 0;
        while (n < KVT_ARRAY_COUNT(small_golden) && strcmp(small_golden[n].name, name) != 0) n++;
        if (n < KVT_ARRAY_COUNT(small_golden)) continue;
        print_message("%s has no golden counts; it gives", name);
        for (uint32_t c = 0; c < KVT_ARRAY_COUNT(small_capacities); c++) {
            print_message(" %u", flat_hits(name, &trace, small_capacities[c]));
        }
        fail_msg(": a second program should agree");
    }
    for (uint32_t n = 0; n < KVT_ARRAY_COUNT(small_golden); n++) {
        for (uint32_t c = 0; c < KVT_ARRAY_COUNT(small_capacities); c++) {
            assert_int_equal(flat_hits(small_golden[n].name, &trace, small_capacities[c]), small_golden[n].hits[c]);
        }
    }
    trace_free(&trace);
}

static void no_policy_beats_the_bound_or_falls_to_the_floor(void **state)
{
    (void)state;
    struct trace trace;
    generate(&trace);
    for (uint32_t c = 0; c < KVT_ARRAY_COUNT(small_capacities); c++) {
        const uint32_t optimal = optimal_hits(&trace, small_capacities[c]);
        assert_int_equal(optimal, small_optimal[c]);
        for (uint32_t i = 0; kvt_policy_at(i); i++) {
            const uint32_t hits = flat_hits(kvt_policy_at(i)->name, &trace, small_capacities[c]);
            assert_true(hits <= optimal);
            assert_true(hits >= optimal / 12); /* fifo at 10 blocks is the lowest */
        }
    }
    trace_free(&trace);
}

static void with_room_for_all_every_policy_hits_all_repeats(void **state)
{
    (void)state;
    struct trace trace;
    generate(&trace);
    const uint32_t repeats = optimal_hits(&trace, trace.id_end);
    for (uint32_t i = 0; kvt_policy_at(i); i++) {
        assert_int_equal(flat_hits(kvt_policy_at(i)->name, &trace, trace.id_end), repeats);
    }
    trace_free(&trace);
}

/* A stack algorithm: a larger pool holds all that a smaller one holds. */
static void lru_hits_grow_with_the_pool(void **state)
{
    (void)state;
    struct trace trace;
    generate(&trace);
    uint32_t before = 0;
    for (uint32_t slots = 1; slots < 300; slots += 7) {
        const uint32_t hits = flat_hits("lru", &trace, slots);
        assert_true(hits >= before);
        before = hits;
    }
    trace_free(&trace);
}

/* False, with the reason printed: the file is not there. */
static bool shared_path(const char *name, char *path, size_t path_bytes)
{
    const char *folder = getenv("KVTIER_SHARED");
    (void)snprintf(path, path_bytes, "%s/data/%s", folder ? folder : "../shared", name);
    if (access(path, R_OK) == 0) return true;
    print_message("skipped: %s cannot be read; KVTIER_SHARED names the folder that holds data/\n", path);
    return false;
}

static void trace_read_line(struct trace *trace, const char *line)
{
    json_object *request = json_tokener_parse(line);
    json_object *hash_ids;
    assert_non_null(request);
    assert_true(json_object_object_get_ex(request, "hash_ids", &hash_ids));
    const uint32_t count = (uint32_t)json_object_array_length(hash_ids);
    push(&trace->request_blocks, &trace->request_count, &trace->request_capacity, count);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t id = json_object_get_int64(json_object_array_get_idx(hash_ids, i));
        assert_in_range(id, 0, UINT32_MAX - 1);
        trace_add(trace, (uint32_t)id);
    }
    (void)json_object_put(request);
}

static bool trace_read(struct trace *trace, const char *name)
{
    char path[512];
    *trace = (struct trace){ 0 };
    if (!shared_path(name, path, sizeof path)) return false;
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t line_bytes = 0;
    assert_non_null(file);
    while (getline(&line, &line_bytes, file) > 0) trace_read_line(trace, line);
    (void)fclose(file);
    free(line);
    return true;
}

/* How far from the reference counts a policy may be, in hits: its variant differs, see the head of its file. */
static uint32_t tolerance(const char *name, const struct trace *trace)
{
    static const char *const variants[] = { "arc", "2q", "lirs" };
    for (uint32_t n = 0; n < KVT_ARRAY_COUNT(variants); n++) {
        if (strcmp(name, variants[n]) == 0) return trace->id_count / 5000; /* 0.02 points */
    }
    return 0;
}

static void counts_on_the_conversation_trace_equal_the_reference(void **state)
{
    (void)state;
    struct trace trace;
    char path[512];
    if (!trace_read(&trace, "traces/mooncake_conversation.jsonl")) skip();
    if (!shared_path("oracle_conversation.tsv", path, sizeof path)) skip();
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t line_bytes = 0;
    uint32_t compared = 0;
    assert_non_null(file);
    while (getline(&line, &line_bytes, file) > 0) {
        char name[32];
        unsigned slots, hits, accesses;
        if (sscanf(line, "conversation %31s %u %u %u", name, &slots, &hits, &accesses) != 4) continue;
        assert_int_equal(accesses, trace.id_count);
        if (!kvt_policy_find(name)) continue;
        const uint32_t apart = tolerance(name, &trace);
        const uint32_t found = flat_hits(name, &trace, slots);
        if (found < hits - apart || found > hits + apart)
            fail_msg("%s in %u slots: %u hits, of the reference %u", name, slots, found, hits);
        compared++;
    }
    assert_int_equal(compared, 10 * 6); /* lru-reward is not in it */
    (void)fclose(file);
    free(line);
    trace_free(&trace);
}

struct known_count {
    const char *trace, *name;
    enum { FLAT, HEAD, TAIL } mode;
    uint32_t slots, hits;
};

static const struct known_count known_counts[] = {
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 1827, 15080 }, /* 1, 5, 10, 25, 50, 100 % of its blocks */
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 9139, 56382 },
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 18279, 80323 },
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 45697, 101978 },
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 91395, 104759 },
    { "traces/mooncake_conversation.jsonl", "lru", FLAT, 182790, 105710 },
    { "traces/mooncake_conversation.jsonl", "lru", HEAD, 1000, 12831 },
    { "traces/mooncake_conversation.jsonl", "lru", HEAD, 10000, 60921 },
    { "traces/mooncake_conversation.jsonl", "lru", TAIL, 1000, 12847 },
    { "traces/mooncake_conversation.jsonl", "lru", TAIL, 10000, 61046 },
    { "traces/mooncake_conversation.jsonl", "fifo", HEAD, 1000, 12509 },
    { "traces/mooncake_conversation.jsonl", "fifo", HEAD, 10000, 52351 },
    { "traces/mooncake_conversation.jsonl", "lfu", HEAD, 10000, 38013 },
    { "traces/mooncake_conversation.jsonl", "lfu", HEAD, 50000, 99189 },
    { "traces/mooncake_synthetic.jsonl", "lru", FLAT, 439, 4184 },
    { "traces/mooncake_synthetic.jsonl", "lru", FLAT, 2196, 18861 },
    { "traces/mooncake_synthetic.jsonl", "lru", FLAT, 4392, 31668 },
    { "traces/mooncake_synthetic.jsonl", "lru", FLAT, 10981, 54044 },
    { "traces/mooncake_synthetic.jsonl", "lru", FLAT, 21962, 71763 },
    { "traces/mooncake_synthetic.jsonl", "lru", TAIL, 1000, 10252 },
    { "traces/mooncake_synthetic.jsonl", "lru", TAIL, 10000, 51669 },
    { "traces/agent_sessions.jsonl", "lru", HEAD, 1000, 388974 },
    { "traces/agent_sessions.jsonl", "lru", TAIL, 1000, 442314 },
    { "traces/agent_sessions.jsonl", "lru", TAIL, 10000, 928784 },
};

static void known_counts_of_other_sizes_and_orders_hold(void **state)
{
    (void)state;
    struct trace trace = { 0 };
    const char *loaded = "";
    for (uint32_t n = 0; n < KVT_ARRAY_COUNT(known_counts); n++) {
        const struct known_count *known = &known_counts[n];
        if (strcmp(loaded, known->trace) != 0) {
            trace_free(&trace);
            if (!trace_read(&trace, known->trace)) skip();
            loaded = known->trace;
        }
        const bool is_tail_first = known->mode == TAIL;
        assert_int_equal(known->mode == FLAT ? flat_hits(known->name, &trace, known->slots)
                                             : prefix_hits(known->name, &trace, known->slots, is_tail_first),
                         known->hits);
    }
    trace_free(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_on_the_small_trace_are_known),
        cmocka_unit_test(no_policy_beats_the_bound_or_falls_to_the_floor),
        cmocka_unit_test(with_room_for_all_every_policy_hits_all_repeats),
        cmocka_unit_test(lru_hits_grow_with_the_pool),
        cmocka_unit_test(counts_on_the_conversation_trace_equal_the_reference),
        cmocka_unit_test(known_counts_of_other_sizes_and_orders_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
