/*
 * vault: records by key in two tiers: host memory, and under it the store.
 *
 * A record that is put for good is written to the store at once, in the background, while host memory has it; a
 * passing one (a tail that the next turn replaces) only when it has to leave host memory, or at flush. What is
 * read from the store comes to host memory again. A record that fails a check is forgotten in both tiers.
 *
 * Thread: one at a time; the store has its own behind it. Memory: taken in open.
 * Fails:  open. After it every failure of a disk is a miss, and counted.
 */
#ifndef KVT_CONNECTORS_LLAMA_VAULT_H
#define KVT_CONNECTORS_LLAMA_VAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connectors/llama/host.h"
#include "kvtier/store.h"
#include "runtime/base/env.h"
#include "runtime/base/key.h"
#include "runtime/base/status.h"

struct kvt_llama_vault;

struct kvt_llama_vault_config {
    uint64_t host_bytes;
    const char *path; /* NULL: host memory alone */
    uint64_t nvme_bytes, nvme_bytes_per_day;
    const uint8_t *nvme_key;
    uint32_t record_bytes_max;
    struct kvt_key space;
    const struct kvt_env *env; /* borrowed until close */
};

/* INVAL | BUSY | NOMEM | IO, as the store says it. */
KVT_NODISCARD enum kvt_status kvt_llama_vault_open(const struct kvt_llama_vault_config *config,
                                                   struct kvt_llama_vault **ret_vault, char *ret_error,
                                                   size_t error_bytes);

/* Writes what is only in host memory, closes, nulls; NULL is fine. */
void kvt_llama_vault_close(struct kvt_llama_vault **vault);

bool kvt_llama_vault_has(struct kvt_llama_vault *vault, struct kvt_key key);

/* The longest record that some tier takes. */
uint64_t kvt_llama_vault_length_max(const struct kvt_llama_vault *vault);

/*
 * Keeps a record of which there is none yet; the bytes are copied. FULL: no tier had room for it.
 */
KVT_NODISCARD enum kvt_status kvt_llama_vault_put(struct kvt_llama_vault *vault, struct kvt_key key,
                                                  const uint8_t *bytes, uint32_t length, bool is_passing);

/*
 * Reads records, those in host memory first, the others as the disk gives them: take(user, i, bytes, length) is
 * called once for each, with NULL when there is none or it failed its check. False from take: what the record
 * says is wrong; it is forgotten.
 */
typedef bool (*kvt_llama_vault_take)(void *user, uint32_t i, const uint8_t *bytes, uint32_t length);
void kvt_llama_vault_get(struct kvt_llama_vault *vault, const struct kvt_key *keys, uint32_t count,
                         kvt_llama_vault_take take, void *user);

/* Forgets a record in both tiers. True: there was one. */
bool kvt_llama_vault_forget(struct kvt_llama_vault *vault, struct kvt_key key);

/* Forgets a record if it was never written: something that contains it was put since. */
void kvt_llama_vault_outdate(struct kvt_llama_vault *vault, struct kvt_key key);

/* Keeps the record of this key in the store, whatever leaves it. False: it is not there. */
bool kvt_llama_vault_hold(struct kvt_llama_vault *vault, struct kvt_key key);

/* Takes notice of what the store has finished. Never waits. */
void kvt_llama_vault_poll(struct kvt_llama_vault *vault);

/* Everything that is only in host memory is on the device afterwards. IO. */
KVT_NODISCARD enum kvt_status kvt_llama_vault_flush(struct kvt_llama_vault *vault);

/* Forgets everything, durably. IO. */
KVT_NODISCARD enum kvt_status kvt_llama_vault_reset(struct kvt_llama_vault *vault);

struct kvt_llama_vault_stats {
    struct kvt_llama_host_stats host;
    uint64_t host_hits, nvme_hits, damaged, dropped;
    bool has_store;
    struct kvt_store_stats store;
};
void kvt_llama_vault_stats(struct kvt_llama_vault *vault, struct kvt_llama_vault_stats *ret_stats);

#endif
