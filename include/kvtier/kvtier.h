/*
 * kvtier: serve contexts that HBM does not hold, and get every byte back exact.
 *
 * A runtime keeps the KV blocks of many sequences: hot ones on the device, idle ones in pinned host memory and on NVMe,
 * fetched back ahead of the step that needs them. A reader gets the exact bytes of exactly its tokens, or is told which
 * tokens to recompute. Never other bytes, never a hang.
 *
 * One step of an engine:
 *
 *     kvt_seq_create(rt, &params, &seq, &reused);        longest prefix found in any tier, held
 *     kvt_seq_append(rt, seq, n, &room);                 slots for the tokens that this step computes
 *     kvt_step_begin(rt, entries, count, stream, &step); who is ready; their tables are valid until step_end
 *     kvt_seq_table(rt, seq, group, slots, max, &n);     slots for the attention kernels
 *     ... launch kernels that write and read KV on stream ...
 *     kvt_seq_commit(rt, seq, tokens, n, 0, stream);     at this point of the stream these tokens' KV is written
 *     kvt_step_end(rt, step);
 *
 * Threads: every call may come from any thread; calls of one runtime take turns under its lock, and none waits for I/O
 * except kvt_open, kvt_close and kvt_wait. After fork() the child gets KVT_SHUTDOWN from every call.
 * Units:   tokens are counted from the start of a sequence; sizes are bytes; times nanoseconds.
 */
#ifndef KVTIER_KVTIER_H
#define KVTIER_KVTIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/shape.h"
#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_VERSION 1

#define KVT_NO_SLOT UINT32_MAX

struct kvt_runtime;
struct kvt_env; /* runtime/base/env.h; callers outside the project pass NULL */

/* A sequence; a stale one is refused with KVT_INVAL. 0 is none. */
typedef uint64_t kvt_seq;
typedef uint64_t kvt_step;

/*
 * A stream of the engine's: cudaStream_t, or kvt_device_stream(rt, i) for an engine that has none. NULL is CUDA's legacy
 * default stream; an engine that is compiled for per-thread default streams passes cudaStreamPerThread, in the thread
 * whose stream it means.
 */
typedef void *kvt_stream;

enum kvt_device_kind { KVT_DEVICE_AUTO, KVT_DEVICE_CUDA, KVT_DEVICE_EMULATED };
/*
 * When blocks of idle sequences are fetched.
 * LOOKAHEAD: as kvt_expect() says. DEMAND: when the sequence is resumed. OFF: when a step asks for it.
 * SESSION: as with LOOKAHEAD; and idle sequences of which nothing was said are brought nearer before they are likely to
 * come back, as is learned from those that came back (kvt_seq_hint helps): into room that is free, or held by something
 * less likely to be used soon, while links are idle.
 */
enum kvt_prefetch { KVT_PREFETCH_LOOKAHEAD, KVT_PREFETCH_DEMAND, KVT_PREFETCH_OFF, KVT_PREFETCH_SESSION };

/*
 * Where the blocks of one layer group lie, when the engine owns the device memory: a segment for each (layer, plane) in layer
 * order, one for each layer in a state group. Segment s of slot n begins at base[s] + n * stride[s] and holds block_tokens rows
 * of the group (a state group: one state), `bytes` of them used. No byte is in two segments.
 * Everything is borrowed until kvt_open returns, and the memory itself until kvt_close does.
 */
struct kvt_device_map {
    uint32_t slots;         /* how many there are */
    uint32_t segment_count; /* layers * planes; 0: kvtier owns the memory of this group */
    void *const *base;      /* segment_count of them */
    const uint64_t *stride; /* from a slot to the next */
    uint64_t bytes;         /* of each segment: block_tokens rows */
};

struct kvt_config {
    uint32_t size;    /* sizeof(struct kvt_config) */
    uint32_t version; /* KVT_VERSION */

    struct kvt_model_shape shape;
    const char *model;    /* fingerprint of the weights: part of every key. NULL: "" */
    uint32_t rank, world; /* of a sharded cache: part of every key; world 0 means 1 */
    const void *secret;   /* keys the digests; NULL: none, so that restarts and other processes agree */
    size_t secret_bytes;  /* at most 64 */

    enum kvt_device_kind device;
    /* HBM for blocks that kvtier allocates; shared out to groups with different block bytes by what a token needs */
    uint64_t device_bytes;
    /*
     * one for each group of the shape, or NULL: kvtier owns all device memory. Groups with equal blocks share their slots when
     * their maps are the same, or when none of them has one
     */
    const struct kvt_device_map *device_maps;
    uint64_t host_bytes; /* pinned RAM: blocks, staging and scratch together; 0: no host and no nvme tier */
    /* directory of the store, or up to 8 on different devices with commas between; NULL: no nvme tier */
    const char *nvme_path;
    uint64_t nvme_bytes; /* disk space, as du sees it */
    /* endurance: written to the disk in 24 hours at most, but for what live sequences would lose; 0: no limit */
    uint64_t nvme_bytes_per_day;
    /* 32 bytes: what the store holds is encrypted and authenticated with it; borrowed for open. NULL: it is not */
    const uint8_t *nvme_key;
    bool is_codec_off; /* true: copies stay raw in every tier */
    bool
        is_codec_tables_off; /* true: copies are packed without tables of the channels' scales, which are learned from the
                                   first few hundred tokens otherwise; copies that were packed with them are still read */

    const char *device_policy; /* eviction; NULL: "lru" */
    const char *host_policy;   /* NULL: as device_policy */
    const char *admission;     /* to nvme; NULL: "budget" with nvme_bytes_per_day, otherwise "all" */
    enum kvt_prefetch prefetch;

    uint32_t sequences_max;        /* live at once; 0: 4096 */
    uint32_t transfers_max;        /* in flight at once; 0: 1024 */
    uint64_t prefetch_bytes_max;   /* in flight for prefetch; 0: 64 MiB */
    uint64_t transfer_deadline_ns; /* a transfer past it is abandoned: its waiters get a miss; 0: 30 s */
    uint64_t step_ns;              /* expected step time until it is measured; 0: 20 ms */
    /*
     * the engine's; a prefix that would take longer to fetch than to recompute is not fetched. 0: unknown, always fetch
     */
    uint64_t prefill_tokens_per_s;

    uint64_t link_hbm_bytes_per_s; /* pacing of the emulated device's link; 0: none */
    uint64_t link_hbm_latency_ns;
    uint64_t link_nvme_bytes_per_s; /* pacing of the store's disk; 0: none */

    const struct kvt_env *env; /* NULL: the real world */

    /*
     * true: a step may begin with sequences whose blocks are still on their way from host memory, layer by layer, so that
     * layer 0 is computed while layer 1 loads. Such a sequence is LANDING: the engine calls kvt_step_wait_layer before
     * each layer, and kvt_seq_landed before it uses what the step computed.
     */
    bool is_layered;
};

/* All zero but size, version, prefetch and the defaults above. */
KVT_API struct kvt_config kvt_config_default(void);

/*
 * Opens a runtime. INVAL: an impossible value; ret_error (which may be NULL) gets one line that names field, value and
 * rule.
 * BUSY: another process owns the store. NOMEM | IO | UNSUPPORTED: as they say. Nothing is left behind on failure.
 * The first sequence can be served at once: host memory is prepared in the background.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_open(const struct kvt_config *config, struct kvt_runtime **ret_runtime,
                                               char *ret_error, size_t error_bytes);

/*
 * Ends all sequences, drains, makes what was stashed durable, closes. Nulls the pointer; NULL is fine. When a device or a
 * disk has brought nothing back for transfer_deadline_ns, it is left as it is: what it may still write to stays mapped until
 * the process ends.
 */
KVT_API void kvt_close(struct kvt_runtime **runtime);

/*
 * Forgets every cached block in every tier: after it nothing stored before is ever found again, not after a restart
 * either, and nothing in flight is published later. Live sequences keep their blocks, unshared. *ret_kept: blocks that
 * live sequences still hold. IO: the store could not make it durable; its records are unreachable in this process.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_reset(struct kvt_runtime *runtime, uint64_t *ret_kept);

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

struct kvt_seq_params {
    const uint32_t *tokens; /* the prompt; borrowed for the call */
    uint64_t token_count;
    uint64_t reuse_max; /* reuse at most that many; UINT64_MAX: no limit */
    const void *salt;   /* tenants with different salts share nothing; NULL with 0: the common salt */
    size_t salt_bytes;
    bool is_idle; /* true: found and held, but not fetched until resumed or expected */
};

/*
 * Creates a sequence from the longest prefix that every layer group has in any tier, found and held in one step: at
 * most min(reuse_max, token_count - 1) tokens, a multiple of block_tokens. The sequence starts with *ret_reused
 * committed tokens; the caller appends and commits from there on.
 * FULL: too many sequences | NOMEM.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_create(struct kvt_runtime *runtime, const struct kvt_seq_params *params,
                                                     kvt_seq *ret_seq, uint64_t *ret_reused);

enum kvt_room {
    KVT_ROOM_OK,      /* the slots are there */
    KVT_ROOM_PENDING, /* room is being made: kvt_wait and ask again */
    /*
     * Active sequences claim everything: set one idle or finish one. Or the sequences that there are hold more blocks than
     * can be remembered, lost ones of idle sequences too: finish one, or cut one that lost some.
     */
    KVT_ROOM_FULL,
    KVT_ROOM_TOO_LONG /* more than the device alone holds */
};

/*
 * Reserves slots for n more tokens, all or none. In a state group the first append also gives the live state its slot.
 * A sequence that is not ready may append, and one in a step. INVAL: stale or idle sequence; or in a step that began
 * without reserved tokens on a sequence whose last block is shared or was cut (fork, truncate): reserve before
 * step_begin.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_append(struct kvt_runtime *runtime, kvt_seq seq, uint64_t n,
                                                     enum kvt_room *ret_room);

enum kvt_commit_flags {
    /* state groups: keep the state at the end of these tokens (a multiple of block_tokens) */
    KVT_COMMIT_SNAPSHOT = 1 << 0
};

/*
 * The KV of these n tokens (all groups) is written at this point of stream. In append order; full blocks are sealed
 * and can be shared from now on. INVAL, nothing changed: more than is reserved, stale or idle sequence, or not in a
 * step.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_commit(struct kvt_runtime *runtime, kvt_seq seq, const uint32_t *tokens,
                                                     uint64_t n, uint32_t flags, kvt_stream stream);

/*
 * A second sequence with the same committed tokens; blocks are shared, tail and state are copied when one of them
 * appends. What seq had reserved is given back. Of a sequence that is lost the fork is lost from the same token on.
 * FULL | INVAL: stale, in a step, or what it computed is still LANDING (kvt_seq_landed) | NOMEM.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_fork(struct kvt_runtime *runtime, kvt_seq seq, kvt_seq *ret_fork);

/*
 * Cuts the sequence to `tokens` committed tokens; reserved ones go first. tail_tokens: the ids of the last
 * tokens % block_tokens tokens that are kept, NULL when that is 0. *ret_kept <= tokens: what every group can still
 * serve; the tokens from there on must be computed again. When the device has no room for what a window needs again,
 * the sequence is idle afterwards: resume brings it back. INVAL: longer than the sequence, or in a step.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_truncate(struct kvt_runtime *runtime, kvt_seq seq, uint64_t tokens,
                                                       const uint32_t *tail_tokens, uint64_t *ret_kept);

/*
 * Drops all but the first `sinks` and the last `window` tokens, whole blocks only, in the full groups. What is computed
 * later attends to less, so its keys say so: it never matches a plain prefix. INVAL: in a step.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_window(struct kvt_runtime *runtime, kvt_seq seq, uint64_t sinks,
                                                     uint64_t window);

/* Between turns: the blocks stay held, and may leave the device. Reserved tokens are given back. INVAL: in a step. */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_idle(struct kvt_runtime *runtime, kvt_seq seq);

/* Whom the next turn of a sequence's conversation waits for, once this turn's answer is there. */
enum kvt_next {
    KVT_NEXT_UNKNOWN,
    KVT_NEXT_TOOL,   /* a program: it will be back soon */
    KVT_NEXT_PERSON, /* somebody who reads and thinks first */
    KVT_NEXT_NOBODY  /* the conversation is over */
};

struct kvt_seq_hint {
    enum kvt_next next;
    uint32_t turn; /* of the conversation, the first is 0; UINT32_MAX: unknown */
};

/*
 * What is known of the sequence beside its tokens, for eviction policies that ask and for KVT_PREFETCH_SESSION. Told
 * before kvt_seq_idle or kvt_seq_finish, it orders what they release, and says what the pause is like. It replaces what was told before; a fork inherits it. A
 * guess that is wrong costs hits, never bytes. INVAL: stale sequence, or no such `next`.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_hint(struct kvt_runtime *runtime, kvt_seq seq,
                                                   const struct kvt_seq_hint *hint);

/*
 * Claims the device again and fetches what is missing, before anything else. FULL in *ret_room: set another one idle
 * first.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_resume(struct kvt_runtime *runtime, kvt_seq seq, enum kvt_room *ret_room);

/*
 * Ends the sequence; never waits. keep: its sealed blocks stay cached. The handle is stale afterwards. INVAL: in a
 * step.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_finish(struct kvt_runtime *runtime, kvt_seq seq, bool keep);

/* Committed tokens of a sequence; 0 for a stale one. */
KVT_API uint64_t kvt_seq_tokens(struct kvt_runtime *runtime, kvt_seq seq);

/*
 * Slots of the sequence's blocks in one group, in token order from block *ret_first on (0 but in window groups);
 * KVT_NO_SLOT where a block was dropped, or is read through a reader (kvt_seq_stream). State group: one entry, the live
 * state. Valid from step_begin to step_end. In a LANDING sequence, a block that failed to land names some other slot: what
 * is computed from it is told to be lost. *ret_count: how many there are, also when more than max. INVAL: not in a step.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_table(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group,
                                                    uint32_t *ret_slots, uint64_t max, uint64_t *ret_first,
                                                    uint64_t *ret_count);

/* The same blocks' keys: what the bytes are a function of. A block that is not sealed has a zero key. */
struct kvt_block_key {
    uint64_t lo, hi;
};
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_keys(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group,
                                                   struct kvt_block_key *ret_keys, uint64_t max, uint64_t *ret_first,
                                                   uint64_t *ret_count);

/* ---- Look-ahead and steps ---------------------------------------------------------------------------------------- */

/*
 * Sequence i is expected to decode in steps[i] steps from now. Each call replaces what was said before of its
 * sequences. Drives prefetch of idle sequences; stale sequences are skipped.
 */
KVT_API void kvt_expect(struct kvt_runtime *runtime, const kvt_seq *seqs, const uint32_t *steps, uint32_t n);

enum kvt_ready {
    KVT_READY,     /* in the step */
    KVT_NOT_READY, /* blocks are on their way: not in the step */
    KVT_LOST,      /* tokens from lost_from on are gone: truncate to it and compute them again. Not in the step */
    KVT_LANDING    /* in the step, while some of its blocks are on their way (is_layered): kvt_step_wait_layer */
};

struct kvt_step_entry {
    kvt_seq seq;          /* in */
    enum kvt_ready ready; /* out */
    uint64_t lost_from;   /* out, when lost */
};

/*
 * Begins a step of the sequences that are ready (with is_layered also of those that are LANDING): their blocks are pinned
 * until step_end, and stream is ordered after everything that filled them. Never blocks. *ret_step is 0 when none was ready. INVAL: a stale, idle, or already
 * stepping sequence.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_step_begin(struct kvt_runtime *runtime, struct kvt_step_entry *entries,
                                                     uint32_t n, kvt_stream stream, kvt_step *ret_step);

/*
 * Orders stream behind what still fills this layer of a group, of all sequences in the step that are LANDING; the layers
 * before it are there too. Before the first kernel that reads the layer. Layer: counted in its group. Of a step without
 * such sequences it does nothing. INVAL: no such step, group or layer.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_step_wait_layer(struct kvt_runtime *runtime, kvt_step step, uint32_t group,
                                                          uint32_t layer, kvt_stream stream);

/*
 * Of a sequence that was LANDING in a step: did its blocks land? Ask when the stream has passed the end of the step, and
 * before what it computed is used. READY: all is right. NOT_READY: the runtime has not heard of all of them yet: kvt_wait,
 * and ask again; also while the step is open. LOST: a block did not land, or a layer was not waited for; tokens from
 * *ret_lost_from on are not what they should be: truncate, and compute them again. step_begin says the same. A sequence
 * that was cut to where those steps began, or below, is READY: what they computed is gone, and is not to be used. INVAL:
 * stale.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_landed(struct kvt_runtime *runtime, kvt_seq seq,
                                                     enum kvt_ready *ret_ready, uint64_t *ret_lost_from);

/* Everything of the step is submitted to its stream. INVAL: no such step. */
KVT_NODISCARD KVT_API enum kvt_status kvt_step_end(struct kvt_runtime *runtime, kvt_step step);

/* Why sequences are not ready: where the time goes. */
enum kvt_stall_cause {
    KVT_STALL_LATE_HINT,  /* look-ahead was told too late for the links */
    KVT_STALL_NO_SLOT,    /* no device or host slot was free */
    KVT_STALL_NVME_QUEUE, /* waiting for a place in the disk's queue */
    KVT_STALL_NVME_LINK,  /* the disk was reading it */
    KVT_STALL_HOST_LINK,  /* the host link was moving it */
    KVT_STALL_CODEC,      /* unpacking */
    KVT_STALL_OTHER,
    KVT_STALL_COUNT
};
KVT_API const char *kvt_stall_name(enum kvt_stall_cause cause);

/* What the sequence waits for at this moment; KVT_STALL_OTHER when it is ready. */
KVT_API enum kvt_stall_cause kvt_seq_stall(struct kvt_runtime *runtime, kvt_seq seq);

/*
 * Blocks until something became ready or room was made since the last call, or until timeout_ns has passed. False:
 * timed out.
 */
KVT_API bool kvt_wait(struct kvt_runtime *runtime, uint64_t timeout_ns);

/* Readable when kvt_wait would not block. Owned by the runtime. */
KVT_API int kvt_eventfd(struct kvt_runtime *runtime);

/* ---- Contexts that the device does not hold ---------------------------------------------------------------------- */

/*
 * A sequence that is streamed may be longer than the device. In its full groups it claims only what it writes: its tail
 * and the tokens it has reserved. At the end of the step that fills a block, the block may leave for host memory and
 * nvme, and is read through a reader from then on; kvt_seq_table has KVT_NO_SLOT for it. Everything else is as ever:
 *
 *     kvt_seq_create(rt, { ..., .is_idle = true }, &seq, &reused);  found, not claimed
 *     kvt_seq_stream(rt, seq);  kvt_seq_resume(rt, seq, &room);     streamed from now on
 *     kvt_reader_open(rt, seq, group, slots, &room, &reader);       a window of so many device slots
 *     each step, between begin and end, for layer after layer:
 *         kvt_reader_begin(rt, reader, layer, 0, blocks);           a pass over the layer's part of these blocks
 *         while kvt_reader_next(...) is KVT_PIECE_HERE: attend to the piece on stream, merge (kernels/attention.h)
 *         is KVT_PIECE_PENDING: kvt_wait, and ask again
 *     kvt_reader_close(rt, &reader);
 *
 * INVAL: stale, or not idle. It stays streamed until it ends; its forks are too.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_seq_stream(struct kvt_runtime *runtime, kvt_seq seq);

/* A window of a sequence's; ends with it. A stale one is refused with KVT_INVAL. 0 is none. */
typedef uint64_t kvt_reader_id;

/*
 * Takes `slots` device slots for a window of one group of a sequence (any, streamed or not). A slot has a place for each
 * of the group's layers, and a place takes one layer of one block: slots * layers blocks are on their way, or being
 * read, at a time. OK only with KVT_ROOM_OK. INVAL: stale, no such group, a state group, no slots. FULL: 16 are open |
 * NOMEM.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_reader_open(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group,
                                                      uint32_t slots, enum kvt_room *ret_room,
                                                      kvt_reader_id *ret_reader);

/*
 * Begins a pass through one layer of blocks [first, end) of the sequence, which is in a step; a pass that was under way
 * ends. What the first pieces need starts moving. A pass ends with its step. INVAL: stale, not in a step, no such layer,
 * or no such blocks.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_reader_begin(struct kvt_runtime *runtime, kvt_reader_id reader,
                                                       uint32_t layer, uint64_t first, uint64_t end);

enum kvt_piece_state {
    KVT_PIECE_HERE,    /* the next blocks are there */
    KVT_PIECE_PENDING, /* they are on their way: kvt_wait and ask again */
    KVT_PIECE_END,     /* the pass is over */
    KVT_PIECE_LOST     /* tokens from lost_from on are gone: end the step, truncate, and compute them again */
};
struct kvt_piece {
    enum kvt_piece_state state;
    uint64_t first; /* block number of the first one; they follow each other */
    uint32_t count;
    uint64_t lost_from; /* when lost */
};

/*
 * The next blocks of the pass, at most max, in order. ret_chunks: where the layer of each lies: chunk c is the place of layer
 * c % layers in slot c / layers, whichever layer it holds. So in memory that kvtier owns it starts at kvt_device_slot(runtime,
 * group, 0) + c * (block bytes / layers), K before V. KVT_NO_SLOT where a window dropped the
 * block. They are ordered before whatever is submitted to stream from now on, and stay where they are until everything
 * submitted to stream before the next call on this reader (or the end of the step) is done. INVAL: stale, not in a step,
 * or no pass.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_reader_next(struct kvt_runtime *runtime, kvt_reader_id reader,
                                                      kvt_stream stream, uint32_t *ret_chunks, uint32_t max,
                                                      struct kvt_piece *ret_piece);

/* Gives the window back. Not in a step: INVAL. A stale one is fine. Zeroes the reader when OK. */
KVT_NODISCARD KVT_API enum kvt_status kvt_reader_close(struct kvt_runtime *runtime, kvt_reader_id *reader);

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

enum { KVT_TIER_DEVICE, KVT_TIER_HOST, KVT_TIER_NVME, KVT_TIERS };

struct kvt_tier_stats {
    uint64_t capacity_bytes, used_bytes, peak_bytes;
    uint64_t blocks;              /* resident copies at this moment */
    uint64_t blocks_max;          /* peak of it */
    uint64_t hits, misses;        /* blocks found here, and not found here, by create */
    uint64_t evictions;           /* copies that made room for others */
    uint64_t bytes_in, bytes_out; /* as they crossed, packed or raw */
};

struct kvt_stats {
    struct kvt_tier_stats tiers[KVT_TIERS];
    uint64_t sequences, sequences_max;
    uint64_t blocks; /* known to the core */
    /* of live sequences on the device: tokens that fit in their slots, tokens committed */
    uint64_t slot_tokens, used_tokens;
    uint64_t stashes, fetches, copies;       /* transfers that completed */
    uint64_t failures, abandoned;            /* transfers that failed; that passed their deadline */
    uint64_t quarantined;                    /* slots that wait for a device or a kernel to be done with them */
    uint64_t lost_blocks;                    /* of live sequences */
    uint64_t dropped_blocks;                 /* cached ones that found no room below */
    uint64_t packed_blocks, raw_blocks;      /* stashes from the device by form */
    uint64_t packed_bytes, packed_raw_bytes; /* what they took, and would have taken raw */
    uint64_t host_raw_equivalent_bytes;      /* raw bytes of what the host tier holds now */
    /* memory of the slots that hold it: used_bytes without the buffers of transfers */
    uint64_t host_slot_bytes;
    /* written: raw bytes of the blocks; record bytes with header and padding */
    uint64_t store_raw_bytes, store_stored_bytes;
    uint64_t store_allocated_bytes, store_allocated_peak; /* as du sees it */
    uint64_t store_records;
    /* to the device, all in all; in the last 24 hours, restarts included */
    uint64_t store_written_bytes, store_day_bytes;
    double store_write_amplification;          /* written over stored; 0: nothing was stored */
    uint64_t bookkeeping_bytes;                /* the core's tables, touched or not */
    uint64_t prefetched_blocks, demand_blocks; /* fetches to the device by reason */
    uint64_t window_chunks;                    /* layers of blocks that came through readers' windows */
    /* KVT_PREFETCH_SESSION: copies brought nearer; of them those that were used, and those that left again unused */
    uint64_t foreseen_blocks, foreseen_used_blocks, foreseen_wasted_blocks;
};

KVT_API void kvt_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats);

/*
 * The same and more for a monitoring system, in the OpenMetrics text format 1.0.0: hits by tier, latencies of each link
 * as histograms, stalls by cause, failures and drops by reason, the endurance budget left. Counters start at open.
 * Writes at most `bytes` bytes, the final NUL included, and returns the length of the whole text without it, as
 * snprintf does: when that is not less than `bytes`, ask again with more room (64 KiB is enough). 0 in a child of fork.
 * docs/operations.md explains each family.
 */
KVT_API size_t kvt_metrics_text(struct kvt_runtime *runtime, char *ret_text, size_t bytes);

/* ---- The device -------------------------------------------------------------------------------------------------- */

/* Which device it is: "cuda" or "emulated". */
KVT_API const char *kvt_device_name(struct kvt_runtime *runtime);

/*
 * Address of a slot of a group in device memory that kvtier owns; the CPU may use it on an emulated device only. NULL: the
 * engine owns it, or there is no such slot.
 */
KVT_API void *kvt_device_slot(struct kvt_runtime *runtime, uint32_t group, uint32_t slot);

/* Slots of the pool that the group lives in; 0: no such group. */
KVT_API uint32_t kvt_device_slots(struct kvt_runtime *runtime, uint32_t group);

/* The i-th stream (0 to 7) for an engine that has none of its own; the runtime's, until close. NULL: refused. */
KVT_API kvt_stream kvt_device_stream(struct kvt_runtime *runtime, uint32_t i);

/*
 * Copies a part of a slot in device memory that kvtier owns, in the order of the stream; host is borrowed until the stream has
 * come so far, and should be pinned. INVAL: no such slot or part | FULL | NOMEM.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_device_read(struct kvt_runtime *runtime, kvt_stream stream, uint32_t group,
                                                      uint32_t slot, uint64_t offset, void *host, uint64_t size_bytes);
KVT_NODISCARD KVT_API enum kvt_status kvt_device_write(struct kvt_runtime *runtime, kvt_stream stream, uint32_t group,
                                                       uint32_t slot, uint64_t offset, const void *host,
                                                       uint64_t size_bytes);

/* Waits until everything on the stream so far is done. False: timeout_ns have passed before. */
KVT_API bool kvt_device_wait(struct kvt_runtime *runtime, kvt_stream stream, uint64_t timeout_ns);

/*
 * Zeroed host memory that the device copies from and to by itself; ordinary memory where that is refused. NULL: refused, or
 * 0 bytes.
 */
KVT_API void *kvt_host_alloc(struct kvt_runtime *runtime, size_t size_bytes);
/* Nothing may be on its way from or to it. The size is that of the allocation; NULL is fine. */
KVT_API void kvt_host_free(struct kvt_runtime *runtime, void *memory, size_t size_bytes);

/* True once the device has failed for good: whatever it is asked for fails from then on. */
KVT_API bool kvt_device_is_lost(struct kvt_runtime *runtime);

/* ---- The emulated device ----------------------------------------------------------------------------------------- */

/* The i-th engine stream (0 to 7) of an emulated device; NULL on a real one. */
KVT_API kvt_stream kvt_emulated_stream(struct kvt_runtime *runtime, uint32_t i);

/* Runs run(user) on the stream in its turn: a kernel. UNSUPPORTED on a real device | INVAL: no run, no such stream. */
KVT_NODISCARD KVT_API enum kvt_status kvt_emulated_launch(struct kvt_runtime *runtime, kvt_stream stream,
                                                          void (*run)(void *user), void *user);

/* Blocks until everything launched on the stream has run. */
KVT_API void kvt_emulated_synchronize(struct kvt_runtime *runtime, kvt_stream stream);

#ifdef __cplusplus
}
#endif

#endif
