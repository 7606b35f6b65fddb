#include "tiers/nvme_tier.h"

#include <string.h>

#include "kvtier/store.h"
#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "tiers/store_private.h"

/* A tier op on its way through the store. */
struct job {
    struct kvt_store_op op;
    struct kvt_tier_op *tier_op;
    struct job *next_free;
};

struct nvme_tier {
    struct kvt_tier tier;
    struct kvt_store *store;
    struct job *jobs; /* queue_depth of them; under the tier's caller, as submit and poll are */
    struct job *free_jobs;
};

static struct nvme_tier *nvme_of(struct kvt_tier *tier) { return (struct nvme_tier *)(void *)tier; }

static struct kvt_store_name store_name(const struct kvt_name *name)
{
    return (struct kvt_store_name){ { name->space.lo, name->space.hi }, { name->key.lo, name->key.hi } };
}

static void nvme_close(struct kvt_tier *tier)
{
    struct nvme_tier *nvme = nvme_of(tier);
    kvt_store_close(&nvme->store);
    kvt_free(nvme->jobs);
    kvt_free(nvme);
}

static enum kvt_status nvme_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct nvme_tier *nvme = nvme_of(tier);
    struct job *job = nvme->free_jobs;
    KVT_ASSERT(job); /* tier.c keeps count */
    KVT_ASSERT(op->kind == KVT_OP_STASH || op->kind == KVT_OP_FETCH);
    job->tier_op = op;
    job->op = (struct kvt_store_op){
        .name = store_name(&op->name), .generation = op->generation, .buffer = op->host, .user = job
    };
    if (op->kind == KVT_OP_STASH) {
        job->op.kind = KVT_STORE_PUT;
        job->op.length = op->length;
        job->op.form = (uint32_t)op->form;
        job->op.tokens = op->tokens;
        /* Admission has said yes; host slots lie in huge pages. */
        job->op.flags = KVT_STORE_NEEDED | KVT_STORE_IN_PLACE | (op->is_private ? KVT_STORE_PRIVATE : 0u);
    } else {
        job->op.kind = KVT_STORE_GET;
        job->op.length = op->host_capacity;
        job->op.flags = KVT_STORE_IN_PLACE | (op->priority == KVT_PRIORITY_DEMAND ? KVT_STORE_URGENT : 0u);
    }
    struct kvt_store_op *const ops[] = { &job->op };
    if (kvt_store_submit(nvme->store, ops, 1) != 1) return KVT_FULL;
    nvme->free_jobs = job->next_free;
    return KVT_OK;
}

static uint32_t nvme_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    enum { BATCH = 32 };
    struct nvme_tier *nvme = nvme_of(tier);
    struct kvt_store_op *done[BATCH];
    uint32_t count = 0;
    while (count < max) {
        const uint32_t wanted = max - count < BATCH ? max - count : BATCH;
        const uint32_t got = kvt_store_poll(nvme->store, done, wanted);
        for (uint32_t i = 0; i < got; i++) {
            struct job *job = done[i]->user;
            struct kvt_tier_op *op = job->tier_op;
            op->status = job->op.status;
            op->os_errno = job->op.os_errno;
            op->link_ns = job->op.ret_link_ns;
            op->codec_ns = 0;
            if (op->kind == KVT_OP_FETCH && op->status == KVT_OK) {
                op->ret_length = job->op.ret_length;
                op->ret_form = (enum kvt_form)job->op.ret_form;
            }
            job->next_free = nvme->free_jobs;
            nvme->free_jobs = job;
            ret_done[count++] = op;
        }
        if (got < wanted) break;
    }
    return count;
}

static void nvme_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    struct kvt_store_stats stats;
    kvt_store_stats(nvme_of(tier)->store, &stats);
    *ret_counters = (struct kvt_tier_counters){ .capacity_bytes = stats.capacity_bytes,
                                                .used_bytes = stats.allocated_bytes,
                                                .peak_bytes = stats.allocated_peak,
                                                .bytes_in = stats.put_bytes,
                                                .bytes_out = stats.get_bytes,
                                                .day_bytes = stats.day_bytes,
                                                .dropped = stats.refused + stats.evicted_records };
}

static void describe(const struct kvt_store_found *found, struct kvt_found *ret_found)
{
    *ret_found = (struct kvt_found){ .length = found->length,
                                     .form = (enum kvt_form)found->form,
                                     .tokens = found->tokens,
                                     .generation = found->generation };
}

static bool nvme_find(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    const struct kvt_store_name wanted = store_name(name);
    struct kvt_store_found found;
    if (!kvt_store_find(nvme_of(tier)->store, &wanted, &found)) return false;
    describe(&found, ret_found);
    return true;
}

static bool nvme_hold(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    const struct kvt_store_name wanted = store_name(name);
    struct kvt_store_found found;
    if (!kvt_store_hold(nvme_of(tier)->store, &wanted, &found)) return false;
    describe(&found, ret_found);
    return true;
}

static void nvme_release(struct kvt_tier *tier, const struct kvt_name *name)
{
    const struct kvt_store_name wanted = store_name(name);
    kvt_store_release(nvme_of(tier)->store, &wanted);
}

static void nvme_forget(struct kvt_tier *tier, const struct kvt_name *name)
{
    const struct kvt_store_name wanted = store_name(name);
    (void)kvt_store_delete(nvme_of(tier)->store, &wanted, 1);
}

static uint32_t nvme_poll_lost(struct kvt_tier *tier, struct kvt_name *ret_names, uint32_t max)
{
    return kvt_store_poll_lost(nvme_of(tier)->store, (struct kvt_store_name *)(void *)ret_names, max);
}

static enum kvt_status nvme_reset(struct kvt_tier *tier) { return kvt_store_reset(nvme_of(tier)->store); }
static enum kvt_status nvme_sync(struct kvt_tier *tier) { return kvt_store_sync(nvme_of(tier)->store); }

static const struct kvt_tier_ops nvme_ops = { .name = "nvme",
                                              .caps = KVT_TIER_INDEXED | KVT_TIER_DURABLE,
                                              .close = nvme_close,
                                              .submit = nvme_submit,
                                              .poll = nvme_poll,
                                              .counters = nvme_counters,
                                              .find = nvme_find,
                                              .hold = nvme_hold,
                                              .release = nvme_release,
                                              .forget = nvme_forget,
                                              .poll_lost = nvme_poll_lost,
                                              .reset = nvme_reset,
                                              .sync = nvme_sync };

/* Cuts the list at its commas. One directory too many is kept, so that the store refuses it. */
static uint32_t split(char *list, char **ret_paths)
{
    uint32_t count = 0;
    for (char *path = list; path && count <= KVT_STORE_PATHS_MAX; count++) {
        char *comma = strchr(path, ',');
        ret_paths[count] = path;
        if (comma) *comma = '\0';
        path = comma ? comma + 1 : NULL;
    }
    return count;
}

enum kvt_status kvt_nvme_tier_open(const struct kvt_nvme_tier_config *config, const struct kvt_env *env,
                                   struct kvt_tier **ret_tier)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&nvme_ops));
    struct nvme_tier *nvme = kvt_alloc(1, sizeof *nvme);
    if (!nvme) return KVT_NOMEM;
    const uint32_t depth = config->queue_depth ? config->queue_depth : 64;
    nvme->tier = (struct kvt_tier){ .ops = &nvme_ops, .queue_depth = depth };
    nvme->jobs = kvt_alloc(depth, sizeof *nvme->jobs);
    struct kvt_store_config store = kvt_store_config_default();
    char *paths[KVT_STORE_PATHS_MAX + 1] = { NULL };
    char *list = kvt_strdup(config->path ? config->path : "");
    store.path_count = list ? split(list, paths) : 0;
    store.paths = (const char *const *)paths;
    if (store.path_count <= 1) {
        store.path = config->path;
        store.path_count = 0;
    }
    store.capacity_bytes = config->capacity_bytes;
    store.staging_bytes = config->staging_bytes;
    store.link_bytes_per_s = config->link_bytes_per_s;
    store.queue_depth = depth;
    store.key = config->key;
    store.bytes_per_day = config->bytes_per_day;
    store.held_bytes_max = UINT64_MAX; /* only the only copies of live sequences are held */
    store.record_bytes_max = config->record_bytes_max;
    const struct kvt_store_more more = { .wake = config->wake.wake,
                                         .wake_user = config->wake.user,
                                         .side_bytes_max = config->side_bytes_max,
                                         .side_name = { config->side_name.lo, config->side_name.hi } };
    const enum kvt_status status = nvme->jobs && list
        ? kvt_store_open_with(&store, env, &more, &nvme->store, config->ret_error, config->error_bytes)
        : KVT_NOMEM;
    kvt_free(list);
    if (status != KVT_OK) {
        kvt_free(nvme->jobs);
        kvt_free(nvme);
        return status;
    }
    for (uint32_t i = 0; i < depth; i++) {
        nvme->jobs[i].next_free = nvme->free_jobs;
        nvme->free_jobs = &nvme->jobs[i];
    }
    *ret_tier = &nvme->tier;
    return KVT_OK;
}

/* Each directory has all side files: the loss of one must not make the records of another unreadable. */
static struct kvt_store *directory_at(struct kvt_tier *tier, uint32_t i)
{
    struct kvt_store *store = nvme_of(tier)->store;
    if (store->stripes) return kvt_stripes_at(store->stripes, i);
    return i == 0 ? store : NULL;
}

enum kvt_status kvt_nvme_tier_side_save(struct kvt_tier *tier, struct kvt_key name, const void *bytes, size_t size,
                                        int *ret_errno)
{
    enum kvt_status worst = KVT_OK;
    struct kvt_store *store;
    for (uint32_t i = 0; (store = directory_at(tier, i)); i++) {
        const enum kvt_status status = kvt_store_side_save(store, (const uint64_t[2]){ name.lo, name.hi }, bytes, size,
                                                           ret_errno);
        if (status != KVT_OK) worst = status;
    }
    return worst;
}

enum kvt_status kvt_nvme_tier_side_load(struct kvt_tier *tier, struct kvt_key name, void *target, size_t capacity,
                                        size_t *ret_size)
{
    enum kvt_status status = KVT_NOTFOUND;
    struct kvt_store *store;
    for (uint32_t i = 0; status != KVT_OK && (store = directory_at(tier, i)); i++)
        status = kvt_store_side_load(store, (const uint64_t[2]){ name.lo, name.hi }, target, capacity, ret_size);
    return status;
}

void kvt_nvme_tier_side_remove(struct kvt_tier *tier, struct kvt_key name)
{
    struct kvt_store *store;
    for (uint32_t i = 0; (store = directory_at(tier, i)); i++)
        kvt_store_side_remove(store, (const uint64_t[2]){ name.lo, name.hi });
}

struct kvt_store *kvt_nvme_tier_store(struct kvt_tier *tier)
{
    KVT_ASSERT(tier->ops == &nvme_ops);
    return nvme_of(tier)->store;
}
