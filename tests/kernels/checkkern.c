/*
 * checkkern: every implementation of every kernel against its reference, and their speed.
 *
 * Exit 0: all agree. 1: something differs; what reproduces it is printed. 2: wrong use. 77: nothing to compare here.
 */
#include "tests/kernels/checkkern.h"

#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/kernels/launches.h"

static const struct kern_kernel *const registry[] = {
    &kern_attention,
    &kern_block_pack, &kern_block_unpack, &kern_checksum,    &kern_pages,
    &kern_pattern,    &kern_quantise,     &kern_rank_planes, /* one line for each */
};

enum { EXIT_DIFFERS = 1, EXIT_USAGE = 2, EXIT_NOTHING = 77, CANARY = 0xa5, CANARY_BYTES = 256, BENCH_ROUNDS = 7 };

/* ---- For the cases --------------------------------------------------------------------------------------------- */

bool kern_differs(const struct kern_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fprintf(stderr, "%s: %s differs from the reference: ", run->kernel, run->impl);
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, " (checkkern --kernel %s --impl %s --seed %llu)\n", run->kernel, run->impl,
                  (unsigned long long)run->seed);
    va_end(arguments);
    return false;
}

size_t kern_first_difference(const uint8_t *a, const uint8_t *b, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) return i;
    return size;
}

/* A sanitizer sees what only reads outside, too. */
#if defined(__SANITIZE_ADDRESS__)
#define CANARY_HIDE(start, size) __asan_poison_memory_region((start), (size))
#define CANARY_SHOW(start, size) __asan_unpoison_memory_region((start), (size))
#else
#define CANARY_HIDE(start, size) ((void)(start), (void)(size))
#define CANARY_SHOW(start, size) ((void)(start), (void)(size))
#endif

static size_t bytes_before(const struct kern_buffer *buffer) { return (size_t)(buffer->bytes - buffer->memory); }

void kern_buffer_init(struct kern_buffer *buffer, const struct kern_launches *side, size_t size, size_t misalign)
{
    const size_t whole = size + 2 * CANARY_BYTES + 64 + misalign;
    buffer->side = side;
    buffer->memory = side ? side->memory_alloc(whole) : kvt_alloc(1, whole);
    KVT_ASSERT(buffer->memory != NULL);
    memset(buffer->memory, CANARY, whole);
    buffer->bytes = (uint8_t *)(uintptr_t)kvt_align_up((uintptr_t)buffer->memory + CANARY_BYTES, 64) + misalign;
    buffer->size = size;
    CANARY_HIDE(buffer->memory, bytes_before(buffer));
    CANARY_HIDE(buffer->bytes + size, CANARY_BYTES);
}

static bool is_canary(const uint8_t *start, size_t size)
{
    bool is_intact = true;
    CANARY_SHOW(start, size);
    for (size_t i = 0; i < size; i++) is_intact = is_intact && start[i] == CANARY;
    CANARY_HIDE(start, size);
    return is_intact;
}

bool kern_buffer_is_intact(const struct kern_buffer *buffer)
{
    return is_canary(buffer->memory, bytes_before(buffer)) && is_canary(buffer->bytes + buffer->size, CANARY_BYTES);
}

void kern_buffer_done(struct kern_buffer *buffer)
{
    CANARY_SHOW(buffer->memory, bytes_before(buffer));
    CANARY_SHOW(buffer->bytes + buffer->size, CANARY_BYTES);
    if (buffer->side) buffer->side->memory_free(buffer->memory);
    else kvt_free(buffer->memory);
    buffer->memory = NULL;
}

void kern_fill_random(uint8_t *target, size_t size, struct kvt_rng *rng)
{
    for (size_t i = 0; i < size; i++) target[i] = (uint8_t)kvt_rng_next(rng);
}

void kern_touch(const struct kern_launches *side, void *memory, size_t size)
{
    if (!side) memset(memory, 1, size);
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

struct options {
    const char *kernel, *impl;
    uint64_t seed, seeds;
    bool is_list, is_json, is_bench;
};

static bool is_known_impl(const char *name)
{
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(registry); k++)
        for (uint32_t i = 0; registry[k]->impl(i); i++)
            if (strcmp(registry[k]->impl(i), name) == 0) return true;
    /* On a machine or in a build without it this is no mistake: there is nothing to compare. */
    return strcmp(name, "cuda") == 0 || strcmp(name, "simt") == 0 || strncmp(name, "avx", 3) == 0;
}

static bool is_known_kernel(const char *name)
{
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(registry); k++)
        if (strcmp(registry[k]->name, name) == 0) return true;
    return false;
}

static uint64_t parse_number(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != '\0' || *text == '-')
        argp_failure(state, EXIT_USAGE, 0, "%s %s: it wants a number from 0 to 2^64 - 1", option, text);
    return value;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case 'k':
        if (!is_known_kernel(text))
            argp_failure(state, EXIT_USAGE, 0, "--kernel %s: none of that name; see --list", text);
        o->kernel = text;
        break;
    case 'i':
        if (!is_known_impl(text)) argp_failure(state, EXIT_USAGE, 0, "--impl %s: none of that name; see --list", text);
        o->impl = text;
        break;
    case 's': o->seed = parse_number(state, "--seed", text); break;
    case 'n': o->seeds = parse_number(state, "--seeds", text); break;
    case 'l': o->is_list = true; break;
    case 'j': o->is_json = true; break;
    case 'b': o->is_bench = true; break;
    case ARGP_KEY_ARG: argp_failure(state, EXIT_USAGE, 0, "%s: it takes options only", text); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_option argp_options[] = {
    { "kernel", 'k', "NAME", 0, "this kernel only", 0 },
    { "impl", 'i', "NAME", 0, "this implementation only", 0 },
    { "seed", 's', "N", 0, "the seed of all cases (1)", 0 },
    { "seeds", 'n', "N", 0, "so many seeds from there on (1)", 0 },
    { "list", 'l', NULL, 0, "what there is, and whether it is here", 0 },
    { "bench", 'b', NULL, 0, "speed in GB/s, beside a copy of the same bytes in the same memory", 0 },
    { "json", 'j', NULL, 0, "the result as JSON", 0 },
    { NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp argp = {
    argp_options,
    parse_option,
    NULL,
    "Compares every implementation of every kernel with its reference.\v"
    "Exit status: 0 all agree, 1 something differs, 2 wrong use, 77 nothing to compare on this machine.",
    NULL,
    NULL,
    NULL
};

static bool is_wanted(const struct options *o, const struct kern_kernel *kernel, uint32_t i)
{
    return (!o->kernel || strcmp(o->kernel, kernel->name) == 0) && (!o->impl || strcmp(o->impl, kernel->impl(i)) == 0);
}

/* ---- Speed ----------------------------------------------------------------------------------------------------- */

/* What a thread of the CPU was busy, so that others on the machine do not count; of a GPU's work, what passed. */
static double seconds(const struct kern_launches *side)
{
    struct timespec t;
    (void)clock_gettime(side ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How long a copy of so many bytes takes where the implementation's memory is. */
struct ceiling {
    const struct kern_launches *side;
    uint8_t *memory[2];
    size_t bytes;
};

static const struct kern_launches *side_of(const char *impl)
{
    for (uint32_t i = 0; kern_launches_at(i); i++)
        if (strcmp(kern_launches_at(i)->name, impl) == 0) return kern_launches_at(i);
    return NULL;
}

static bool ceiling_init(struct ceiling *c, const char *impl, size_t bytes)
{
    c->side = side_of(impl);
    c->bytes = bytes;
    for (uint32_t k = 0; k < 2; k++) c->memory[k] = c->side ? c->side->device_alloc(bytes) : kvt_alloc(1, bytes);
    if (!c->memory[0] || !c->memory[1]) return false;
    for (uint32_t k = 0; k < 2; k++) kern_touch(c->side, c->memory[k], bytes);
    return true;
}

static double ceiling_seconds(const struct ceiling *c)
{
    const double start = seconds(c->side);
    if (c->side) c->side->copy(c->memory[1], c->memory[0], c->bytes);
    else memcpy(c->memory[1], c->memory[0], c->bytes);
    return seconds(c->side) - start;
}

static void ceiling_done(struct ceiling *c)
{
    for (uint32_t k = 0; k < 2; k++) {
        if (c->side) c->side->device_free(c->memory[k]);
        else kvt_free(c->memory[k]);
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, BENCH_ROUNDS, sizeof values[0], by_value);
    return values[BENCH_ROUNDS / 2];
}

static void bench_report(const struct options *o, json_object *cases, const struct kern_kernel *kernel, uint32_t i,
                         double speed, double ceiling)
{
    if (!o->is_json) {
        (void)printf("%-14s %-10s %10.3f GB/s %10.3f GB/s %8.3f\n", kernel->name, kernel->impl(i), speed, ceiling,
                     speed / ceiling);
        return;
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%s %s", kernel->name, kernel->impl(i));
    json_object *c = json_object_new_object();
    json_object_object_add(c, "name", json_object_new_string(name));
    json_object_object_add(c, "value", json_object_new_double(speed));
    json_object_object_add(c, "unit", json_object_new_string("GB/s"));
    json_object_object_add(c, "ceiling", json_object_new_double(ceiling));
    json_object_object_add(c, "ratio", json_object_new_double(speed / ceiling));
    json_object_array_add(cases, c);
}

/* Passes and copies in turn; medians. What simt runs thread by thread has no speed worth a number. */
static void bench_one(const struct options *o, json_object *cases, const struct kern_kernel *kernel, uint32_t i)
{
    uint64_t bytes = 0;
    if (!kernel->bench_open || strcmp(kernel->impl(i), "simt") == 0) return;
    void *bench = kernel->bench_open(i, &bytes);
    if (!bench) return;
    struct ceiling ceiling;
    double pass[BENCH_ROUNDS], copy[BENCH_ROUNDS];
    const bool is_measured = ceiling_init(&ceiling, kernel->impl(i), bytes);
    for (uint32_t round = 0; is_measured && round <= BENCH_ROUNDS; round++) {
        const uint32_t at = round == 0 ? 0 : round - 1; /* the first one warms up */
        copy[at] = ceiling_seconds(&ceiling);
        const double start = seconds(ceiling.side);
        kernel->bench_pass(bench);
        pass[at] = seconds(ceiling.side) - start;
    }
    if (is_measured)
        bench_report(o, cases, kernel, i, 1e-9 * (double)bytes / median(pass), 1e-9 * (double)bytes / median(copy));
    ceiling_done(&ceiling);
    kernel->bench_close(bench);
}

static int run_bench(const struct options *o)
{
    json_object *all = json_object_new_object(), *cases = json_object_new_array();
    if (!o->is_json) (void)printf("%-14s %-10s %15s %15s %8s\n", "kernel", "impl", "speed", "copy", "ratio");
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(registry); k++)
        for (uint32_t i = 0; registry[k]->impl(i); i++)
            if (is_wanted(o, registry[k], i) && registry[k]->is_here(i)) bench_one(o, cases, registry[k], i);
    json_object_object_add(all, "cases", cases);
    if (o->is_json) (void)printf("%s\n", json_object_to_json_string_ext(all, JSON_C_TO_STRING_PRETTY));
    (void)json_object_put(all);
    return 0;
}

/* ---- Checks ---------------------------------------------------------------------------------------------------- */

static int run_list(const struct options *o)
{
    json_object *all = json_object_new_array();
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(registry); k++) {
        if (!o->is_json) (void)printf("%-14s %s:", registry[k]->name, registry[k]->what);
        for (uint32_t i = 0; registry[k]->impl(i); i++) {
            const bool is_here = registry[k]->is_here(i);
            if (!o->is_json) {
                (void)printf(" %s%s", registry[k]->impl(i), is_here ? "" : " (not here)");
                continue;
            }
            json_object *entry = json_object_new_object();
            json_object_object_add(entry, "kernel", json_object_new_string(registry[k]->name));
            json_object_object_add(entry, "impl", json_object_new_string(registry[k]->impl(i)));
            json_object_object_add(entry, "here", json_object_new_boolean(is_here));
            json_object_array_add(all, entry);
        }
        if (!o->is_json) (void)printf("\n");
    }
    if (o->is_json) (void)printf("%s\n", json_object_to_json_string_ext(all, JSON_C_TO_STRING_PRETTY));
    (void)json_object_put(all);
    return 0;
}

/* One implementation over all seeds; what it says goes to stdout or into the array. */
static bool check_one(const struct options *o, json_object *checks, const struct kern_kernel *kernel, uint32_t i)
{
    struct kern_run run = { .kernel = kernel->name, .impl = kernel->impl(i), .seed = o->seed };
    bool is_same = true;
    for (uint64_t n = 0; is_same && n < o->seeds; n++) {
        run.seed = o->seed + n;
        is_same = kernel->check(i, &run);
    }
    if (!o->is_json) {
        (void)printf("%-14s %-10s %8llu compared, %s\n", kernel->name, run.impl, (unsigned long long)run.compared,
                     is_same ? "all like the reference" : "DIFFERS");
        return is_same;
    }
    json_object *entry = json_object_new_object();
    json_object_object_add(entry, "kernel", json_object_new_string(kernel->name));
    json_object_object_add(entry, "impl", json_object_new_string(run.impl));
    json_object_object_add(entry, "compared", json_object_new_uint64(run.compared));
    json_object_object_add(entry, "ok", json_object_new_boolean(is_same));
    json_object_array_add(checks, entry);
    return is_same;
}

static int run_checks(const struct options *o)
{
    json_object *all = json_object_new_object(), *checks = json_object_new_array();
    uint32_t compared = 0, differing = 0;
    for (uint32_t k = 0; k < KVT_ARRAY_COUNT(registry); k++)
        for (uint32_t i = 1; registry[k]->impl(i); i++) {
            if (!is_wanted(o, registry[k], i)) continue;
            if (!registry[k]->is_here(i)) {
                if (!o->is_json)
                    (void)printf("%-14s %-10s not on this machine\n", registry[k]->name, registry[k]->impl(i));
                continue;
            }
            compared++;
            differing += !check_one(o, checks, registry[k], i);
        }
    json_object_object_add(all, "seed", json_object_new_uint64(o->seed));
    json_object_object_add(all, "seeds", json_object_new_uint64(o->seeds));
    json_object_object_add(all, "checks", checks);
    if (o->is_json) (void)printf("%s\n", json_object_to_json_string_ext(all, JSON_C_TO_STRING_PRETTY));
    (void)json_object_put(all);
    if (compared == 0 && !o->is_json) (void)printf("nothing to compare on this machine\n");
    return differing > 0 ? EXIT_DIFFERS : compared > 0 ? 0 : EXIT_NOTHING;
}

int main(int argc, char **argv)
{
    struct options options = { .seed = 1, .seeds = 1 };
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &options) != 0) return EXIT_USAGE;
    if (options.is_list) return run_list(&options);
    return options.is_bench ? run_bench(&options) : run_checks(&options);
}
