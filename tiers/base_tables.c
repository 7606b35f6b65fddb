/*
 * A base is the mean exponent of its channel, zeros left out: one number for where the channel's values lie, which a
 * few outliers do not move. It is rounded up from a fifth on: exponents reach farther down than up, so that their peak
 * lies above the mean, and channels agree better when the peaks do (0.2 to 0.6 % on two models; anything from 0.7 to
 * 0.9 does as well). A channel of zeros gets the base 0, and its exponents stay the commonest symbol.
 */
#include "tiers/base_tables.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/fold.h"

static size_t entry_count(const struct kvt_base_tables *tables)
{
    return (size_t)tables->layers * tables->plane_count * tables->channels;
}

/* Bytes of one (layer, plane) in a set. */
static size_t row_bytes(const struct kvt_base_tables *tables) { return (size_t)tables->channels + KVT_RANK_GROUP; }

static size_t row_count(const struct kvt_base_tables *tables) { return (size_t)tables->layers * tables->plane_count; }

void kvt_base_tables_init(struct kvt_base_tables *tables, enum kvt_dtype dtype, uint32_t layers, uint32_t plane_count,
                          uint32_t channels)
{
    *tables = (struct kvt_base_tables){
        .dtype = dtype, .layers = layers, .plane_count = plane_count, .channels = channels, .is_busy = ATOMIC_FLAG_INIT
    };
}

static void stop_learning(struct kvt_base_tables *tables)
{
    atomic_store(&tables->is_learning, false);
    kvt_free(tables->sums);
    kvt_free(tables->counts);
    kvt_free(tables->draft);
    tables->sums = tables->counts = NULL;
    tables->draft = NULL;
    tables->tokens = 0;
}

void kvt_base_tables_done(struct kvt_base_tables *tables)
{
    stop_learning(tables);
    for (uint32_t i = 0; i < KVT_BASE_SETS_MAX; i++) kvt_free(atomic_load(&tables->sets[i]));
}

static struct kvt_base_set *set_alloc(const struct kvt_base_tables *tables)
{
    return kvt_alloc(1, sizeof(struct kvt_base_set) + row_count(tables) * row_bytes(tables));
}

/* Held for a short time only: while one block is looked at, or a set is added. */
static void lock(struct kvt_base_tables *tables)
{
    while (atomic_flag_test_and_set_explicit(&tables->is_busy, memory_order_acquire)) continue;
}

static void unlock(struct kvt_base_tables *tables)
{
    atomic_flag_clear_explicit(&tables->is_busy, memory_order_release);
}

static enum kvt_status start_learning(struct kvt_base_tables *tables)
{
    if (atomic_load(&tables->is_learning) || atomic_load(&tables->count) > 0) return KVT_OK;
    tables->sums = kvt_alloc(entry_count(tables), sizeof tables->sums[0]);
    tables->counts = kvt_alloc(entry_count(tables), sizeof tables->counts[0]);
    tables->draft = set_alloc(tables);
    if (!tables->sums || !tables->counts || !tables->draft) {
        stop_learning(tables);
        return KVT_NOMEM;
    }
    atomic_store(&tables->is_learning, true);
    return KVT_OK;
}

enum kvt_status kvt_base_tables_learn(struct kvt_base_tables *tables, bool is_on)
{
    lock(tables);
    enum kvt_status status = KVT_OK;
    if (is_on) status = start_learning(tables);
    else stop_learning(tables);
    unlock(tables);
    return status;
}

void kvt_base_tables_hold(struct kvt_base_tables *tables, bool is_on)
{
    lock(tables);
    tables->is_held = is_on;
    unlock(tables);
}

/* Copies the channels of one row behind its end, so that 64 bases can be read from any channel on. */
static void extend_row(uint8_t *row, uint32_t channels)
{
    for (uint32_t i = 0; i < KVT_RANK_GROUP; i++) row[channels + i] = row[i];
}

uint32_t kvt_base_tables_id(const struct kvt_base_tables *tables, const uint8_t *bytes)
{
    const uint32_t shape[4] = { (uint32_t)tables->dtype, tables->layers, tables->plane_count, tables->channels };
    const uint64_t digest = kvt_fold(kvt_fold(0, shape, sizeof shape), bytes, kvt_base_tables_set_bytes(tables));
    const uint32_t id = (uint32_t)(digest ^ digest >> 32);
    return id ? id : 1;
}

/* The caller holds the lock; there is room for one more. */
static void publish(struct kvt_base_tables *tables, struct kvt_base_set *set)
{
    const uint32_t count = atomic_load(&tables->count);
    KVT_ASSERT(count < KVT_BASE_SETS_MAX);
    atomic_store_explicit(&tables->sets[count], set, memory_order_release);
    atomic_store_explicit(&tables->count, count + 1, memory_order_release);
    if (!tables->is_held) atomic_store_explicit(&tables->in_use, set, memory_order_release);
}

static void publish_learned(struct kvt_base_tables *tables)
{
    /*
     * The flat form, which the id is a digest of, is built in the place of the sums: an entry is read before it is
     * overwritten.
     */
    uint8_t *flat = (uint8_t *)tables->sums;
    for (size_t i = 0; i < entry_count(tables); i++) {
        const uint32_t sum = tables->sums[i], count = tables->counts[i];
        flat[i] = count ? (uint8_t)((sum + count * 4 / 5) / count) : 0;
    }
    struct kvt_base_set *set = tables->draft;
    for (size_t row = 0; row < row_count(tables); row++) {
        uint8_t *target = set->bases + row * row_bytes(tables);
        memcpy(target, flat + row * tables->channels, tables->channels);
        extend_row(target, tables->channels);
    }
    set->id = kvt_base_tables_id(tables, flat);
    tables->draft = NULL;
    /* With the same digest as an imported set it would be that set. */
    if (kvt_base_tables_find(tables, set->id)) kvt_free(set);
    else if (atomic_load(&tables->count) < KVT_BASE_SETS_MAX) publish(tables, set);
    else kvt_free(set);
    stop_learning(tables);
}

static uint32_t exponent_at(enum kvt_dtype dtype, const uint8_t *row, uint32_t channel)
{
    if (dtype == KVT_DTYPE_FP8) return row[channel] >> 3 & 15;
    const uint32_t x = kvt_load_u16(row + 2 * (size_t)channel);
    return dtype == KVT_DTYPE_BF16 ? x >> 7 & 255 : x >> 10 & 31;
}

static void observe_plane(struct kvt_base_tables *tables, const uint8_t *plane, uint32_t tokens, size_t first_entry)
{
    const size_t token_bytes = (size_t)tables->channels * kvt_dtype_bytes(tables->dtype);
    uint32_t *sums = tables->sums + first_entry, *counts = tables->counts + first_entry;
    for (uint32_t t = 0; t < tokens; t++) {
        const uint8_t *row = plane + t * token_bytes;
        for (uint32_t c = 0; c < tables->channels; c++) {
            const uint32_t exponent = exponent_at(tables->dtype, row, c);
            sums[c] += exponent;
            counts[c] += exponent != 0;
        }
    }
}

void kvt_base_tables_observe(struct kvt_base_tables *tables, const struct kvt_chunk_view *chunks, uint32_t tokens)
{
    if (!atomic_load_explicit(&tables->is_learning, memory_order_relaxed)) return;
    if (atomic_flag_test_and_set_explicit(&tables->is_busy, memory_order_acquire)) return;
    if (atomic_load(&tables->is_learning)) {
        /*
         * Sums stay below 2^32 whatever a block's size: 256 tokens and one block of at most 65,535 more, of 8 bits
         * each.
         */
        for (uint32_t layer = 0; layer < tables->layers; layer++)
            for (uint32_t plane = 0; plane < tables->plane_count; plane++)
                observe_plane(tables, chunks[layer].plane[plane], tokens,
                              ((size_t)layer * tables->plane_count + plane) * tables->channels);
        tables->tokens += tokens;
        if (tables->tokens >= KVT_BASE_LEARN_TOKENS) publish_learned(tables);
    }
    unlock(tables);
}

bool kvt_base_tables_is_learning(const struct kvt_base_tables *tables) { return atomic_load(&tables->is_learning); }

const struct kvt_base_set *kvt_base_tables_current(struct kvt_base_tables *tables)
{
    return atomic_load_explicit(&tables->in_use, memory_order_acquire);
}

static struct kvt_base_set *find_set(struct kvt_base_tables *tables, uint32_t id)
{
    const uint32_t count = atomic_load_explicit(&tables->count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        struct kvt_base_set *set = atomic_load_explicit(&tables->sets[i], memory_order_relaxed);
        if (set->id == id) return set;
    }
    return NULL;
}

const struct kvt_base_set *kvt_base_tables_find(struct kvt_base_tables *tables, uint32_t id)
{
    return find_set(tables, id);
}

struct kvt_rank_bases kvt_base_set_layer(const struct kvt_base_tables *tables, const struct kvt_base_set *set,
                                         uint32_t layer)
{
    const uint8_t *first = set->bases + (size_t)layer * tables->plane_count * row_bytes(tables);
    return (struct kvt_rank_bases){ .plane = { first, tables->plane_count == 2 ? first + row_bytes(tables) : NULL } };
}

size_t kvt_base_tables_set_bytes(const struct kvt_base_tables *tables) { return entry_count(tables); }

void kvt_base_tables_write(const struct kvt_base_tables *tables, const struct kvt_base_set *set, uint8_t *target)
{
    for (size_t row = 0; row < row_count(tables); row++)
        memcpy(target + row * tables->channels, set->bases + row * row_bytes(tables), tables->channels);
}

enum kvt_status kvt_base_tables_add(struct kvt_base_tables *tables, const uint8_t *bytes)
{
    const uint32_t id = kvt_base_tables_id(tables, bytes);
    lock(tables);
    enum kvt_status status = KVT_OK;
    struct kvt_base_set *set = find_set(tables, id);
    if (set) {
        atomic_store_explicit(&tables->in_use, set, memory_order_release);
        goto end;
    }
    status = KVT_FULL;
    if (atomic_load(&tables->count) == KVT_BASE_SETS_MAX) goto end;
    status = KVT_NOMEM;
    set = set_alloc(tables);
    if (!set) goto end;
    set->id = id;
    for (size_t row = 0; row < row_count(tables); row++) {
        uint8_t *target = set->bases + row * row_bytes(tables);
        memcpy(target, bytes + row * tables->channels, tables->channels);
        extend_row(target, tables->channels);
    }
    publish(tables, set);
    stop_learning(tables);
    status = KVT_OK;
end:
    unlock(tables);
    return status;
}
