#include "tools/cmd_bench_copy.h"

#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/gpu_emulated.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/bench/copy_bench.h"
#include "tools/cli.h"

static const char command[] = "kvtier bench copy";

/*
 * ---- What the parts share ----------------------------------------------------------------------------------------
 */

void kvt_copy_bench_add(struct kvt_copy_bench *bench, const char *unit, double value, double ceiling, double target,
                        const char *format, ...)
{
    KVT_ASSERT(bench->case_count < KVT_COPY_BENCH_CASES_MAX);
    struct kvt_copy_bench_case *c = &bench->cases[bench->case_count++];
    *c = (struct kvt_copy_bench_case){ .unit = unit, .value = value, .ceiling = ceiling };
    c->ratio = ceiling > 0 ? value / ceiling : 0;
    /* The targets are for a link: what the CPU copies itself has none. */
    c->target = bench->gpu_ops == &kvt_gpu_emulated_ops ? 0 : target;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(c->name, sizeof c->name, format, arguments);
    va_end(arguments);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kvt_copy_bench_median(double *values, uint32_t count)
{
    KVT_ASSERT(count > 0);
    qsort(values, count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double kvt_copy_bench_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool kvt_copy_bench_fail(const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    (void)kvt_failure(command, "%s", line);
    return false;
}

/*
 * ---- Report ------------------------------------------------------------------------------------------------------
 */

static void print_json(const struct kvt_copy_bench *bench)
{
    struct json_object *root = json_object_new_object(), *cases = json_object_new_array();
    (void)json_object_object_add(root, "device", json_object_new_string(bench->gpu_ops->name));
    (void)json_object_object_add(root, "description", json_object_new_string(bench->description));
    (void)json_object_object_add(root, "bytes_checked", json_object_new_uint64(bench->bytes_checked));
    (void)json_object_object_add(root, "mismatches", json_object_new_uint64(bench->mismatches));
    for (uint32_t i = 0; i < bench->case_count; i++) {
        const struct kvt_copy_bench_case *c = &bench->cases[i];
        struct json_object *item = json_object_new_object();
        (void)json_object_object_add(item, "name", json_object_new_string(c->name));
        (void)json_object_object_add(item, "value", json_object_new_double(c->value));
        (void)json_object_object_add(item, "unit", json_object_new_string(c->unit));
        (void)json_object_object_add(item, "ceiling", json_object_new_double(c->ceiling));
        (void)json_object_object_add(item, "ratio", json_object_new_double(c->ratio));
        if (c->target > 0) {
            (void)json_object_object_add(item, "at_least", json_object_new_double(c->target));
            (void)json_object_object_add(item, "holds", json_object_new_boolean(c->ratio >= c->target));
        }
        (void)json_object_array_add(cases, item);
    }
    (void)json_object_object_add(root, "cases", cases);
    (void)printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
    (void)json_object_put(root);
}

static void print_table(const struct kvt_copy_bench *bench)
{
    (void)printf("%s\nmemcpy on this CPU: %.2f GB/s\n", bench->description, bench->memcpy_rate);
    struct kvt_listing *listing = kvt_alloc(1, sizeof *listing);
    if (!listing) return;
    kvt_listing_init(listing, "lrlrrl");
    const char *const head[] = { "case", "value", "unit", "ceiling", "ratio", "target" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(head); i++) kvt_listing_add(listing, "%s", head[i]);
    for (uint32_t i = 0; i < bench->case_count; i++) {
        const struct kvt_copy_bench_case *c = &bench->cases[i];
        kvt_listing_add(listing, "%s", c->name);
        kvt_listing_add(listing, "%.2f", c->value);
        kvt_listing_add(listing, "%s", c->unit);
        kvt_listing_add(listing, "%.2f", c->ceiling);
        kvt_listing_add(listing, "%.2f", c->ratio);
        if (c->target > 0)
            kvt_listing_add(listing, "at least %.2f: %s", c->target, c->ratio >= c->target ? "yes" : "NO");
        else kvt_listing_add(listing, "%s", "");
    }
    kvt_listing_print(listing, stdout, "");
    kvt_free(listing);
    (void)printf("%.0f MiB compared, %llu mismatches\n", (double)bench->bytes_checked / (double)KVT_MIB,
                 (unsigned long long)bench->mismatches);
}

/*
 * ---- Run ---------------------------------------------------------------------------------------------------------
 */

static void say(void *user, enum kvt_log_level level, const char *line)
{
    (void)user;
    if (level <= KVT_LOG_WARN) (void)kvt_failure(command, "%s", line);
}

int kvt_bench_copy(const struct kvt_bench_copy_options *options)
{
    static const struct {
        const char *label;
        bool (*run)(struct kvt_copy_bench *bench);
    } parts[] = { { "links", kvt_copy_bench_links }, { "blocks", kvt_copy_bench_blocks } };
    if (options->device == KVT_DEVICE_CUDA && !kvt_gpu_cuda_ops.is_present())
        return kvt_refuse_value(command, "--device", "cuda", "no CUDA device is built in, or none was found");
    struct kvt_copy_bench *bench = kvt_alloc(1, sizeof *bench);
    if (!bench) return kvt_failure(command, "out of memory");
    bench->gpu_ops = options->device == KVT_DEVICE_EMULATED ? &kvt_gpu_emulated_ops : kvt_gpu_default_ops();
    bench->env = kvt_env_default();
    bench->env.log = say;
    bench->size_bytes = options->size_bytes ? options->size_bytes : 512 * KVT_MIB;
    bench->rounds = (uint32_t)(options->rounds ? options->rounds : 5);
    struct kvt_progress progress;
    kvt_progress_begin(&progress, "bench copy", KVT_ARRAY_COUNT(parts));
    bool is_good = true;
    for (uint32_t i = 0; is_good && i < KVT_ARRAY_COUNT(parts); i++) {
        kvt_progress_update(&progress, i, parts[i].label);
        is_good = parts[i].run(bench);
    }
    kvt_progress_end(&progress);
    if (is_good && options->is_json) print_json(bench);
    if (is_good && !options->is_json) print_table(bench);
    is_good = is_good && bench->mismatches == 0;
    kvt_free(bench);
    return is_good ? KVT_EXIT_OK : KVT_EXIT_FAILED;
}
