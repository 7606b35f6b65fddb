/*
 * made_up_engine: llama.cpp's functions, as far as the connector calls them, over a model that is made up.
 *
 * Its KV is a function of all tokens up to a position, its logits a digest of every cell that a token attends
 * to. So two sequences give the same logits only if each of those cells holds the same bytes, and a window with
 * a hole gives others. A full cache and, if wanted, one with a window, which is a ring; one stream, or one for
 * each sequence.
 */
#ifndef KVT_TESTS_CONNECTORS_LLAMA_MADE_UP_ENGINE_H
#define KVT_TESTS_CONNECTORS_LLAMA_MADE_UP_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct llama_context;

enum { MADE_UP_F32 = 0, MADE_UP_F16 = 1, MADE_UP_Q8_0 = 8, MADE_UP_BF16 = 30 };

struct made_up_config {
    uint32_t n_ctx, n_seq_max, n_ubatch; /* n_ctx: of all sequences together */
    int32_t window;                      /* 0: no window layers */
    int32_t type_k, type_v;
    bool is_transposed, is_unified, is_swa_full;
    bool is_recurrent;  /* says so */
    bool is_odd_layout; /* one word more in each state, which nobody knows */
    bool is_v_missing;  /* as latent attention: K alone */
    uint64_t weights;   /* another one, other KV */
};

struct made_up_config made_up_config(void); /* 3 sequences of 512 cells, a window of 96, f16, transposed */

struct llama_context *made_up_create(const struct made_up_config *config);
void made_up_destroy(struct llama_context *ctx);

/*
 * Evaluates tokens at positions first, first + 1, ...; returns a digest that stands for the logits of the first
 * and of the last one. 0: failed.
 */
uint64_t made_up_evaluate(struct llama_context *ctx, int32_t seq, const int32_t *tokens, uint32_t first,
                          uint32_t count);

/* The next n restores are refused, after half of the cells were written. */
void made_up_refuse(struct llama_context *ctx, uint32_t n);
uint32_t made_up_offered(
    const struct llama_context *ctx); /* restores that were tried, the connector's own at attach too */

/* Moves the positions of a sequence from `from` on by `by`, as a context shift does. */
void made_up_shift(struct llama_context *ctx, int32_t seq, int32_t from, int32_t by);

/* Takes tokens [from, end) out, and moves those behind them forward. */
void made_up_cut(struct llama_context *ctx, int32_t seq, int32_t from, int32_t end);

int32_t made_up_pos_max(struct llama_context *ctx, int32_t seq);
void made_up_remove(struct llama_context *ctx, int32_t seq, int32_t from);

#endif
