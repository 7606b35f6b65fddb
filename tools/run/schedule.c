#include "tools/run/schedule.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/run/schedule_build.h"

enum { EXPECT_MAX = 256, STATS_EVERY = 8 };

#define WAIT_SLICE_NS UINT64_C(100000000) /* how late a signal is seen at most */
#define PATIENCE_DEFAULT_NS UINT64_C(5000000000)
#define GIVE_UP_DEFAULT_NS UINT64_C(5000000000)
#define STUCK_DEFAULT_NS UINT64_C(60000000000)
#define EXPECT_EVERY_NS UINT64_C(5000000)
#define INTERRUPT_GRACE_NS UINT64_C(500000000) /* a step that is running when a signal comes gets so long to end */
#define STREAM_GAP_NS UINT64_C(200000)         /* a step that begins so late on its stream waited for fetches */

uint64_t kvt_schedule_now_ns(const struct kvt_schedule *s) { return kvt_env_now_ns(&s->env); }

/* ---- What computes the steps: the engine, or a caller's model ---------------------------------------------------- */

static kvt_stream steps_stream(const struct kvt_schedule *s)
{
    return s->options->calls ? s->options->calls->stream(s->options->calls_user) : kvt_engine_stream(s->engine);
}

static enum kvt_status steps_add(struct kvt_schedule *s, const struct kvt_engine_item *item)
{
    return s->options->calls ? s->options->calls->add(s->options->calls_user, item) : kvt_engine_add(s->engine, item);
}

static enum kvt_status steps_launch(struct kvt_schedule *s)
{
    return s->options->calls ? s->options->calls->launch(s->options->calls_user) : kvt_engine_launch(s->engine);
}

static bool steps_wait(struct kvt_schedule *s, uint64_t timeout_ns, struct kvt_engine_times *ret_times)
{
    return s->options->calls ? s->options->calls->wait(s->options->calls_user, timeout_ns, ret_times)
                             : kvt_engine_wait(s->engine, timeout_ns, ret_times);
}

bool kvt_schedule_is_interrupted(const struct kvt_schedule *s)
{
    return s->options->is_interrupted && atomic_load(s->options->is_interrupted);
}

bool kvt_schedule_fail(struct kvt_schedule *s, const char *call, enum kvt_status status)
{
    s->result->outcome = KVT_OUTCOME_ERROR;
    (void)snprintf(s->result->error, sizeof s->result->error, "%s: %s", call, kvt_status_text(status));
    return false;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static uint64_t patience_ns(const struct kvt_schedule *s)
{
    return s->options->patience_ns > 0 ? s->options->patience_ns : PATIENCE_DEFAULT_NS;
}

/* Nothing moved for too long: says what everyone is waiting for. Always false, for `return`. */
static bool stuck(struct kvt_schedule *s, const char *what)
{
    uint32_t unready = 0;
    const struct kvt_conversation *first = NULL;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (s->plan[i].is_ready) continue;
        unready++;
        if (!first) first = s->plan[i].conversation;
    }
    s->result->outcome = KVT_OUTCOME_STUCK;
    (void)snprintf(s->result->error, sizeof s->result->error,
                   "no progress for %.0f s, %s: %" PRIu32 " running (%" PRIu32 " not ready, the first for %s), %" PRIu32
                   " queued, %" PRIu32 " parked, %" PRIu32 " idle",
                   (double)(s->options->stuck_ns > 0 ? s->options->stuck_ns : STUCK_DEFAULT_NS) * 1e-9, what,
                   s->running.count, unready, first ? kvt_stall_name(kvt_seq_stall(s->runtime, first->seq)) : "nothing",
                   s->queued.count, s->parked.count, s->idle.count);
    return false;
}

static bool is_stuck(const struct kvt_schedule *s, uint64_t now_ns)
{
    const uint64_t limit = s->options->stuck_ns > 0 ? s->options->stuck_ns : STUCK_DEFAULT_NS;
    return now_ns - s->moved_ns > limit;
}

/* Room that is long in coming is made at the expense of whoever holds blocks without running. False: the run ends. */
static bool give_up_when_late(struct kvt_schedule *s, uint64_t now_ns)
{
    const uint64_t limit = s->options->give_up_ns > 0 ? s->options->give_up_ns : GIVE_UP_DEFAULT_NS;
    if (now_ns - kvt_max_u64(s->moved_ns, s->given_up_ns) < limit) return true;
    s->given_up_ns = now_ns;
    bool is_given;
    return kvt_schedule_give_up_one(s, &is_given);
}

static void count_stall(struct kvt_schedule *s, enum kvt_stall_cause cause, uint64_t from_ns, uint64_t to_ns)
{
    s->result->stall_ns[cause] += to_ns - from_ns;
    KVT_SCHEDULE_TELL(s, on_stall, cause, from_ns, to_ns)
}

bool kvt_schedule_wait_stalled(struct kvt_schedule *s, enum kvt_stall_cause cause)
{
    const uint64_t until_ns = kvt_schedule_now_ns(s) + WAIT_SLICE_NS;
    /* On a model's clock a wait also ends where time stops without news: causes are looked at when there is some. */
    while (!kvt_wait(s->runtime, WAIT_SLICE_NS) && s->options->calls && kvt_schedule_now_ns(s) < until_ns) continue;
    const uint64_t now = kvt_schedule_now_ns(s);
    count_stall(s, cause, s->mark_ns, now);
    s->mark_ns = now;
    if (kvt_schedule_is_interrupted(s)) {
        s->result->outcome = KVT_OUTCOME_INTERRUPTED;
        return false;
    }
    if (cause == KVT_STALL_NO_SLOT && !give_up_when_late(s, now)) return false;
    return is_stuck(s, now) ? stuck(s, "waiting for room or blocks") : true;
}

/* Nothing has arrived: waits until the next one does. No stall. False: the run ends. */
static bool wait_for_arrival(struct kvt_schedule *s)
{
    const uint64_t due = kvt_schedule_next_arrival_ns(s);
    const uint64_t now = kvt_schedule_now_ns(s);
    kvt_schedule_expect(s, now);
    if (due > now) (void)kvt_wait(s->runtime, kvt_min_u64(due - now, WAIT_SLICE_NS));
    s->mark_ns = s->moved_ns = kvt_schedule_now_ns(s);
    if (!kvt_schedule_is_interrupted(s)) return true;
    s->result->outcome = KVT_OUTCOME_INTERRUPTED;
    return false;
}

/* ---- Planning a step --------------------------------------------------------------------------------------------- */

static bool has_states(const struct kvt_schedule *s)
{
    for (uint32_t g = 0; g < s->shape->group_count; g++) {
        if (s->shape->groups[g].kind == KVT_GROUP_STATE) return true;
    }
    return false;
}

/*
 * A snapshot of a state is taken where a chunk ends with a block. So chunks end there, and one ends with the last whole
 * block that the same prompt, sent again, could reuse.
 */
static uint64_t cut_for_snapshot(const struct kvt_schedule *s, const struct kvt_conversation *c, uint64_t n)
{
    const uint64_t block_tokens = s->shape->block_tokens;
    const uint64_t end = c->committed + n;
    const uint64_t limit = end == c->known ? end - 1 : end;
    const uint64_t cut = limit - limit % block_tokens;
    return cut > c->committed ? cut - c->committed : n;
}

static void plan_step(struct kvt_schedule *s)
{
    uint64_t budget = s->options->prefill_chunk;
    const bool is_cut = has_states(s);
    s->plan_count = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        struct kvt_conversation *c = s->running.at[i];
        uint64_t n = c->reserved;
        if (n == 0) {
            n = kvt_conversation_next_count(c, budget);
            if (n > 0 && is_cut && kvt_conversation_is_prefill(c)) n = cut_for_snapshot(s, c, n);
        }
        if (kvt_conversation_is_prefill(c)) budget -= kvt_min_u64(budget, n);
        if (n > 0) s->plan[s->plan_count++] = (struct kvt_planned){ .conversation = c, .count = n };
    }
}

static void unplan(struct kvt_schedule *s, const struct kvt_conversation *c)
{
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (s->plan[i].conversation != c) continue;
        s->plan_count--;
        for (; i < s->plan_count; i++) s->plan[i] = s->plan[i + 1];
    }
}

/* What asking for room for the whole plan came to. */
enum reserved { RESERVED_ALL, RESERVED_SOME, RESERVED_REPLAN, RESERVED_RUN_ENDS };

/* The device is full: the youngest makes room; when one is left, who holds blocks without running does. */
static enum reserved make_room(struct kvt_schedule *s)
{
    if (s->running.count == 1) {
        bool is_given;
        if (!kvt_schedule_give_up_one(s, &is_given)) return RESERVED_RUN_ENDS;
        return is_given ? RESERVED_REPLAN : RESERVED_SOME;
    }
    struct kvt_conversation *youngest = s->running.at[s->running.count - 1];
    unplan(s, youngest);
    return kvt_schedule_park(s, youngest) ? RESERVED_REPLAN : RESERVED_RUN_ENDS;
}

static enum reserved refuse_running(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t tokens)
{
    unplan(s, c);
    kvt_list_remove(&s->running, c);
    return kvt_schedule_refuse(s, c, tokens, kvt_schedule_larger_rule(s)) ? RESERVED_REPLAN : RESERVED_RUN_ENDS;
}

/* Asks for the slots that the plan's sequences still lack. */
static enum reserved reserve_plan(struct kvt_schedule *s)
{
    enum reserved outcome = RESERVED_ALL;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        struct kvt_conversation *c = s->plan[i].conversation;
        if (c->reserved > 0) continue;
        enum kvt_room room;
        const enum kvt_status status = kvt_seq_append(s->runtime, c->seq, s->plan[i].count, &room);
        if (status != KVT_OK) {
            (void)kvt_schedule_fail(s, "kvt_seq_append", status);
            return RESERVED_RUN_ENDS;
        }
        switch (room) {
        case KVT_ROOM_OK: c->reserved = s->plan[i].count; break;
        case KVT_ROOM_PENDING: outcome = RESERVED_SOME; break;
        case KVT_ROOM_FULL: {
            const enum reserved made = make_room(s);
            if (made != RESERVED_SOME) return made;
            outcome = RESERVED_SOME;
            break;
        }
        case KVT_ROOM_TOO_LONG: return refuse_running(s, c, c->prompt + c->output);
        }
    }
    return outcome;
}

/* ---- Becoming ready ---------------------------------------------------------------------------------------------- */

/* What asking for the step came to. */
enum begun { BEGUN_ALL, BEGUN_SOME, BEGUN_NONE, BEGUN_LOST, BEGUN_RUN_ENDS };

bool kvt_schedule_lose(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t lost_from)
{
    const uint64_t target = kvt_min_u64(lost_from, c->committed);
    const uint64_t tail = target % s->shape->block_tokens;
    const uint32_t *tokens = tail > 0 ? kvt_conversation_tokens(&s->conversations, c, target - tail, tail) : NULL;
    uint64_t kept;
    const enum kvt_status status = kvt_seq_truncate(s->runtime, c->seq, target, tokens, &kept);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_truncate", status);
    kvt_conversation_lose(c, kept);
    return true;
}

static bool end_step(struct kvt_schedule *s, kvt_step step)
{
    if (step == 0) return true;
    const enum kvt_status status = kvt_step_end(s->runtime, step);
    return status == KVT_OK ? true : kvt_schedule_fail(s, "kvt_step_end", status);
}

/* Cuts what was lost, with no step open. */
static enum begun lose_lost(struct kvt_schedule *s, uint32_t n, kvt_step step)
{
    if (!end_step(s, step)) return BEGUN_RUN_ENDS;
    for (uint32_t i = 0; i < n; i++) {
        if (s->entries[i].ready != KVT_LOST) continue;
        for (uint32_t p = 0; p < s->plan_count; p++) {
            struct kvt_conversation *c = s->plan[p].conversation;
            if (c->seq == s->entries[i].seq && !kvt_schedule_lose(s, c, s->entries[i].lost_from)) return BEGUN_RUN_ENDS;
        }
    }
    s->moved_ns = kvt_schedule_now_ns(s);
    return BEGUN_LOST;
}

/* Tries to begin the step with every planned sequence that has its slots. The step is open after ALL and SOME. */
static enum begun begin_step(struct kvt_schedule *s, kvt_step *ret_step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        s->plan[i].is_ready = false;
        if (s->plan[i].conversation->reserved == 0) continue;
        s->entries[n++] = (struct kvt_step_entry){ .seq = s->plan[i].conversation->seq };
    }
    if (n == 0) return BEGUN_NONE;
    kvt_step step;
    const enum kvt_status status = kvt_step_begin(s->runtime, s->entries, n, steps_stream(s), &step);
    if (status != KVT_OK) {
        (void)kvt_schedule_fail(s, "kvt_step_begin", status);
        return BEGUN_RUN_ENDS;
    }
    uint32_t ready = 0, lost = 0, entry = 0;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (s->plan[i].conversation->reserved == 0) continue;
        s->plan[i].is_ready = s->entries[entry].ready == KVT_READY;
        if (s->entries[entry].ready == KVT_NOT_READY) s->plan[i].conversation->is_back = true;
        ready += s->entries[entry].ready == KVT_READY;
        lost += s->entries[entry].ready == KVT_LOST;
        entry++;
    }
    if (lost > 0) return lose_lost(s, n, step);
    if (ready == 0) return end_step(s, step) ? BEGUN_NONE : BEGUN_RUN_ENDS;
    *ret_step = step;
    return ready == s->plan_count ? BEGUN_ALL : BEGUN_SOME;
}

/*
 * What the step waits for at this moment: room for the tokens that lack it, else what the oldest unready sequence waits
 * for.
 */
static enum kvt_stall_cause stall_cause(const struct kvt_schedule *s, enum reserved reserved)
{
    if (reserved != RESERVED_ALL) return KVT_STALL_NO_SLOT;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (!s->plan[i].is_ready) return kvt_seq_stall(s->runtime, s->plan[i].conversation->seq);
    }
    return KVT_STALL_NO_SLOT;
}

/* What came of making a step ready. */
enum made { MADE_STEP, MADE_REPLAN, MADE_RUN_ENDS };

/*
 * Waits until every planned sequence is ready, or, once patience is over, some are. The wait counts as a stall, by the
 * cause seen before each wake-up.
 */
static enum made make_ready(struct kvt_schedule *s, bool *is_stalled, kvt_step *ret_step)
{
    const uint64_t give_up_ns = kvt_schedule_now_ns(s) + patience_ns(s);
    for (;;) {
        const enum reserved reserved = reserve_plan(s);
        if (reserved == RESERVED_RUN_ENDS) return MADE_RUN_ENDS;
        if (reserved == RESERVED_REPLAN) return MADE_REPLAN;
        const bool is_impatient = kvt_schedule_now_ns(s) >= give_up_ns;
        kvt_step step = 0;
        enum begun begun = BEGUN_NONE;
        if (reserved == RESERVED_ALL || is_impatient) begun = begin_step(s, &step);
        if (begun == BEGUN_RUN_ENDS) return MADE_RUN_ENDS;
        if (begun == BEGUN_LOST) return MADE_REPLAN;
        if (begun == BEGUN_ALL || (begun == BEGUN_SOME && is_impatient)) {
            *ret_step = step;
            return MADE_STEP;
        }
        const enum kvt_stall_cause cause = stall_cause(s, reserved);
        if (begun == BEGUN_SOME && !end_step(s, step)) return MADE_RUN_ENDS;
        *is_stalled = true;
        if (!kvt_schedule_wait_stalled(s, cause)) return MADE_RUN_ENDS;
    }
}

/* ---- Running a step ---------------------------------------------------------------------------------------------- */

static bool add_items(struct kvt_schedule *s)
{
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (!s->plan[i].is_ready) continue;
        struct kvt_conversation *c = s->plan[i].conversation;
        const uint64_t end = c->committed + s->plan[i].count;
        enum kvt_status status = kvt_conversation_identify(&s->conversations, c, end);
        if (status != KVT_OK) return kvt_schedule_fail(s, "identities", status);
        const struct kvt_engine_item item = {
            .seq = c->seq,
            .request = c->request,
            .committed = c->committed,
            .count = s->plan[i].count,
            .identities = c->identities,
            .is_back = c->is_back,
            .is_last = end == c->prompt + c->output && s->conversations.next_turn[c->request] == KVT_NO_REQUEST,
        };
        status = steps_add(s, &item);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_table", status);
    }
    return true;
}

/*
 * Whether the state is kept at the end of these tokens: after a chunk of a prompt, and at the last whole block of a
 * turn.
 */
static bool is_snapshot_due(const struct kvt_schedule *s, const struct kvt_conversation *c, uint64_t end)
{
    const uint64_t block_tokens = s->shape->block_tokens;
    if (end % block_tokens != 0) return false;
    return kvt_conversation_is_prefill(c) || end + block_tokens > c->prompt + c->output;
}

static bool commit_items(struct kvt_schedule *s)
{
    const bool is_state = has_states(s);
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (!s->plan[i].is_ready) continue;
        struct kvt_conversation *c = s->plan[i].conversation;
        const uint64_t n = s->plan[i].count;
        const uint32_t flags = is_state && is_snapshot_due(s, c, c->committed + n) ? KVT_COMMIT_SNAPSHOT : 0;
        const uint32_t *tokens = kvt_conversation_tokens(&s->conversations, c, c->committed, n);
        const enum kvt_status status = kvt_seq_commit(s->runtime, c->seq, tokens, n, flags, steps_stream(s));
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_commit", status);
    }
    return true;
}

/* Waits for the step's job as an engine waits for its sampled tokens. False: the run ends, the engine is busy. */
static bool wait_for_step(struct kvt_schedule *s, struct kvt_engine_times *ret_times)
{
    const uint64_t limit = s->options->stuck_ns > 0 ? s->options->stuck_ns : STUCK_DEFAULT_NS;
    uint64_t give_up_ns = kvt_schedule_now_ns(s) + limit;
    bool is_cut_short = false;
    while (!steps_wait(s, WAIT_SLICE_NS, ret_times)) {
        const uint64_t now = kvt_schedule_now_ns(s);
        if (!is_cut_short && kvt_schedule_is_interrupted(s)) {
            is_cut_short = true;
            give_up_ns = now + INTERRUPT_GRACE_NS;
        }
        if (now < give_up_ns) continue;
        s->result->is_engine_busy = true;
        if (!is_cut_short) return stuck(s, "a step has not ended");
        s->result->outcome = KVT_OUTCOME_INTERRUPTED;
        return false;
    }
    return true;
}

static void sample_memory(struct kvt_schedule *s)
{
    if (s->result->steps % STATS_EVERY != 1) return;
    struct kvt_stats stats;
    kvt_stats(s->runtime, &stats);
    const uint64_t now_ns = kvt_schedule_now_ns(s);
    KVT_SCHEDULE_TELL(s, on_sample, now_ns, &stats)
    if (stats.slot_tokens == 0) return;
    s->result->used_ratio_sum += (double)stats.used_tokens / (double)stats.slot_tokens;
    s->result->used_ratio_count++;
}

/* The job is over: what it waited for on its stream, and how long a step takes. */
static void account_step(struct kvt_schedule *s, const struct kvt_engine_times *times, bool is_stalled)
{
    const uint64_t gap = times->started_ns - times->launched_ns;
    bool has_fetched = false;
    for (uint32_t i = 0; i < s->plan_count; i++) {
        has_fetched = has_fetched || (s->plan[i].is_ready && s->plan[i].conversation->is_back);
    }
    if (has_fetched && gap > STREAM_GAP_NS) {
        count_stall(s, KVT_STALL_HOST_LINK, times->launched_ns, times->started_ns);
        is_stalled = true;
    }
    const uint64_t took = times->ended_ns - times->started_ns;
    s->step_estimate_ns = s->result->steps == 0 ? took : (7 * s->step_estimate_ns + took) / 8;
    s->result->step_ns_sum += took;
    s->result->steps++;
    s->result->steps_stalled += is_stalled;
    if (!s->options->watches) return;
    struct kvt_step_record step = { .started_ns = times->started_ns, .ended_ns = times->ended_ns };
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (!s->plan[i].is_ready) continue;
        step.sequences++;
        step.tokens += s->plan[i].count;
    }
    KVT_SCHEDULE_TELL(s, on_step, &step)
}

bool kvt_schedule_advance_one(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t n, uint64_t now_ns)
{
    const uint64_t generated = kvt_conversation_generated(c);
    s->result->tokens_recomputed += kvt_conversation_advance(c, n);
    s->result->tokens_computed += n;
    s->result->tokens_generated += kvt_conversation_generated(c) - generated;
    if (generated == 0 && kvt_conversation_generated(c) > 0) c->first_ns = now_ns;
    return !kvt_conversation_is_turn_over(c) || kvt_schedule_end_turn(s, c, now_ns);
}

/* Moves every sequence of the step on. False: the run ends. */
static bool advance(struct kvt_schedule *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->plan_count; i++) {
        if (!s->plan[i].is_ready) continue;
        if (!kvt_schedule_advance_one(s, s->plan[i].conversation, s->plan[i].count, now_ns)) return false;
    }
    return true;
}

static bool run_step(struct kvt_schedule *s, kvt_step step, bool is_stalled)
{
    bool is_launched = add_items(s);
    if (is_launched) {
        const enum kvt_status status = steps_launch(s);
        is_launched = status == KVT_OK || kvt_schedule_fail(s, "kvt_emulated_launch", status);
    }
    if (!is_launched) {
        (void)end_step(s, step);
        return false;
    }
    struct kvt_engine_times times;
    const bool is_submitted = commit_items(s) && end_step(s, step);
    const bool is_over = wait_for_step(s, &times);
    if (!is_submitted || !is_over) return false;
    s->mark_ns = s->moved_ns = kvt_schedule_now_ns(s);
    account_step(s, &times, is_stalled);
    sample_memory(s);
    if (!advance(s, s->mark_ns)) return false;
    if (s->options->on_progress) {
        s->options->on_progress(s->options->user, s->result->requests_completed + s->result->requests_failed,
                                s->result->tokens_computed);
    }
    return true;
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

/* One step with whoever runs. False: the run ends. */
static bool step_once(struct kvt_schedule *s)
{
    bool is_stalled = false;
    for (;;) {
        plan_step(s);
        kvt_step step = 0;
        switch (make_ready(s, &is_stalled, &step)) {
        case MADE_STEP: return run_step(s, step, is_stalled);
        case MADE_REPLAN:
            if (s->running.count == 0) return true;
            break;
        case MADE_RUN_ENDS: return false;
        }
    }
}

static void run(struct kvt_schedule *s)
{
    for (;;) {
        if (kvt_schedule_is_interrupted(s)) {
            s->result->outcome = KVT_OUTCOME_INTERRUPTED;
            return;
        }
        const uint64_t now = kvt_schedule_now_ns(s);
        kvt_schedule_take_arrivals(s, now);
        if (!kvt_schedule_admit(s)) return;
        if (now - s->told_ns >= EXPECT_EVERY_NS) kvt_schedule_expect(s, now);
        if (s->running.count > 0) {
            if (!step_once(s)) return;
        } else if (s->is_room_pending) {
            if (!kvt_schedule_wait_stalled(s, KVT_STALL_NO_SLOT)) return;
        } else if (s->queued.count + s->parked.count == 0) {
            if (s->options->arrival == KVT_ARRIVAL_SEQUENTIAL) {
                if (s->next_request == s->conversations.workload->request_count) return;
            } else {
                if (s->waiting.count == 0) return;
                if (!wait_for_arrival(s)) return;
            }
        }
    }
}

static enum kvt_status take_memory(struct kvt_schedule *s)
{
    struct kvt_list *lists[] = { &s->waiting, &s->queued, &s->running, &s->parked, &s->idle };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(lists); i++) {
        lists[i]->at = kvt_alloc((size_t)s->conversations.count + 1, sizeof *lists[i]->at);
        if (!lists[i]->at) return KVT_NOMEM;
    }
    const size_t batch = kvt_min_u32(s->options->batch, s->conversations.count + 1);
    s->plan = kvt_alloc(batch, sizeof *s->plan);
    s->entries = kvt_alloc(batch, sizeof *s->entries);
    s->expect_seqs = kvt_alloc(EXPECT_MAX, sizeof *s->expect_seqs);
    s->expect_steps = kvt_alloc(EXPECT_MAX, sizeof *s->expect_steps);
    return s->plan && s->entries && s->expect_seqs && s->expect_steps ? KVT_OK : KVT_NOMEM;
}

static void give_memory(struct kvt_schedule *s)
{
    kvt_free(s->waiting.at);
    kvt_free(s->queued.at);
    kvt_free(s->running.at);
    kvt_free(s->parked.at);
    kvt_free(s->idle.at);
    kvt_free(s->plan);
    kvt_free(s->entries);
    kvt_free(s->expect_seqs);
    kvt_free(s->expect_steps);
    kvt_conversations_done(&s->conversations);
}

/* Groups with equal block bytes live in one pool. */
static void find_pools(struct kvt_schedule *s)
{
    for (uint32_t g = 0; g < s->shape->group_count; g++) {
        const uint64_t bytes = kvt_group_block_bytes(&s->shape->groups[g], s->shape->block_tokens);
        uint32_t first = 0;
        while (kvt_group_block_bytes(&s->shape->groups[first], s->shape->block_tokens) != bytes) first++;
        s->pool_of[g] = first;
        s->pool_slots[g] = kvt_device_slots(s->runtime, g);
    }
}

enum kvt_status kvt_schedule_run(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                 const struct kvt_workload *workload, struct kvt_engine *engine,
                                 const struct kvt_schedule_options *options, struct kvt_schedule_result *ret_result)
{
    KVT_ASSERT(options->batch > 0);
    KVT_ASSERT(options->prefill_chunk > 0);
    struct kvt_schedule s = {
        .runtime = runtime,
        .shape = shape,
        .options = options,
        .engine = engine,
        .result = ret_result,
        .shared_tokens = workload->shared_prefix_tokens,
        .env = options->env ? *options->env : kvt_env_default(),
        .step_estimate_ns = options->step_ns > 0 ? options->step_ns : 1000000,
    };
    KVT_TRY(kvt_conversations_init(&s.conversations, workload));
    if (take_memory(&s) != KVT_OK) {
        give_memory(&s);
        return KVT_NOMEM;
    }
    *ret_result = (struct kvt_schedule_result){ .outcome = KVT_OUTCOME_DONE, .requests = workload->request_count };
    find_pools(&s);
    s.start_ns = s.mark_ns = s.moved_ns = kvt_schedule_now_ns(&s);
    for (uint32_t i = 0; i < s.conversations.count; i++) kvt_schedule_wait_for_turn(&s, &s.conversations.all[i], 0);
    run(&s);
    if (!ret_result->is_engine_busy) give_memory(&s);
    return KVT_OK;
}
