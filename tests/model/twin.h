/*
 * twin: what a cache of KV must give back, told in the simplest way there is.
 *
 * A token's bytes are a pure function of its value; its value is a digest of everything that its computation could see:
 * the salt, all tokens before it, itself, and which blocks had been dropped. Two tokens of equal value have equal bytes
 * in every group, so a shared block is right exactly when the values agree. The twin never looks at keys.
 *
 * A sequence is a flat list of tokens. What was ever sealed is a set of (value at the end of a block, group).
 */
#ifndef KVT_TESTS_MODEL_TWIN_H
#define KVT_TESTS_MODEL_TWIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"

#define TWIN_TOKENS_MAX 640

struct twin_sequence {
    bool is_live;
    kvt_seq handle;
    uint32_t salt;
    uint32_t tokens;  /* committed */
    uint32_t prompt;  /* ids below it are decided */
    bool is_unshared; /* a reset came in between: seals nothing that others find */
    uint32_t ids[TWIN_TOKENS_MAX + 1];
    uint64_t value[TWIN_TOKENS_MAX + 1]; /* of token i */
    uint64_t past[TWIN_TOKENS_MAX + 2];  /* what the token at position i can see */
    /* block i was dropped from the full groups at that length; 0: it is there */
    uint32_t dropped_at[TWIN_TOKENS_MAX + 1];
    uint32_t last_drop; /* length at the last drop; 0: none */
};

struct twin {
    struct kvt_model_shape shape;
    uint64_t *sealed; /* open addressing; 0: empty */
    uint32_t capacity, count;
};

void twin_init(struct twin *twin, const struct kvt_model_shape *shape);
void twin_done(struct twin *twin);

/* A sequence without tokens. */
void twin_begin(struct twin_sequence *sequence, uint32_t salt);
/* The token at the end of the sequence. */
void twin_push(struct twin_sequence *sequence, uint32_t id);
/* Keeps the first tokens. */
void twin_cut(const struct twin *twin, struct twin_sequence *sequence, uint32_t tokens);
/* Drops blocks [from, to) of the full groups. False: they had been dropped before. */
bool twin_drop(struct twin_sequence *sequence, uint32_t from, uint32_t to, uint32_t sinks, uint32_t window);

/* The value of the last token of block i. */
uint64_t twin_block_value(const struct twin *twin, const struct twin_sequence *sequence, uint32_t i);

void twin_seal(struct twin *twin, uint32_t group, uint64_t value);
bool twin_was_sealed(const struct twin *twin, uint32_t group, uint64_t value);
/* A reset: nothing was ever sealed. */
void twin_forget(struct twin *twin);
/* All that was sealed in the other one was sealed in this one too. */
void twin_add(struct twin *twin, const struct twin *other);

/*
 * True when every group was once sealed as far as a prefix of so many blocks needs; `ids` as in `sequence`, with
 * values.
 */
bool twin_is_prefix(const struct twin *twin, const struct twin_sequence *sequence, uint32_t blocks);

/* First block that the group needs for the next token after so many, beside its sinks. */
uint32_t twin_first_needed(const struct twin *twin, uint32_t group, uint32_t tokens);
uint32_t twin_sink_blocks(const struct twin *twin, uint32_t group);

/* The bytes of a row: of one token, layer and plane; in a state group of one layer's state after that token. */
void twin_row(uint64_t value, uint32_t group, uint32_t segment, uint8_t *ret_bytes, uint32_t size);

#endif
