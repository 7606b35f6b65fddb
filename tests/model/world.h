/*
 * world: a core with everything round it, in one thread and with a clock that the test moves.
 *
 * The real device tier on the emulated device, the real host tier, the real codec, a fake of the nvme tier, and an
 * engine: jobs on engine streams that write the bytes of new tokens and read those of old ones, when the stream comes
 * to it.
 */
#ifndef KVT_TESTS_MODEL_WORLD_H
#define KVT_TESTS_MODEL_WORLD_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/rng.h"
#include "runtime/core.h"
#include "tests/model/twin.h"

struct kvt_codec;

#define WORLD_SEQUENCES_MAX 24
#define WORLD_ENGINE_STREAMS 2
#define WORLD_STEPS_MAX 3
#define WORLD_ARCHIVE 16
#define WORLD_TRACE_LINES 64

/* What a seed decides. Tests of single cases fill it in themselves. */
struct world_config {
    uint64_t seed;
    struct kvt_model_shape shape;
    /* of each group's own pool; groups of equal block bytes share the first one's */
    uint32_t pool_slots[KVT_GROUPS_MAX];
    uint32_t blocks_max;
    uint32_t host_chunks, chunk_bytes;
    uint32_t nvme_records; /* 0: no nvme tier */
    uint32_t sequences_max, transfers_max;
    const char *device_policy, *host_policy;
    enum kvt_prefetch prefetch;
    bool is_codec_on;
    bool is_losing; /* the store may lose held records */
    uint32_t fail_per_million, stuck_per_million;
    uint64_t deadline_ns;
    uint32_t haste;  /* how fast what runs by itself runs, beside calls */
    bool is_careful; /* verify after every operation */
};

struct world_step {
    kvt_step handle;
    uint32_t stream; /* index of the engine stream */
    uint32_t count;
    uint32_t members[WORLD_SEQUENCES_MAX]; /* in world.sequences */
};

struct world_job;

struct world {
    struct world_config config;
    struct kvt_env env;
    uint64_t now_ns;
    struct kvt_rng rng;
    struct kvt_core core;
    bool is_core_open;
    struct kvt_tier *device, *nvme;
    struct kvt_host_tier *host;
    struct kvt_codec *codec;
    struct kvt_gpu *gpu;
    uint32_t engine_streams[WORLD_ENGINE_STREAMS];
    struct world_job *jobs; /* launched and not yet freed */

    struct twin twin;
    struct twin_sequence sequences[WORLD_SEQUENCES_MAX];
    struct twin_sequence archive[WORLD_ARCHIVE]; /* token lists to build prompts from */
    struct twin_sequence scratch;
    struct world_step steps[WORLD_STEPS_MAX];

    bool was_kept_false, was_reset, was_quiet_lost;
    bool is_draining; /* faults have ended */
    uint64_t operations, checks, reads, rows, readies, losses, reused_tokens, pendings;
    uint64_t operation; /* the one at hand */

    bool is_traced;
    char trace[WORLD_TRACE_LINES][160];
    uint64_t trace_count;
};

/* A place to go to when something does not hold; NULL: abort. */
extern jmp_buf *world_failed;
extern bool world_is_quiet;
extern char world_failure_text[512];
extern uint32_t world_failure; /* what did not hold, digits apart: two runs that fail alike have the same */

struct world_config world_config_of(uint64_t seed);

void world_open(struct world *world, const struct world_config *config);
/* After a failure nothing is drained: what a broken core holds cannot be given back in order. */
void world_close(struct world *world);

/* One line of what was done, kept for the report and shown at once when tracing. */
void world_say(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The promise does not hold: says so with the seed and the last calls, and leaves. */
void world_fail(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

void world_broken(struct world *world, const char *condition, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

#define WORLD_CHECK(world, condition, ...)                              \
    do {                                                                \
        if (!(condition)) world_broken(world, #condition, __VA_ARGS__); \
    } while (0)

static inline uint32_t world_below(struct world *world, uint32_t bound)
{
    return (uint32_t)kvt_rng_below(&world->rng, bound);
}
static inline bool world_chance(struct world *world, uint32_t percent) { return world_below(world, 100) < percent; }

static inline struct kvt_sequence *world_core_sequence(struct world *world, const struct twin_sequence *sequence)
{
    return kvt_sequence_of(&world->core, sequence->handle);
}

/* Launches a job that compares everything the sequence attends to, as its tables are now. */
void world_launch_read(struct world *world, const struct twin_sequence *sequence, uint32_t stream);
/*
 * Launches a job that writes tokens [tokens, tokens + n) of the twin (their values are there already) into the slots
 * that the sequence has reserved, and the state after the last of them.
 */
void world_launch_write(struct world *world, const struct twin_sequence *sequence, uint32_t n, uint32_t stream);

/* Runs a little of everything that runs by itself, chosen at random. */
void world_drift(struct world *world);
/* Ends all faults, opens all gates. */
void world_heal(struct world *world);
/* Runs everything for one round: all streams, all of nvme, some time, pumps. */
void world_round(struct world *world);

/* Everything that can be checked at any moment. */
void world_verify(struct world *world);

#endif
