/*
 * sim: the whole runtime in one thread, on a clock, a disk and a device that the seed moves.
 *
 * kvt_open() with everything real behind it but what enters through kvt_env: the store with its log, recovery and
 * cipher on a disk in memory (tests/fakes/io_faulty), the device tier on the cranked emulated device, the codec, host
 * memory, and the core. Above it an engine whose kernels write and read real bytes when their stream comes to them.
 *
 *     machine.c  open, close, restart; faults; what runs by itself
 *     engine.c   kernels
 *     layers.c   steps that begin while blocks land; contexts that are read through windows
 *     calls.c    sessions: random calls of the public API, and their checks
 *     change.c   what is different when the next process opens
 *     check.c    what holds at every moment, and what must lie in the store
 *     recount.c  what the process says of itself, counted beside it
 *     run.c      one seed from its beginning to its end
 *
 * Thread: one.
 */
#ifndef KVT_TESTS_SIM_SIM_H
#define KVT_TESTS_SIM_SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/gpu_emulated.h"
#include "kvtier/kvtier.h"
#include "runtime/base/rng.h"
#include "runtime/runtime.h"
#include "tests/fakes/io_faulty.h"
#include "tests/model/twin.h"
#include "tests/sim/content.h"
#include "tests/sim/plan.h"

#define SIM_MS UINT64_C(1000000)
#define SIM_SEQUENCES_MAX 24
#define SIM_ENGINE_STREAMS 2
#define SIM_STEPS_MAX 3
#define SIM_ARCHIVE 16
#define SIM_TRACE_LINES 64
#define SIM_TRACE_BYTES 160
#define SIM_SALTS 3
#define SIM_ROUNDS_MAX 400 /* within which everything that can happen has happened, once faults have ended */

struct sim_step {
    kvt_step handle;
    uint32_t stream; /* index of the engine stream */
    uint32_t count;
    uint32_t members[SIM_SEQUENCES_MAX]; /* in sim.sequences */
};

/* What a run met, for the report. */
struct sim_counts {
    uint64_t ticks, calls, reads, rows, readies, losses, reused_tokens, hits[KVT_TIERS];
    uint64_t reclaims, recounts, opens, restarts, kills, power_cuts, resets, records_read, records_durable;
    uint64_t verifies, records_digested, landings, episodes_lost, chunks;
    uint64_t fetches, stashes, abandoned, failures;
    uint64_t faults[SIM_FAULTS];
};

/* What happened to this process, counted beside it (recount.c). */
struct sim_tally {
    uint64_t moves[KVT_TIERS][KVT_TIERS], bytes[KVT_TIERS][KVT_TIERS]; /* from, to: transfers that ended well */
    uint64_t failed;                                                   /* all others */
    uint64_t hits[KVT_TIERS], misses[KVT_TIERS];
    uint64_t sequences_max, steps, losses;
    uint64_t own_gets; /* records that the harness read */
    bool has_reset;
    struct io_faulty_counters disk; /* when it opened */
};

/* Where each leading block of a prompt was when its sequence was created; KVT_TIERS: nowhere. */
struct sim_lookup {
    uint32_t asked;
    uint8_t tiers[KVT_GROUPS_MAX][TWIN_TOKENS_MAX + 1];
};

#define SIM_EPISODES_MAX 8192
#define SIM_WINDOWS 2
#define SIM_WORLDS 5
#define SIM_WORLD_SALTS 16 /* the twin's salts of one world */

/* Steps of a sequence that began while blocks landed, until it was told how that ended (layers.c). */
struct sim_episode {
    uint32_t from;  /* tokens when it began */
    bool has_wrong; /* a kernel read wrong bytes: what is computed from them is wrong, too */
    bool is_right;  /* it was told that all is right: from then on nothing may be wrong */
};

struct sim_sequence_more {
    uint32_t episode; /* 0: none is open */
    bool is_streamed;
};

struct sim_window {
    kvt_reader_id reader; /* 0: none */
    uint32_t sequence, group;
    kvt_seq handle; /* of the sequence, whose place another one may have by now */
};

struct sim {
    struct sim_plan plan;
    struct kvt_env env;
    uint64_t now_ns;
    struct kvt_rng rng, fault_rng; /* of the tick at hand */
    struct io_faulty_image *image;
    struct kvt_config config;
    struct kvt_runtime *runtime; /* NULL: it does not run at the moment */
    struct kvt_runtime *opened;  /* the same, until it is gone: a close is still told of transfers */
    struct kvt_gpu *gpu;
    uint32_t engine_streams[SIM_ENGINE_STREAMS]; /* the device's numbers */

    struct twin twin;
    struct twin before_reset; /* what a reset could not forget durably: a restart may bring it back */
    struct twin_sequence sequences[SIM_SEQUENCES_MAX];
    struct twin_sequence archive[SIM_ARCHIVE]; /* token lists to build prompts from */
    struct twin_sequence scratch;
    struct sim_sequence_more more[SIM_SEQUENCES_MAX];
    struct sim_step steps[SIM_STEPS_MAX];
    struct sim_window windows[SIM_WINDOWS];
    struct sim_episode episodes[SIM_EPISODES_MAX];
    uint32_t episode_count;
    struct sim_content content;
    struct kvt_store *directory;  /* the store without a runtime, when it is looked at */
    uint64_t listed_bytes;        /* while records are counted */
    uint32_t durable_run;         /* grows when what was durable no longer has to be */
    uint8_t *raw, *scratch_bytes; /* to unpack records with */
    uint64_t scratch_size;

    uint32_t world;            /* which model, type, secret, rank (change.c) */
    uint32_t key_number;       /* of the store; 0: none */
    uint32_t nvme_bytes_first; /* before anything was changed */
    uint32_t nvme_bytes_most;
    bool was_codec_on, was_changed, is_emptied;
    bool was_unwaited;
    bool was_kept_false, was_reset, was_restarted, was_crashed;
    bool is_calm; /* faults have ended */
    bool is_device_lost;
    bool is_open_in_trouble; /* an open with faults on */
    uint32_t away;           /* a directory that does not answer, + 1; 0: none */
    uint64_t stall_until;    /* tick */
    uint64_t tick;
    struct sim_tally tally;
    struct sim_counts counts;

    uint64_t digest; /* of everything that was said */
    bool is_traced;
    char trace[SIM_TRACE_LINES][SIM_TRACE_BYTES];
    uint64_t trace_count;
};

/* ---- run.c ---- */

struct sim_outcome {
    bool is_failed;
    uint64_t tick;  /* of the failure */
    uint32_t alike; /* what did not hold, digits apart: two runs that fail alike have the same */
    char text[512];
    uint64_t digest;
    struct sim_counts counts;
};

/*
 * Runs one seed. A sim that failed cannot be used again, nor its memory be given back: its process ends. sim is zeroed
 * before its first run, and may be used for many.
 */
void sim_run(struct sim *sim, const struct sim_plan *plan, bool is_traced, struct sim_outcome *ret_outcome);
void sim_done(struct sim *sim);
/* The last calls before a failure. */
void sim_print_trace(const struct sim *sim);

/* One line of what was done. */
void sim_say(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The promise does not hold. */
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
void sim_broken(struct sim *sim, const char *condition, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

#define SIM_CHECK(sim, condition, ...)                              \
    do {                                                            \
        if (!(condition)) sim_broken(sim, #condition, __VA_ARGS__); \
    } while (0)

static inline uint32_t sim_below(struct sim *sim, uint32_t bound) { return (uint32_t)kvt_rng_below(&sim->rng, bound); }
static inline bool sim_chance(struct sim *sim, uint32_t percent) { return sim_below(sim, 100) < percent; }

static inline struct kvt_core *sim_core(struct sim *sim) { return &sim->runtime->core; }
static inline struct kvt_sequence *sim_sequence(struct sim *sim, uint32_t i)
{
    return kvt_sequence_of(&sim->runtime->core, sim->sequences[i].handle);
}
static inline uint32_t sim_index_of(const struct sim *sim, const struct twin_sequence *sequence)
{
    return (uint32_t)(sequence - sim->sequences);
}

/* ---- machine.c ---- */

/* A fresh disk, and a runtime on it. */
void sim_machine_start(struct sim *sim);
/* Closes the runtime in order, if it runs, and throws the disk away. */
void sim_machine_end(struct sim *sim);
/* Closes in order and opens again on the same disk, without a fault in between. */
void sim_reopen(struct sim *sim);
/* What the tick's seed wants to strike now: restarts, cuts, jumps, stalls. */
void sim_strike(struct sim *sim);
/* True when the next call's allocations fail somewhere; sim_memory_done() before anything else is called. */
bool sim_memory_short(struct sim *sim);
void sim_memory_done(struct sim *sim);
/* Runs a little of everything that runs by itself, chosen at random. */
void sim_drift(struct sim *sim);
/* Ends all faults, opens all gates. */
void sim_heal(struct sim *sim);
/* Runs everything for one round: all streams, the disk, some time, pumps. */
void sim_round(struct sim *sim);
/* A runtime that could not be opened, or whose power went, is brought back. */
void sim_bring_back(struct sim *sim);
struct kvt_store *sim_store(struct sim *sim);              /* NULL: none is open */
const char *const *sim_directories(const struct sim *sim); /* of the store, as many as the plan has stripes */
/* Closes in order; nothing runs until the next open. */
void sim_close(struct sim *sim);

/* What kvt_open is given, from the plan, the world and the key. */
void sim_configure(struct sim *sim);

/* ---- change.c ---- */

/* Before an open: the next process may be another one. */
void sim_change(struct sim *sim);
void sim_world_apply(const struct sim *sim, struct kvt_config *config);
static inline uint32_t sim_world_salt(const struct sim *sim, uint32_t salt)
{
    return sim->world * SIM_WORLD_SALTS + salt;
}

/* ---- engine.c ---- */

kvt_stream sim_stream(struct sim *sim, uint32_t i);
/* Launches a kernel that compares everything that the sequence, which is in a step, attends to. */
void sim_launch_read(struct sim *sim, const struct twin_sequence *sequence, uint32_t stream);
/*
 * Launches a kernel that writes tokens [tokens, tokens + n) of the twin (their values are there already) into the slots
 * that the sequence has reserved, and the state after the last of them.
 */
void sim_launch_write(struct sim *sim, const struct twin_sequence *sequence, uint32_t n, uint32_t stream);

/* The same of a step that is LANDING: one layer of all groups. */
void sim_launch_read_layer(struct sim *sim, const struct twin_sequence *sequence, uint32_t layer, uint32_t stream);
/* Launches a kernel that compares the layer of these blocks where a window has them. */
void sim_launch_chunks(struct sim *sim, const struct twin_sequence *sequence, uint32_t group, uint32_t layer,
                       const struct kvt_piece *piece, const uint32_t *chunks, uint32_t stream);

/* ---- layers.c ---- */

/* The sequence is in a step that is LANDING. */
void sim_episode_begin(struct sim *sim, uint32_t i);
/* It was told how that ended; nothing when none is open. */
void sim_episode_end(struct sim *sim, uint32_t i, bool is_right);
/* Asks kvt_seq_landed. False: not known yet. */
bool sim_ask_landed(struct sim *sim, uint32_t i);
void sim_call_window(struct sim *sim);
/* In a step on that stream: passes through all layers; is_calm: to their ends. */
void sim_window_read(struct sim *sim, struct sim_window *window, uint32_t stream, bool is_calm);
void sim_window_close(struct sim *sim, struct sim_window *window);
void sim_call_stream(struct sim *sim, uint32_t i);
void sim_call_hint(struct sim *sim, uint32_t i);

/* ---- calls.c ---- */

void sim_call(struct sim *sim);
/* Every sequence is set idle, comes back ready or lost, and is finished; nothing is claimed or held after it. */
void sim_finish_all(struct sim *sim);
void sim_drain(struct sim *sim);
/* The process is gone: nothing that it had is there. */
void sim_forget_sequences(struct sim *sim);

/* ---- recount.c ---- */

/* A process begins. */
void sim_tally_begin(struct sim *sim);
void sim_tally_transfer(struct sim *sim, const struct kvt_transfer_event *event);
/* After each call that may begin a sequence. */
void sim_tally_sequences(struct sim *sim);
/* Before a create, and after it. */
void sim_tally_lookup(struct sim *sim, const struct kvt_seq_params *params, struct sim_lookup *ret_lookup);
void sim_tally_found(struct sim *sim, const struct sim_lookup *lookup, uint32_t reused);
/* What the process says of itself equals what was counted; tally is that of the moment when it gave the stats. */
void sim_check_counters(struct sim *sim, const struct kvt_stats *stats, const struct sim_tally *tally);

/* ---- check.c ---- */

/* Cheap facts, at every tick. */
void sim_check_tick(struct sim *sim);
/* Everything counted again. */
void sim_check_all(struct sim *sim);
/* Nothing may be left: no sequence lives and nothing is in flight. */
void sim_check_idle(struct sim *sim);
/* A sync that succeeded: what is in the store now is durable. */
void sim_check_synced(struct sim *sim);
/* After a crash that the store was not verified after: what it lists may be torn, and a later sync makes it no better. */
void sim_note_unread(struct sim *sim);
/* Marks what is durable and still in the store; after the restart all of that must be found. */
void sim_check_before_crash(struct sim *sim);
/* For env->on_transfer, with the sim as its user: a record that was put again is not the one that a sync covered. */
void sim_note_transfer(void *user, const struct kvt_transfer_event *event);
void sim_check_after_crash(struct sim *sim);
/* Reads every record as `kvtier store verify` does: each is exact, or refused, and refused only when the disk may have lied. */
void sim_check_store(struct sim *sim);
/* The same of the directories when no runtime has them open. */
void sim_check_directory(struct sim *sim);

#endif
