#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/run/schedule_build.h"

const char *kvt_schedule_larger_rule(const struct kvt_schedule *s)
{
    /* A model streams nothing, and who streams already needs no such advice. */
    const bool is_streaming_advised = !s->options->calls && !s->options->on_larger;
    return is_streaming_advised ? "more than the device holds, it takes a larger --hbm, or --stream"
                                : "more than the device holds, it takes a larger --hbm";
}

/* ---- Room: an estimate that spares hopeless attempts; the runtime decides ---------------------------------------- */

/* Adds what a sequence of so many tokens claims of each pool. */
static void add_claim(const struct kvt_schedule *s, uint64_t tokens, uint64_t chunk, uint64_t *pools)
{
    for (uint32_t g = 0; g < s->shape->group_count; g++) {
        pools[s->pool_of[g]] += kvt_engine_blocks_claimed(s->shape, g, tokens, chunk);
    }
}

static bool is_within_pools(const struct kvt_schedule *s, const uint64_t *pools)
{
    for (uint32_t g = 0; g < s->shape->group_count; g++) {
        if (s->pool_of[g] == g && pools[g] > s->pool_slots[g]) return false;
    }
    return true;
}

/* Tokens that a turn needs at least before it gets going: all that is known of it, and the one that is sampled. */
static uint64_t tokens_to_run(const struct kvt_schedule *s, const struct kvt_conversation *c)
{
    return (c->is_begun ? c->known : kvt_conversation_request(&s->conversations, c)->prompt_tokens) + 1;
}

/* Whether it fits beside what runs; a prefix that all share is counted once, in the first of them. */
static bool is_room_for(const struct kvt_schedule *s, const struct kvt_conversation *c)
{
    if (s->running.count == 0) return true;
    const uint64_t chunk = s->options->prefill_chunk;
    const uint64_t shared = s->shared_tokens - s->shared_tokens % s->shape->block_tokens;
    uint64_t pools[KVT_GROUPS_MAX] = { 0 };
    for (uint32_t i = 0; i < s->running.count; i++) {
        const uint64_t tokens = tokens_to_run(s, s->running.at[i]);
        add_claim(s, i == 0 ? tokens : tokens - kvt_min_u64(tokens, shared), chunk, pools);
    }
    const uint64_t tokens = tokens_to_run(s, c);
    add_claim(s, tokens - kvt_min_u64(tokens, shared), chunk, pools);
    return is_within_pools(s, pools);
}

static bool is_larger_than_device(const struct kvt_schedule *s, uint64_t tokens)
{
    uint64_t pools[KVT_GROUPS_MAX] = { 0 };
    add_claim(s, tokens, 0, pools);
    return !is_within_pools(s, pools);
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

static void forget(struct kvt_conversation *c)
{
    kvt_free(c->identities);
    c->identities = NULL;
    c->identity_count = c->identity_capacity = 0;
    c->seq = 0;
}

bool kvt_schedule_refuse(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t tokens, const char *rule)
{
    if (s->options->on_refused) {
        char line[160];
        (void)snprintf(line, sizeof line, "request %" PRIu32 ": %" PRIu64 " tokens: %s", c->request, tokens, rule);
        s->options->on_refused(s->options->user, c->request, line);
    }
    for (uint32_t request = c->request; request != KVT_NO_REQUEST; request = s->conversations.next_turn[request]) {
        s->result->requests_failed++;
        s->result->requests_failed_after += request != c->request;
    }
    if (c->seq != 0) {
        const enum kvt_status status = kvt_seq_finish(s->runtime, c->seq, true);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_finish", status);
    }
    forget(c);
    c->state = KVT_CONVERSATION_ENDED;
    s->room_epoch++;
    s->moved_ns = kvt_schedule_now_ns(s);
    return true;
}

/* What the trace says of the turn that ended, as an engine knows it: not whether there will be another one. */
static bool tell_next(struct kvt_schedule *s, const struct kvt_conversation *c)
{
    const struct kvt_request *request = kvt_conversation_request(&s->conversations, c);
    struct kvt_seq_hint hint = { .turn = request->session == KVT_NO_SESSION ? UINT32_MAX : request->turn };
    if (request->stop == KVT_STOP_TOOL_USE) hint.next = KVT_NEXT_TOOL;
    if (request->stop == KVT_STOP_END_TURN) hint.next = KVT_NEXT_PERSON;
    const enum kvt_status status = kvt_seq_hint(s->runtime, c->seq, &hint);
    return status == KVT_OK || kvt_schedule_fail(s, "kvt_seq_hint", status);
}

bool kvt_schedule_end_turn(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t now_ns)
{
    s->result->requests_completed++;
    const struct kvt_turn turn = {
        .request = c->request,
        .conversation = (uint32_t)(c - s->conversations.all),
        .due_ns = kvt_min_u64(c->due_ns, c->begun_ns),
        .begun_ns = c->begun_ns,
        .first_ns = c->first_ns,
        .ended_ns = now_ns,
        .prompt = c->prompt,
        .reused = c->reused,
        .generated = kvt_conversation_generated(c),
    };
    KVT_SCHEDULE_TELL(s, on_turn, &turn)
    s->result->tokens_reused += c->reused;
    const bool is_streamed = is_larger_than_device(s, c->committed); /* and claims what the window takes */
    for (uint32_t g = 0; g < s->shape->group_count && !is_streamed; g++) {
        s->result->paged_bytes_sum += (double)kvt_engine_blocks_claimed(s->shape, g, c->committed, 0)
            * (double)kvt_group_block_bytes(&s->shape->groups[g], s->shape->block_tokens);
    }
    s->result->paged_count += !is_streamed;
    kvt_list_remove(&s->running, c);
    s->room_epoch++;

    const uint32_t next = s->conversations.next_turn[c->request];
    if (!tell_next(s, c)) return false;
    if (next == KVT_NO_REQUEST) {
        const enum kvt_status status = kvt_seq_finish(s->runtime, c->seq, true);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_finish", status);
        forget(c);
        c->state = KVT_CONVERSATION_ENDED;
        return true;
    }
    const enum kvt_status status = kvt_seq_idle(s->runtime, c->seq);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_idle", status);
    c->request = next;
    kvt_schedule_wait_for_turn(s, c, now_ns);
    return true;
}

bool kvt_schedule_park(struct kvt_schedule *s, struct kvt_conversation *c)
{
    KVT_ASSERT(c->state == KVT_CONVERSATION_RUNNING);
    const enum kvt_status status = kvt_seq_idle(s->runtime, c->seq);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_idle", status);
    kvt_list_remove(&s->running, c);
    c->state = KVT_CONVERSATION_PARKED;
    c->reserved = 0;
    c->is_back = c->committed > 0;
    c->parked_epoch = s->room_epoch;
    kvt_list_insert_by_ticket(&s->parked, c);
    s->result->parked++;
    return true;
}

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

/* Whether a sequence that holds blocks without running was there to choose, and the one that is needed last. */
static struct kvt_conversation *needed_last(const struct kvt_schedule *s)
{
    struct kvt_conversation *last = NULL;
    for (uint32_t i = 0; i < s->idle.count; i++) {
        if (!last || s->idle.at[i]->due_ns > last->due_ns) last = s->idle.at[i];
    }
    for (uint32_t i = s->queued.count; !last && i-- > 0;) {
        struct kvt_conversation *c = s->queued.at[(s->queue_first + i) % s->conversations.count];
        if (c->seq != 0) last = c;
    }
    /* The oldest parked one comes back next: it is given up only when it is alone and nobody runs. */
    for (uint32_t i = s->parked.count; !last && i-- > 0;) {
        if (s->parked.at[i]->seq != 0 && (i > 0 || s->running.count > 0)) last = s->parked.at[i];
    }
    return last;
}

bool kvt_schedule_give_up_one(struct kvt_schedule *s, bool *ret_is_given)
{
    struct kvt_conversation *c = needed_last(s);
    *ret_is_given = c != NULL;
    if (!c) return true;
    const enum kvt_status status = kvt_seq_finish(s->runtime, c->seq, true);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_finish", status);
    if (c->state == KVT_CONVERSATION_WAITING) kvt_schedule_idle_remove(s, c);
    c->seq = 0;
    s->result->given_up++;
    s->room_epoch++;
    return true;
}

/* ---- Beginnings -------------------------------------------------------------------------------------------------- */

/* What came of trying to take one into the batch. */
enum taken { TAKEN, TAKEN_LATER, TAKEN_NEVER, TAKEN_RUN_ENDS };

static void into_batch(struct kvt_schedule *s, struct kvt_conversation *c)
{
    c->state = KVT_CONVERSATION_RUNNING;
    kvt_list_insert_by_ticket(&s->running, c);
    s->result->running_max = kvt_max_u32(s->result->running_max, s->running.count);
    s->moved_ns = kvt_schedule_now_ns(s);
    if (c->begun_ns == 0) c->begun_ns = s->moved_ns;
}

static enum taken resume(struct kvt_schedule *s, struct kvt_conversation *c)
{
    enum kvt_room room;
    const enum kvt_status status = kvt_seq_resume(s->runtime, c->seq, &room);
    if (status != KVT_OK) {
        (void)kvt_schedule_fail(s, "kvt_seq_resume", status);
        return TAKEN_RUN_ENDS;
    }
    switch (room) {
    case KVT_ROOM_OK: into_batch(s, c); return TAKEN;
    case KVT_ROOM_PENDING: s->is_room_pending = true; return TAKEN_LATER;
    case KVT_ROOM_FULL:
        if (s->running.count == 0) s->is_room_pending = true;
        return TAKEN_LATER;
    case KVT_ROOM_TOO_LONG: break;
    }
    return TAKEN_NEVER;
}

/* A sequence for a turn that has none: a new one, or one whose blocks were given up and may still be cached. */
static enum taken create(struct kvt_schedule *s, struct kvt_conversation *c)
{
    const uint64_t known = c->is_begun ? c->known : kvt_conversation_request(&s->conversations, c)->prompt_tokens;
    const uint64_t had = c->is_begun ? c->held : kvt_conversation_common(&s->conversations, c);
    const struct kvt_seq_params params = {
        .tokens = kvt_conversation_tokens(&s->conversations, c, 0, known),
        .token_count = known,
        .reuse_max = UINT64_MAX,
    };
    kvt_seq seq;
    uint64_t reused;
    const enum kvt_status status = kvt_seq_create(s->runtime, &params, &seq, &reused);
    if (status == KVT_FULL) {
        if (s->running.count == 0) s->is_room_pending = true;
        return TAKEN_LATER;
    }
    if (status != KVT_OK) {
        (void)kvt_schedule_fail(s, "kvt_seq_create", status);
        return TAKEN_RUN_ENDS;
    }
    c->seq = seq;
    if (c->is_begun) kvt_conversation_begin_again(c, reused);
    else kvt_conversation_begin(&s->conversations, c, reused, kvt_max_u64(reused, had));
    into_batch(s, c);
    return TAKEN;
}

/* Into the batch, with a sequence of its own if it has none. */
static enum taken enter(struct kvt_schedule *s, struct kvt_conversation *c)
{
    return c->seq != 0 ? resume(s, c) : create(s, c);
}

/* The next turn of a sequence: what its prompt does not share with what is there is cut off first. */
static enum kvt_status cut_to_common(struct kvt_schedule *s, struct kvt_conversation *c)
{
    const uint64_t common = kvt_conversation_common(&s->conversations, c);
    uint64_t kept = common;
    if (common < c->committed) {
        const uint64_t tail = common % s->shape->block_tokens;
        const uint32_t *tokens = tail > 0 ? kvt_conversation_tokens(&s->conversations, c, common - tail, tail) : NULL;
        KVT_TRY(kvt_seq_truncate(s->runtime, c->seq, common, tokens, &kept));
    }
    kvt_conversation_begin(&s->conversations, c, kept, common);
    return KVT_OK;
}

static enum taken begin_turn(struct kvt_schedule *s, struct kvt_conversation *c)
{
    const bool is_begun = c->is_begun;
    if (!is_begun && c->seq != 0) {
        const enum kvt_status status = cut_to_common(s, c);
        if (status != KVT_OK) {
            (void)kvt_schedule_fail(s, "kvt_seq_truncate", status);
            return TAKEN_RUN_ENDS;
        }
    }
    const enum taken taken = enter(s, c);
    if (!is_begun && c->is_begun) s->result->tokens_prompt += c->prompt;
    return taken;
}

void kvt_schedule_begin_streamed(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t committed)
{
    if (c->is_begun) {
        kvt_conversation_begin_again(c, committed);
    } else {
        const uint64_t had = kvt_conversation_common(&s->conversations, c);
        kvt_conversation_begin(&s->conversations, c, committed, kvt_max_u64(committed, had));
        s->result->tokens_prompt += c->prompt;
    }
    into_batch(s, c);
}

static bool admit_parked(struct kvt_schedule *s)
{
    while (s->parked.count > 0 && s->running.count < s->options->batch) {
        struct kvt_conversation *c = s->parked.at[0];
        if (s->running.count > 0 && c->parked_epoch == s->room_epoch) return true;
        if (!is_room_for(s, c)) return true;
        switch (enter(s, c)) {
        case TAKEN: kvt_list_remove(&s->parked, c); break;
        case TAKEN_LATER: return true;
        case TAKEN_NEVER:
            kvt_list_remove(&s->parked, c);
            if (!kvt_schedule_refuse(s, c, c->known, kvt_schedule_larger_rule(s))) return false;
            break;
        case TAKEN_RUN_ENDS: return false;
        }
    }
    return true;
}

bool kvt_schedule_admit(struct kvt_schedule *s)
{
    s->is_room_pending = false;
    if (!admit_parked(s)) return false;
    if (s->parked.count > 0) return true;
    while (s->queued.count > 0 && s->running.count < s->options->batch) {
        struct kvt_conversation *c = kvt_schedule_queue_head(s);
        const struct kvt_request *request = kvt_conversation_request(&s->conversations, c);
        const uint64_t tokens = request->prompt_tokens + request->output_tokens;
        const bool is_larger = is_larger_than_device(s, tokens);
        enum taken taken = TAKEN_NEVER;
        if (is_larger && s->options->on_larger) {
            if (s->running.count > 0) return true; /* it runs alone */
            kvt_schedule_queue_pop(s);
            if (!s->options->on_larger(s->options->larger_user, s, c)) return false;
            continue;
        }
        if (!is_larger) {
            if (!is_room_for(s, c)) return true;
            taken = begin_turn(s, c);
        }
        switch (taken) {
        case TAKEN: kvt_schedule_queue_pop(s); break;
        case TAKEN_LATER: return true;
        case TAKEN_NEVER:
            kvt_schedule_queue_pop(s);
            if (!kvt_schedule_refuse(s, c, tokens, kvt_schedule_larger_rule(s))) return false;
            break;
        case TAKEN_RUN_ENDS: return false;
        }
    }
    return true;
}
