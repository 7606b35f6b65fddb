/*
 * reader: a window of device slots through which one layer after the other of a sequence's blocks passes, so that a
 * context is read that the device does not hold.
 *
 * A window of n slots has n * layers places, each for one layer of one block. A pass goes through blocks [first, end) of
 * the sequence for one layer: the entry of block i uses place i % places, and passes
 *
 *     WANTED --> MOVING --> LANDED --> handed out --> released       from host memory, through the place
 *       |  ^-------'(failed: again)
 *       |------> DIRECT -------------> handed out --> released       on the device already: read where it is, claimed
 *       |------> HOLE                                                dropped by a window: nothing to read
 *       '------> LOST                                                no tier has it
 *
 * What was handed out is released by the next call: a place is filled again only behind the mark that the stream has
 * there (invariant 6). A block that only nvme has is lifted to host memory first, and leaves it again behind its layer
 * when host memory is full, so that one pass does not push out what the next one finds there.
 *
 * Owns:    the window's blocks (private, claimed, never stashed), a hold and a claim on each DIRECT entry.
 * Thread:  under the runtime's lock.
 * Memory:  taken at open, given back at close.
 */
#ifndef KVT_RUNTIME_READER_H
#define KVT_RUNTIME_READER_H

#include "kernels/gpu.h"
#include "kvtier/kvtier.h"
#include "runtime/sequence.h"

#define KVT_READERS_MAX 16

struct kvt_core;

enum kvt_entry_state {
    KVT_ENTRY_WANTED,
    KVT_ENTRY_MOVING,
    KVT_ENTRY_LANDED,
    KVT_ENTRY_DIRECT,
    KVT_ENTRY_HOLE,
    KVT_ENTRY_LOST
};

/*    event    from     to                                                                         */
#define KVT_ENTRY_EDGES(X)                                                 \
    X(MOVE, WANTED, MOVING)  /* its layer is on its way to its place */    \
    X(LAND, MOVING, LANDED)  /* and there */                               \
    X(AGAIN, MOVING, WANTED) /* it failed, or took too long */             \
    X(GIVE_UP, MOVING, LOST) /* too often */                               \
    X(CLAIM, WANTED, DIRECT) /* on the device already: held and claimed */ \
    X(PASS_BY, WANTED, HOLE) /* there is no block */                       \
    X(LOSE, WANTED, LOST)    /* no tier has it */

enum kvt_entry_event {
#define KVT_ENTRY_EVENT(event, from, to) KVT_ENTRY_##event,
    KVT_ENTRY_EDGES(KVT_ENTRY_EVENT)
#undef KVT_ENTRY_EVENT
        KVT_ENTRY_EVENTS
};

struct kvt_reader_entry {
    uint8_t state; /* enum kvt_entry_state */
    uint8_t retries;
    bool is_lifted; /* brought from nvme for this pass */
    uint32_t block; /* the sequence's */
};

struct kvt_reader {
    uint32_t generation;
    bool is_open;
    kvt_seq seq;
    uint32_t group, layers;
    uint32_t slot_count, place_count;
    uint32_t *window;                 /* [slot_count] its blocks */
    struct kvt_reader_entry *entries; /* [place_count] a ring */
    kvt_mark *marks;                  /* [place_count] last compute use of each place */
    uint32_t layer;
    uint32_t stream; /* of the piece that was handed out last */
    uint32_t pass; /* how many were begun: a transfer of an earlier one is nobody's */
    /* Block numbers: below freed done with, then handed out, then on their way, then to come. */
    uint64_t freed, given, started, end;
};

/* OK in *ret_room: the reader is open. INVAL: a state group, or no slots | NOMEM | FULL: KVT_READERS_MAX are open. */
KVT_NODISCARD enum kvt_status kvt_reader_take(struct kvt_core *core, struct kvt_sequence *sequence, uint32_t group,
                                              uint32_t slots, enum kvt_room *ret_room, kvt_reader_id *ret_reader);
/* The reader of a handle, NULL when it is stale. */
struct kvt_reader *kvt_reader_of(struct kvt_core *core, kvt_reader_id reader);
/* Gives the window back. */
void kvt_reader_give(struct kvt_core *core, struct kvt_reader *reader);

/* Begins a pass; the one before ends. INVAL: the sequence is in no step, or no such layer or blocks. */
KVT_NODISCARD enum kvt_status kvt_reader_pass(struct kvt_core *core, struct kvt_reader *reader, uint32_t layer,
                                              uint64_t first, uint64_t end);
/* Hands out the next blocks. INVAL: the sequence is in no step. */
KVT_NODISCARD enum kvt_status kvt_reader_next_piece(struct kvt_core *core, struct kvt_reader *reader, uint32_t stream,
                                                    uint32_t *ret_chunks, uint32_t max, struct kvt_piece *ret_piece);

/* What the next blocks of the sequence's passes wait for; KVT_STALL_OTHER: nothing. */
enum kvt_stall_cause kvt_readers_stall(struct kvt_core *core, const struct kvt_sequence *sequence);

/* A layer has landed in its place, or not. */
void kvt_reader_landed(struct kvt_core *core, uint32_t reader, uint32_t pass, uint32_t entry, enum kvt_status status);

/* Starts what can start now, for all readers. */
void kvt_readers_pump(struct kvt_core *core);
/* The sequence's step ends: its passes end with it. */
void kvt_readers_end_of(struct kvt_core *core, const struct kvt_sequence *sequence);
/* The sequence ends. */
void kvt_readers_close_of(struct kvt_core *core, const struct kvt_sequence *sequence);

/* Memory only: everything of it was given back. */
void kvt_reader_free(struct kvt_reader *reader);

#endif
