/*
 * host: packed records in one mapping of host memory, in LRU order, never more than its size.
 *
 * The mapping is cut into extents of whole pages, used and free, in the order of their addresses; neighbours
 * that become free are joined. A record that leaves makes room; one that is busy (being written to the disk) or
 * dirty (not written yet) does not leave by itself: the vault says when.
 *
 * Thread: one at a time. Memory: taken in create; pages cost nothing until they are used.
 */
#ifndef KVT_CONNECTORS_LLAMA_HOST_H
#define KVT_CONNECTORS_LLAMA_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/key.h"
#include "runtime/base/status.h"

struct kvt_llama_host;

#define KVT_LLAMA_NO_ENTRY UINT32_MAX
#define KVT_LLAMA_EXTENT_BYTES 4096u

enum kvt_llama_clean {
    KVT_LLAMA_CLEAN,  /* the store has it, or there is no store: it may leave */
    KVT_LLAMA_DIRTY,  /* only here, and to be written before it leaves */
    KVT_LLAMA_WRITING /* the store reads it */
};

/* NOMEM. bytes: at least one extent. */
KVT_NODISCARD enum kvt_status kvt_llama_host_create(uint64_t bytes, struct kvt_llama_host **ret_host);
void kvt_llama_host_destroy(struct kvt_llama_host **host);

/* The entry of a key, or NO_ENTRY. */
uint32_t kvt_llama_host_find(const struct kvt_llama_host *host, struct kvt_key key);

/* Its bytes, checked against the sum that was taken when it was put: NULL, and it is gone, when they are others. */
const uint8_t *kvt_llama_host_read(struct kvt_llama_host *host, uint32_t entry, uint32_t *ret_length);
const uint8_t *kvt_llama_host_bytes(const struct kvt_llama_host *host, uint32_t entry, uint32_t *ret_length);
struct kvt_key kvt_llama_host_key(const struct kvt_llama_host *host, uint32_t entry);

enum kvt_llama_clean kvt_llama_host_clean(const struct kvt_llama_host *host, uint32_t entry);
void kvt_llama_host_set_clean(struct kvt_llama_host *host, uint32_t entry, enum kvt_llama_clean clean);

/*
 * Copies a record in, the most recently used one. Clean records leave, the least recently used first, until there
 * is room. NO_ENTRY: there is none even so; all clean ones may be gone then. The key is not there yet.
 */
uint32_t kvt_llama_host_put(struct kvt_llama_host *host, struct kvt_key key, const uint8_t *bytes, uint32_t length,
                            enum kvt_llama_clean clean);

/* It was used: it is the last to leave. */
void kvt_llama_host_touch(struct kvt_llama_host *host, uint32_t entry);

/* It is not there any more. Not while it is being written. */
void kvt_llama_host_drop(struct kvt_llama_host *host, uint32_t entry);

/* Drops all that is not being written. */
void kvt_llama_host_clear(struct kvt_llama_host *host);

/* The least recently used dirty record, or NO_ENTRY; the next one after an entry. */
uint32_t kvt_llama_host_dirty(const struct kvt_llama_host *host, uint32_t after);

struct kvt_llama_host_stats {
    uint64_t capacity_bytes, used_bytes, peak_bytes, evictions, entries;
};
void kvt_llama_host_stats(const struct kvt_llama_host *host, struct kvt_llama_host_stats *ret_stats);

/* Walks everything; tests only. */
void kvt_llama_host_verify(const struct kvt_llama_host *host);

#endif
