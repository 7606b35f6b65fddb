#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "tools/run/schedule_build.h"

enum { EXPECT_MAX = 256 };

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

void kvt_list_insert_by_ticket(struct kvt_list *list, struct kvt_conversation *c)
{
    uint32_t i = list->count++;
    for (; i > 0 && list->at[i - 1]->ticket > c->ticket; i--) list->at[i] = list->at[i - 1];
    list->at[i] = c;
}

void kvt_list_remove(struct kvt_list *list, const struct kvt_conversation *c)
{
    uint32_t i = 0;
    while (list->at[i] != c) {
        i++;
        KVT_ASSERT(i < list->count);
    }
    list->count--;
    memmove(&list->at[i], &list->at[i + 1], (list->count - i) * sizeof list->at[0]);
}

static void idle_insert(struct kvt_list *idle, struct kvt_conversation *c)
{
    c->idle_index = idle->count;
    idle->at[idle->count++] = c;
}

static void idle_remove(struct kvt_list *idle, const struct kvt_conversation *c)
{
    struct kvt_conversation *moved = idle->at[--idle->count];
    idle->at[c->idle_index] = moved;
    moved->idle_index = c->idle_index;
}

void kvt_schedule_idle_remove(struct kvt_schedule *s, const struct kvt_conversation *c) { idle_remove(&s->idle, c); }

/* ---- The waiting, by due time ------------------------------------------------------------------------------------ */

static bool is_earlier(const struct kvt_conversation *a, const struct kvt_conversation *b)
{
    return a->due_ns < b->due_ns || (a->due_ns == b->due_ns && a->request < b->request);
}

static void heap_insert(struct kvt_list *heap, struct kvt_conversation *c)
{
    uint32_t i = heap->count++;
    for (; i > 0 && is_earlier(c, heap->at[(i - 1) / 2]); i = (i - 1) / 2) heap->at[i] = heap->at[(i - 1) / 2];
    heap->at[i] = c;
}

static struct kvt_conversation *heap_take_first(struct kvt_list *heap)
{
    struct kvt_conversation *first = heap->at[0];
    struct kvt_conversation *last = heap->at[--heap->count];
    uint32_t i = 0;
    for (uint32_t child = 1; child < heap->count; child = 2 * i + 1) {
        if (child + 1 < heap->count && is_earlier(heap->at[child + 1], heap->at[child])) child++;
        if (!is_earlier(heap->at[child], last)) break;
        heap->at[i] = heap->at[child];
        i = child;
    }
    heap->at[i] = last;
    return first;
}

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

static uint64_t divided(uint64_t ns, double speed)
{
    const double divided_ns = (double)ns / speed;
    return divided_ns < 9e18 ? (uint64_t)divided_ns : UINT64_C(9000000000000000000);
}

static uint64_t due_ns(const struct kvt_schedule *s, const struct kvt_request *request, uint64_t ended_ns)
{
    const struct kvt_schedule_options *options = s->options;
    const uint64_t since = ended_ns > 0 ? ended_ns : s->start_ns;
    const uint64_t pause = options->pause_ns != UINT64_MAX ? options->pause_ns : request->think_ns;
    switch (options->arrival) {
    case KVT_ARRIVAL_SEQUENTIAL: break;
    case KVT_ARRIVAL_TRACE: {
        const uint64_t arrival = s->start_ns + divided(request->arrival_ns, options->speed);
        if (request->turn == 0 || ended_ns == 0) return arrival;
        return kvt_max_u64(arrival, since + divided(pause, options->speed));
    }
    case KVT_ARRIVAL_ASAP: return since + (options->has_pauses && ended_ns > 0 ? pause : 0);
    }
    return since;
}

void kvt_schedule_wait_for_turn(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t ended_ns)
{
    c->state = KVT_CONVERSATION_WAITING;
    c->is_begun = false;
    c->begun_ns = c->first_ns = 0;
    c->due_ns = due_ns(s, kvt_conversation_request(&s->conversations, c), ended_ns);
    if (c->seq != 0) idle_insert(&s->idle, c);
    if (s->options->arrival != KVT_ARRIVAL_SEQUENTIAL) heap_insert(&s->waiting, c);
}

static void queue_push(struct kvt_schedule *s, struct kvt_conversation *c)
{
    if (c->seq != 0) idle_remove(&s->idle, c);
    c->state = KVT_CONVERSATION_QUEUED;
    c->ticket = s->next_ticket++;
    s->queued.at[(s->queue_first + s->queued.count++) % s->conversations.count] = c;
}

struct kvt_conversation *kvt_schedule_queue_head(const struct kvt_schedule *s)
{
    return s->queued.count > 0 ? s->queued.at[s->queue_first] : NULL;
}

void kvt_schedule_queue_pop(struct kvt_schedule *s)
{
    s->queue_first = (s->queue_first + 1) % s->conversations.count;
    s->queued.count--;
}

/* The next request of a sequential run that has not failed with its session already; NULL: none is left. */
static struct kvt_conversation *next_in_sequence(struct kvt_schedule *s)
{
    while (s->next_request < s->conversations.workload->request_count) {
        struct kvt_conversation *c = &s->conversations.all[s->conversations.of_request[s->next_request++]];
        if (c->state != KVT_CONVERSATION_ENDED) return c;
    }
    return NULL;
}

void kvt_schedule_take_arrivals(struct kvt_schedule *s, uint64_t now_ns)
{
    if (s->options->arrival == KVT_ARRIVAL_SEQUENTIAL) {
        if (s->running.count + s->queued.count + s->parked.count > 0) return;
        struct kvt_conversation *c = next_in_sequence(s);
        if (c) queue_push(s, c);
        return;
    }
    while (s->waiting.count > 0 && s->waiting.at[0]->due_ns <= now_ns) queue_push(s, heap_take_first(&s->waiting));
}

uint64_t kvt_schedule_next_arrival_ns(const struct kvt_schedule *s)
{
    return s->waiting.count > 0 ? s->waiting.at[0]->due_ns : UINT64_MAX;
}

/* ---- Look-ahead -------------------------------------------------------------------------------------------------- */

/* Steps until the running sequence that ends first makes room: what an engine that limits its outputs knows at most. */
static uint64_t steps_until_room(const struct kvt_schedule *s)
{
    if (s->running.count < s->options->batch && s->parked.count == 0) return 0;
    uint64_t least = UINT32_MAX;
    for (uint32_t i = 0; i < s->running.count; i++) {
        const struct kvt_conversation *c = s->running.at[i];
        const uint64_t left = c->prompt + c->output - c->committed;
        least = kvt_min_u64(least, left);
    }
    return s->running.count > 0 ? least : 0;
}

static uint32_t expect_one(struct kvt_schedule *s, uint32_t n, const struct kvt_conversation *c, uint64_t steps)
{
    if (n == EXPECT_MAX || c->seq == 0) return n;
    s->expect_seqs[n] = c->seq;
    s->expect_steps[n] = (uint32_t)kvt_min_u64(steps, UINT32_MAX - 1);
    return n + 1;
}

void kvt_schedule_expect(struct kvt_schedule *s, uint64_t now_ns)
{
    if (!s->options->is_lookahead) return;
    const uint64_t room = steps_until_room(s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->parked.count; i++) n = expect_one(s, n, s->parked.at[i], room + i);
    for (uint32_t i = 0; i < s->queued.count && i < EXPECT_MAX; i++) {
        const struct kvt_conversation *c = s->queued.at[(s->queue_first + i) % s->conversations.count];
        n = expect_one(s, n, c, room + s->parked.count + i);
    }
    for (uint32_t i = 0; i < s->idle.count && !s->options->is_arrived_only; i++) {
        const struct kvt_conversation *c = s->idle.at[i];
        if (s->options->arrival == KVT_ARRIVAL_SEQUENTIAL) {
            const bool is_next = s->next_request < s->conversations.workload->request_count
                && c->request == s->next_request;
            if (is_next) n = expect_one(s, n, c, room);
            continue;
        }
        const uint64_t left_ns = c->due_ns > now_ns ? c->due_ns - now_ns : 0;
        n = expect_one(s, n, c, kvt_max_u64(room, left_ns / kvt_max_u64(s->step_estimate_ns, 1)));
    }
    if (n > 0) kvt_expect(s->runtime, s->expect_seqs, s->expect_steps, n);
    s->told_ns = now_ns;
}
