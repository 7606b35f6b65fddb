/* stream_attend: the passes of one step: pieces verified, attended to and merged; and the reference. */
#include "tools/run/stream_build.h"

#include <math.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

/* ---- Kernels in flight ------------------------------------------------------------------------------------------- */

static void wait_for(struct kvt_streamer *st, uint64_t in_flight_max)
{
    (void)pthread_mutex_lock(&st->mutex);
    while (st->launched - st->ended > in_flight_max) (void)pthread_cond_wait(&st->done, &st->mutex);
    (void)pthread_mutex_unlock(&st->mutex);
}

void kvt_stream_drain(struct kvt_streamer *st) { wait_for(st, 0); }

enum kvt_status kvt_stream_launch(struct kvt_streamer *st, void (*run)(void *user), void *user)
{
    wait_for(st, KVT_STREAM_JOBS - 1);
    st->launched++;
    const enum kvt_status status = kvt_emulated_launch(st->runtime, st->stream, run, user);
    if (status != KVT_OK) st->launched--;
    return status;
}

void kvt_stream_job_ended(struct kvt_streamer *st)
{
    (void)pthread_mutex_lock(&st->mutex);
    st->ended++;
    (void)pthread_cond_signal(&st->done);
    (void)pthread_mutex_unlock(&st->mutex);
}

/* ---- One piece, on the stream ------------------------------------------------------------------------------------ */

static uint32_t query_heads(const struct kvt_group_shape *group) { return group->kv_heads * KVT_STREAM_QUERY_RATIO; }

static uint64_t chunk_bytes(const struct kvt_streamer *st, uint32_t group)
{
    const struct kvt_group_shape *of = &st->shape->groups[group];
    return kvt_group_block_bytes(of, st->shape->block_tokens) / of->layers;
}

static void verify_chunk(struct kvt_streamer *st, uint64_t number, const uint8_t *chunk)
{
    const struct kvt_stream_pass *pass = &st->pass;
    const uint64_t start = number * st->shape->block_tokens;
    const struct kvt_content_run run = {
        .group = pass->group,
        .count = (uint32_t)kvt_min_u64(st->shape->block_tokens, pass->tokens - start),
        .position = start,
        .identities = pass->identities + start,
    };
    if (st->options->verify == KVT_VERIFY_OFF) return;
    struct kvt_engine_counts *checks = &st->counts.checks;
    uint64_t differs;
    if (pass->is_whole) {
        st->counts.chunks_verified++;
        checks->blocks_checked += pass->layer + 1 == st->shape->groups[pass->group].layers;
        differs = kvt_content_check_layer(st->content, &run, pass->layer, chunk);
    } else {
        checks->lines_checked++;
        differs = kvt_content_check_layer_line(st->content, &run, pass->layer, chunk);
    }
    if (differs != KVT_CONTENT_SAME)
        kvt_engine_count_mismatch(checks, &(struct kvt_mismatch){ pass->request, pass->group, number, differs });
}

static struct kvt_attention attention_of(struct kvt_streamer *st)
{
    const struct kvt_stream_pass *pass = &st->pass;
    const struct kvt_group_shape *group = &st->shape->groups[pass->group];
    const uint8_t *base = kvt_device_slot(st->runtime, pass->group, 0);
    const uint64_t value_offset = group->planes == 1 ? 0 : st->shape->block_tokens * kvt_group_row_bytes(group);
    const bool is_window = group->kind == KVT_GROUP_WINDOW;
    return (struct kvt_attention){
        .dtype = group->dtype,
        .query_heads = query_heads(group),
        .kv_heads = group->kv_heads,
        .head_dim = group->head_dim,
        .block_tokens = st->shape->block_tokens,
        .scale = 1 / sqrtf((float)group->head_dim),
        .keys = base,
        .values = base + value_offset,
        .key_stride = chunk_bytes(st, pass->group),
        .value_stride = chunk_bytes(st, pass->group),
        .step = 1,
        .to = pass->tokens,
        .length = pass->tokens,
        .window = is_window ? group->window_tokens : 0,
        .sinks = is_window ? group->sink_tokens : 0,
        .query = st->query,
        .out = st->piece_out,
        .lse = st->piece_lse,
    };
}

static void run_piece(void *user)
{
    const struct kvt_stream_job *job = user;
    struct kvt_streamer *st = job->streamer;
    struct kvt_attention args = attention_of(st);
    for (uint32_t i = 0; i < job->count; i++) {
        if (job->chunks[i] == KVT_NO_SLOT) continue; /* the window has left it behind */
        verify_chunk(st, job->first + i, args.keys + job->chunks[i] * args.key_stride);
        st->counts.chunks++;
    }
    args.count = job->count;
    args.slots = job->chunks;
    args.first = job->first;
    st->attention->attend(&args);
    kvt_attention_merge(args.query_heads, args.head_dim, st->out, st->lse, st->piece_out, st->piece_lse);
    st->counts.pieces++;
    kvt_stream_job_ended(st);
}

/* ---- A pass ------------------------------------------------------------------------------------------------------ */

/* What the token asks for: a function of the tokens up to it, the group and the layer, as in a model. */
static void make_query(struct kvt_streamer *st)
{
    const struct kvt_stream_pass *pass = &st->pass;
    const struct kvt_group_shape *group = &st->shape->groups[pass->group];
    const uint32_t heads = query_heads(group), numbers = heads * group->head_dim;
    struct kvt_rng rng = { pass->identities[pass->tokens - 1] ^ (uint64_t)pass->group << 32 ^ pass->layer };
    for (uint32_t i = 0; i < numbers; i++) {
        st->query[i] = (float)((double)(kvt_rng_next(&rng) >> 40) / (1 << 23) - 1);
        st->out[i] = 0;
    }
    for (uint32_t head = 0; head < heads; head++) st->lse[head] = -INFINITY;
}

static enum kvt_attended fail(struct kvt_schedule *s, const char *call, enum kvt_status status)
{
    (void)kvt_schedule_fail(s, call, status);
    return KVT_ATTENDED_RUN_ENDS;
}

/* Goes through the pieces of a pass that has begun. */
static enum kvt_attended take_pieces(struct kvt_streamer *st, struct kvt_schedule *s, const struct kvt_conversation *c,
                                     uint64_t *ret_lost_from)
{
    for (uint32_t turn = 0;; turn = (turn + 1) % KVT_STREAM_JOBS) {
        struct kvt_stream_job *job = &st->jobs[turn];
        struct kvt_piece piece;
        wait_for(st, KVT_STREAM_JOBS - 1); /* the job's arrays are free */
        for (;;) {
            const enum kvt_status status = kvt_reader_next(st->runtime, st->readers[st->pass.group].id, st->stream,
                                                           job->chunks, st->chunks_max, &piece);
            if (status != KVT_OK) return fail(s, "kvt_reader_next", status);
            if (piece.state != KVT_PIECE_PENDING) break;
            if (!kvt_schedule_wait_stalled(s, kvt_seq_stall(st->runtime, c->seq))) return KVT_ATTENDED_RUN_ENDS;
        }
        s->mark_ns = s->moved_ns = kvt_schedule_now_ns(s);
        *ret_lost_from = piece.lost_from;
        if (piece.state == KVT_PIECE_LOST) return KVT_ATTENDED_LOST;
        if (piece.state == KVT_PIECE_END) return KVT_ATTENDED;
        job->first = piece.first;
        job->count = piece.count;
        const enum kvt_status status = kvt_stream_launch(st, run_piece, job);
        if (status != KVT_OK) return fail(s, "kvt_emulated_launch", status);
    }
}

/* ---- The reference ----------------------------------------------------------------------------------------------- */

static bool is_attended(const struct kvt_streamer *st, uint64_t token)
{
    const struct kvt_group_shape *group = &st->shape->groups[st->pass.group];
    if (group->kind != KVT_GROUP_WINDOW) return true;
    return token < group->sink_tokens || st->pass.tokens - token <= group->window_tokens;
}

/* Scores of all heads for every token, from the keys that the tokens must have. */
static void reference_scores(struct kvt_streamer *st, uint8_t *row, double *most)
{
    const struct kvt_stream_pass *pass = &st->pass;
    const struct kvt_group_shape *group = &st->shape->groups[pass->group];
    for (uint32_t head = 0; head < query_heads(group); head++) most[head] = -INFINITY;
    for (uint64_t t = 0; t < pass->tokens; t++) {
        if (!is_attended(st, t)) continue;
        kvt_content_write_row(st->content, pass->group, pass->layer, 0, t, pass->identities[t], row);
        for (uint32_t head = 0; head < query_heads(group); head++) {
            const uint32_t at = head / KVT_STREAM_QUERY_RATIO * group->head_dim;
            double score = 0;
            for (uint32_t d = 0; d < group->head_dim; d++)
                score += (double)st->query[head * group->head_dim + d]
                    * (double)kvt_attention_element(group->dtype, row, at + d);
            score /= sqrt(group->head_dim);
            st->weights[head * st->weights_capacity + t] = score;
            most[head] = fmax(most[head], score);
        }
    }
}

/* The softmax of the scores, and the values under it. */
static void reference_values(struct kvt_streamer *st, uint8_t *row, const double *most, double *sums, double *wanted)
{
    const struct kvt_stream_pass *pass = &st->pass;
    const struct kvt_group_shape *group = &st->shape->groups[pass->group];
    const uint32_t heads = query_heads(group), plane = group->planes == 1 ? 0 : 1;
    memset(sums, 0, heads * sizeof *sums);
    memset(wanted, 0, (uint64_t)heads * group->head_dim * sizeof *wanted);
    for (uint64_t t = 0; t < pass->tokens; t++) {
        if (!is_attended(st, t)) continue;
        kvt_content_write_row(st->content, pass->group, pass->layer, plane, t, pass->identities[t], row);
        for (uint32_t head = 0; head < heads; head++) {
            const uint32_t at = head / KVT_STREAM_QUERY_RATIO * group->head_dim;
            const double weight = exp(st->weights[head * st->weights_capacity + t] - most[head]);
            sums[head] += weight;
            for (uint32_t d = 0; d < group->head_dim; d++)
                wanted[head * group->head_dim + d] += weight * (double)kvt_attention_element(group->dtype, row, at + d);
        }
    }
    for (uint32_t i = 0; i < heads * group->head_dim; i++) wanted[i] /= sums[i / group->head_dim];
}

/* Of the largest value of a head. */
static double largest_error(const struct kvt_streamer *st, const double *wanted)
{
    const struct kvt_group_shape *group = &st->shape->groups[st->pass.group];
    double worst = 0;
    for (uint32_t head = 0; head < query_heads(group); head++) {
        double most = 0, differs = 0;
        for (uint32_t d = 0; d < group->head_dim; d++) {
            const uint32_t i = head * group->head_dim + d;
            const double difference = fabs((double)st->out[i] - wanted[i]);
            differs = difference <= differs ? differs : difference; /* a NaN stays */
            most = fmax(most, fabs(wanted[i]));
        }
        const double error = most > 0 ? differs / most : differs;
        worst = error <= worst ? worst : error;
    }
    return worst;
}

/* Compares the pass's result with what attention over all of it at once must give. NOMEM. */
static enum kvt_status compare_with_reference(struct kvt_streamer *st)
{
    const struct kvt_group_shape *group = &st->shape->groups[st->pass.group];
    const uint32_t heads = query_heads(group);
    if (st->weights_capacity < st->pass.tokens || !st->weights) {
        uint64_t heads_max = 0;
        for (uint32_t g = 0; g < st->shape->group_count; g++)
            heads_max = kvt_max_u64(heads_max, query_heads(&st->shape->groups[g]));
        double *weights = kvt_realloc(st->weights, heads_max * st->pass.tokens, sizeof *weights);
        if (!weights) return KVT_NOMEM;
        st->weights = weights;
        st->weights_capacity = st->pass.tokens;
    }
    const uint64_t numbers = (uint64_t)heads * group->head_dim;
    double *memory = kvt_alloc(numbers + 2 * (uint64_t)heads, sizeof *memory);
    uint8_t *row = kvt_alloc(1, kvt_group_row_bytes(group));
    if (memory && row) {
        reference_scores(st, row, memory + numbers);
        reference_values(st, row, memory + numbers, memory + numbers + heads, memory);
        const double error = largest_error(st, memory);
        st->counts.results += heads;
        if (!(error <= st->counts.error_max)) st->counts.error_max = error;
    }
    const bool is_done = memory && row;
    kvt_free(memory);
    kvt_free(row);
    return is_done ? KVT_OK : KVT_NOMEM;
}

/* ---- All layers -------------------------------------------------------------------------------------------------- */

static bool is_compared(const struct kvt_streamer *st, bool is_checked)
{
    return is_checked && st->options->verify == KVT_VERIFY_FULL;
}

static enum kvt_attended attend_layer(struct kvt_streamer *st, struct kvt_schedule *s, const struct kvt_conversation *c,
                                      bool is_checked, uint64_t *ret_lost_from)
{
    const uint64_t block_tokens = st->shape->block_tokens;
    const uint64_t blocks = (st->pass.tokens + block_tokens - 1) / block_tokens;
    make_query(st);
    enum kvt_status status = kvt_reader_begin(st->runtime, st->readers[st->pass.group].id, st->pass.layer, 0, blocks);
    if (status != KVT_OK) return fail(s, "kvt_reader_begin", status);
    const enum kvt_attended attended = take_pieces(st, s, c, ret_lost_from);
    kvt_stream_drain(st);
    st->counts.passes++;
    if (attended != KVT_ATTENDED || !is_compared(st, is_checked)) return attended;
    status = compare_with_reference(st);
    s->mark_ns = s->moved_ns = kvt_schedule_now_ns(s);
    return status == KVT_OK ? KVT_ATTENDED : fail(s, "the reference", status);
}

enum kvt_attended kvt_stream_attend(struct kvt_streamer *st, struct kvt_schedule *s, struct kvt_conversation *c,
                                    bool is_checked, uint64_t *ret_lost_from)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < st->shape->group_count; g++) {
        bytes += kvt_group_bytes_kept(&st->shape->groups[g], c->committed);
        for (uint32_t layer = 0; layer < st->shape->groups[g].layers; layer++) {
            st->pass = (struct kvt_stream_pass){
                .group = g,
                .layer = layer,
                .tokens = c->committed,
                .identities = c->identities,
                .request = c->request,
                .is_whole = st->options->read == KVT_READ_FULL || is_compared(st, is_checked),
            };
            const enum kvt_attended attended = attend_layer(st, s, c, is_checked, ret_lost_from);
            if (attended != KVT_ATTENDED) return attended;
        }
    }
    st->counts.tokens_max = kvt_max_u64(st->counts.tokens_max, c->committed);
    st->counts.bytes_max = kvt_max_u64(st->counts.bytes_max, bytes);
    return KVT_ATTENDED;
}
