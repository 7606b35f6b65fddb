/*
 * tables: the codec's base tables between runs. A block that was packed with a table can be read only with this table,
 *         so
 * the table is on the device before any block is packed with it.
 *
 * They lie in a side file of the nvme tier (tiers/nvme_tier.h), one for each set of namespaces: model, shape, rank. The
 * codec holds what it learned until it is saved; until then, and where it cannot be saved, blocks are packed without.
 * Lost or damaged tables make the blocks that need them misses, and are learned anew. Without an nvme tier no block
 * outlives the codec, and nothing is saved.
 *
 * Thread: open before the pump starts; save from the pump's thread only, or from the one thread that there is. Nothing
 *         here is
 * under the runtime's lock: a save waits for the disk.
 */
#ifndef KVT_RUNTIME_TABLES_H
#define KVT_RUNTIME_TABLES_H

#include "runtime/base/env.h"
#include "runtime/base/key.h"
#include "tiers/codec.h"
#include "tiers/tier.h"

struct kvt_tables {
    struct kvt_codec *codec; /* borrowed; NULL: nothing to do */
    struct kvt_tier *nvme;   /* borrowed; NULL: nothing to save */
    const struct kvt_env *env;
    struct kvt_key name;
    uint32_t saved;    /* tables that are saved */
    uint64_t retry_ns; /* the last save failed: not before then again */
    size_t bytes_max;
    uint8_t *bytes; /* an export */
};

/* Bytes to announce to the nvme tier. */
uint64_t kvt_tables_side_bytes(const struct kvt_codec *codec);
/* The name they are saved under. spaces: of each group. */
struct kvt_key kvt_tables_name(const struct kvt_key *spaces, uint32_t space_count);

/*
 * Imports what earlier runs saved, and begins to learn what is missing. is_off: imports what stored blocks need, but
 * packs without. spaces: of each group. Nothing that happens here is an error of the runtime but NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_tables_open(struct kvt_tables *tables, struct kvt_codec *codec, struct kvt_tier *nvme,
                                              const struct kvt_env *env, const struct kvt_key *spaces,
                                              uint32_t space_count, bool is_off);
void kvt_tables_close(struct kvt_tables *tables);

/* Saves what was learned since, and packs with it. Cheap when there is nothing new. */
void kvt_tables_save(struct kvt_tables *tables);

#endif
