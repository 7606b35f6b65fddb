/*
 * The longest prefix that every layer group has all of: full layers each block from the first on, window layers every token
 * that the next one attends to. A block is there as a whole, or as a tail (its first tokens), or, in the window group, from
 * the first token on that was still in the window when it was saved.
 */
#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { NOT_ASKED, THERE, NOT_THERE };

struct search {
    struct kvt_llama *llama;
    const int32_t *tokens;
    uint64_t count;                          /* of the prompt */
    uint64_t blocks;                         /* whole ones in it */
    uint64_t tail_block;                     /* of which tails are known */
    uint32_t tail_max[KVT_LLAMA_CACHES_MAX]; /* the longest tail there is of it, 0: none */
};

enum kvt_status kvt_llama_plan_add(struct kvt_llama_plan *plan, const struct kvt_llama_piece *piece)
{
    if (plan->count == plan->capacity) {
        const uint32_t capacity = plan->capacity ? 2 * plan->capacity : 64;
        struct kvt_llama_piece *pieces = kvt_realloc(plan->pieces, capacity, sizeof *pieces);
        if (!pieces) return KVT_NOMEM;
        plan->pieces = pieces;
        plan->capacity = capacity;
    }
    plan->pieces[plan->count++] = *piece;
    return KVT_OK;
}

/* A group without layers has no records, and lacks none. */
static bool is_needed(const struct kvt_llama *llama, uint32_t c) { return llama->layout.caches[c].plane_count > 0; }

static bool has_whole_block(struct search *s, uint32_t c, uint64_t k)
{
    if (k >= s->blocks) return false;
    if (!is_needed(s->llama, c)) return true;
    uint8_t *known = &s->llama->known[c * s->blocks + k];
    if (*known == NOT_ASKED) {
        const struct kvt_key key = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, 0, s->llama->chain[k + 1]);
        *known = kvt_llama_vault_has(s->llama->vault, key) ? THERE : NOT_THERE;
    }
    return *known == THERE;
}

static bool try_record(struct search *s, uint32_t c, uint64_t k, uint32_t from, uint32_t end,
                       struct kvt_llama_piece *piece)
{
    const uint32_t size = s->llama->block_tokens;
    const struct kvt_key last = end == size ? s->llama->chain[k + 1] : kvt_llama_chain_end(s->llama, s->tokens, k, end);
    piece->key = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, c, from, last);
    piece->from = from;
    piece->tokens = end - from;
    return kvt_llama_vault_has(s->llama->vault, piece->key);
}

static void know_tails(struct search *s, uint64_t k)
{
    if (s->tail_block == k) return;
    s->tail_block = k;
    const uint32_t end_max = (uint32_t)kvt_min_u64(s->llama->block_tokens - 1, s->count - k * s->llama->block_tokens);
    for (uint32_t c = 0; c < s->llama->layout.cache_count; c++) {
        struct kvt_llama_piece piece;
        uint32_t end = has_whole_block(s, c, k) ? 0 : end_max;
        while (end > 0 && !try_record(s, c, k, 0, end, &piece)) end--;
        s->tail_max[c] = end;
    }
}

/* A record of block k, of cache c, that has its tokens [from, end). */
static bool covers(struct search *s, uint32_t c, uint64_t k, uint32_t from, uint32_t end, struct kvt_llama_piece *piece)
{
    const uint32_t size = s->llama->block_tokens;
    piece->cache = c;
    piece->block_first = k * size;
    if (has_whole_block(s, c, k)) return is_needed(s->llama, c) ? try_record(s, c, k, 0, size, piece) : true;
    if (!is_needed(s->llama, c)) return true;
    know_tails(s, k);
    if (s->tail_max[c] >= end) return try_record(s, c, k, 0, s->tail_max[c], piece);
    if (from == 0) return false;
    /* Saved when its first tokens had left the window already: the engine keeps one more than the next token needs. */
    const uint32_t end_max = (uint32_t)kvt_min_u64(size, s->count - k * size);
    for (uint32_t e = end; e <= end_max; e++)
        if (try_record(s, c, k, from - 1, e, piece) || try_record(s, c, k, from, e, piece)) return true;
    return false;
}

static enum kvt_status use(struct search *s, struct kvt_llama_piece *piece, uint64_t first, uint64_t end)
{
    if (!is_needed(s->llama, piece->cache)) return KVT_OK;
    piece->use_first = first;
    piece->use_count = end - first;
    piece->is_there = false;
    return kvt_llama_plan_add(&s->llama->plan, piece);
}

/* All that the window layers need to go on at `length`. */
static enum kvt_status plan_window(struct search *s, uint64_t length, bool *ret_is_there)
{
    struct kvt_llama *llama = s->llama;
    const uint64_t size = llama->block_tokens, window = llama->window_tokens;
    const uint64_t first = length + 1 > window ? length + 1 - window : 0;
    const uint64_t kept = length > window ? length - window : 0; /* what the engine itself would write */
    const uint64_t last_block = (length - 1) / size;
    struct kvt_llama_piece piece = { 0 };
    *ret_is_there = false;
    llama->plan.first[KVT_LLAMA_WINDOW] = first;
    for (uint64_t k = first / size; k <= last_block; k++) {
        const uint64_t block = k * size;
        const uint32_t from = first > block ? (uint32_t)(first - block) : 0;
        const uint32_t end = (uint32_t)kvt_min_u64(size, length - block);
        if (!covers(s, KVT_LLAMA_WINDOW, k, from, end, &piece)) return KVT_OK;
        uint64_t use_first = kvt_max_u64(block, first);
        if (k == first / size && is_needed(llama, KVT_LLAMA_WINDOW) && block + piece.from <= kept && kept < use_first)
            llama->plan.first[KVT_LLAMA_WINDOW] = use_first = kept;
        KVT_TRY(use(s, &piece, use_first, block + end));
    }
    if (llama->plan.first[KVT_LLAMA_WINDOW] > kept && first % size == 0 && first > 0
        && covers(s, KVT_LLAMA_WINDOW, first / size - 1, (uint32_t)size - 1, (uint32_t)size, &piece)) {
        KVT_TRY(use(s, &piece, kept, first));
        llama->plan.first[KVT_LLAMA_WINDOW] = kept;
    }
    *ret_is_there = true;
    return KVT_OK;
}

/* Blocks 0 to the last of the full layers; the caller knows that those before the last one are there. */
static enum kvt_status plan_full(struct search *s, uint64_t length, bool *ret_is_there)
{
    const uint64_t size = s->llama->block_tokens, last_block = (length - 1) / size;
    struct kvt_llama_piece piece = { 0 };
    *ret_is_there = false;
    s->llama->plan.first[KVT_LLAMA_FULL] = 0;
    if (!covers(s, KVT_LLAMA_FULL, last_block, 0, (uint32_t)(length - last_block * size), &piece)) return KVT_OK;
    KVT_TRY(use(s, &piece, last_block * size, length));
    *ret_is_there = true;
    return KVT_OK;
}

static enum kvt_status plan_at(struct search *s, uint64_t length, bool *ret_is_there)
{
    struct kvt_llama *llama = s->llama;
    const uint64_t size = llama->block_tokens;
    llama->plan.count = 0;
    KVT_TRY(plan_full(s, length, ret_is_there));
    if (*ret_is_there && llama->window_tokens > 0) KVT_TRY(plan_window(s, length, ret_is_there));
    if (!*ret_is_there) return KVT_OK;
    for (uint64_t k = 0; k < (length - 1) / size; k++) {
        struct kvt_llama_piece piece = { .cache = KVT_LLAMA_FULL, .block_first = k * size };
        piece.tokens = (uint32_t)size;
        piece.key = kvt_llama_record_key(KVT_LLAMA_RECORD_BLOCK, KVT_LLAMA_FULL, 0, llama->chain[k + 1]);
        KVT_TRY(use(s, &piece, k * size, (k + 1) * size));
    }
    llama->plan.tokens = length;
    return KVT_OK;
}

static enum kvt_status prepare_known(struct kvt_llama *llama, uint64_t blocks)
{
    const uint64_t count = KVT_LLAMA_CACHES_MAX * (blocks + 1);
    if (count > llama->known_capacity) {
        uint8_t *known = kvt_realloc(llama->known, count, 1);
        if (!known) return KVT_NOMEM;
        llama->known = known;
        llama->known_capacity = count;
    }
    memset(llama->known, NOT_ASKED, count);
    return KVT_OK;
}

enum kvt_status kvt_llama_plan_prefix(struct kvt_llama *llama, const int32_t *tokens, uint64_t count, uint64_t tokens_max)
{
    const uint64_t size = llama->block_tokens;
    struct search s = { .llama = llama, .tokens = tokens, .count = count, .blocks = count / size };
    s.tail_block = UINT64_MAX;
    llama->plan.count = 0;
    llama->plan.tokens = 0;
    KVT_TRY(kvt_llama_chain(llama, tokens, count));
    KVT_TRY(prepare_known(llama, s.blocks));
    uint64_t whole = 0;
    while (whole < s.blocks && has_whole_block(&s, KVT_LLAMA_FULL, whole)) whole++;
    bool is_there = false;
    for (uint64_t length = kvt_min_u64(tokens_max, (whole + 1) * size - 1); length > 0 && !is_there; length--)
        KVT_TRY(plan_at(&s, length, &is_there));
    return KVT_OK;
}
