/* run: one seed from its beginning to its end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "tests/sim/sim.h"

static struct sim *current; /* the one that a failing assertion speaks of */
static jmp_buf failed;
static struct sim_outcome *outcome;

/* ---- Saying and failing ------------------------------------------------------------------------------------------ */

static void digest(struct sim *sim, const char *text)
{
    uint64_t value = sim->digest ^ sim->now_ns;
    for (size_t length = strlen(text), i = 0; i < length; i += 8) {
        uint64_t word = 0;
        memcpy(&word, text + i, length - i < 8 ? length - i : 8);
        value = (value ^ word) * 0x9e3779b97f4a7c15u;
        value ^= value >> 29;
    }
    sim->digest = kvt_mix64(value);
}

void sim_say(struct sim *sim, const char *format, ...)
{
    char *line = sim->trace[sim->trace_count++ % SIM_TRACE_LINES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, SIM_TRACE_BYTES, format, arguments);
    va_end(arguments);
    digest(sim, line);
    if (sim->is_traced)
        (void)printf("%6llu %10.3f  %s\n", (unsigned long long)sim->tick, (double)sim->now_ns / 1e9, line);
}

void sim_print_trace(const struct sim *sim)
{
    const uint64_t first = sim->trace_count > SIM_TRACE_LINES ? sim->trace_count - SIM_TRACE_LINES : 0;
    for (uint64_t i = first; i < sim->trace_count; i++)
        (void)fprintf(stderr, "    %s\n", sim->trace[i % SIM_TRACE_LINES]);
}

static void leave(struct sim *sim, const char *text)
{
    outcome->is_failed = true;
    outcome->tick = sim->tick;
    (void)snprintf(outcome->text, sizeof outcome->text, "%s", text);
    outcome->alike = 1;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9') outcome->alike = outcome->alike * 31 + (uint8_t)*at;
    }
    longjmp(failed, 1);
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    leave(sim, text);
    abort();
}

void sim_broken(struct sim *sim, const char *condition, const char *format, ...)
{
    char text[512];
    const int length = snprintf(text, sizeof text, "%.200s: ", condition);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    leave(sim, text);
    abort();
}

static void assertion_failed(int result, const char *expression, const char *file, int line)
{
    (void)result;
    char text[512];
    const char *name = strstr(file, "../") ? strrchr(file, '/') + 1 : file;
    (void)snprintf(text, sizeof text, "assertion %s (%s:%d)", expression, name, line);
    leave(current, text);
}

/* ---- One seed ---------------------------------------------------------------------------------------------------- */

/* Everything but the memory that is kept between seeds. */
static void clear(struct sim *sim, const struct sim_plan *plan)
{
    const struct sim kept = {
        .content = sim->content, .raw = sim->raw, .scratch_bytes = sim->scratch_bytes, .scratch_size = sim->scratch_size
    };
    memset(sim, 0, sizeof *sim);
    sim->plan = *plan;
    sim->content = kept.content;
    sim->raw = kept.raw;
    sim->scratch_bytes = kept.scratch_bytes;
    sim->scratch_size = kept.scratch_size;
    sim->durable_run = 1;
    sim_content_clear(&sim->content);
    twin_init(&sim->twin, &plan->shape);
    twin_init(&sim->before_reset, &plan->shape);
}

/* Each tick has random numbers of its own, so that it stays the same when a fault is switched off. */
static void begin_tick(struct sim *sim, uint64_t tick)
{
    sim->tick = tick;
    sim->rng.state = kvt_mix64(sim->plan.seed * 1000003 + tick);
    sim->fault_rng.state = kvt_mix64(sim->plan.seed * 7000003 + tick);
}

static void tick(struct sim *sim)
{
    sim_strike(sim);
    sim_bring_back(sim);
    sim_call(sim);
    if (sim_chance(sim, 60)) (void)kvt_wait(sim->runtime, 0);
    sim_check_tick(sim);
    if (sim->tick % sim->plan.check_every == 0) sim_check_all(sim);
    sim->counts.ticks++;
}

/* Faults end; everything outstanding must come to its end, and what lies in the store must be right. */
static void finish(struct sim *sim)
{
    sim_say(sim, "faults end");
    sim_bring_back(sim);
    sim_heal(sim);
    sim_finish_all(sim);
    sim_check_store(sim);
    if (sim_store(sim)) {
        const enum kvt_status status = kvt_store_sync(sim_store(sim));
        SIM_CHECK(sim, status == KVT_OK, "sync on a healthy disk: status %d", (int)status);
        sim_check_synced(sim);
        sim_check_before_crash(sim);
    }
    sim_reopen(sim);
    sim_check_after_crash(sim);
    sim_check_all(sim);
    sim_check_before_crash(sim);
    sim_close(sim);
    sim_check_directory(sim);
}

void sim_run(struct sim *sim, const struct sim_plan *plan, bool is_traced, struct sim_outcome *ret_outcome)
{
    memset(ret_outcome, 0, sizeof *ret_outcome);
    outcome = ret_outcome;
    current = sim;
    kvt_check_hook = assertion_failed;
    if (setjmp(failed) == 0) {
        clear(sim, plan);
        sim->is_traced = is_traced;
        begin_tick(sim, 0);
        sim_machine_start(sim);
        for (uint64_t n = 1; n <= plan->ticks; n++) {
            begin_tick(sim, n);
            tick(sim);
        }
        begin_tick(sim, (uint64_t)plan->ticks + 1);
        finish(sim);
        sim_machine_end(sim);
        twin_done(&sim->twin);
        twin_done(&sim->before_reset);
    }
    kvt_check_hook = NULL;
    ret_outcome->counts = sim->counts;
    ret_outcome->digest = sim->digest;
}

void sim_done(struct sim *sim)
{
    sim_content_done(&sim->content);
    kvt_table_unmap(sim->raw, 256 * 1024);
    kvt_table_unmap(sim->scratch_bytes, sim->scratch_size);
    sim->raw = sim->scratch_bytes = NULL;
    sim->scratch_size = 0;
}
