/*
 * attached: what a connector that is attached to a context consists of, for the files of this folder.
 *
 * keys.c says what records are called, shift.c which sequences are not what they seem, match.c which of them
 * make a prefix, save.c and restore.c move them between the engine and the vault, whole.c does both for states
 * that are not split, attach.c learns all that is learned once.
 */
#ifndef KVT_CONNECTORS_LLAMA_ATTACHED_H
#define KVT_CONNECTORS_LLAMA_ATTACHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connectors/llama/blocks.h"
#include "connectors/llama/engine.h"
#include "connectors/llama/state.h"
#include "connectors/llama/vault.h"
#include "kvtier/llama.h"
#include "runtime/base/env.h"
#include "runtime/base/key.h"

enum { KVT_LLAMA_FULL, KVT_LLAMA_WINDOW }; /* which cache is which */

/* A record that restores a part of a prefix. */
struct kvt_llama_piece {
    struct kvt_key key;
    uint32_t cache;
    uint32_t from, tokens;         /* of the record: its first token in its block, and how many */
    uint64_t use_first, use_count; /* the part of it that is wanted: position, tokens */
    uint64_t block_first;          /* position of the block's first token */
    bool is_there;                 /* restore: it was read and unpacked */
};

/* A prefix that can be restored: the longest one, or none. */
struct kvt_llama_plan {
    uint64_t tokens; /* 0: none */
    struct kvt_llama_span spans[KVT_LLAMA_CACHES_MAX];
    struct kvt_llama_piece *pieces;
    uint32_t count, capacity;
};

/* A token as it was last seen in a sequence: shift.c. */
struct kvt_llama_seen {
    int32_t token;
    uint32_t sum; /* of its V */
};

struct kvt_llama_seq {
    bool is_tainted;
    uint64_t saved_tokens; /* by the last save; 0: none since it was emptied */
    struct kvt_llama_seen *seen;
    uint64_t seen_count, seen_capacity;
};

struct kvt_llama {
    struct kvt_llama_engine engine;
    struct llama_context *ctx;
    struct llama_memory_i *memory;
    struct kvt_env env;
    void (*log)(void *log_user, int level, const char *line);
    void *log_user;

    struct kvt_llama_layout layout;
    struct kvt_llama_blocks blocks;
    struct kvt_llama_vault *vault;
    struct kvt_key space;
    struct kvt_key_root root;
    uint32_t block_tokens, window_tokens; /* window: 0 without window layers */
    uint32_t ring_tokens; /* cells of one sequence in the window layers' cache; 0: not known, or shared by sequences */
    bool is_whole;

    struct kvt_llama_seq *seqs;
    uint32_t seq_count;

    uint8_t *staging; /* a state of one sequence */
    size_t staging_bytes;
    uint8_t *record;
    size_t record_bytes;
    uint32_t *cell_of; /* position - first -> cell, of each cache in turn */
    uint64_t cell_of_count;

    struct kvt_key *chain; /* chain[k]: of the first k blocks of the tokens at hand */
    uint64_t chain_capacity;
    uint8_t *known;  /* of each cache and block: 0 not asked yet, 1 there, 2 not there */
    uint16_t *tails; /* of each cache and block: its longest tail, when it was looked for; UINT16_MAX: it was not */
    uint64_t known_capacity;
    struct kvt_llama_plan plan;
    uint32_t tables_known; /* of the codec: saved, and packed with */

    struct kvt_llama_stats stats;
};

/*
 * ---- keys.c
 * ----------------------------------------------------------------------------------------------------------
 */

enum kvt_llama_record_kind { KVT_LLAMA_RECORD_BLOCK, KVT_LLAMA_RECORD_WHOLE, KVT_LLAMA_RECORD_TABLES };

/* Fills llama->chain for the full blocks of these tokens. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_llama_chain(struct kvt_llama *llama, const int32_t *tokens, uint64_t count);

/* The chain's end after block `block` with its first `tokens` tokens; the chain is filled up to that block. */
struct kvt_key kvt_llama_chain_end(const struct kvt_llama *llama, const int32_t *tokens, uint64_t block,
                                   uint32_t count);

/* A block's record: cache, and its first token in its block; a whole state's: 0 and the number of the part. */
struct kvt_key kvt_llama_record_key(enum kvt_llama_record_kind kind, uint32_t cache, uint32_t from, struct kvt_key end);

/*
 * ---- match.c
 * ---------------------------------------------------------------------------------------------------------
 */

/* The longest prefix of at most tokens_max tokens, into llama->plan. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_llama_plan_prefix(struct kvt_llama *llama, const int32_t *tokens, uint64_t count,
                                                    uint64_t tokens_max);
KVT_NODISCARD enum kvt_status kvt_llama_plan_add(struct kvt_llama_plan *plan, const struct kvt_llama_piece *piece);

/*
 * ---- save.c, restore.c, whole.c: what the public calls do once their arguments are checked
 * ------------------------------
 */

KVT_NODISCARD enum kvt_status kvt_llama_save_blocks(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                    uint64_t count, const struct kvt_llama_state_view *view);
KVT_NODISCARD enum kvt_status kvt_llama_restore_blocks(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                       uint64_t count, uint64_t tokens_max, uint64_t *ret_tokens);
KVT_NODISCARD enum kvt_status kvt_llama_save_whole(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                   uint64_t count, size_t size);
KVT_NODISCARD enum kvt_status kvt_llama_restore_whole(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                      uint64_t tokens_max, uint64_t *ret_tokens);
/* The longest whole state of at most tokens_max tokens; 0: none. */
uint64_t kvt_llama_match_whole(struct kvt_llama *llama, const int32_t *tokens, uint64_t tokens_max);
uint64_t kvt_llama_forget_whole(struct kvt_llama *llama, const int32_t *tokens, uint64_t count);

/*
 * Remembers what a sequence holds: tokens 0 to count - 1, token i in cell cells[i], or i when cells is NULL.
 * INVAL: it was shifted since it was seen last | NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_llama_see(struct kvt_llama *llama, int32_t seq_id, const int32_t *tokens,
                                            uint64_t count, const uint8_t *state,
                                            const struct kvt_llama_cache_view *view, const uint32_t *cells);

/* Room for a state of so many bytes in llama->staging. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_llama_staging(struct kvt_llama *llama, size_t bytes);
/* Gives it back when it is large. */
void kvt_llama_staging_trim(struct kvt_llama *llama);

/* The state of a sequence, into llama->staging. NOMEM | IO: the engine gave another size than it said. */
KVT_NODISCARD enum kvt_status kvt_llama_read_state(struct kvt_llama *llama, int32_t seq, size_t *ret_size);

/*
 * Hands the engine a state of `tokens` tokens and checks what it made of it. False: it refused, or took it for
 * something else; the sequence is empty then.
 */
bool kvt_llama_hand_over(struct kvt_llama *llama, int32_t seq, const uint8_t *state, size_t size, uint64_t tokens);

/* By what the engine says of its other sequences: whether so many tokens fit into this one. */
bool kvt_llama_has_room(struct kvt_llama *llama, int32_t seq, uint64_t tokens);

void kvt_llama_empty_seq(struct kvt_llama *llama, int32_t seq);

/*
 * ---- attach.c, tables.c
 * ------------------------------------------------------------------------------------------------
 */

/*
 * Learns the layout of states, checks that they can be taken apart and put together, and makes the name of all that
 * computes other bytes (llama->space). blocks is ready afterwards. As kvt_llama_attach.
 */
KVT_NODISCARD enum kvt_status kvt_llama_learn(struct kvt_llama *llama, const struct kvt_llama_config *config,
                                              char *ret_error, size_t error_bytes);

/* Base tables that the codec has learned since: saved before blocks are packed with them. */
void kvt_llama_keep_tables(struct kvt_llama *llama);
void kvt_llama_load_tables(struct kvt_llama *llama);

#endif
