#include "tools/run/conversation.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/run/content.h"

enum { TOKENS_AT_ONCE = 512 };

static enum kvt_status take_memory(struct kvt_conversations *set)
{
    const uint32_t n = set->workload->request_count;
    for (uint32_t i = 0; i < n; i++) {
        const struct kvt_request *request = &set->workload->requests[i];
        set->tokens_max = kvt_max_u64(set->tokens_max, request->prompt_tokens + request->output_tokens);
    }
    set->all = kvt_alloc((size_t)n + 1, sizeof *set->all);
    set->of_request = kvt_alloc((size_t)n + 1, sizeof *set->of_request);
    set->next_turn = kvt_alloc((size_t)n + 1, sizeof *set->next_turn);
    set->tokens = kvt_alloc(set->tokens_max + 1, sizeof *set->tokens);
    return set->all && set->of_request && set->next_turn && set->tokens ? KVT_OK : KVT_NOMEM;
}

/* Links the requests of each session in their order. last[session]: its latest request so far. */
static void link_turns(struct kvt_conversations *set, uint32_t *last)
{
    for (uint32_t s = 0; s < set->workload->session_count; s++) last[s] = KVT_NO_REQUEST;
    for (uint32_t i = 0; i < set->workload->request_count; i++) {
        const struct kvt_request *request = &set->workload->requests[i];
        set->next_turn[i] = KVT_NO_REQUEST;
        const bool is_alone = request->session == KVT_NO_SESSION;
        if (!is_alone && last[request->session] != KVT_NO_REQUEST) {
            const uint32_t before = last[request->session];
            set->next_turn[before] = i;
            set->of_request[i] = set->of_request[before];
        } else {
            set->of_request[i] = set->count;
            set->all[set->count++] = (struct kvt_conversation){ .request = i, .due_ns = request->arrival_ns };
        }
        if (!is_alone) last[request->session] = i;
    }
}

enum kvt_status kvt_conversations_init(struct kvt_conversations *set, const struct kvt_workload *workload)
{
    *set = (struct kvt_conversations){ .workload = workload };
    enum kvt_status status = take_memory(set);
    uint32_t *last = kvt_alloc((size_t)workload->session_count + 1, sizeof *last);
    if (!last) status = KVT_NOMEM;
    if (status == KVT_OK) link_turns(set, last);
    else kvt_conversations_done(set);
    kvt_free(last);
    return status;
}

void kvt_conversations_done(struct kvt_conversations *set)
{
    for (uint32_t i = 0; i < set->count; i++) kvt_free(set->all[i].identities);
    kvt_free(set->all);
    kvt_free(set->of_request);
    kvt_free(set->next_turn);
    kvt_free(set->tokens);
    *set = (struct kvt_conversations){ 0 };
}

const uint32_t *kvt_conversation_tokens(struct kvt_conversations *set, const struct kvt_conversation *c, uint64_t first,
                                        uint64_t count)
{
    KVT_ASSERT(count <= set->tokens_max);
    kvt_workload_tokens(set->workload, c->request, first, count, set->tokens);
    return set->tokens;
}

uint64_t kvt_conversation_common(struct kvt_conversations *set, struct kvt_conversation *c)
{
    const uint64_t limit = kvt_min_u64(kvt_conversation_request(set, c)->prompt_tokens - 1,
                                       kvt_min_u64(c->committed, c->identity_count));
    uint64_t identity = KVT_CONTENT_ROOT, common = 0;
    while (common < limit) {
        const uint64_t n = kvt_min_u64(TOKENS_AT_ONCE, limit - common);
        const uint32_t *tokens = kvt_conversation_tokens(set, c, common, n);
        for (uint64_t i = 0; i < n; i++) {
            identity = kvt_content_next(identity, tokens[i]);
            if (identity != c->identities[common + i]) {
                c->identity_count = common + i;
                return common + i;
            }
        }
        common += n;
    }
    c->identity_count = common;
    return common;
}

void kvt_conversation_begin(struct kvt_conversations *set, struct kvt_conversation *c, uint64_t committed,
                            uint64_t held)
{
    const struct kvt_request *request = kvt_conversation_request(set, c);
    KVT_ASSERT(committed <= held);
    KVT_ASSERT(held < request->prompt_tokens);
    c->prompt = request->prompt_tokens;
    c->output = request->output_tokens;
    c->known = request->prompt_tokens;
    c->committed = committed;
    c->held = held;
    c->reused = committed;
    c->reserved = 0;
    c->is_begun = true;
    c->is_back = committed > 0;
}

enum kvt_status kvt_conversation_identify(struct kvt_conversations *set, struct kvt_conversation *c, uint64_t tokens)
{
    if (tokens > c->identity_capacity) {
        const uint64_t capacity = kvt_max_u64(tokens, kvt_min_u64(2 * tokens, c->prompt + c->output));
        uint64_t *identities = kvt_realloc(c->identities, capacity, sizeof *identities);
        if (!identities) return KVT_NOMEM;
        c->identities = identities;
        c->identity_capacity = capacity;
    }
    uint64_t identity = c->identity_count > 0 ? c->identities[c->identity_count - 1] : KVT_CONTENT_ROOT;
    while (c->identity_count < tokens) {
        const uint64_t n = kvt_min_u64(TOKENS_AT_ONCE, tokens - c->identity_count);
        const uint32_t *ids = kvt_conversation_tokens(set, c, c->identity_count, n);
        for (uint64_t i = 0; i < n; i++)
            c->identities[c->identity_count++] = identity = kvt_content_next(identity, ids[i]);
    }
    return KVT_OK;
}

bool kvt_conversation_is_prefill(const struct kvt_conversation *c)
{
    return c->committed < c->prompt || c->committed + 1 < c->known;
}

uint64_t kvt_conversation_next_count(const struct kvt_conversation *c, uint64_t chunk)
{
    KVT_ASSERT(c->committed < c->known);
    return kvt_conversation_is_prefill(c) ? kvt_min_u64(chunk, c->known - c->committed) : 1;
}

uint64_t kvt_conversation_advance(struct kvt_conversation *c, uint64_t n)
{
    KVT_ASSERT(n > 0);
    KVT_ASSERT(c->committed + n <= c->known);
    const uint64_t again = c->held > c->committed ? kvt_min_u64(n, c->held - c->committed) : 0;
    c->reused = kvt_min_u64(c->reused, c->committed);
    c->committed += n;
    c->reserved = 0;
    c->held = kvt_max_u64(c->held, c->committed);
    c->is_back = false;
    if (c->committed == c->known && c->known < c->prompt + c->output) c->known++;
    return again;
}

void kvt_conversation_lose(struct kvt_conversation *c, uint64_t kept)
{
    KVT_ASSERT(kept <= c->committed);
    c->committed = kept;
    c->reserved = 0;
    c->is_back = kept > 0;
}

void kvt_conversation_begin_again(struct kvt_conversation *c, uint64_t committed)
{
    KVT_ASSERT(c->is_begun);
    KVT_ASSERT(committed < c->known);
    c->committed = committed;
    c->held = kvt_max_u64(c->held, committed);
    c->reserved = 0;
    c->is_back = committed > 0;
}

bool kvt_conversation_is_turn_over(const struct kvt_conversation *c) { return c->committed == c->prompt + c->output; }
