/*
 * core: the passive state machine that decides. Calls, completions and time go in; transfers come out.
 *
 * The core never waits, starts no thread, reads no clock (time is handed in) and calls nobody back. It is driven under
 * one lock by whoever calls the API and by the pump. Its files:
 *
 *     residency.c  claims, holds and copies of single blocks: the only places where they come and go
 *     flow.c       transfers: begin, submit, complete, fail, abandon
 *     planner.c    what to move next: room, fetches, write-back, prefetch
 *     sequence.c   lists of blocks: append, fork, idle, resume, finish; sequence_commit.c: commit and seal;
 *     sequence_cut.c: truncate, window lookup.c     the longest prefix that every group has, found and held step.c
 *     steps: who is ready, pins, marks reader.c     windows through which long sequences are read
 *     verify.c     everything counted again from scratch
 *
 * Invariants (numbered as in docs/architecture.md):
 * 1. A slot is on the free list or belongs to exactly one copy, or to one abandoned transfer.
 * 2. A FILLING copy is never the source of a transfer; only its own completion or deadline ends FILLING.
 * 3. A copy leaves a tier only when nobody reads or claims it, and the block is unreferenced, or has another RESIDENT
 *    copy, or the caller was told the tokens are lost.
 * 4. Found is held: matching a prefix and holding it is one operation.
 * 5. Every transfer returns exactly once.
 * 6. Transfers and compute are ordered by marks in all four directions.
 * 7. Work per call is bounded and independent of how many blocks exist.
 * 8. A sealed slot is never written again.
 */
#ifndef KVT_RUNTIME_CORE_H
#define KVT_RUNTIME_CORE_H

#include "kernels/gpu.h"
#include "policy/policy.h"
#include "runtime/base/env.h"
#include "runtime/block.h"
#include "runtime/host_pool.h"
#include "runtime/metrics.h"
#include "runtime/pool.h"
#include "runtime/prefix.h"
#include "runtime/reader.h"
#include "runtime/sequence.h"
#include "runtime/transfer.h"
#include "tiers/tier.h"

#define KVT_STEPS_MAX 16
#define KVT_LAND_RANGES 8 /* of layers, that a block comes in when it comes layer by layer */

struct kvt_core_config {
    struct kvt_model_shape shape;
    struct kvt_key space[KVT_GROUPS_MAX]; /* namespace digest of each group */
    struct kvt_key private_space;         /* of records that die with the process */
    const void *secret;
    size_t secret_bytes;
    uint32_t pool_of_group[KVT_GROUPS_MAX];
    uint32_t pool_count;
    uint32_t pool_slots[KVT_GROUPS_MAX];
    uint32_t blocks_max;
    uint32_t sequences_max;
    uint32_t transfers_max;
    uint64_t prefetch_bytes_max;
    uint64_t transfer_deadline_ns;
    uint64_t step_ns;
    uint64_t prefill_tokens_per_s;
    enum kvt_prefetch prefetch;
    bool is_layered; /* sealed blocks in host memory are left to the step that needs them (layers.h) */
    bool is_packing; /* stashes are asked for in packed form */
    const struct kvt_policy_ops *device_policy, *host_policy;
    const struct kvt_admission_ops *admission;
    uint64_t nvme_bytes_per_day; /* endurance budget; 0: none */
    uint64_t seed;

    /* Borrowed. The device tier is always there; the others may be NULL (nvme needs host). gpu may be NULL in benchmarks. */
    struct kvt_tier *device;
    struct kvt_host_tier *host;
    uint64_t host_chunk_bytes;
    struct kvt_tier *nvme;
    struct kvt_gpu *gpu;
    const struct kvt_env *env;
};

/* Blocks that wait to be written to the next lower tier while the links have nothing better to do. */
struct kvt_write_back_entry {
    uint32_t block, generation;
};
struct kvt_write_back {
    struct kvt_write_back_entry *entries; /* a ring; power of two */
    uint32_t capacity, head, count;
};

struct kvt_step_state {
    uint32_t generation;
    bool is_open;
    uint32_t stream;
    uint32_t first_sequence; /* chained by step_next */
    uint32_t limbo;          /* blocks whose claim and hold end with the step, chained by link */
    /* Of blocks that land while it runs: a mark behind each range of layers, which ranges there are, which it waited for. */
    kvt_mark range_marks[KVT_GROUPS_MAX][KVT_LAND_RANGES];
    uint8_t landing_ranges[KVT_GROUPS_MAX], waited_ranges[KVT_GROUPS_MAX];
};

struct kvt_counters {
    uint64_t hits[KVT_TIERS], misses[KVT_TIERS];
    uint64_t bytes_in[KVT_TIERS], bytes_out[KVT_TIERS];
    uint64_t nvme_evictions;
    uint64_t stashes, fetches, copies, failures, abandoned;
    uint64_t lost_blocks, dropped_blocks;
    uint64_t given_up_blocks; /* of idle sequences, dropped because an active one could not go on otherwise */
    uint64_t packed_blocks, raw_blocks, packed_bytes, packed_raw_bytes;
    uint64_t store_raw_bytes;
    uint64_t prefetched_blocks, demand_blocks;
    uint64_t window_chunks; /* layers of blocks that came through readers' windows */
};

struct kvt_core {
    struct kvt_core_config config;
    uint32_t block_tokens;
    uint32_t group_count;
    struct kvt_group_shape groups[KVT_GROUPS_MAX];

    struct kvt_gpu *gpu;   /* config.gpu */
    struct kvt_tier *nvme; /* config.nvme */

    struct kvt_block_table table;
    struct kvt_prefix prefix;
    struct kvt_pool pools[KVT_GROUPS_MAX];
    struct kvt_host_pool host;
    bool has_host, has_nvme;
    struct kvt_transfers transfers;
    struct kvt_write_back write_back[2]; /* to host, to nvme */
    struct kvt_admission *admission;

    struct kvt_sequence *sequences;
    uint32_t sequence_free_head;
    uint32_t sequence_count, sequence_peak;
    struct kvt_sequence_list demand;   /* active, not everything started yet; first come first served */
    struct kvt_sequence_list expected; /* idle or warming, by need_ns */
    struct kvt_step_state steps[KVT_STEPS_MAX];
    struct kvt_reader readers[KVT_READERS_MAX];

    uint32_t epoch;
    uint64_t now_ns;  /* time of the call that is being served */
    uint64_t step_ns; /* measured, exponentially weighted */
    uint64_t last_step_ns;
    double link_ns_per_byte[KVT_TIERS]; /* measured: device link, -, nvme link */
    double codec_share;                 /* of the time that fetches to the device take, the part that unpacking takes */
    kvt_mark stream_marks[KVT_GPU_STREAMS_MAX]; /* latest mark of each engine stream */
    uint64_t events;                            /* grows when something became ready, or room was made, or was lost */
    uint64_t fill_failures;                     /* device copies that were not filled after all */
    uint64_t landings;                          /* blocks that came layer by layer, ever */
    uint32_t *landing;                          /* [transfers_max] transfers that wait for kvt_layers_begin() */
    uint32_t landing_count, landing_ops;        /* and the ops that they come to */
    uint64_t changes;                           /* grows when a copy that could not leave may be able to */
    uint64_t nvme_retry_ns;                     /* the store refused: not before then again; 0: it did not */
    uint32_t nvme_refusals;                     /* stashes in a row that the store did not take */
    bool is_search_cut; /* in this pump: a search for what can leave ended before it had seen all */
    uint64_t device_retry_ns;                   /* the device failed many times in a row: no stash before then; 0: it did not */
    uint32_t device_failures;                   /* stashes in a row that the device failed */
    uint64_t nvme_blocks, nvme_blocks_peak;     /* copies that the core knows to be on nvme */

    struct kvt_counters counters;
    struct kvt_metrics metrics;
};

/* NOMEM | INVAL. Everything is taken here. */
KVT_NODISCARD enum kvt_status kvt_core_init(struct kvt_core *core, const struct kvt_core_config *config);
/* No transfers may be in flight. Half-built ones are fine. */
void kvt_core_done(struct kvt_core *core);

/* One bounded round: completions, deadlines, lost records, planner. True when there may be more to do at once. */
bool kvt_core_pump(struct kvt_core *core, uint64_t now_ns);
/* Takes completions only; starts nothing. */
void kvt_core_drain(struct kvt_core *core, uint64_t now_ns);
/* When the core wants to be pumped even if nothing happens; UINT64_MAX: never. */
uint64_t kvt_core_next_timer(const struct kvt_core *core);

/*
 * Forgets every cached block; a new epoch keeps what is in flight from being published. Live sequences keep what is in
 * memory, unshared; what they had on nvme alone is lost to them. *ret_kept: blocks that live sequences still hold.
 * IO: the store could not make it durable.
 */
KVT_NODISCARD enum kvt_status kvt_core_reset(struct kvt_core *core, uint64_t *ret_kept);

/* Everything counted again from scratch; asserts on any difference. */
void kvt_core_verify(const struct kvt_core *core);

static inline struct kvt_block *kvt_core_block(const struct kvt_core *core, uint32_t index)
{
    return &core->table.blocks[index];
}
static inline struct kvt_pool *kvt_core_pool(struct kvt_core *core, const struct kvt_block *block)
{
    return &core->pools[core->config.pool_of_group[block->group]];
}

#endif
