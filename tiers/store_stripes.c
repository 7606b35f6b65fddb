#include "tiers/store_stripes.h"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/key.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tiers/store_private.h"

struct kvt_stripes {
    struct kvt_store *members[KVT_STORE_PATHS_MAX];
    uint64_t hashes[KVT_STORE_PATHS_MAX]; /* of the path of each member */
    uint32_t count;
    uint32_t lost; /* directories that could not be opened */
    uint32_t turn; /* which one is polled first */
    bool is_single_threaded;
    int event; /* an epoll of the members' */
    pthread_mutex_t lock;
    uint64_t number, watermark; /* under the lock */
};

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

static uint64_t hash_of_path(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') size--;
    return kvt_key_digest(path, size).lo;
}

static uint64_t share(uint64_t whole, uint32_t count) { return whole == UINT64_MAX ? whole : whole / count; }

static struct kvt_store_config member_config(const struct kvt_store_config *config, uint32_t i)
{
    struct kvt_store_config member = *config;
    member.path = config->paths[i];
    member.paths = NULL;
    member.path_count = 0;
    member.capacity_bytes = share(config->capacity_bytes, config->path_count);
    member.staging_bytes = config->staging_bytes
        ? kvt_max_u64(share(config->staging_bytes, config->path_count), KVT_MIB)
        : 0;
    member.queue_bytes = share(config->queue_bytes, config->path_count);
    member.bytes_per_day = share(config->bytes_per_day, config->path_count);
    member.held_bytes_max = share(config->held_bytes_max, config->path_count);
    return member;
}

static enum kvt_status open_members(struct kvt_stripes *stripes, const struct kvt_store_config *config,
                                    const struct kvt_env *env, const struct kvt_store_more *more, char *ret_error,
                                    size_t error_bytes)
{
    enum kvt_status worst = KVT_OK;
    for (uint32_t i = 0; i < config->path_count; i++) {
        const struct kvt_store_config member = member_config(config, i);
        struct kvt_store **store = &stripes->members[stripes->count];
        const enum kvt_status status = kvt_store_open_with(&member, env, more, store, ret_error, error_bytes);
        if (status == KVT_IO) {
            worst = status;
            stripes->lost++;
            if (env)
                kvt_log(env, KVT_LOG_WARN, "%s: left out, what it holds are misses: %s", member.path,
                        ret_error ? ret_error : "");
            continue;
        }
        KVT_TRY(status);
        (*store)->is_member = true;
        stripes->hashes[stripes->count] = hash_of_path(member.path);
        struct epoll_event event = { .events = EPOLLIN };
        stripes->count++;
        if (epoll_ctl(stripes->event, EPOLL_CTL_ADD, (*store)->event, &event) != 0) return KVT_NOMEM;
    }
    if (stripes->count == 0) return worst;
    if (ret_error && error_bytes > 0) ret_error[0] = '\0';
    return KVT_OK;
}

static enum kvt_status check_paths(const struct kvt_store_config *config, struct kvt_store_error error)
{
    if (config->path) return kvt_store_refuse(error, KVT_INVAL, "path is %s: paths are given already", config->path);
    if (config->path_count > KVT_STORE_PATHS_MAX)
        return kvt_store_refuse(error, KVT_INVAL, "path_count is %u: at most %u", config->path_count,
                                KVT_STORE_PATHS_MAX);
    for (uint32_t i = 0; i < config->path_count; i++)
        if (!config->paths || !config->paths[i] || !config->paths[i][0])
            return kvt_store_refuse(error, KVT_INVAL, "path %u of %u is %s: the path of a directory", i,
                                    config->path_count, config->paths && config->paths[i] ? "empty" : "NULL");
    for (uint32_t i = 0; i < config->path_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (hash_of_path(config->paths[i]) == hash_of_path(config->paths[j]))
                return kvt_store_refuse(error, KVT_INVAL, "path is %s: it is given twice", config->paths[i]);
    return KVT_OK;
}

static void stripes_free(struct kvt_stripes *stripes)
{
    for (uint32_t i = 0; i < stripes->count; i++) kvt_store_close(&stripes->members[i]);
    if (stripes->event >= 0) (void)close(stripes->event);
    (void)pthread_mutex_destroy(&stripes->lock);
    kvt_free(stripes);
}

static void drop_strays(struct kvt_stripes *stripes);

enum kvt_status kvt_stripes_open(const struct kvt_store_config *config, const struct kvt_env *env,
                                 const struct kvt_store_more *more, struct kvt_store **ret_store, char *ret_error,
                                 size_t error_bytes)
{
    const struct kvt_store_error error = { .text = ret_error, .size = error_bytes };
    if (kvt_key_init() != KVT_OK) return KVT_NOMEM;
    KVT_TRY(check_paths(config, error));
    struct kvt_store *store = kvt_alloc(1, sizeof *store);
    struct kvt_stripes *stripes = kvt_alloc(1, sizeof *stripes);
    if (!store || !stripes) {
        kvt_free(store);
        kvt_free(stripes);
        return kvt_store_refuse(error, KVT_NOMEM, "out of memory");
    }
    (void)pthread_mutex_init(&stripes->lock, NULL);
    stripes->is_single_threaded = env && env->is_single_threaded;
    stripes->event = epoll_create1(EPOLL_CLOEXEC);
    enum kvt_status status = stripes->event < 0 ? KVT_NOMEM
                                                : open_members(stripes, config, env, more, ret_error, error_bytes);
    if (status != KVT_OK) {
        /* Nothing is left behind: a directory that was made for this goes again. */
        for (uint32_t i = 0; i < stripes->count; i++) kvt_store_directory_undo(stripes->members[i]);
        stripes_free(stripes);
        kvt_free(store);
        return status;
    }
    drop_strays(stripes);
    store->stripes = stripes;
    *ret_store = store;
    return KVT_OK;
}

void kvt_stripes_close(struct kvt_store **store)
{
    stripes_free((*store)->stripes);
    kvt_free(*store);
    *store = NULL;
}

/* ---- Where ------------------------------------------------------------------------------------------------------- */

struct kvt_store *kvt_stripes_at(struct kvt_stripes *stripes, uint32_t i)
{
    return i < stripes->count ? stripes->members[i] : NULL;
}

struct kvt_store *kvt_stripes_of(struct kvt_stripes *stripes, const struct kvt_store_name *name)
{
    const uint64_t hash = kvt_mix64(name->key[0]
                                    ^ kvt_mix64(name->key[1] ^ kvt_mix64(name->space[0] ^ kvt_mix64(name->space[1]))));
    uint32_t best = 0;
    uint64_t best_score = 0;
    for (uint32_t i = 0; i < stripes->count; i++) {
        const uint64_t score = kvt_mix64(hash ^ stripes->hashes[i]);
        if (score < best_score) continue;
        best = i;
        best_score = score;
    }
    return stripes->members[best];
}

/*
 * What was put while another directory was left out lies where nobody looks for it once that one is back: it is
 * forgotten, so that what is listed is found. It lies there still, and is found again when the other one is gone again.
 */
static void drop_strays(struct kvt_stripes *stripes)
{
    enum { BATCH = 64 };
    struct kvt_store_listed listed[BATCH];
    for (uint32_t i = 0; i < stripes->count; i++) {
        struct kvt_store *member = stripes->members[i];
        uint64_t cursor = 0;
        uint32_t n;
        while ((n = kvt_store_list(member, &cursor, listed, BATCH)) > 0) {
            for (uint32_t k = 0; k < n; k++) {
                if (kvt_stripes_of(stripes, &listed[k].name) == member) continue;
                (void)kvt_store_delete(member, &listed[k].name, 1);
            }
        }
    }
}

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

uint32_t kvt_stripes_submit(struct kvt_stripes *stripes, struct kvt_store_op *const *ops, uint32_t n)
{
    uint32_t accepted = 0;
    for (; accepted < n; accepted++) {
        struct kvt_store_op *op = ops[accepted];
        struct kvt_store *member = kvt_stripes_of(stripes, &op->name);
        if (op->kind != KVT_STORE_PUT || !kvt_store_op_is_valid(op)) {
            op->ret_number = 0;
            if (kvt_store_submit(member, &op, 1) != 1) break;
            continue;
        }
        /* Numbered and accepted in one step, so that who sees a number finds all lower ones accepted. */
        pthread_mutex_lock(&stripes->lock);
        op->ret_number = stripes->number + 1;
        const bool is_accepted = kvt_store_submit(member, &op, 1) == 1;
        stripes->number += is_accepted;
        pthread_mutex_unlock(&stripes->lock);
        if (!is_accepted) break;
    }
    return accepted;
}

uint32_t kvt_stripes_poll(struct kvt_stripes *stripes, struct kvt_store_op **ret_done, uint32_t max)
{
    const uint32_t first = __atomic_fetch_add(&stripes->turn, 1, __ATOMIC_RELAXED);
    uint32_t count = 0;
    for (uint32_t i = 0; i < stripes->count; i++)
        count += kvt_store_poll(stripes->members[(first + i) % stripes->count], ret_done + count, max - count);
    return count;
}

int kvt_stripes_eventfd(struct kvt_stripes *stripes) { return stripes->event; }

static bool has_done(struct kvt_stripes *stripes)
{
    bool has_any = false;
    for (uint32_t i = 0; i < stripes->count && !has_any; i++) {
        pthread_mutex_lock(&stripes->members[i]->lock);
        has_any = stripes->members[i]->done.head != NULL;
        pthread_mutex_unlock(&stripes->members[i]->lock);
    }
    return has_any;
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool kvt_stripes_wait(struct kvt_stripes *stripes, uint64_t timeout_ns)
{
    enum { IDLE_ROUNDS_MAX = 20000 };
    if (!stripes->is_single_threaded) {
        const uint64_t start_ns = monotonic_ns();
        for (uint64_t passed_ns = 0;; passed_ns = monotonic_ns() - start_ns) {
            if (has_done(stripes)) return true;
            if (passed_ns >= timeout_ns) return false;
            /* Another caller may take what this one is woken for. */
            struct pollfd event = { .fd = stripes->event, .events = POLLIN };
            const uint64_t left_ms = (timeout_ns - passed_ns) / 1000000u + 1;
            (void)poll(&event, 1, (int)kvt_min_u64(left_ms, 60000));
        }
    }
    for (uint32_t round = 0; round < IDLE_ROUNDS_MAX; round++) {
        /* drives, takes nothing */
        for (uint32_t i = 0; i < stripes->count; i++) (void)kvt_store_poll(stripes->members[i], NULL, 0);
        if (has_done(stripes)) return true;
        const struct timespec moment = { .tv_nsec = round < 64 ? 0 : 100000 };
        (void)nanosleep(&moment, NULL);
    }
    return false;
}

uint32_t kvt_stripes_length_max(struct kvt_stripes *stripes)
{
    uint32_t length = UINT32_MAX;
    for (uint32_t i = 0; i < stripes->count; i++)
        length = kvt_min_u32(length, kvt_store_length_max(stripes->members[i]));
    return length;
}

/* The cursor's upper byte says which directory. */
uint32_t kvt_stripes_list(struct kvt_stripes *stripes, uint64_t *cursor, struct kvt_store_listed *ret_listed,
                          uint32_t max)
{
    enum { SHIFT = 56 };
    uint32_t count = 0;
    for (uint64_t i = *cursor >> SHIFT; i < stripes->count && count == 0; i++) {
        uint64_t inner = i == *cursor >> SHIFT ? *cursor & (((uint64_t)1 << SHIFT) - 1) : 0;
        count = kvt_store_list(stripes->members[i], &inner, ret_listed, max);
        *cursor = (i << SHIFT) | inner;
    }
    return count;
}

uint32_t kvt_stripes_exists(struct kvt_stripes *stripes, const struct kvt_store_name *names, uint32_t n,
                            bool *ret_exists)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += kvt_store_exists(kvt_stripes_of(stripes, &names[i]), &names[i], 1, &ret_exists[i]);
    return count;
}

uint32_t kvt_stripes_delete(struct kvt_stripes *stripes, const struct kvt_store_name *names, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) count += kvt_store_delete(kvt_stripes_of(stripes, &names[i]), &names[i], 1);
    return count;
}

uint32_t kvt_stripes_poll_lost(struct kvt_stripes *stripes, struct kvt_store_name *ret_names, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < stripes->count && count < max; i++)
        count += kvt_store_poll_lost(stripes->members[i], ret_names + count, max - count);
    return count;
}

/* ---- Durability -------------------------------------------------------------------------------------------------- */

uint64_t kvt_stripes_watermark(struct kvt_stripes *stripes)
{
    pthread_mutex_lock(&stripes->lock);
    const uint64_t watermark = stripes->watermark;
    pthread_mutex_unlock(&stripes->lock);
    return watermark;
}

static uint64_t last_number(struct kvt_store *member)
{
    pthread_mutex_lock(&member->lock);
    const uint64_t number = member->record_sequence;
    pthread_mutex_unlock(&member->lock);
    return number;
}

/* All commit at once; then each is waited for. */
static enum kvt_status commit_all(struct kvt_stripes *stripes, uint64_t timeout_ns)
{
    uint64_t numbers[KVT_STORE_PATHS_MAX];
    pthread_mutex_lock(&stripes->lock);
    const uint64_t covered = stripes->number;
    for (uint32_t i = 0; i < stripes->count; i++) numbers[i] = last_number(stripes->members[i]);
    pthread_mutex_unlock(&stripes->lock);
    for (uint32_t i = 0; i < stripes->count; i++) kvt_store_commit_begin(stripes->members[i], numbers[i]);
    enum kvt_status worst = KVT_OK;
    for (uint32_t i = 0; i < stripes->count; i++) {
        const enum kvt_status status = kvt_store_wait_durable(stripes->members[i], numbers[i], timeout_ns);
        if (status != KVT_OK && worst != KVT_IO) worst = status;
    }
    if (worst != KVT_OK) return worst;
    pthread_mutex_lock(&stripes->lock);
    stripes->watermark = kvt_max_u64(stripes->watermark, covered);
    pthread_mutex_unlock(&stripes->lock);
    return KVT_OK;
}

enum kvt_status kvt_stripes_wait_durable(struct kvt_stripes *stripes, uint64_t number, uint64_t timeout_ns)
{
    pthread_mutex_lock(&stripes->lock);
    const bool is_there = number <= stripes->number;
    const bool is_durable = number <= stripes->watermark;
    pthread_mutex_unlock(&stripes->lock);
    if (!is_there) return KVT_INVAL;
    return is_durable ? KVT_OK : commit_all(stripes, timeout_ns);
}

enum kvt_status kvt_stripes_sync(struct kvt_stripes *stripes)
{
    return commit_all(stripes, KVT_STORE_DEADLINE_NS) == KVT_OK ? KVT_OK : KVT_IO;
}

enum kvt_status kvt_stripes_reset(struct kvt_stripes *stripes)
{
    enum kvt_status worst = stripes->lost > 0 ? KVT_IO : KVT_OK;
    for (uint32_t i = 0; i < stripes->count; i++)
        if (kvt_store_reset(stripes->members[i]) != KVT_OK) worst = KVT_IO;
    return worst;
}

enum kvt_status kvt_stripes_compact(struct kvt_stripes *stripes)
{
    enum kvt_status worst = KVT_OK;
    for (uint32_t i = 0; i < stripes->count; i++)
        if (kvt_store_compact(stripes->members[i]) != KVT_OK) worst = KVT_IO;
    return worst;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/*
 * Sums, but for what describes a disk: that is the first one's. Peaks of different moments may add up to more than was
 * ever there.
 */
static void add_stats(struct kvt_store_stats *sum, const struct kvt_store_stats *one)
{
    static const size_t fields[] = {
#define FIELD(name) offsetof(struct kvt_store_stats, name)
        FIELD(capacity_bytes),
        FIELD(allocated_bytes),
        FIELD(allocated_peak),
        FIELD(foreign_bytes),
        FIELD(foreign_files),
        FIELD(swept_files),
        FIELD(records),
        FIELD(live_bytes),
        FIELD(held_bytes),
        FIELD(segments),
        FIELD(segments_max),
        FIELD(puts),
        FIELD(put_bytes),
        FIELD(put_stored_bytes),
        FIELD(gets),
        FIELD(get_bytes),
        FIELD(misses),
        FIELD(corrupt),
        FIELD(read_errors),
        FIELD(write_errors),
        FIELD(short_transfers),
        FIELD(refused),
        FIELD(pauses),
        FIELD(reclaims),
        FIELD(moved_records),
        FIELD(moved_bytes),
        FIELD(evicted_records),
        FIELD(lost_records),
        FIELD(written_bytes),
        FIELD(read_bytes),
        FIELD(syncs),
        FIELD(recovered_records),
        FIELD(recovered_private),
        FIELD(recovered_bad),
        FIELD(index_bytes),
        FIELD(day_bytes),
        FIELD(day_bytes_max),
        FIELD(refused_wear),
        FIELD(refused_slow),
        FIELD(write_bytes_per_s),
#undef FIELD
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(fields); i++) {
        uint64_t total, part;
        memcpy(&total, (const uint8_t *)sum + fields[i], sizeof total);
        memcpy(&part, (const uint8_t *)one + fields[i], sizeof part);
        total += part;
        memcpy((uint8_t *)sum + fields[i], &total, sizeof total);
    }
    if (sum->held_bytes_max != UINT64_MAX) sum->held_bytes_max += one->held_bytes_max;
    sum->alignment = kvt_max_u32(sum->alignment, one->alignment);
    sum->is_direct = sum->is_direct && one->is_direct;
}

void kvt_stripes_stats(struct kvt_stripes *stripes, struct kvt_store_stats *ret_stats)
{
    kvt_store_stats(stripes->members[0], ret_stats);
    for (uint32_t i = 1; i < stripes->count; i++) {
        struct kvt_store_stats one;
        kvt_store_stats(stripes->members[i], &one);
        add_stats(ret_stats, &one);
    }
    ret_stats->write_amplification = ret_stats->put_bytes
        ? (double)ret_stats->written_bytes / (double)ret_stats->put_bytes
        : 0;
    ret_stats->directories = stripes->count;
    ret_stats->directories_lost = stripes->lost;
    ret_stats->watermark = kvt_stripes_watermark(stripes);
}
