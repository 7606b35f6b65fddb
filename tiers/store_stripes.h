/*
 * store_stripes: one store over several directories, each a whole store of its own: its I/O thread, log, index,
 *                capacity.
 *
 * A record lives in one of them, chosen by its name and the directories' paths (the highest of their hashes together),
 * so their order does not matter, and when one is lost, replaced, added or taken away only its share of the names goes
 * elsewhere. A directory whose disk fails when it is opened is left out, with a warning: its records are misses, and
 * its names go to the others until it is back; what was put there meanwhile is forgotten then. One that fails later fails its own ops only. A reset while one is left
 * out says IO: what lies there could be found again.
 *
 * The handle is a kvt_store with nothing but `stripes`; each public call of store.c begins by asking for it.
 * Thread:  any, as store.h says. The lock orders puts and numbers; it is never held while something waits.
 */
#ifndef KVT_TIERS_STORE_STRIPES_H
#define KVT_TIERS_STORE_STRIPES_H

#include "kvtier/store.h"

struct kvt_stripes;
struct kvt_store_more;

KVT_NODISCARD enum kvt_status kvt_stripes_open(const struct kvt_store_config *config, const struct kvt_env *env,
                                               const struct kvt_store_more *more, struct kvt_store **ret_store,
                                               char *ret_error, size_t error_bytes);
void kvt_stripes_close(struct kvt_store **store);

/* Where records of this name are. */
struct kvt_store *kvt_stripes_of(struct kvt_stripes *stripes, const struct kvt_store_name *name);
/* The i-th of those that are there; NULL past the end. */
struct kvt_store *kvt_stripes_at(struct kvt_stripes *stripes, uint32_t i);

uint32_t kvt_stripes_submit(struct kvt_stripes *stripes, struct kvt_store_op *const *ops, uint32_t n);
uint32_t kvt_stripes_poll(struct kvt_stripes *stripes, struct kvt_store_op **ret_done, uint32_t max);
int kvt_stripes_eventfd(struct kvt_stripes *stripes);
bool kvt_stripes_wait(struct kvt_stripes *stripes, uint64_t timeout_ns);
uint32_t kvt_stripes_length_max(struct kvt_stripes *stripes);
uint32_t kvt_stripes_list(struct kvt_stripes *stripes, uint64_t *cursor, struct kvt_store_listed *ret_listed,
                          uint32_t max);
uint32_t kvt_stripes_exists(struct kvt_stripes *stripes, const struct kvt_store_name *names, uint32_t n,
                            bool *ret_exists);
uint32_t kvt_stripes_delete(struct kvt_stripes *stripes, const struct kvt_store_name *names, uint32_t n);
uint32_t kvt_stripes_poll_lost(struct kvt_stripes *stripes, struct kvt_store_name *ret_names, uint32_t max);
uint64_t kvt_stripes_watermark(struct kvt_stripes *stripes);
enum kvt_status kvt_stripes_wait_durable(struct kvt_stripes *stripes, uint64_t number, uint64_t timeout_ns);
enum kvt_status kvt_stripes_sync(struct kvt_stripes *stripes);
enum kvt_status kvt_stripes_reset(struct kvt_stripes *stripes);
enum kvt_status kvt_stripes_compact(struct kvt_stripes *stripes);
void kvt_stripes_stats(struct kvt_stripes *stripes, struct kvt_store_stats *ret_stats);

#endif
