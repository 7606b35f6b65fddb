/*
 * test_model: random calls on the core and on a naive twin, many seeds, every byte compared.
 *
 *     test_model              the seeds of the build's test
 *     test_model SEED         one seed, with its calls printed
 *     test_model SEED COUNT   that many seeds from SEED on, with a line of numbers
 *     test_model SEED COUNT fails   the same, quietly: succeeds when one of them fails (the core has a bug on purpose)
 *
 * A seed that fails is shrunk: operations are left out by halves, quarters and so on, as long as it goes on failing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/model/calls.h"

#define OPERATIONS 1000
#define SEEDS 1000

static struct world world; /* large */

static struct {
    uint64_t operations, checks, reads, rows, readies, losses, reused, pendings, dropped, fetches, stashes;
} total;

static void add_up(void)
{
    total.operations += world.operations;
    total.checks += world.checks;
    total.reads += world.reads;
    total.rows += world.rows;
    total.readies += world.readies;
    total.losses += world.losses;
    total.reused += world.reused_tokens;
    total.pendings += world.pendings;
    total.dropped += world.core.counters.dropped_blocks;
    total.fetches += world.core.counters.fetches;
    total.stashes += world.core.counters.stashes;
}

/* Runs the operations of a seed that are not left out. Does not come back when something does not hold. */
static void run(uint64_t seed, uint32_t count, const bool *is_left_out, bool is_traced)
{
    const struct world_config config = world_config_of(seed);
    world_open(&world, &config);
    world.is_traced = is_traced;
    for (uint32_t n = 0; n < count; n++) {
        if (is_left_out && is_left_out[n]) continue;
        /* Each operation has random numbers of its own, so that it stays the same when others are left out. */
        world.rng.state = kvt_mix64(seed * 1000003 + n);
        world.operation = n;
        world.operations++;
        calls_one(&world);
    }
    world.operation = count;
    world.rng.state = kvt_mix64(seed * 1000003 + count);
    calls_finish(&world);
    add_up();
    world_close(&world);
}

static bool fails(uint64_t seed, uint32_t count, const bool *is_left_out, bool is_traced)
{
    jmp_buf failed;
    world_failed = &failed;
    if (setjmp(failed)) {
        world_failed = NULL;
        return true;
    }
    run(seed, count, is_left_out, is_traced);
    world_failed = NULL;
    return false;
}

/* In a child, whose memory goes with it: a world that failed cannot be closed. True: it fails in the same way. */
static bool fails_in_child(uint64_t seed, const bool *is_left_out, uint32_t failure)
{
    const pid_t child = fork();
    if (child == 0) _exit(fails(seed, OPERATIONS, is_left_out, false) && world_failure == failure ? 1 : 0);
    int status = 0;
    (void)waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

static void shrink(uint64_t seed)
{
    static bool is_left_out[OPERATIONS];
    memset(is_left_out, 0, sizeof is_left_out);
    const uint32_t failure = world_failure;
    world_is_quiet = true;
    for (uint32_t chunk = OPERATIONS / 2; chunk > 0; chunk /= 2) {
        for (uint32_t from = 0; from < OPERATIONS; from += chunk) {
            bool before[OPERATIONS];
            memcpy(before, is_left_out, sizeof before);
            for (uint32_t n = from; n < from + chunk && n < OPERATIONS; n++) is_left_out[n] = true;
            if (!fails_in_child(seed, is_left_out, failure)) memcpy(is_left_out, before, sizeof before);
        }
    }
    world_is_quiet = false;
    uint32_t left = 0;
    for (uint32_t n = 0; n < OPERATIONS; n++) left += !is_left_out[n];
    (void)fprintf(stderr, "shrunk to %u operations:\n", left);
    (void)fails(seed, OPERATIONS, is_left_out, true);
}

static void print_world(uint64_t seed)
{
    static const char *const kinds[] = { "full", "window", "state" };
    const struct world_config config = world_config_of(seed);
    (void)printf("seed %llu: block_tokens %u, %u groups:", (unsigned long long)seed, config.shape.block_tokens,
                 config.shape.group_count);
    for (uint32_t g = 0; g < config.shape.group_count; g++)
        (void)printf(" %s(window %u, sinks %u; %u slots)", kinds[config.shape.groups[g].kind],
                     config.shape.groups[g].window_tokens, config.shape.groups[g].sink_tokens, config.pool_slots[g]);
    (void)printf("\n    host %u x %u, nvme %u, transfers %u, sequences %u, blocks %u, %s/%s, prefetch %d, codec %d, "
                 "losing %d, fail %u, stuck %u\n",
                 config.host_chunks, config.chunk_bytes, config.nvme_records, config.transfers_max,
                 config.sequences_max, config.blocks_max, config.device_policy, config.host_policy,
                 (int)config.prefetch, config.is_codec_on, config.is_losing, config.fail_per_million,
                 config.stuck_per_million);
}

int main(int argc, char **argv)
{
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : argc > 1 ? 1 : SEEDS;
    const bool is_one = argc == 2;
    const bool is_planted = argc > 3 && strcmp(argv[3], "fails") == 0;
    world_is_quiet = is_planted;
    if (is_one) print_world(first);
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (!fails(seed, OPERATIONS, NULL, is_one)) continue;
        if (is_planted) {
            (void)printf("seed %llu finds it: %s\n", (unsigned long long)seed, world_failure_text);
            (void)fflush(stdout);
            _exit(0); /* a world that failed cannot be closed: what it holds is no leak */
        }
        print_world(seed);
        if (!getenv("KVT_MODEL_NO_SHRINK")) shrink(seed);
        return 1;
    }
    (void)printf("%llu seeds, %llu operations, %llu verified, %llu steps of a sequence, %llu blocks read, %llu rows, "
                 "%llu losses, "
                 "%llu tokens reused, %llu pending, %llu dropped, %llu fetches, %llu stashes\n",
                 (unsigned long long)count, (unsigned long long)total.operations, (unsigned long long)total.checks,
                 (unsigned long long)total.readies, (unsigned long long)total.reads, (unsigned long long)total.rows,
                 (unsigned long long)total.losses, (unsigned long long)total.reused, (unsigned long long)total.pendings,
                 (unsigned long long)total.dropped, (unsigned long long)total.fetches,
                 (unsigned long long)total.stashes);
    return is_planted ? 1 : 0;
}
