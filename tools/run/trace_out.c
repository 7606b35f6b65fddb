#include "tools/run/trace_out.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { PROCESS_ENGINE = 1, PROCESS_TRANSFERS, PROCESS_SEQUENCES, PROCESS_TIERS };
enum { TRACK_STEPS = 1, TRACK_STALLS };
enum { TRACKS_OF_DIRECTION = 10000 }; /* numbers of the tracks of one direction of transfers */

static const char *const tier_names[KVT_TIERS] = { "device", "host", "nvme" };

struct stall {
    enum kvt_stall_cause cause;
    uint64_t from_ns, to_ns;
};

struct sample {
    uint64_t at_ns;
    uint64_t used_bytes[KVT_TIERS];
};

/* A growing array of one kind of events. */
struct events {
    void *at;
    size_t item_bytes;
    uint64_t count, capacity;
};

struct kvt_trace_out {
    FILE *file; /* while it is written */
    uint64_t start_ns;
    struct kvt_schedule_watch watch;
    struct events steps, stalls, samples, turns;
    struct events transfers; /* under the runtime's lock */
    bool is_short;           /* of memory, in the schedule's thread */
    bool is_transfers_short; /* under the runtime's lock */
    bool is_begun;           /* something is in the file's list */
    enum kvt_status status;  /* of writing */
};

/* ---- Gathering --------------------------------------------------------------------------------------------------- */

/* The next item; NULL: no memory. */
static void *next_of(struct events *events)
{
    if (events->count == events->capacity) {
        const uint64_t capacity = kvt_max_u64(1024, 2 * events->capacity);
        void *grown = kvt_realloc(events->at, capacity, events->item_bytes);
        if (!grown) return NULL;
        events->at = grown;
        events->capacity = capacity;
    }
    return (uint8_t *)events->at + events->count++ * events->item_bytes;
}

void kvt_trace_out_transfer(void *user, const struct kvt_transfer_event *event)
{
    struct kvt_trace_out *out = user;
    struct kvt_transfer_event *kept = next_of(&out->transfers);
    if (kept) *kept = *event;
    else out->is_transfers_short = true;
}

static void on_step(void *user, const struct kvt_step_record *step)
{
    struct kvt_trace_out *out = user;
    struct kvt_step_record *kept = next_of(&out->steps);
    if (kept) *kept = *step;
    else out->is_short = true;
}

/* Waits of the same cause that follow each other are one span. */
static void on_stall(void *user, enum kvt_stall_cause cause, uint64_t from_ns, uint64_t to_ns)
{
    struct kvt_trace_out *out = user;
    struct stall *stalls = out->stalls.at;
    struct stall *last = out->stalls.count > 0 ? &stalls[out->stalls.count - 1] : NULL;
    if (last && last->cause == cause && last->to_ns == from_ns) {
        last->to_ns = to_ns;
        return;
    }
    struct stall *kept = next_of(&out->stalls);
    if (kept) *kept = (struct stall){ cause, from_ns, to_ns };
    else out->is_short = true;
}

static void on_sample(void *user, uint64_t now_ns, const struct kvt_stats *stats)
{
    struct kvt_trace_out *out = user;
    struct sample *kept = next_of(&out->samples);
    if (!kept) {
        out->is_short = true;
        return;
    }
    kept->at_ns = now_ns;
    for (uint32_t t = 0; t < KVT_TIERS; t++) kept->used_bytes[t] = stats->tiers[t].used_bytes;
}

static void on_turn(void *user, const struct kvt_turn *turn)
{
    struct kvt_trace_out *out = user;
    struct kvt_turn *kept = next_of(&out->turns);
    if (kept) *kept = *turn;
    else out->is_short = true;
}

enum kvt_status kvt_trace_out_create(uint64_t start_ns, struct kvt_trace_out **ret_out)
{
    struct kvt_trace_out *out = kvt_alloc(1, sizeof *out);
    if (!out) return KVT_NOMEM;
    out->start_ns = start_ns;
    out->watch = (struct kvt_schedule_watch){
        .on_step = on_step, .on_stall = on_stall, .on_sample = on_sample, .on_turn = on_turn, .user = out
    };
    out->steps.item_bytes = sizeof(struct kvt_step_record);
    out->stalls.item_bytes = sizeof(struct stall);
    out->samples.item_bytes = sizeof(struct sample);
    out->turns.item_bytes = sizeof(struct kvt_turn);
    out->transfers.item_bytes = sizeof(struct kvt_transfer_event);
    *ret_out = out;
    return KVT_OK;
}

const struct kvt_schedule_watch *kvt_trace_out_watch(struct kvt_trace_out *out) { return &out->watch; }

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void put(struct json_object *object, const char *name, uint64_t value)
{
    (void)json_object_object_add(object, name, json_object_new_uint64(value));
}

static void put_text(struct json_object *object, const char *name, const char *text)
{
    (void)json_object_object_add(object, name, json_object_new_string(text));
}

static void put_us(struct json_object *object, const char *name, uint64_t ns)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
    (void)json_object_object_add(object, name, json_object_new_double_s((double)ns * 1e-3, text));
}

/* Takes the event. */
static void write_event(struct kvt_trace_out *out, struct json_object *event)
{
    const char *text = json_object_to_json_string_ext(event, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (!text) out->status = KVT_NOMEM;
    else if (fprintf(out->file, "%s%s", out->is_begun ? ",\n" : "", text) < 0) out->status = KVT_IO;
    out->is_begun = true;
    (void)json_object_put(event);
}

static struct json_object *event_of(const char *phase, const char *name, uint32_t process, uint32_t track)
{
    struct json_object *event = json_object_new_object();
    put_text(event, "ph", phase);
    put_text(event, "name", name);
    put(event, "pid", process);
    put(event, "tid", track);
    return event;
}

static struct json_object *span_of(const struct kvt_trace_out *out, const char *name, uint32_t process, uint32_t track,
                                   uint64_t from_ns, uint64_t to_ns)
{
    struct json_object *event = event_of("X", name, process, track);
    put_us(event, "ts", from_ns - kvt_min_u64(from_ns, out->start_ns));
    put_us(event, "dur", to_ns - from_ns);
    return event;
}

static void write_name(struct kvt_trace_out *out, const char *what, uint32_t process, uint32_t track, const char *name)
{
    struct json_object *event = event_of("M", what, process, track);
    struct json_object *arguments = json_object_new_object();
    put_text(arguments, "name", name);
    (void)json_object_object_add(event, "args", arguments);
    write_event(out, event);
}

static void write_engine(struct kvt_trace_out *out)
{
    const struct kvt_step_record *steps = out->steps.at;
    const struct stall *stalls = out->stalls.at;
    write_name(out, "process_name", PROCESS_ENGINE, 0, "engine");
    write_name(out, "thread_name", PROCESS_ENGINE, TRACK_STEPS, "steps");
    write_name(out, "thread_name", PROCESS_ENGINE, TRACK_STALLS, "stalls");
    for (uint64_t i = 0; i < out->steps.count; i++) {
        struct json_object *event = span_of(out, "step", PROCESS_ENGINE, TRACK_STEPS, steps[i].started_ns,
                                            steps[i].ended_ns);
        struct json_object *arguments = json_object_new_object();
        put_text(event, "cat", "step");
        put(arguments, "sequences", steps[i].sequences);
        put(arguments, "tokens", steps[i].tokens);
        (void)json_object_object_add(event, "args", arguments);
        write_event(out, event);
    }
    for (uint64_t i = 0; i < out->stalls.count; i++) {
        struct json_object *event = span_of(out, kvt_stall_name(stalls[i].cause), PROCESS_ENGINE, TRACK_STALLS,
                                            stalls[i].from_ns, stalls[i].to_ns);
        put_text(event, "cat", "stall");
        write_event(out, event);
    }
}

/* When each track of a direction is free again. */
struct tracks {
    uint64_t *free_ns;
    uint32_t count, capacity;
};

/* The track, from 1 on, of a span: the one that became free last. Spans come in the order of their begins. 0: no memory. */
static uint32_t track_for(struct tracks *tracks, uint64_t from_ns, uint64_t to_ns)
{
    uint32_t best = tracks->count;
    for (uint32_t t = 0; t < tracks->count; t++) {
        if (tracks->free_ns[t] > from_ns) continue;
        if (best == tracks->count || tracks->free_ns[t] > tracks->free_ns[best]) best = t;
    }
    if (best == tracks->capacity) {
        const uint32_t capacity = kvt_max_u32(16, 2 * tracks->capacity);
        uint64_t *grown = kvt_realloc(tracks->free_ns, capacity, sizeof *grown);
        if (!grown) return 0;
        tracks->free_ns = grown;
        tracks->capacity = capacity;
    }
    if (best == tracks->count) tracks->count++;
    tracks->free_ns[best] = to_ns;
    return best + 1;
}

static int compare_begins(const void *a, const void *b)
{
    const struct kvt_transfer_event *left = a, *right = b;
    if (left->begun_ns != right->begun_ns) return left->begun_ns < right->begun_ns ? -1 : 1;
    return left->ended_ns < right->ended_ns ? -1 : left->ended_ns > right->ended_ns;
}

static void write_transfer(struct kvt_trace_out *out, const struct kvt_transfer_event *transfer, struct tracks *tracks)
{
    static const char *const priorities[] = { "demand", "prefetch", "write-back" };
    char name[40];
    const uint32_t direction = transfer->from * KVT_TIERS + transfer->to;
    const uint32_t before = tracks->count;
    const uint32_t lane = track_for(tracks, transfer->begun_ns, transfer->ended_ns);
    const uint32_t track = direction * TRACKS_OF_DIRECTION + lane;
    (void)snprintf(name, sizeof name, "%s to %s", tier_names[transfer->from], tier_names[transfer->to]);
    if (lane == 0) out->status = KVT_NOMEM;
    if (tracks->count > before) write_name(out, "thread_name", PROCESS_TRANSFERS, track, name);
    struct json_object *event = span_of(out, name, PROCESS_TRANSFERS, track, transfer->begun_ns, transfer->ended_ns);
    struct json_object *arguments = json_object_new_object();
    put_text(event, "cat", "transfer");
    put(arguments, "block", transfer->block);
    put(arguments, "bytes", transfer->bytes);
    put_text(arguments, "for", priorities[kvt_min_u32(transfer->priority, KVT_ARRAY_COUNT(priorities) - 1)]);
    put_us(arguments, "link_us", transfer->link_ns);
    if (transfer->codec_ns > 0) put_us(arguments, "codec_us", transfer->codec_ns);
    if (transfer->status != KVT_OK) put_text(arguments, "failed", kvt_status_text((enum kvt_status)transfer->status));
    (void)json_object_object_add(event, "args", arguments);
    write_event(out, event);
}

static void write_transfers(struct kvt_trace_out *out)
{
    struct tracks tracks[KVT_TIERS * KVT_TIERS] = { { 0 } };
    struct kvt_transfer_event *transfers = out->transfers.at;
    if (out->transfers.count > 0) qsort(transfers, out->transfers.count, sizeof *transfers, compare_begins);
    write_name(out, "process_name", PROCESS_TRANSFERS, 0, "transfers");
    for (uint64_t i = 0; i < out->transfers.count; i++)
        write_transfer(out, &transfers[i], &tracks[transfers[i].from * KVT_TIERS + transfers[i].to]);
    for (uint32_t t = 0; t < KVT_ARRAY_COUNT(tracks); t++) kvt_free(tracks[t].free_ns);
}

static void write_part(struct kvt_trace_out *out, const char *name, const struct kvt_turn *turn, uint64_t from_ns,
                       uint64_t to_ns)
{
    if (to_ns > from_ns)
        write_event(out, span_of(out, name, PROCESS_SEQUENCES, turn->conversation + 1, from_ns, to_ns));
}

static void write_sequences(struct kvt_trace_out *out)
{
    const struct kvt_turn *turns = out->turns.at;
    write_name(out, "process_name", PROCESS_SEQUENCES, 0, "sequences");
    for (uint64_t i = 0; i < out->turns.count; i++) {
        const struct kvt_turn *turn = &turns[i];
        struct json_object *event = span_of(out, "turn", PROCESS_SEQUENCES, turn->conversation + 1, turn->due_ns,
                                            turn->ended_ns);
        struct json_object *arguments = json_object_new_object();
        put_text(event, "cat", "turn");
        put(arguments, "request", turn->request);
        put(arguments, "prompt", turn->prompt);
        put(arguments, "reused", turn->reused);
        put(arguments, "generated", turn->generated);
        (void)json_object_object_add(event, "args", arguments);
        write_event(out, event);
        const uint64_t first_ns = turn->first_ns > 0 ? turn->first_ns : turn->ended_ns;
        write_part(out, "queued", turn, turn->due_ns, turn->begun_ns);
        write_part(out, "prefill", turn, turn->begun_ns, first_ns);
        write_part(out, "decode", turn, first_ns, turn->ended_ns);
    }
}

static void write_samples(struct kvt_trace_out *out)
{
    const struct sample *samples = out->samples.at;
    write_name(out, "process_name", PROCESS_TIERS, 0, "tiers");
    for (uint64_t i = 0; i < out->samples.count; i++) {
        for (uint32_t t = 0; t < KVT_TIERS; t++) {
            if (samples[i].used_bytes[t] == 0) continue;
            struct json_object *event = event_of("C", tier_names[t], PROCESS_TIERS, 0);
            struct json_object *arguments = json_object_new_object();
            put_us(event, "ts", samples[i].at_ns - kvt_min_u64(samples[i].at_ns, out->start_ns));
            put(arguments, "used_bytes", samples[i].used_bytes[t]);
            (void)json_object_object_add(event, "args", arguments);
            write_event(out, event);
        }
    }
}

enum kvt_status kvt_trace_out_write(struct kvt_trace_out *out, FILE *stream)
{
    out->file = stream;
    errno = 0;
    (void)fprintf(out->file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    write_engine(out);
    write_transfers(out);
    write_sequences(out);
    write_samples(out);
    (void)fprintf(out->file, "\n]}\n");
    if (fflush(out->file) != 0 || ferror(out->file)) return KVT_IO;
    return out->is_short || out->is_transfers_short ? KVT_NOMEM : out->status;
}

void kvt_trace_out_destroy(struct kvt_trace_out **out_pointer)
{
    struct kvt_trace_out *out = *out_pointer;
    if (!out) return;
    *out_pointer = NULL;
    struct events *const all[] = { &out->steps, &out->stalls, &out->samples, &out->turns, &out->transfers };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(all); i++) kvt_free(all[i]->at);
    kvt_free(out);
}
