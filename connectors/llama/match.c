/*
 * The longest prefix that every layer group has all of: full layers each block from the first on, window layers
 * every token that the next one attends to. A block is there as a whole, or as a tail (its first tokens), or,
 * in the window group, from the first token on that was still in the window when it was saved.
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
    uint64_t count;  /* of the prompt */
    uint64_t blocks; /* whole ones in it */
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

/* The longest tail there is of a block that is not there as a whole; 0: none. Looked for once. */
static uint32_t longest_tail(struct search *s, uint32_t c, uint64_t k)
{
    uint16_t *tail = &s->llama->tails[c * (s->blocks + 1) + k];
    if (*tail != UINT16_MAX) return *tail;
    struct kvt_llama_piece piece;
    uint32_t end = (uint32_t)kvt_min_u64(s->llama->block_tokens - 1, s->count - k * s->llama->block_tokens);
    while (end > 0 && !try_record(s, c, k, 0, end, &piece)) end--;
    *tail = (uint16_t)end;
    return end;
}

/* A record of block k, of cache c, that has its tokens [from, end). */
static bool covers(struct search *s, uint32_t c, uint64_t k, uint32_t from, uint32_t end, struct kvt_llama_piece *piece)
{
    const uint32_t size = s->llama->block_tokens;
    piece->cache = c;
    piece->block_first = k * size;
    if (has_whole_block(s, c, k)) return is_needed(s->llama, c) ? try_record(s, c, k, 0, size, piece) : true;
    if (!is_needed(s->llama, c)) return true;
    const uint32_t tail = longest_tail(s, c, k);
    if (tail >= end) return try_record(s, c, k, 0, tail, piece);
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

/* Window tokens [first, end), of records of the window group. False in *ret_is_there: not all of them are. */
static enum kvt_status plan_span(struct search *s, uint64_t first, uint64_t end, bool *ret_is_there)
{
    const uint64_t size = s->llama->block_tokens;
    struct kvt_llama_piece piece = { 0 };
    *ret_is_there = false;
    for (uint64_t k = first / size; k * size < end; k++) {
        const uint64_t block = k * size, use_first = kvt_max_u64(block, first),
                       use_end = kvt_min_u64(block + size, end);
        if (!covers(s, KVT_LLAMA_WINDOW, k, (uint32_t)(use_first - block), (uint32_t)(use_end - block), &piece))
            return KVT_OK;
        KVT_TRY(use(s, &piece, use_first, use_end));
    }
    *ret_is_there = true;
    return KVT_OK;
}

/*
 * The first position with which a sequence of `length` tokens lies in the ring as if it had never left it:
 * position p in cell p mod ring, and the next one behind the last. Sums depend on the order of cells in their
 * last bits. When the window lies across the end of the ring all cells are wanted: with a gap the engine would
 * go on there.
 */
static uint64_t ring_first(const struct kvt_llama *llama, uint64_t length)
{
    const uint64_t ring = llama->ring_tokens, cell = length % ring;
    if (length <= ring) return 0;
    return cell >= llama->window_tokens ? length - cell : length - ring;
}

static struct kvt_llama_span span_of(const struct kvt_llama *llama, uint64_t first, uint64_t length, bool is_ring)
{
    struct kvt_llama_span span = { .cells = (uint32_t)(length - first), .first = (int32_t)first };
    if (is_ring) span.rotation = (uint32_t)(first % llama->ring_tokens);
    return span;
}

/*
 * All that the window layers need to go on at `length`: the tokens that the next one attends to, and, where
 * they are kept, those before them that it takes to lie as in a sequence that never left, or the one that the
 * engine itself would write.
 */
static enum kvt_status plan_window(struct search *s, uint64_t length, bool *ret_is_there)
{
    struct kvt_llama *llama = s->llama;
    const uint64_t window = llama->window_tokens;
    const uint64_t needed = length + 1 > window ? length + 1 - window : 0;
    const uint64_t kept = length > window ? length - window : 0;
    const uint32_t before = llama->plan.count;
    uint64_t first = llama->ring_tokens > 0 ? ring_first(llama, length) : needed;
    bool is_ring = first < needed;
    *ret_is_there = false;
    if (is_ring) {
        KVT_TRY(plan_span(s, first, length, ret_is_there));
        is_ring = *ret_is_there;
    }
    for (first = is_ring ? first : kept; !*ret_is_there && first <= needed; first++) {
        llama->plan.count = before;
        KVT_TRY(plan_span(s, first, length, ret_is_there));
        if (*ret_is_there) break;
    }
    llama->plan.spans[KVT_LLAMA_WINDOW] = span_of(llama, first, length, is_ring);
    return KVT_OK;
}

/* Blocks 0 to the last of the full layers; the caller knows that those before the last one are there. */
static enum kvt_status plan_full(struct search *s, uint64_t length, bool *ret_is_there)
{
    const uint64_t size = s->llama->block_tokens, last_block = (length - 1) / size;
    struct kvt_llama_piece piece = { 0 };
    *ret_is_there = false;
    s->llama->plan.spans[KVT_LLAMA_FULL] = span_of(s->llama, 0, length, false);
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
        uint16_t *tails = kvt_realloc(llama->tails, count, sizeof *tails);
        if (!tails) return KVT_NOMEM;
        llama->tails = tails;
        llama->known_capacity = count;
    }
    memset(llama->tails, 0xff, count * sizeof *llama->tails);
    memset(llama->known, NOT_ASKED, count);
    return KVT_OK;
}

enum kvt_status kvt_llama_plan_prefix(struct kvt_llama *llama, const int32_t *tokens, uint64_t count,
                                      uint64_t tokens_max)
{
    const uint64_t size = llama->block_tokens;
    struct search s = { .llama = llama, .tokens = tokens, .count = count, .blocks = count / size };
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
