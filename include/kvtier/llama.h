/*
 * llama: many long conversations in one small llama.cpp context, and over restarts.
 *
 * Attached to a llama_context, it keeps the KV of sequences in host memory and on NVMe, packed, in blocks that
 * conversations with the same first tokens share, and puts it back bit for bit. The engine is the caller's: its
 * public C functions are looked up in the running process, and nothing of it is linked.
 *
 *     struct kvt_llama_config config = kvt_llama_config_default();
 *     config.host_bytes = 512ull << 20; config.path = "/scratch/kv"; config.nvme_bytes = 4ull << 30;
 *     kvt_llama_attach(&config, ctx, &cache, error, sizeof error);     before the first decode
 *     kvt_llama_restore(cache, seq, tokens, count, &have);             the sequence now holds tokens [0, have)
 *     ... llama_decode of tokens [have, count), then of what is generated; after each batch:
 *     kvt_llama_save(cache, seq, tokens, count, &saved);               what is new since the last save
 *     kvt_llama_idle(cache, seq, tokens, count, &saved);               save, and free its cells for another one
 *     kvt_llama_detach(&cache);                                        what is kept is on the disk
 *
 * What it promises: a sequence after restore holds exactly the KV that was computed for exactly these tokens,
 * under this model, these cache types and this salt, or fewer tokens, and the count says how many. No byte that
 * failed a check reaches the engine.
 *
 * What the caller promises: `tokens` are what the engine evaluated for this sequence at positions 0 to count -
 * 1, and a sequence whose positions were shifted (llama_memory_seq_add, seq_div) or whose KV came from
 * elsewhere is told by kvt_llama_taint. Adapters and control vectors are set before attach, and not changed
 * while attached.
 *
 * Threads: the thread that may call llama_decode on this context, one call at a time.
 * Units:   bytes, tokens.
 */
#ifndef KVTIER_LLAMA_H
#define KVTIER_LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_LLAMA_VERSION 1

struct kvt_llama;
struct llama_context; /* llama.cpp's */

struct kvt_llama_config {
    uint32_t size;    /* sizeof(struct kvt_llama_config) */
    uint32_t version; /* KVT_LLAMA_VERSION */

    uint64_t
        host_bytes; /* memory for packed KV; at least 1 MiB. One sequence's state is staged besides during a call */
    const char
        *path; /* directory of the store (0700, made when missing; its parent must be there); NULL: host memory alone */
    uint64_t nvme_bytes;         /* disk space, as du sees it */
    uint64_t nvme_bytes_per_day; /* endurance: written in 24 hours at most; 0: no limit */
    const uint8_t
        *nvme_key; /* 32 bytes: the store is encrypted and authenticated with it; borrowed for attach. NULL: not */

    const void *salt; /* tenants with different salts share nothing; borrowed for attach. NULL with 0: none */
    size_t salt_bytes;
    const char *model; /* said in addition to what is learned of the model: adapters, a version; NULL: "" */

    uint32_t block_tokens; /* 4 to 1024; 0: at most 32, less when the KV of a token is large */
    bool is_codec_off;     /* true: kept as it is, not packed */
    bool is_whole;         /* true: states are not split (it is learned when that is needed; this asks for it) */

    /*
     * Where llama.cpp's functions are: a handle of dlopen, or a path for it, or neither: what the process has
     * loaded.
     */
    void *library;
    const char *library_path;

    /* One line of text without its newline: 0 error, 1 warning, 2 information. NULL: silent. */
    void (*log)(void *log_user, int level, const char *line);
    void *log_user;
};

/* Size, version, 512 MiB of host memory, and zeros. */
KVT_API struct kvt_llama_config kvt_llama_config_default(void);

/*
 * Attaches to a context. Evaluates a few tokens in a sequence that holds none, to learn how its states are laid
 * out, to check that one that was taken apart and put together again has the same bytes, and to tell models
 * apart by the KV they compute; that sequence is empty again afterwards. The logits of an earlier decode are
 * gone. ret_error (which may be NULL) gets one line: what, value, rule. INVAL: an impossible value, NULL, or every
 * sequence is in use | UNSUPPORTED: no llama.cpp in this process, one whose functions are not all there, or a
 * context without a cache | BUSY: another process has the directory | NOMEM | IO.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_attach(const struct kvt_llama_config *config, struct llama_context *ctx,
                                                       struct kvt_llama **ret_llama, char *ret_error,
                                                       size_t error_bytes);

/*
 * Writes what host memory alone has, makes it durable, lets go of the context, nulls; NULL is fine. Before
 * llama_free.
 */
KVT_API void kvt_llama_detach(struct kvt_llama **llama);

/*
 * How many leading tokens of the prompt restore would bring: at most count - 1, since the engine has to
 * evaluate one to have logits. From memory; a record that turns out damaged later makes it fewer.
 */
KVT_API uint64_t kvt_llama_match(struct kvt_llama *llama, const int32_t *tokens, uint64_t count);

/*
 * Empties the sequence and brings back as many leading tokens of the prompt as match says: it holds exactly
 * *ret_tokens tokens then, and the engine evaluates the others. 0 is no error: nothing was known, it turned out
 * damaged, or the engine refused it (the sequence is empty then, and those records are forgotten). INVAL: no
 * such sequence, or no tokens | FULL: the context has no room for them: the sequence is empty, what is kept
 * stays | NOMEM: the sequence is empty.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_restore(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                        uint64_t count, uint64_t *ret_tokens);

/*
 * Keeps what is new of a sequence that holds exactly these tokens. *ret_tokens: how many leading ones can be
 * restored from now on. Models with window layers want it before more than the window's tokens were evaluated
 * since the last one (kvt_llama_is_due); without it the tokens between cannot be branch points. INVAL: the
 * sequence does not hold `count` tokens at positions 0 to count - 1, or is tainted: nothing is kept | FULL: not
 * all of it could be kept; larger than the caps allow: nothing is evicted for it | NOMEM.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_save(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                     uint64_t count, uint64_t *ret_tokens);

/*
 * True when evaluating next_tokens more, in a sequence that holds count, would push window tokens out that were
 * not saved: save first.
 */
KVT_API bool kvt_llama_is_due(struct kvt_llama *llama, int32_t seq, uint64_t count, uint64_t next_tokens);

/*
 * The sequence leaves the context: saved, and its cells freed. As save; it is freed also when not all of it
 * could be kept (FULL), and left alone with INVAL and NOMEM. What is kept is made durable in the background.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_idle(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                     uint64_t count, uint64_t *ret_tokens);

/* The sequence comes back, into any free one: restore by the name that pairs with idle. */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_resume(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                                       uint64_t count, uint64_t *ret_tokens);

/*
 * Positions of this sequence were shifted, or its KV is not these tokens' own: saves are refused until it was
 * emptied by restore, idle or resume.
 */
KVT_API void kvt_llama_taint(struct kvt_llama *llama, int32_t seq);

/*
 * Forgets all that is kept of these tokens, also what other conversations share with them; returns how many
 * records. On the disk the bytes stay until their place is used again, and may be found after a restart.
 */
KVT_API uint64_t kvt_llama_forget(struct kvt_llama *llama, const int32_t *tokens, uint64_t count);

/*
 * Forgets everything in both tiers, of every model and salt, durably. IO: the disk failed; nothing is found all
 * the same.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_forget_all(struct kvt_llama *llama);

/*
 * Everything that is kept is on the disk when it returns. IO: it could not be had. Without a store: OK, nothing
 * happens.
 */
KVT_NODISCARD KVT_API enum kvt_status kvt_llama_flush(struct kvt_llama *llama);

struct kvt_llama_stats {
    /* Learned at attach. */
    bool is_whole;      /* states are kept whole */
    bool is_transposed; /* V lies transposed: flash attention is off */
    uint32_t groups;    /* layer groups: 1, or 2 with window layers */
    uint32_t layers[2]; /* of the full, of the window group */
    uint32_t window_tokens;
    uint32_t ring_tokens; /* cells of a sequence for window layers, if they can be put where they were; 0: they cannot */
    uint32_t block_tokens;
    uint32_t streams;        /* 1: one cache for all sequences */
    uint64_t token_bytes[2]; /* KV of one token in each group */

    uint64_t matches, restores, saves;             /* calls */
    uint64_t hit_tokens;                           /* restored: what the engine did not have to evaluate */
    uint64_t asked_tokens;                         /* of prompts given to restore */
    uint64_t saved_blocks, shared_blocks;          /* blocks that were new, that were kept already */
    uint64_t raw_bytes, packed_bytes;              /* of the new ones: KV, and as kept */
    uint64_t host_bytes, host_capacity, host_peak; /* now; the cap; at most so far */
    uint64_t host_hits, nvme_hits;                 /* blocks of restores, by where they came from */
    uint64_t host_evictions;                       /* left host memory; on NVMe still if there is one */
    uint64_t dropped_blocks;                       /* left host memory unwritten: the store refused or failed */
    uint64_t damaged_blocks;                       /* failed a check, forgotten, recomputed */
    uint64_t refused_restores;                     /* the engine did not take it: sequence emptied, state forgotten */
    uint64_t refused_saves;                        /* positions, taint, layout */
    uint64_t too_large;                            /* saves that no cap could hold */
    uint64_t written_bytes, nvme_allocated_bytes, nvme_capacity, nvme_records; /* of the store; 0 without */
    uint64_t staging_bytes;       /* of the last call, given back when large */
    uint64_t save_ns, restore_ns; /* in all calls */
};
KVT_API void kvt_llama_stats(struct kvt_llama *llama, struct kvt_llama_stats *ret_stats);

#ifdef __cplusplus
}
#endif

#endif
