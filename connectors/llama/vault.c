#include "connectors/llama/vault.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { WRITES_MAX = 64, READS_MAX = 32 };
#define READ_AREA_BYTES (8 * KVT_MIB)
#define STAGING_BYTES (8 * KVT_MIB)
#define PATIENCE_NS 30000000000ull /* a disk that gave nothing for so long has failed */

struct write {
    struct kvt_store_op op;
    uint32_t entry; /* of host memory, or NO_ENTRY: the caller's bytes, which it waits for */
    struct write *next_free;
};

struct kvt_llama_vault {
    const struct kvt_env *env;
    struct kvt_key space;
    struct kvt_llama_host *host;
    struct kvt_store *store; /* NULL: none */
    bool is_dead;            /* the store did not give back an op: it is not asked again */
    struct write writes[WRITES_MAX], *free_write;
    uint32_t writes_in_flight;
    struct kvt_store_op reads[READS_MAX];
    uint32_t read_count, reads_in_flight; /* slots */
    uint8_t *read_area;
    uint64_t read_area_bytes, read_bytes; /* of one slot */
    enum kvt_status last_write;
    uint64_t host_hits, nvme_hits, damaged, dropped;
};

static struct kvt_store_name name_of(const struct kvt_llama_vault *vault, struct kvt_key key)
{
    return (struct kvt_store_name){ .space = { vault->space.lo, vault->space.hi }, .key = { key.lo, key.hi } };
}

static bool has_store(const struct kvt_llama_vault *vault) { return vault->store && !vault->is_dead; }

static enum kvt_status open_store(struct kvt_llama_vault *vault, const struct kvt_llama_vault_config *config,
                                  char *ret_error, size_t error_bytes)
{
    struct kvt_store_config store = kvt_store_config_default();
    store.path = config->path;
    store.capacity_bytes = config->nvme_bytes;
    store.bytes_per_day = config->nvme_bytes_per_day;
    store.key = config->nvme_key;
    store.staging_bytes = kvt_max_u64(STAGING_BYTES, kvt_align_up(2 * (uint64_t)config->record_bytes_max, KVT_MIB));
    store.queue_bytes = kvt_max_u64(16 * KVT_MIB, 2 * (uint64_t)config->record_bytes_max);
    store.record_bytes_max = config->record_bytes_max;
    KVT_TRY(kvt_store_open(&store, NULL, &vault->store, ret_error, error_bytes));
    vault->read_bytes = kvt_align_up(config->record_bytes_max, KVT_LLAMA_EXTENT_BYTES);
    vault->read_count = (uint32_t)kvt_min_u64(READS_MAX, kvt_max_u64(2, READ_AREA_BYTES / vault->read_bytes));
    vault->read_area_bytes = vault->read_bytes * vault->read_count;
    vault->read_area = kvt_table_map(vault->read_area_bytes);
    return vault->read_area ? KVT_OK : KVT_NOMEM;
}

enum kvt_status kvt_llama_vault_open(const struct kvt_llama_vault_config *config, struct kvt_llama_vault **ret_vault,
                                     char *ret_error, size_t error_bytes)
{
    struct kvt_llama_vault *vault = kvt_alloc(1, sizeof *vault);
    if (!vault) return KVT_NOMEM;
    vault->env = config->env;
    vault->space = config->space;
    for (uint32_t i = 0; i < WRITES_MAX; i++) {
        vault->writes[i].next_free = vault->free_write;
        vault->free_write = &vault->writes[i];
    }
    enum kvt_status status = kvt_llama_host_create(config->host_bytes, &vault->host);
    if (status == KVT_OK && config->path) status = open_store(vault, config, ret_error, error_bytes);
    if (status != KVT_OK) {
        if (status == KVT_NOMEM) (void)snprintf(ret_error, error_bytes, "no memory for the tiers");
        kvt_llama_vault_close(&vault);
        return status;
    }
    *ret_vault = vault;
    return KVT_OK;
}

void kvt_llama_vault_close(struct kvt_llama_vault **vault)
{
    struct kvt_llama_vault *v = *vault;
    *vault = NULL;
    if (!v) return;
    if (v->store) {
        if (kvt_llama_vault_flush(v) != KVT_OK)
            kvt_log(v->env, KVT_LOG_WARN, "not all of host memory could be written: it will be computed again");
        kvt_store_close(&v->store);
    }
    kvt_llama_host_destroy(&v->host);
    if (v->read_area) kvt_table_unmap(v->read_area, v->read_area_bytes);
    kvt_free(v);
}

/*
 * ---- What the store gives back
 * ---------------------------------------------------------------------------------------
 */

static bool is_read(const struct kvt_llama_vault *vault, const struct kvt_store_op *op)
{
    return op >= vault->reads && op < vault->reads + READS_MAX;
}

/* A record that the store did not take stays in host memory as long as nothing needs its place. */
static void finish_write(struct kvt_llama_vault *vault, struct write *write)
{
    vault->last_write = write->op.status;
    if (write->entry != KVT_LLAMA_NO_ENTRY) {
        kvt_llama_host_set_clean(vault->host, write->entry, KVT_LLAMA_CLEAN);
        if (write->op.status != KVT_OK) vault->dropped++;
    }
    vault->writes_in_flight--;
    write->next_free = vault->free_write;
    vault->free_write = write;
}

/* Hands back at most one read, and takes notice of all writes. */
static struct kvt_store_op *collect(struct kvt_llama_vault *vault)
{
    struct kvt_store_op *op;
    while (kvt_store_poll(vault->store, &op, 1) == 1) {
        if (is_read(vault, op)) {
            vault->reads_in_flight--;
            return op;
        }
        finish_write(vault, (struct write *)((uint8_t *)op - offsetof(struct write, op)));
    }
    return NULL;
}

/* Waits until the store has something to give. False: it has failed, and is not asked again. */
static bool wait_for_store(struct kvt_llama_vault *vault)
{
    if (kvt_store_wait(vault->store, PATIENCE_NS)) return true;
    vault->is_dead = true;
    kvt_log(vault->env, KVT_LOG_ERROR, "the store gave nothing for 30 s: it is left out, serving misses");
    return false;
}

void kvt_llama_vault_poll(struct kvt_llama_vault *vault)
{
    if (!has_store(vault)) return;
    const struct kvt_store_op *op = collect(vault);
    KVT_ASSERT(op == NULL); /* reads are waited for in get */
}

static void wait_for_a_write(struct kvt_llama_vault *vault)
{
    const uint32_t before = vault->writes_in_flight;
    while (vault->writes_in_flight == before && has_store(vault)) {
        kvt_llama_vault_poll(vault);
        if (vault->writes_in_flight == before && !wait_for_store(vault)) return;
    }
}

/*
 * ---- Writing
 * ---------------------------------------------------------------------------------------------------------
 */

static bool submit_write(struct kvt_llama_vault *vault, struct kvt_key key, const uint8_t *bytes, uint32_t length,
                         uint32_t entry)
{
    kvt_llama_vault_poll(vault);
    while (has_store(vault) && !vault->free_write) wait_for_a_write(vault);
    if (!has_store(vault)) return false;
    struct write *write = vault->free_write;
    vault->free_write = write->next_free; /* now: others come back while this one waits */
    write->op = (struct kvt_store_op){ .kind = KVT_STORE_PUT, .name = name_of(vault, key), .length = length };
    memcpy(&write->op.buffer, &bytes, sizeof bytes); /* the store only reads a put's bytes */
    write->entry = entry;
    struct kvt_store_op *op = &write->op;
    while (kvt_store_submit(vault->store, &op, 1) == 0) {
        /* Its queue is full: with writes under way it will not stay so. Otherwise it does not want this one. */
        const bool is_wanted = vault->writes_in_flight > 0;
        if (is_wanted) wait_for_a_write(vault);
        if (is_wanted && has_store(vault)) continue;
        write->next_free = vault->free_write;
        vault->free_write = write;
        return false;
    }
    vault->writes_in_flight++;
    if (entry != KVT_LLAMA_NO_ENTRY) kvt_llama_host_set_clean(vault->host, entry, KVT_LLAMA_WRITING);
    return true;
}

static void write_entry(struct kvt_llama_vault *vault, uint32_t entry)
{
    uint32_t length;
    const uint8_t *bytes = kvt_llama_host_bytes(vault->host, entry, &length);
    if (submit_write(vault, kvt_llama_host_key(vault->host, entry), bytes, length, entry)) return;
    kvt_llama_host_set_clean(vault->host, entry, KVT_LLAMA_CLEAN);
    vault->dropped++;
}

static void settle_writes(struct kvt_llama_vault *vault)
{
    while (has_store(vault) && vault->writes_in_flight > 0) wait_for_a_write(vault);
}

/* Host memory has no room for it, or never: it goes to the store from the caller's bytes. */
static enum kvt_status put_through(struct kvt_llama_vault *vault, struct kvt_key key, const uint8_t *bytes,
                                   uint32_t length)
{
    settle_writes(vault);
    if (!has_store(vault) || length > kvt_store_length_max(vault->store)) return KVT_FULL;
    if (!submit_write(vault, key, bytes, length, KVT_LLAMA_NO_ENTRY)) return KVT_FULL;
    settle_writes(vault);
    /*
     * Dead: the store may still read these bytes. Nothing can be promised of a disk that hangs but that it is
     * not asked.
     */
    return has_store(vault) && vault->last_write == KVT_OK ? KVT_OK : KVT_FULL;
}

/* Clean records leave first; then the oldest dirty ones are written, and what the store has by now may leave. */
static uint32_t put_in_host(struct kvt_llama_vault *vault, struct kvt_key key, const uint8_t *bytes, uint32_t length,
                            enum kvt_llama_clean clean)
{
    uint32_t entry;
    while ((entry = kvt_llama_host_put(vault->host, key, bytes, length, clean)) == KVT_LLAMA_NO_ENTRY) {
        if (!has_store(vault)) return KVT_LLAMA_NO_ENTRY;
        uint32_t dirty = kvt_llama_host_dirty(vault->host, KVT_LLAMA_NO_ENTRY);
        if (dirty == KVT_LLAMA_NO_ENTRY && vault->writes_in_flight == 0) return KVT_LLAMA_NO_ENTRY;
        for (uint32_t n = 0; dirty != KVT_LLAMA_NO_ENTRY && n < 8; n++) {
            const uint32_t next = kvt_llama_host_dirty(vault->host, dirty);
            write_entry(vault, dirty);
            dirty = next;
        }
        settle_writes(vault);
    }
    return entry;
}

enum kvt_status kvt_llama_vault_put(struct kvt_llama_vault *vault, struct kvt_key key, const uint8_t *bytes,
                                    uint32_t length, bool is_passing)
{
    kvt_llama_vault_poll(vault);
    struct kvt_llama_host_stats host;
    kvt_llama_host_stats(vault->host, &host);
    /* Larger than host memory: asking for room would only empty it. */
    if (length > host.capacity_bytes) return put_through(vault, key, bytes, length);
    const enum kvt_llama_clean clean = has_store(vault) ? KVT_LLAMA_DIRTY : KVT_LLAMA_CLEAN;
    const uint32_t entry = put_in_host(vault, key, bytes, length, clean);
    if (entry == KVT_LLAMA_NO_ENTRY) return put_through(vault, key, bytes, length);
    if (has_store(vault) && !is_passing) write_entry(vault, entry);
    return KVT_OK;
}

enum kvt_status kvt_llama_vault_flush(struct kvt_llama_vault *vault)
{
    if (!vault->store) return KVT_OK;
    const uint64_t dropped = vault->dropped;
    uint32_t dirty = kvt_llama_host_dirty(vault->host, KVT_LLAMA_NO_ENTRY);
    while (dirty != KVT_LLAMA_NO_ENTRY && has_store(vault)) {
        const uint32_t next = kvt_llama_host_dirty(vault->host, dirty);
        write_entry(vault, dirty);
        dirty = next;
    }
    settle_writes(vault);
    if (!has_store(vault)) return KVT_IO;
    KVT_TRY(kvt_store_sync(vault->store));
    return vault->dropped == dropped ? KVT_OK : KVT_IO;
}

/*
 * ---- Reading
 * ---------------------------------------------------------------------------------------------------------
 */

bool kvt_llama_vault_has(struct kvt_llama_vault *vault, struct kvt_key key)
{
    if (kvt_llama_host_find(vault->host, key) != KVT_LLAMA_NO_ENTRY) return true;
    struct kvt_store_found found;
    const struct kvt_store_name name = name_of(vault, key);
    return has_store(vault) && kvt_store_find(vault->store, &name, &found);
}

uint64_t kvt_llama_vault_length_max(const struct kvt_llama_vault *vault)
{
    struct kvt_llama_host_stats host;
    kvt_llama_host_stats(vault->host, &host);
    return kvt_max_u64(host.capacity_bytes, has_store(vault) ? kvt_store_length_max(vault->store) : 0);
}

/* True: it was in host memory, and take was called. */
static bool get_from_host(struct kvt_llama_vault *vault, struct kvt_key key, uint32_t i, kvt_llama_vault_take take,
                          void *user)
{
    const uint32_t entry = kvt_llama_host_find(vault->host, key);
    if (entry == KVT_LLAMA_NO_ENTRY) return false;
    uint32_t length;
    const uint8_t *bytes = kvt_llama_host_read(vault->host, entry, &length);
    if (bytes && take(user, i, bytes, length)) {
        kvt_llama_host_touch(vault->host, entry);
        vault->host_hits++;
        return true;
    }
    vault->damaged++;
    (void)kvt_llama_vault_forget(vault, key);
    if (!bytes) (void)take(user, i, NULL, 0);
    return true;
}

static void finish_read(struct kvt_llama_vault *vault, struct kvt_store_op *op, uint32_t i, kvt_llama_vault_take take,
                        void *user)
{
    const struct kvt_key key = { op->name.key[0], op->name.key[1] };
    if (op->status == KVT_OK && take(user, i, op->buffer, op->ret_length)) {
        vault->nvme_hits++;
        if (kvt_llama_host_find(vault->host, key) == KVT_LLAMA_NO_ENTRY)
            (void)kvt_llama_host_put(vault->host, key, op->buffer, op->ret_length, KVT_LLAMA_CLEAN);
        return;
    }
    if (op->status != KVT_NOTFOUND) {
        vault->damaged++;
        kvt_log(vault->env, KVT_LOG_WARN, "a record failed: %s, serving a miss", kvt_status_text(op->status));
        (void)kvt_llama_vault_forget(vault, key);
    }
    if (op->status != KVT_OK) (void)take(user, i, NULL, 0);
}

/* Reads that are under way; user of an op is the index of its key. */
struct reading {
    struct kvt_llama_vault *vault;
    const struct kvt_key *keys;
    kvt_llama_vault_take take;
    void *user;
    uint32_t free_slots[READS_MAX], free_count;
};

static bool submit_read(struct reading *r, uint32_t i)
{
    struct kvt_llama_vault *vault = r->vault;
    const uint32_t slot = r->free_slots[r->free_count - 1];
    struct kvt_store_op *op = &vault->reads[slot];
    *op = (struct kvt_store_op){ .kind = KVT_STORE_GET,
                                 .flags = KVT_STORE_GENERATION_ANY | KVT_STORE_URGENT,
                                 .name = name_of(vault, r->keys[i]),
                                 .buffer = vault->read_area + slot * vault->read_bytes,
                                 .length = (uint32_t)vault->read_bytes,
                                 .user = (void *)(uintptr_t)i };
    if (kvt_store_submit(vault->store, &op, 1) == 0) return false;
    vault->reads_in_flight++;
    r->free_count--;
    return true;
}

static void collect_read(struct reading *r)
{
    struct kvt_store_op *op = collect(r->vault);
    if (!op) {
        (void)wait_for_store(r->vault);
        return;
    }
    finish_read(r->vault, op, (uint32_t)(uintptr_t)op->user, r->take, r->user);
    r->free_slots[r->free_count++] = (uint32_t)(op - r->vault->reads);
}

void kvt_llama_vault_get(struct kvt_llama_vault *vault, const struct kvt_key *keys, uint32_t count,
                         kvt_llama_vault_take take, void *user)
{
    struct reading r = { .vault = vault, .keys = keys, .take = take, .user = user };
    kvt_llama_vault_poll(vault);
    for (uint32_t slot = 0; slot < vault->read_count; slot++) r.free_slots[r.free_count++] = slot;
    for (uint32_t i = 0; i < count; i++) {
        if (get_from_host(vault, keys[i], i, take, user)) continue;
        while (has_store(vault) && r.free_count == 0) collect_read(&r);
        bool is_submitted = false;
        while (has_store(vault) && !(is_submitted = submit_read(&r, i))) {
            /* A queue that is full of our own ops gives one back; one that refuses without any has no more to say. */
            if (vault->reads_in_flight > 0) collect_read(&r);
            else if (vault->writes_in_flight > 0) wait_for_a_write(vault);
            else break;
        }
        if (!is_submitted) (void)take(user, i, NULL, 0);
    }
    while (has_store(vault) && vault->reads_in_flight > 0) collect_read(&r);
    /* What a store that hangs still owns is a miss. */
    for (uint32_t slot = 0; vault->is_dead && slot < vault->read_count; slot++) {
        bool is_free = false;
        for (uint32_t f = 0; f < r.free_count; f++) is_free = is_free || r.free_slots[f] == slot;
        if (!is_free) (void)take(user, (uint32_t)(uintptr_t)vault->reads[slot].user, NULL, 0);
    }
}

/*
 * ---- Forgetting
 * ------------------------------------------------------------------------------------------------------
 */

bool kvt_llama_vault_forget(struct kvt_llama_vault *vault, struct kvt_key key)
{
    uint32_t entry = kvt_llama_host_find(vault->host, key);
    bool was_there = entry != KVT_LLAMA_NO_ENTRY;
    if (was_there && kvt_llama_host_clean(vault->host, entry) == KVT_LLAMA_WRITING && vault->reads_in_flight == 0)
        settle_writes(vault);
    if (was_there && kvt_llama_host_clean(vault->host, entry) != KVT_LLAMA_WRITING)
        kvt_llama_host_drop(vault->host, entry);
    const struct kvt_store_name name = name_of(vault, key);
    if (has_store(vault)) was_there = kvt_store_delete(vault->store, &name, 1) > 0 || was_there;
    return was_there;
}

void kvt_llama_vault_outdate(struct kvt_llama_vault *vault, struct kvt_key key)
{
    const uint32_t entry = kvt_llama_host_find(vault->host, key);
    if (entry != KVT_LLAMA_NO_ENTRY && kvt_llama_host_clean(vault->host, entry) == KVT_LLAMA_DIRTY)
        kvt_llama_host_drop(vault->host, entry);
}

bool kvt_llama_vault_hold(struct kvt_llama_vault *vault, struct kvt_key key)
{
    struct kvt_store_found found;
    const struct kvt_store_name name = name_of(vault, key);
    return has_store(vault) && kvt_store_hold(vault->store, &name, &found);
}

enum kvt_status kvt_llama_vault_reset(struct kvt_llama_vault *vault)
{
    settle_writes(vault);
    kvt_llama_host_clear(vault->host);
    if (!vault->store) return KVT_OK;
    return has_store(vault) ? kvt_store_reset(vault->store) : KVT_IO;
}

void kvt_llama_vault_stats(struct kvt_llama_vault *vault, struct kvt_llama_vault_stats *ret_stats)
{
    *ret_stats = (struct kvt_llama_vault_stats){ .host_hits = vault->host_hits,
                                                 .nvme_hits = vault->nvme_hits,
                                                 .damaged = vault->damaged,
                                                 .dropped = vault->dropped,
                                                 .has_store = vault->store != NULL };
    kvt_llama_host_stats(vault->host, &ret_stats->host);
    if (vault->store) kvt_store_stats(vault->store, &ret_stats->store);
}
