#include "connectors/llama/host.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"

#define NONE KVT_LLAMA_NO_ENTRY

/* An extent of the mapping: a record, or free. Links are indices of nodes. */
struct node {
    struct kvt_key key;
    uint64_t offset, bytes; /* of the extent */
    uint32_t length, crc;   /* of the record */
    uint32_t before, after; /* by address */
    uint32_t older, newer;  /* by use, records only; unused nodes: older is the next unused one */
    uint32_t next;          /* in its bucket */
    bool is_used;
    uint8_t clean;
};

struct kvt_llama_host {
    uint8_t *memory;
    struct node *nodes;
    uint32_t *buckets;
    uint64_t memory_bytes, node_bytes, bucket_bytes;
    uint32_t node_count, bucket_count, unused;
    uint32_t oldest, newest;
    uint32_t rover; /* where the next search for a free extent begins */
    uint64_t used_bytes, peak_bytes, evictions, entries;
};

enum kvt_status kvt_llama_host_create(uint64_t bytes, struct kvt_llama_host **ret_host)
{
    KVT_ASSERT(bytes >= KVT_LLAMA_EXTENT_BYTES);
    struct kvt_llama_host *host = kvt_alloc(1, sizeof *host);
    if (!host) return KVT_NOMEM;
    host->memory_bytes = bytes / KVT_LLAMA_EXTENT_BYTES * KVT_LLAMA_EXTENT_BYTES;
    /* As many as there can be extents, up to what indices can name: untouched ones cost nothing. */
    host->node_count = (uint32_t)kvt_min_u64(host->memory_bytes / KVT_LLAMA_EXTENT_BYTES + 1, UINT32_MAX / 2);
    host->bucket_count = 64;
    while (host->bucket_count < host->node_count / 8) host->bucket_count *= 2;
    host->node_bytes = (uint64_t)host->node_count * sizeof *host->nodes;
    host->bucket_bytes = (uint64_t)host->bucket_count * sizeof *host->buckets;
    host->memory = kvt_table_map(host->memory_bytes);
    host->nodes = kvt_table_map(host->node_bytes);
    host->buckets = kvt_table_map(host->bucket_bytes);
    if (!host->memory || !host->nodes || !host->buckets) {
        kvt_llama_host_destroy(&host);
        return KVT_NOMEM;
    }
    /* Buckets and the list of unused nodes hold index + 1, so that zeroed pages are empty ones. */
    host->nodes[0] = (struct node){ .bytes = host->memory_bytes, .before = NONE, .after = NONE };
    host->unused = 1;
    host->oldest = host->newest = NONE;
    *ret_host = host;
    return KVT_OK;
}

void kvt_llama_host_destroy(struct kvt_llama_host **host)
{
    struct kvt_llama_host *h = *host;
    *host = NULL;
    if (!h) return;
    kvt_table_unmap(h->memory, h->memory_bytes);
    kvt_table_unmap(h->nodes, h->node_bytes);
    kvt_table_unmap(h->buckets, h->bucket_bytes);
    kvt_free(h);
}

static uint32_t *bucket_of(const struct kvt_llama_host *host, struct kvt_key key)
{
    return &host->buckets[key.lo & (host->bucket_count - 1)];
}

uint32_t kvt_llama_host_find(const struct kvt_llama_host *host, struct kvt_key key)
{
    for (uint32_t i = *bucket_of(host, key); i != 0; i = host->nodes[i - 1].next)
        if (kvt_key_equal(host->nodes[i - 1].key, key)) return i - 1;
    return NONE;
}

const uint8_t *kvt_llama_host_bytes(const struct kvt_llama_host *host, uint32_t entry, uint32_t *ret_length)
{
    const struct node *node = &host->nodes[entry];
    KVT_ASSERT(entry < host->node_count);
    KVT_ASSERT(node->is_used);
    *ret_length = node->length;
    return host->memory + node->offset;
}

const uint8_t *kvt_llama_host_read(struct kvt_llama_host *host, uint32_t entry, uint32_t *ret_length)
{
    const uint8_t *bytes = kvt_llama_host_bytes(host, entry, ret_length);
    if (kvt_crc32c(0, bytes, *ret_length) == host->nodes[entry].crc) return bytes;
    if (host->nodes[entry].clean != KVT_LLAMA_WRITING) kvt_llama_host_drop(host, entry);
    return NULL;
}

struct kvt_key kvt_llama_host_key(const struct kvt_llama_host *host, uint32_t entry) { return host->nodes[entry].key; }

enum kvt_llama_clean kvt_llama_host_clean(const struct kvt_llama_host *host, uint32_t entry)
{
    return (enum kvt_llama_clean)host->nodes[entry].clean;
}

void kvt_llama_host_set_clean(struct kvt_llama_host *host, uint32_t entry, enum kvt_llama_clean clean)
{
    KVT_ASSERT(host->nodes[entry].is_used);
    host->nodes[entry].clean = (uint8_t)clean;
}

/*
 * ---- The lists
 * -------------------------------------------------------------------------------------------------------
 */

static uint32_t take_node(struct kvt_llama_host *host)
{
    const uint32_t i = host->unused;
    if (i >= host->node_count) return NONE;
    host->unused = host->nodes[i].older ? host->nodes[i].older : i + 1;
    return i;
}

static void give_node(struct kvt_llama_host *host, uint32_t i)
{
    host->nodes[i] = (struct node){ .older = host->unused };
    host->unused = i;
}

static void link_newest(struct kvt_llama_host *host, uint32_t i)
{
    host->nodes[i].older = host->newest;
    host->nodes[i].newer = NONE;
    if (host->newest != NONE) host->nodes[host->newest].newer = i;
    host->newest = i;
    if (host->oldest == NONE) host->oldest = i;
}

static void unlink_use(struct kvt_llama_host *host, uint32_t i)
{
    const struct node *node = &host->nodes[i];
    if (node->older != NONE) host->nodes[node->older].newer = node->newer;
    else host->oldest = node->newer;
    if (node->newer != NONE) host->nodes[node->newer].older = node->older;
    else host->newest = node->older;
}

void kvt_llama_host_touch(struct kvt_llama_host *host, uint32_t entry)
{
    KVT_ASSERT(host->nodes[entry].is_used);
    unlink_use(host, entry);
    link_newest(host, entry);
}

/* Joins i with the free extent after it. */
static void join_after(struct kvt_llama_host *host, uint32_t i)
{
    const uint32_t next = host->nodes[i].after;
    if (next == NONE || host->nodes[next].is_used) return;
    host->nodes[i].bytes += host->nodes[next].bytes;
    host->nodes[i].after = host->nodes[next].after;
    if (host->nodes[i].after != NONE) host->nodes[host->nodes[i].after].before = i;
    if (host->rover == next) host->rover = i;
    give_node(host, next);
}

void kvt_llama_host_drop(struct kvt_llama_host *host, uint32_t entry)
{
    struct node *node = &host->nodes[entry];
    KVT_ASSERT(node->is_used);
    KVT_ASSERT(node->clean != KVT_LLAMA_WRITING);
    uint32_t *link = bucket_of(host, node->key);
    while (*link != entry + 1) link = &host->nodes[*link - 1].next;
    *link = node->next;
    unlink_use(host, entry);
    node->is_used = false;
    host->used_bytes -= node->bytes;
    host->entries--;
    join_after(host, entry);
    if (node->before != NONE && !host->nodes[node->before].is_used) join_after(host, node->before);
}

/* A free extent of at least so many bytes, from the rover on, once around. */
static uint32_t find_free(struct kvt_llama_host *host, uint64_t bytes)
{
    uint32_t i = host->rover;
    do {
        if (!host->nodes[i].is_used && host->nodes[i].bytes >= bytes) return i;
        i = host->nodes[i].after != NONE ? host->nodes[i].after : 0;
    } while (i != host->rover);
    return NONE;
}

/* Node 0 is always the first extent: joins keep the lower of the two. */
static bool cut_free(struct kvt_llama_host *host, uint32_t i, uint64_t bytes)
{
    struct node *node = &host->nodes[i];
    if (node->bytes == bytes) return true;
    const uint32_t rest = take_node(host);
    if (rest == NONE) return false;
    host->nodes[rest] = (struct node){
        .offset = node->offset + bytes, .bytes = node->bytes - bytes, .before = i, .after = node->after
    };
    if (node->after != NONE) host->nodes[node->after].before = rest;
    node->after = rest;
    node->bytes = bytes;
    return true;
}

static bool evict_one(struct kvt_llama_host *host)
{
    uint32_t i = host->oldest;
    while (i != NONE && host->nodes[i].clean != KVT_LLAMA_CLEAN) i = host->nodes[i].newer;
    if (i == NONE) return false;
    kvt_llama_host_drop(host, i);
    host->evictions++;
    return true;
}

uint32_t kvt_llama_host_put(struct kvt_llama_host *host, struct kvt_key key, const uint8_t *bytes, uint32_t length,
                            enum kvt_llama_clean clean)
{
    const uint64_t extent = kvt_align_up(length, KVT_LLAMA_EXTENT_BYTES);
    KVT_ASSERT(length > 0);
    KVT_ASSERT(kvt_llama_host_find(host, key) == NONE);
    if (extent > host->memory_bytes) return NONE;
    uint32_t i;
    while ((i = find_free(host, extent)) == NONE)
        if (!evict_one(host)) return NONE;
    if (!cut_free(host, i, extent)) return NONE;
    struct node *node = &host->nodes[i];
    node->key = key;
    node->length = length;
    node->crc = kvt_crc32c_copy(0, host->memory + node->offset, bytes, length);
    node->is_used = true;
    node->clean = (uint8_t)clean;
    node->next = *bucket_of(host, key);
    *bucket_of(host, key) = i + 1;
    link_newest(host, i);
    host->rover = node->after != NONE ? node->after : 0;
    host->used_bytes += extent;
    host->peak_bytes = kvt_max_u64(host->peak_bytes, host->used_bytes);
    host->entries++;
    return i;
}

void kvt_llama_host_clear(struct kvt_llama_host *host)
{
    for (uint32_t i = host->oldest; i != NONE;) {
        const uint32_t next = host->nodes[i].newer;
        if (host->nodes[i].clean != KVT_LLAMA_WRITING) kvt_llama_host_drop(host, i);
        i = next;
    }
}

uint32_t kvt_llama_host_dirty(const struct kvt_llama_host *host, uint32_t after)
{
    uint32_t i = after == NONE ? host->oldest : host->nodes[after].newer;
    while (i != NONE && host->nodes[i].clean != KVT_LLAMA_DIRTY) i = host->nodes[i].newer;
    return i;
}

void kvt_llama_host_stats(const struct kvt_llama_host *host, struct kvt_llama_host_stats *ret_stats)
{
    *ret_stats = (struct kvt_llama_host_stats){ .capacity_bytes = host->memory_bytes,
                                                .used_bytes = host->used_bytes,
                                                .peak_bytes = host->peak_bytes,
                                                .evictions = host->evictions,
                                                .entries = host->entries };
}

void kvt_llama_host_verify(const struct kvt_llama_host *host)
{
    uint64_t at = 0, used = 0, entries = 0, listed = 0;
    bool was_free = false;
    for (uint32_t i = 0, before = NONE; i != NONE; before = i, i = host->nodes[i].after) {
        const struct node *node = &host->nodes[i];
        KVT_ASSERT(node->before == before);
        KVT_ASSERT(node->offset == at);
        KVT_ASSERT(node->bytes > 0 && kvt_is_aligned(node->bytes, KVT_LLAMA_EXTENT_BYTES));
        KVT_ASSERT(node->is_used || !was_free);
        at += node->bytes;
        was_free = !node->is_used;
        if (!node->is_used) continue;
        used += node->bytes;
        entries++;
        KVT_ASSERT(kvt_llama_host_find(host, node->key) == i);
    }
    for (uint32_t i = host->oldest; i != NONE; i = host->nodes[i].newer) listed++;
    KVT_ASSERT(at == host->memory_bytes);
    KVT_ASSERT(used == host->used_bytes);
    KVT_ASSERT(entries == host->entries);
    KVT_ASSERT(listed == entries);
}
