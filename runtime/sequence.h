/*
 * sequence: a request: for each layer group an ordered table of blocks, and a length in tokens.
 *
 * A sequence holds every block in its tables (the block may move, not be lost) and, while it is active, claims for the
 * device the blocks that its next step needs: all of a full group, the window of a window group, the live state of a
 * state group.
 *
 *     FREE --create--> ACTIVE <--resume/idle--> IDLE --prefetch--> WARMING --resume--> ACTIVE
 *                                                IDLE <--revoke--- WARMING
 *
 * A streamed sequence may be longer than the device: of a full group it claims its tail and what it has reserved, and
 * gives the claim of a block back at the end of the step that filled it. It never warms.
 *
 * A warming sequence claims its blocks one by one as their fetches start; the planner may revoke that when active ones
 * need room.
 *
 * Thread:  under the runtime's lock.
 * Memory:  tables double as a sequence grows; at most one number a block and group.
 */
#ifndef KVT_RUNTIME_SEQUENCE_H
#define KVT_RUNTIME_SEQUENCE_H

#include "kernels/gpu.h"
#include "runtime/block.h"

#define KVT_NO_SEQUENCE UINT32_MAX

struct kvt_core;
struct kvt_step_state;

enum kvt_sequence_mode { KVT_SEQUENCE_FREE, KVT_SEQUENCE_IDLE, KVT_SEQUENCE_WARMING, KVT_SEQUENCE_ACTIVE };

/* The blocks of one group. Entry i covers tokens [i * block_tokens, (i + 1) * block_tokens); KVT_NO_BLOCK: dropped. */
struct kvt_sequence_table {
    uint32_t *blocks;
    uint32_t count; /* entries in use */
    uint32_t capacity;
    uint32_t first; /* window groups: entries below it (but the sinks) are gone */
    uint32_t ready; /* entries below it are known to be on the device while the sequence is active */
    /* a streamed sequence's full groups: entries below it are held, and never claimed; 0 otherwise */
    uint32_t claimed_from;
    uint32_t live;  /* state groups: the live state; KVT_NO_BLOCK before the first append */
    uint32_t spare; /* state groups: slot's block for the next snapshot */
};

/* A place in a sequence's blocks, groups one after the other. */
struct kvt_sequence_cursor {
    uint32_t group, index;
};

struct kvt_sequence_list {
    uint32_t head, tail;
};

struct kvt_sequence {
    uint32_t generation;
    uint8_t mode;     /* enum kvt_sequence_mode */
    bool is_unshared; /* seals nothing under a public key any more (a reset came in between) */
    bool is_streamed; /* claims of its full groups only what it writes: the rest is read through a window (reader.h) */
    uint8_t retries;  /* fetches begun again after a failure since it was last ready */
    uint32_t step;    /* open step it is in; UINT32_MAX */
    uint32_t step_next;
    uint64_t tokens;   /* committed */
    uint64_t reserved; /* committed and reserved: slots are there for so many */
    uint64_t reused;   /* tokens that create found */
    struct kvt_key_root root;
    struct kvt_key chain;      /* key of the block before the tail */
    uint64_t drop_tokens;      /* committed tokens at the last window drop; 0: none */
    struct kvt_key drop_chain; /* the chain that the drop left */
    uint32_t *tail_tokens;     /* ids of the tokens % block_tokens committed tokens of the tail */
    struct kvt_sequence_table groups[KVT_GROUPS_MAX];
    struct kvt_sequence_cursor fetch; /* what is claimed and started lies before it */
    kvt_mark last_mark;               /* end of the last step it was in */
    uint64_t need_ns;                 /* when it is expected to decode */
    uint64_t told_ns;                 /* when that was said */
    uint64_t demand_ns;               /* when it asked for its blocks */
    bool is_stalled;     /* a step wanted it and it was not ready, since stalled_ns, first for this cause */
    uint8_t stall_cause; /* enum kvt_stall_cause */
    uint64_t stalled_ns;
    bool is_hint_late;       /* look-ahead came too late for the links to bring it in time */
    uint32_t previous, next; /* in core->demand, expected or foreseen */
    uint8_t list;            /* enum kvt_sequence_list_id */
    uint64_t lost_from;      /* UINT64_MAX: nothing lost */
    /* What is computed from here on may have read what had not landed (layers.h); UINT64_MAX: nothing is. */
    uint64_t suspect_from;
    uint64_t failures_seen; /* core.fill_failures when that began */
    uint64_t landing_last;  /* core.landings when its last blocks began to land */
    bool is_unwaited;       /* its step did not wait for a layer that was on its way */
    bool is_whole;          /* brought whole until it is ready: all at once did not fit */
    uint8_t landing_tries;
    uint32_t turn;      /* as kvt_seq_hint told; UINT32_MAX: unknown */
    uint8_t next_use;   /* enum kvt_next */
    bool is_hint_fresh; /* told since it was resumed last */
    /* For foresight.h, while it is idle and followed: since when (0: it is not), and what was told for this pause. */
    uint64_t idle_ns;
    uint32_t idle_turn;
    uint8_t idle_next;
    bool has_left;                   /* some block of it may not be on the device */
    bool is_coming;                  /* some block of it was brought to host memory in this look */
    uint32_t look_place;             /* in the heap of looks, counted from 1; 0: it is not there */
    uint64_t look_ns;                /* when it is looked at next */
    struct kvt_sequence_cursor near; /* what lies before it was looked at */
};

enum kvt_sequence_list_id { KVT_LIST_NONE, KVT_LIST_DEMAND, KVT_LIST_EXPECTED, KVT_LIST_FORESEEN };

/* ---- sequence.c ---- */

/* The sequence of a handle, NULL when it is stale. */
struct kvt_sequence *kvt_sequence_of(struct kvt_core *core, kvt_seq seq);
kvt_seq kvt_sequence_handle(const struct kvt_core *core, const struct kvt_sequence *sequence);

/* A fresh active or idle sequence without blocks. NULL: too many, or no memory. */
struct kvt_sequence *kvt_sequence_begin(struct kvt_core *core, bool is_idle);
/* Which of the two it was. */
enum kvt_status kvt_sequence_refusal(const struct kvt_core *core);

enum kvt_status kvt_sequence_append(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t n,
                                    enum kvt_room *ret_room);
/* given_keys: the keys of the blocks that fill up, in order, instead of digests; NULL: computed. */
enum kvt_status kvt_sequence_commit(struct kvt_core *core, struct kvt_sequence *sequence, const uint32_t *tokens,
                                    uint64_t n, uint32_t flags, uint32_t stream, const struct kvt_key *given_keys);
enum kvt_status kvt_sequence_fork(struct kvt_core *core, struct kvt_sequence *sequence, struct kvt_sequence **ret_fork);
enum kvt_status kvt_sequence_truncate(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t tokens,
                                      const uint32_t *tail_tokens, uint64_t *ret_kept);
enum kvt_status kvt_sequence_window(struct kvt_core *core, struct kvt_sequence *sequence, uint64_t sinks,
                                    uint64_t window);
enum kvt_status kvt_sequence_idle(struct kvt_core *core, struct kvt_sequence *sequence);
enum kvt_status kvt_sequence_resume(struct kvt_core *core, struct kvt_sequence *sequence, enum kvt_room *ret_room);
void kvt_sequence_finish(struct kvt_core *core, struct kvt_sequence *sequence, bool is_kept);

/* Streams the sequence from now on. INVAL: it is not idle. */
enum kvt_status kvt_sequence_stream(struct kvt_core *core, struct kvt_sequence *sequence);
/* Sees to it that so many slots of each pool can be claimed and are free. OK | PENDING | FULL. */
enum kvt_room kvt_sequence_room_for(struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX]);
/* Takes claims back from warming sequences until `need` more blocks can be claimed. False: they cannot. */
bool kvt_sequence_make_claimable(struct kvt_core *core, const uint32_t need[KVT_GROUPS_MAX]);

/*
 * Gives back what lies outside the window after the sequence's last step, and what a streamed one has filled; its blocks
 * stay cached.
 */
void kvt_sequence_slide(struct kvt_core *core, struct kvt_sequence *sequence);
/* A warming sequence gives its claims back. */
void kvt_sequence_revoke(struct kvt_core *core, struct kvt_sequence *sequence);
/* Everything from the entry on is not known to be on the device: it must be started again. */
void kvt_sequence_rewind(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint32_t index);

void kvt_sequence_list_append(struct kvt_core *core, struct kvt_sequence *sequence, enum kvt_sequence_list_id list);
void kvt_sequence_list_remove(struct kvt_core *core, struct kvt_sequence *sequence);

/* Makes room for `count` entries. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_sequence_table_reserve(struct kvt_sequence_table *table, uint64_t count);
/* Appends a block to a group's table. NOMEM. */
enum kvt_status kvt_sequence_push(struct kvt_sequence_table *table, uint32_t block);

/* Removes table entries from `count` on, the last first. */
void kvt_sequence_pop(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group, uint64_t count);
/* Gives back the slots that were reserved and not committed. */
void kvt_sequence_drop_reserved(struct kvt_core *core, struct kvt_sequence *sequence);
/* Lets go of one block: its claim, when the sequence has one, and its hold. */
void kvt_sequence_let_go(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t index, bool is_claimed);
/*
 * True when the sequence claims the block at this place: an active one claims all, a warming one those before its
 * cursor.
 */
bool kvt_sequence_claims(const struct kvt_sequence *sequence, uint32_t group, uint32_t index);
/*
 * A private block of `group` that starts as a copy of `origin`, held and claimed once. KVT_NO_BLOCK: the table is full.
 */
uint32_t kvt_sequence_copy_of(struct kvt_core *core, uint32_t group, uint32_t origin, uint32_t tokens, bool is_claimed);

/* ---- sequence_cut.c: truncate, window ---- */

/* ---- lookup.c ---- */
enum kvt_status kvt_sequence_create(struct kvt_core *core, const struct kvt_seq_params *params,
                                    struct kvt_sequence **ret_sequence);

/* ---- step.c ---- */
/* The open step of a handle; NULL: there is none. */
struct kvt_step_state *kvt_core_step_of(struct kvt_core *core, kvt_step step);
void kvt_core_expect(struct kvt_core *core, const kvt_seq *seqs, const uint32_t *steps, uint32_t n);
enum kvt_status kvt_core_step_begin(struct kvt_core *core, struct kvt_step_entry *entries, uint32_t n, uint32_t stream,
                                    kvt_step *ret_step);
enum kvt_status kvt_core_step_end(struct kvt_core *core, kvt_step step);
/*
 * Before a sequence that is in a step reserves more, what step_begin does for those that reserved before it: the copies
 * that will be out of date go, and the stream is ordered after whatever used the slots. False: something still reads;
 * ask again.
 */
bool kvt_core_step_extend(struct kvt_core *core, struct kvt_sequence *sequence);
/* It is ready, or nobody waits for it any more. */
void kvt_core_end_stall(struct kvt_core *core, struct kvt_sequence *sequence);
/*
 * Blocks that the stream reads may have been written on other streams; slots that it writes may have been used there
 * before: what it does from now on comes after.
 */
void kvt_core_order_after_other_streams(struct kvt_core *core, uint32_t stream);
enum kvt_stall_cause kvt_core_stall(struct kvt_core *core, struct kvt_sequence *sequence);

#endif
