#include "tools/sim/belady.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { LEVELS_MAX = 8 };
#define NEVER UINT64_MAX

/* Places, 0 .. count - 1. */
struct places {
    uint64_t *words[LEVELS_MAX]; /* bit i of a level: word i of the level below is not 0 */
    uint64_t word_counts[LEVELS_MAX];
    uint32_t level_count;
};

static void places_done(struct places *places)
{
    for (uint32_t l = 0; l < places->level_count; l++)
        kvt_table_unmap(places->words[l], places->word_counts[l] * sizeof(uint64_t));
}

static enum kvt_status places_init(struct places *places, uint64_t count)
{
    *places = (struct places){ 0 };
    uint64_t words = count;
    do {
        words = (words + 64) / 64;
        KVT_ASSERT(places->level_count < LEVELS_MAX);
        const uint32_t level = places->level_count++;
        places->word_counts[level] = words;
        places->words[level] = kvt_table_map(words * sizeof(uint64_t));
        if (!places->words[level]) return KVT_NOMEM;
    } while (words > 1);
    return KVT_OK;
}

static void places_add(struct places *places, uint64_t place)
{
    for (uint32_t l = 0; l < places->level_count; l++) {
        uint64_t *word = &places->words[l][place / 64];
        const bool was_empty = *word == 0;
        *word |= UINT64_C(1) << (place % 64);
        if (!was_empty) return;
        place /= 64;
    }
}

/* True: it was there. */
static bool places_take(struct places *places, uint64_t place)
{
    if (!(places->words[0][place / 64] >> (place % 64) & 1)) return false;
    for (uint32_t l = 0; l < places->level_count; l++) {
        uint64_t *word = &places->words[l][place / 64];
        *word &= ~(UINT64_C(1) << (place % 64));
        if (*word != 0) break;
        place /= 64;
    }
    return true;
}

/* There is one. */
static uint64_t places_last(const struct places *places)
{
    uint64_t place = 0;
    for (uint32_t l = places->level_count; l-- > 0;) {
        const uint64_t word = places->words[l][place];
        KVT_ASSERT(word != 0);
        place = place * 64 + 63 - (uint64_t)__builtin_clzll(word);
    }
    return place;
}

struct future {
    const struct kvt_accesses *accesses;
    uint64_t place_count; /* over all repeats */
    uint32_t *next;       /* [access_count]: the next use of the same block; access_count: none before the end */
    uint32_t *first;      /* [block_count]: its first use */
};

static enum kvt_status future_init(struct future *future, const struct kvt_accesses *accesses, uint32_t repeat)
{
    const uint32_t n = accesses->access_count;
    *future = (struct future){ .accesses = accesses, .place_count = (uint64_t)n * repeat };
    future->next = kvt_table_map(((uint64_t)n + 1) * sizeof *future->next);
    future->first = kvt_table_map(((uint64_t)accesses->block_count + 1) * sizeof *future->first);
    if (!future->next || !future->first) return KVT_NOMEM;
    for (uint32_t b = 0; b < accesses->block_count; b++) future->first[b] = n;
    for (uint32_t i = n; i-- > 0;) {
        future->next[i] = future->first[accesses->blocks[i]];
        future->first[accesses->blocks[i]] = i;
    }
    return KVT_OK;
}

static void future_done(struct future *future)
{
    kvt_table_unmap(future->next, ((uint64_t)future->accesses->access_count + 1) * sizeof *future->next);
    kvt_table_unmap(future->first, ((uint64_t)future->accesses->block_count + 1) * sizeof *future->first);
}

/* The next place after access i of the round that begins at `round` that uses the same block, or NEVER. */
static uint64_t next_place(const struct future *future, uint64_t round, uint32_t i)
{
    const uint32_t n = future->accesses->access_count;
    if (future->next[i] < n) return round + future->next[i];
    const uint64_t next_round = round + n;
    return next_round < future->place_count ? next_round + future->first[future->accesses->blocks[i]] : NEVER;
}

struct kept {
    struct places places;
    uint64_t live, dead; /* blocks that will be used again, and that never will */
    uint64_t capacity;
};

static void keep(struct kept *kept, uint64_t place)
{
    if (place == NEVER) {
        kept->dead++;
    } else {
        places_add(&kept->places, place);
        kept->live++;
    }
}

static void drop_furthest(struct kept *kept)
{
    if (kept->dead > 0) {
        kept->dead--;
        return;
    }
    (void)places_take(&kept->places, places_last(&kept->places));
    kept->live--;
}

static void count_flat(const struct future *future, struct kept *kept, uint32_t repeat, struct kvt_count_result *result)
{
    const uint32_t n = future->accesses->access_count;
    for (uint64_t round = 0; round < (uint64_t)n * repeat; round += n) {
        for (uint32_t i = 0; i < n; i++) {
            if (places_take(&kept->places, round + i)) {
                result->hits++;
                kept->live--;
            } else if (kept->live + kept->dead == kept->capacity) {
                drop_furthest(kept);
                result->is_filled = true;
            }
            keep(kept, next_place(future, round, i));
        }
    }
}

static void count_request(const struct future *future, struct kept *kept, uint64_t round, uint32_t begin, uint32_t end,
                          struct kvt_count_result *result)
{
    for (uint32_t i = begin; i < end; i++) {
        if (places_take(&kept->places, round + i)) {
            result->hits++;
            kept->live--;
        }
        const uint64_t next = next_place(future, round, i);
        if (next < round + end) result->hits++; /* a repeat inside the request */
        else keep(kept, next);
    }
    while (kept->live + kept->dead > kept->capacity) drop_furthest(kept);
    if (kept->live + kept->dead == kept->capacity) result->is_filled = true;
}

static void count_prefix(const struct future *future, struct kept *kept, uint32_t repeat,
                         struct kvt_count_result *result)
{
    const struct kvt_accesses *accesses = future->accesses;
    for (uint64_t round = 0; round < (uint64_t)accesses->access_count * repeat; round += accesses->access_count) {
        uint32_t begin = 0;
        for (uint32_t r = 0; r < accesses->request_count; r++) {
            count_request(future, kept, round, begin, accesses->request_ends[r], result);
            begin = accesses->request_ends[r];
        }
    }
}

enum kvt_status kvt_belady_count(const struct kvt_count_job *job, struct kvt_count_result *ret_result)
{
    KVT_ASSERT(job->tier_count == 1);
    struct future future;
    struct kept kept = { .capacity = job->capacities[0] };
    struct kvt_count_result result = { .accesses = (uint64_t)job->accesses->access_count * job->repeat };
    enum kvt_status status = future_init(&future, job->accesses, job->repeat);
    if (status == KVT_OK) status = places_init(&kept.places, future.place_count);
    if (status == KVT_OK) {
        if (job->mode == KVT_COUNT_FLAT) count_flat(&future, &kept, job->repeat, &result);
        else count_prefix(&future, &kept, job->repeat, &result);
        result.tier_hits[0] = result.hits;
        result.tokens = result.accesses * kvt_max_u32(1, job->accesses->block_tokens);
        result.hit_tokens = result.hits * kvt_max_u32(1, job->accesses->block_tokens);
        *ret_result = result;
    }
    places_done(&kept.places);
    future_done(&future);
    return status;
}
