#include "tools/run/stream.h"

#include <stdio.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/run/stream_build.h"

#define FULL_LIMIT_NS UINT64_C(2000000000)

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

/* Slots that the group has of its pool, when those that share one have equal parts. */
static uint32_t slots_of(const struct kvt_streamer *st, uint32_t group)
{
    uint32_t sharing = 0;
    const uint64_t bytes = kvt_group_block_bytes(&st->shape->groups[group], st->shape->block_tokens);
    for (uint32_t g = 0; g < st->shape->group_count; g++)
        sharing += kvt_group_block_bytes(&st->shape->groups[g], st->shape->block_tokens) == bytes;
    return kvt_device_slots(st->runtime, group) / sharing;
}

static enum kvt_status take_memory(struct kvt_streamer *st)
{
    uint64_t numbers = 1, heads = 1;
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        const struct kvt_group_shape *group = &st->shape->groups[g];
        st->readers[g].share = slots_of(st, g);
        /* A window has a quarter of them. */
        st->readers[g].slots = kvt_max_u32(1, kvt_min_u32(st->readers[g].share / 4, KVT_STREAM_SLOTS_MAX));
        st->counts.slots_max = kvt_max_u32(st->counts.slots_max, st->readers[g].slots);
        st->chunks_max = kvt_max_u32(st->chunks_max, kvt_max_u32(1, st->readers[g].slots * group->layers / 2));
        heads = kvt_max_u64(heads, (uint64_t)group->kv_heads * KVT_STREAM_QUERY_RATIO);
        numbers = kvt_max_u64(numbers, (uint64_t)group->kv_heads * KVT_STREAM_QUERY_RATIO * group->head_dim);
    }
    st->query = kvt_alloc(3 * numbers + 2 * heads, sizeof *st->query);
    if (!st->query) return KVT_NOMEM;
    st->out = st->query + numbers;
    st->piece_out = st->out + numbers;
    st->lse = st->piece_out + numbers;
    st->piece_lse = st->lse + heads;
    for (uint32_t i = 0; i < KVT_STREAM_JOBS; i++) {
        st->jobs[i].streamer = st;
        st->jobs[i].chunks = kvt_alloc(st->chunks_max, sizeof *st->jobs[i].chunks);
        if (!st->jobs[i].chunks) return KVT_NOMEM;
    }
    return KVT_OK;
}

enum kvt_status kvt_streamer_create(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                    const struct kvt_content *content, const struct kvt_engine_options *options,
                                    struct kvt_streamer **ret_streamer)
{
    const kvt_stream stream = kvt_emulated_stream(runtime, 0);
    if (!stream) return KVT_UNSUPPORTED;
    struct kvt_streamer *st = kvt_alloc(1, sizeof *st);
    if (!st) return KVT_NOMEM;
    *st = (struct kvt_streamer){ .runtime = runtime,
                                 .shape = shape,
                                 .content = content,
                                 .options = options,
                                 .attention = kvt_attention_ops_best(),
                                 .stream = stream };
    (void)pthread_mutex_init(&st->mutex, NULL);
    (void)pthread_cond_init(&st->done, NULL);
    const enum kvt_status status = take_memory(st);
    if (status != KVT_OK) {
        kvt_streamer_destroy(&st);
        return status;
    }
    *ret_streamer = st;
    return KVT_OK;
}

void kvt_streamer_destroy(struct kvt_streamer **streamer)
{
    struct kvt_streamer *st = *streamer;
    if (!st) return;
    KVT_ASSERT(st->launched == st->ended);
    for (uint32_t i = 0; i < KVT_STREAM_JOBS; i++) kvt_free(st->jobs[i].chunks);
    kvt_free(st->query);
    kvt_free(st->weights);
    kvt_free(st->slots);
    (void)pthread_cond_destroy(&st->done);
    (void)pthread_mutex_destroy(&st->mutex);
    kvt_free(st);
    *streamer = NULL;
}

const struct kvt_stream_counts *kvt_streamer_counts(const struct kvt_streamer *st) { return &st->counts; }

/* ---- Room -------------------------------------------------------------------------------------------------------- */

/* False: the run ends. */
static bool fail_too_small(struct kvt_schedule *s, const struct kvt_conversation *c)
{
    (void)snprintf(s->result->error, sizeof s->result->error,
                   "request %u: --hbm holds too few blocks to stream a context through them", c->request);
    s->result->outcome = KVT_OUTCOME_ERROR;
    return false;
}

/* False: the run ends. */
static bool fail_tiers_full(struct kvt_schedule *s, const struct kvt_conversation *c)
{
    (void)snprintf(s->result->error, sizeof s->result->error,
                   "request %u: HBM, host memory and NVMe together are full with its first %llu tokens: it takes a "
                   "larger --host, or --nvme",
                   c->request, (unsigned long long)c->committed);
    s->result->outcome = KVT_OUTCOME_ERROR;
    return false;
}

/* Asked again until there is room; a full device gets it from who holds blocks without running. False: the run ends. */
static bool wait_for_room(struct kvt_schedule *s, enum kvt_room room, const struct kvt_conversation *c)
{
    bool is_given = false;
    if (room == KVT_ROOM_TOO_LONG) return fail_too_small(s, c);
    if (room == KVT_ROOM_FULL && !kvt_schedule_give_up_one(s, &is_given)) return false;
    if (is_given) return true;
    /* It is alone: nobody will make room. What is on its way to other tiers may still. */
    if (room == KVT_ROOM_FULL && kvt_schedule_now_ns(s) - s->moved_ns > FULL_LIMIT_NS) return fail_tiers_full(s, c);
    return kvt_schedule_wait_stalled(s, KVT_STALL_NO_SLOT);
}

static bool resume(struct kvt_streamer *st, struct kvt_schedule *s, const struct kvt_conversation *c)
{
    for (;;) {
        enum kvt_room room;
        const enum kvt_status status = kvt_seq_resume(st->runtime, c->seq, &room);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_resume", status);
        if (room == KVT_ROOM_OK) return true;
        if (!wait_for_room(s, room, c)) return false;
    }
}

static bool open_readers(struct kvt_streamer *st, struct kvt_schedule *s, const struct kvt_conversation *c)
{
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        /* Beside the window there is always a tail. */
        if (st->readers[g].slots >= st->readers[g].share) return fail_too_small(s, c);
        enum kvt_room room = KVT_ROOM_PENDING;
        while (room != KVT_ROOM_OK) {
            const enum kvt_status status = kvt_reader_open(st->runtime, c->seq, g, st->readers[g].slots, &room,
                                                           &st->readers[g].id);
            if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_reader_open", status);
            if (room != KVT_ROOM_OK && !wait_for_room(s, room, c)) return false;
        }
    }
    return true;
}

static bool close_readers(struct kvt_streamer *st, struct kvt_schedule *s)
{
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        const enum kvt_status status = kvt_reader_close(st->runtime, &st->readers[g].id);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_reader_close", status);
    }
    return true;
}

static bool reserve(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c, uint64_t n)
{
    while (c->reserved == 0) {
        enum kvt_room room;
        const enum kvt_status status = kvt_seq_append(st->runtime, c->seq, n, &room);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_append", status);
        if (room == KVT_ROOM_OK) c->reserved = n;
        else if (!wait_for_room(s, room, c)) return false;
    }
    return true;
}

/* A chunk of a prompt has room beside the windows and the tail, in half of what is left. */
static uint64_t chunk_tokens(const struct kvt_streamer *st, const struct kvt_schedule *s)
{
    uint64_t tokens = s->options->prefill_chunk;
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        const uint64_t taken = (uint64_t)st->readers[g].slots + 2;
        const uint64_t left = st->readers[g].share > taken ? st->readers[g].share - taken : 0;
        tokens = kvt_min_u64(tokens, kvt_max_u64(1, left / 2) * st->shape->block_tokens);
    }
    return tokens;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* The tables of the blocks that the step writes. */
static enum kvt_status read_tables(struct kvt_streamer *st, const struct kvt_conversation *c)
{
    uint64_t at = 0;
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        uint64_t first, count = 0;
        KVT_TRY(kvt_seq_table(st->runtime, c->seq, g, NULL, 0, &first, &count));
        if (at + count > st->slots_capacity) {
            uint32_t *slots = kvt_realloc(st->slots, 2 * (at + count), sizeof *slots);
            if (!slots) return KVT_NOMEM;
            st->slots = slots;
            st->slots_capacity = 2 * (at + count);
        }
        KVT_TRY(kvt_seq_table(st->runtime, c->seq, g, st->slots + at, count, &first, &count));
        st->slots_first[g] = first;
        st->slots_at[g] = at;
        at += count;
    }
    return KVT_OK;
}

static void write_group(struct kvt_streamer *st, uint32_t group)
{
    const uint64_t block_tokens = st->shape->block_tokens;
    for (uint64_t position = st->write_from; position < st->write_end;) {
        const uint64_t block = position / block_tokens, first = position % block_tokens;
        const struct kvt_content_run run = {
            .group = group,
            .first = (uint32_t)first,
            .count = (uint32_t)kvt_min_u64(block_tokens - first, st->write_end - position),
            .position = position,
            .identities = st->pass.identities + position,
        };
        const uint32_t slot = st->slots[st->slots_at[group] + block - st->slots_first[group]];
        KVT_ASSERT(slot != KVT_NO_SLOT); /* it is reserved, and pinned by the step */
        kvt_content_write(st->content, &run, kvt_device_slot(st->runtime, group, slot));
        position += run.count;
    }
}

static void run_write(void *user)
{
    struct kvt_streamer *st = user;
    for (uint32_t g = 0; g < st->shape->group_count; g++) write_group(st, g);
    kvt_stream_job_ended(st);
}

/* In a step: n more tokens are computed and committed. False: the run ends. */
static bool write_tokens(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c, uint64_t n)
{
    enum kvt_status status = read_tables(st, c);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_table", status);
    st->write_from = c->committed;
    st->write_end = c->committed + n;
    st->pass.identities = c->identities;
    status = kvt_stream_launch(st, run_write, st);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_emulated_launch", status);
    const uint32_t *tokens = kvt_conversation_tokens(&s->conversations, c, c->committed, n);
    status = kvt_seq_commit(st->runtime, c->seq, tokens, n, 0, st->stream);
    return status == KVT_OK || kvt_schedule_fail(s, "kvt_seq_commit", status);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Begins the step, or cuts what is lost: then *ret_step is 0. False: the run ends. */
static bool begin_step(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c, kvt_step *ret_step)
{
    for (;;) {
        struct kvt_step_entry entry = { .seq = c->seq };
        const enum kvt_status status = kvt_step_begin(st->runtime, &entry, 1, st->stream, ret_step);
        if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_step_begin", status);
        if (entry.ready == KVT_READY) return true;
        if (entry.ready == KVT_LOST) return kvt_schedule_lose(s, c, entry.lost_from);
        if (!kvt_schedule_wait_stalled(s, kvt_seq_stall(st->runtime, c->seq))) return false;
    }
}

/* In a step. *ret_is_lost: tokens from *ret_lost_from on are gone, and nothing was written. False: the run ends. */
static bool compute(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c, uint64_t n,
                    bool *is_first, bool *ret_is_lost, uint64_t *ret_lost_from)
{
    const bool is_decode = !kvt_conversation_is_prefill(c);
    if (is_decode && c->committed > 0) {
        const bool is_last = c->committed + 1 == c->prompt + c->output;
        switch (kvt_stream_attend(st, s, c, *is_first || is_last, ret_lost_from)) {
        case KVT_ATTENDED: *is_first = false; break;
        case KVT_ATTENDED_LOST: *ret_is_lost = true; return true;
        case KVT_ATTENDED_RUN_ENDS: return false;
        }
    }
    return write_tokens(st, s, c, n);
}

static uint64_t stalled_ns(const struct kvt_schedule *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < KVT_STALL_COUNT; i++) sum += s->result->stall_ns[i];
    return sum;
}

static bool step_once(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c, bool *is_first)
{
    kvt_step step = 0;
    bool is_lost = false;
    uint64_t lost_from = 0;
    if (!resume(st, s, c)) return false;
    uint64_t n = kvt_conversation_next_count(c, chunk_tokens(st, s));
    if (c->reserved > 0) n = c->reserved;
    if (!reserve(st, s, c, n) || !begin_step(st, s, c, &step)) return false;
    if (step == 0) return true;
    const uint64_t began_ns = kvt_schedule_now_ns(s);
    enum kvt_status status = kvt_conversation_identify(&s->conversations, c, c->committed + n);
    bool is_going = status == KVT_OK || kvt_schedule_fail(s, "identities", status);
    is_going = is_going && compute(st, s, c, n, is_first, &is_lost, &lost_from);
    status = kvt_step_end(st->runtime, step);
    kvt_stream_drain(st);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_step_end", status);
    if (!is_going) return false;
    if (is_lost) return kvt_schedule_lose(s, c, lost_from);
    const uint64_t now_ns = s->mark_ns = s->moved_ns = kvt_schedule_now_ns(s);
    s->result->steps++;
    s->result->steps_stalled += stalled_ns(s) > st->stalled_ns;
    st->stalled_ns = stalled_ns(s);
    s->result->step_ns_sum += now_ns - began_ns;
    if (s->options->on_progress)
        s->options->on_progress(s->options->user, s->result->requests_completed + s->result->requests_failed,
                                s->result->tokens_computed + n);
    if (c->committed + n == c->prompt + c->output && !close_readers(st, s)) return false;
    return kvt_schedule_advance_one(s, c, n, now_ns);
}

/* ---- A turn ------------------------------------------------------------------------------------------------------ */

/* A sequence of its own, from what is cached of the prompt. False: the run ends. */
static bool begin_turn(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c)
{
    enum kvt_status status = c->seq != 0 ? kvt_seq_finish(st->runtime, c->seq, true) : KVT_OK;
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_finish", status);
    c->seq = 0;
    const uint64_t known = c->is_begun ? c->known : kvt_conversation_request(&s->conversations, c)->prompt_tokens;
    const struct kvt_seq_params params = {
        .tokens = kvt_conversation_tokens(&s->conversations, c, 0, known),
        .token_count = known,
        .reuse_max = UINT64_MAX,
        .is_idle = true,
    };
    uint64_t reused;
    status = kvt_seq_create(st->runtime, &params, &c->seq, &reused);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_create", status);
    kvt_schedule_begin_streamed(s, c, reused);
    status = kvt_seq_stream(st->runtime, c->seq);
    if (status != KVT_OK) return kvt_schedule_fail(s, "kvt_seq_stream", status);
    return resume(st, s, c) && open_readers(st, s, c);
}

bool kvt_streamer_run(void *user, struct kvt_schedule *s, struct kvt_conversation *c)
{
    struct kvt_streamer *st = user;
    const uint64_t completed = s->result->requests_completed;
    bool is_first = true;
    st->counts.requests++;
    st->stalled_ns = stalled_ns(s);
    if (!begin_turn(st, s, c)) return false;
    while (s->result->requests_completed == completed) {
        if (kvt_schedule_is_interrupted(s)) {
            s->result->outcome = KVT_OUTCOME_INTERRUPTED;
            return false;
        }
        if (!step_once(st, s, c, &is_first)) return false;
    }
    return true;
}
