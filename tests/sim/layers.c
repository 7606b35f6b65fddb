/*
 * layers: steps that begin while blocks land, layer by layer, and contexts that are read through windows.
 *
 * What such a step reads may be wrong, when a load fails behind it; then the engine computes rubbish. An episode is all
 * that a sequence does from the first of those steps until it is told that all is right, or is not: whoever reads wrong
 * bytes in it writes wrong bytes from then on, and must be told LOST. Nobody else may ever read them.
 */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "tests/sim/sim.h"

#define NO_STEP UINT32_MAX
#define PIECES_MAX 6

void sim_episode_begin(struct sim *sim, uint32_t i)
{
    struct sim_sequence_more *more = &sim->more[i];
    if (more->episode == 0) {
        SIM_CHECK(sim, sim->episode_count + 1 < SIM_EPISODES_MAX, "more than %u episodes", SIM_EPISODES_MAX);
        more->episode = ++sim->episode_count;
        sim->episodes[more->episode].from = sim->sequences[i].tokens;
    }
    sim->counts.landings++;
}

void sim_episode_end(struct sim *sim, uint32_t i, bool is_right)
{
    struct sim_sequence_more *more = &sim->more[i];
    if (more->episode == 0) return;
    struct sim_episode *episode = &sim->episodes[more->episode];
    SIM_CHECK(sim, !is_right || !episode->has_wrong,
              "sequence %u read wrong bytes while they landed, and is told that all is right", i);
    sim->counts.episodes_lost += !is_right;
    episode->is_right = is_right;
    more->episode = 0;
}

bool sim_ask_landed(struct sim *sim, uint32_t i)
{
    enum kvt_ready ready = KVT_NOT_READY;
    uint64_t lost_from = UINT64_MAX;
    const enum kvt_status status = kvt_seq_landed(sim->runtime, sim->sequences[i].handle, &ready, &lost_from);
    SIM_CHECK(sim, status == KVT_OK, "status %d", (int)status);
    sim_say(sim, "landed %u: %s", i, ready == KVT_READY ? "ready" : ready == KVT_LOST ? "lost" : "not yet");
    if (ready == KVT_NOT_READY) return false;
    SIM_CHECK(sim, ready == KVT_READY || ready == KVT_LOST, "landed says %d", (int)ready);
    sim_episode_end(sim, i, ready == KVT_READY);
    return true;
}

/* ---- Windows ----------------------------------------------------------------------------------------------------- */

static void open_window(struct sim *sim, struct sim_window *window, uint32_t i)
{
    const uint32_t group = sim_below(sim, sim->plan.shape.group_count), slots = 1 + sim_below(sim, 2);
    const bool is_state = sim->plan.shape.groups[group].kind == KVT_GROUP_STATE;
    enum kvt_room room = KVT_ROOM_FULL;
    const bool is_short = sim_memory_short(sim);
    const enum kvt_status status = kvt_reader_open(sim->runtime, sim->sequences[i].handle, group, slots, &room,
                                                   &window->reader);
    sim_memory_done(sim);
    sim_say(sim, "window of %u for %u, group %u: status %d, room %d", slots, i, group, (int)status, (int)room);
    if (status != KVT_OK) {
        SIM_CHECK(sim, (status == KVT_INVAL && is_state) || (status == KVT_NOMEM && is_short), "status %d",
                  (int)status);
        window->reader = 0;
        return;
    }
    SIM_CHECK(sim, (room == KVT_ROOM_OK) == (window->reader != 0), "room %d", (int)room);
    window->sequence = i;
    window->group = group;
    window->handle = sim->sequences[i].handle;
}

void sim_window_close(struct sim *sim, struct sim_window *window)
{
    const enum kvt_status status = kvt_reader_close(sim->runtime, &window->reader);
    sim_say(sim, "window of %u closes: status %d", window->sequence, (int)status);
    SIM_CHECK(sim, status == KVT_OK && window->reader == 0, "status %d", (int)status);
}

static bool is_alive(const struct sim *sim, const struct sim_window *window)
{
    const struct twin_sequence *twin = &sim->sequences[window->sequence];
    return twin->is_live && twin->handle == window->handle;
}

/* True: the pass came to its end. */
static bool pass_layer(struct sim *sim, const struct sim_window *window, uint32_t layer, uint32_t stream, bool is_calm)
{
    const struct twin_sequence *twin = &sim->sequences[window->sequence];
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint32_t blocks = (twin->tokens + block_tokens - 1) / block_tokens;
    const uint32_t first = is_calm ? 0 : sim_below(sim, blocks + 1),
                   end = is_calm ? blocks : first + sim_below(sim, blocks - first + 1);
    enum kvt_status status = kvt_reader_begin(sim->runtime, window->reader, layer, first, end);
    SIM_CHECK(sim, status == KVT_OK, "a pass through layer %u: status %d", layer, (int)status);
    uint64_t next = first;
    for (uint32_t round = 0; round < (is_calm ? SIM_ROUNDS_MAX : 40u);) {
        uint32_t chunks[PIECES_MAX];
        struct kvt_piece piece;
        status = kvt_reader_next(sim->runtime, window->reader, sim_stream(sim, stream), chunks,
                                 1 + sim_below(sim, PIECES_MAX), &piece);
        SIM_CHECK(sim, status == KVT_OK, "a piece: status %d", (int)status);
        if (piece.state == KVT_PIECE_END) {
            SIM_CHECK(sim, next == end, "the pass ends at block %llu of %u", (unsigned long long)next, end);
            return true;
        }
        if (piece.state == KVT_PIECE_LOST) {
            sim_say(sim, "window of %u: lost from %llu", window->sequence, (unsigned long long)piece.lost_from);
            sim->counts.losses++;
            sim->tally.losses++;
            return false;
        }
        if (piece.state == KVT_PIECE_PENDING) {
            round++;
            if (is_calm) sim_round(sim);
            else sim_drift(sim);
            continue;
        }
        SIM_CHECK(sim, piece.first == next && piece.count > 0 && piece.first + piece.count <= end,
                  "a piece of %u blocks from %llu on, not from %llu", piece.count, (unsigned long long)piece.first,
                  (unsigned long long)next);
        sim_launch_chunks(sim, twin, window->group, layer, &piece, chunks, stream);
        sim->counts.chunks += piece.count;
        next += piece.count;
    }
    SIM_CHECK(sim, !is_calm, "a piece of sequence %u does not come", window->sequence);
    return false;
}

void sim_window_read(struct sim *sim, struct sim_window *window, uint32_t stream, bool is_calm)
{
    const uint32_t layers = sim->plan.shape.groups[window->group].layers;
    for (uint32_t l = 0; l < layers; l++) {
        if (!pass_layer(sim, window, l, stream, is_calm)) return;
    }
}

static uint32_t stream_of(const struct sim *sim, uint32_t sequence)
{
    for (uint32_t s = 0; s < SIM_STEPS_MAX; s++) {
        for (uint32_t m = 0; m < sim->steps[s].count; m++) {
            if (sim->steps[s].handle && sim->steps[s].members[m] == sequence) return sim->steps[s].stream;
        }
    }
    return SIM_ENGINE_STREAMS;
}

void sim_call_window(struct sim *sim)
{
    struct sim_window *window = &sim->windows[sim_below(sim, SIM_WINDOWS)];
    if (window->reader && !is_alive(sim, window)) {
        /* It ended with its sequence: a stale one is fine. */
        sim_window_close(sim, window);
        return;
    }
    if (!window->reader) {
        const uint32_t i = sim_below(sim, SIM_SEQUENCES_MAX);
        if (sim->sequences[i].is_live) open_window(sim, window, i);
        return;
    }
    const uint32_t stream = stream_of(sim, window->sequence);
    if (stream < SIM_ENGINE_STREAMS) {
        sim_window_read(sim, window, stream, false);
        return;
    }
    const enum kvt_status status = kvt_reader_begin(sim->runtime, window->reader, 0, 0, 0);
    SIM_CHECK(sim, status == KVT_INVAL, "a pass outside of a step: status %d", (int)status);
    if (sim_chance(sim, 25)) sim_window_close(sim, window);
}

void sim_call_stream(struct sim *sim, uint32_t i)
{
    const bool is_active = sim_sequence(sim, i)->mode == KVT_SEQUENCE_ACTIVE;
    const enum kvt_status status = kvt_seq_stream(sim->runtime, sim->sequences[i].handle);
    sim_say(sim, "stream %u: status %d", i, (int)status);
    SIM_CHECK(sim, status == (is_active ? KVT_INVAL : KVT_OK), "status %d", (int)status);
    sim->more[i].is_streamed = sim->more[i].is_streamed || status == KVT_OK;
}

void sim_call_hint(struct sim *sim, uint32_t i)
{
    const struct kvt_seq_hint hint = { .next = (enum kvt_next)sim_below(sim, 5), .turn = sim_below(sim, 4) };
    const enum kvt_status status = kvt_seq_hint(sim->runtime, sim->sequences[i].handle, &hint);
    SIM_CHECK(sim, status == (hint.next <= KVT_NEXT_NOBODY ? KVT_OK : KVT_INVAL), "status %d", (int)status);
}
