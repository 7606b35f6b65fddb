/*
 * base_tables: what the codec subtracts from the exponents of each channel of one layer group.
 *
 * Channels of a real model differ in scale by up to 2^12; a byte for each (layer, plane, channel) evens them out. A
 * set of tables is learned once from the first few hundred tokens, never changes, and is named by a digest of what it
 * holds: a packed block that outlives the process names the set it needs, and finds that one or none.
 *
 * Thread:  learn and import are serialised by the caller (the codec); observe, current and find come from any thread.
 * Memory:  taken in learn and import; given back in done.
 */
#ifndef KVT_TIERS_BASE_TABLES_H
#define KVT_TIERS_BASE_TABLES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/rank_planes.h"
#include "runtime/base/status.h"
#include "tiers/codec.h"

enum {
    KVT_BASE_SETS_MAX = 8,      /* of a group: learned here or imported */
    KVT_BASE_LEARN_TOKENS = 256 /* tokens that a set is learned from */
};

struct kvt_base_set {
    uint32_t id;     /* never 0 */
    uint8_t bases[]; /* [layer][plane][channels + KVT_RANK_GROUP], going on periodically behind the last channel */
};

struct kvt_base_tables {
    enum kvt_dtype dtype;
    uint32_t layers, plane_count, channels;

    _Atomic(struct kvt_base_set *) sets[KVT_BASE_SETS_MAX]; /* shared: written once each, before count says so */
    _Atomic uint32_t count;                                 /* shared */
    _Atomic(struct kvt_base_set *) in_use;                  /* shared: what pack subtracts; NULL: nothing */

    atomic_flag is_busy;      /* shared: held by the thread that learns from a block, or publishes */
    _Atomic bool is_learning; /* shared */
    /* a new set is not packed with before it is added once more; under is_busy, as the rest */
    bool is_held;
    uint32_t tokens;         /* seen so far */
    uint32_t *sums, *counts; /* [layer][plane][channel]: exponents that are not 0 */
    struct kvt_base_set *draft;
};

void kvt_base_tables_init(struct kvt_base_tables *tables, enum kvt_dtype dtype, uint32_t layers, uint32_t plane_count,
                          uint32_t channels);
void kvt_base_tables_done(struct kvt_base_tables *tables);

/*
 * True: learns a set from the blocks observed from now on, unless there is one. False: gives up an unfinished one.
 * NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_base_tables_learn(struct kvt_base_tables *tables, bool is_on);

/* True: sets that are new from now on can be found, but are packed with only once they are added again. */
void kvt_base_tables_hold(struct kvt_base_tables *tables, bool is_on);

/* Learns from a block when learning is on and no other thread is at it; publishes the set when it has seen enough. */
void kvt_base_tables_observe(struct kvt_base_tables *tables, const struct kvt_chunk_view *chunks, uint32_t tokens);

/* True while blocks are observed for a set that is not finished. */
bool kvt_base_tables_is_learning(const struct kvt_base_tables *tables);

/* The set to pack with, NULL for none; the set of this id, NULL when there is none. Valid until done. */
const struct kvt_base_set *kvt_base_tables_current(struct kvt_base_tables *tables);
const struct kvt_base_set *kvt_base_tables_find(struct kvt_base_tables *tables, uint32_t id);

/* The bases of one layer in a set. */
struct kvt_rank_bases kvt_base_set_layer(const struct kvt_base_tables *tables, const struct kvt_base_set *set,
                                         uint32_t layer);

/* Bytes of one set outside the process: one a (layer, plane, channel). */
size_t kvt_base_tables_set_bytes(const struct kvt_base_tables *tables);
void kvt_base_tables_write(const struct kvt_base_tables *tables, const struct kvt_base_set *set, uint8_t *target);

/*
 * Adds a set that was written before, and packs with it from now on, unless new ones are held. One that is there
 * already is no error: it is packed with from now on. FULL | NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_base_tables_add(struct kvt_base_tables *tables, const uint8_t *bytes);

/* The id that a set of these bytes has. */
uint32_t kvt_base_tables_id(const struct kvt_base_tables *tables, const uint8_t *bytes);

#endif
