#include "tools/cmd_bench_calibrate.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/bench/calibrate.h"
#include "tools/cli.h"
#include "tools/models.h"
#include "tools/nearest_rank.h"
#include "tools/output_file.h"

#define SHAPE_DEFAULT "layers=8,kv_heads=2,head_dim=64,dtype=bf16"
#define BLOCK_TOKENS_DEFAULT 16

static const char command[] = "kvtier bench";

bool kvt_calibrate_fail(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    (void)kvt_failure(command, "--calibrate: %s", line);
    return false;
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

double kvt_calibrate_quantile(double *values, uint32_t count, double quantile)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, compare);
    return values[kvt_nearest_rank(count, quantile)];
}

static void add(struct kvt_listing *listing, const char *what, double value, const char *unit)
{
    kvt_listing_add(listing, "%s", what);
    kvt_listing_add(listing, value < 100 ? "%.3f" : "%.0f", value);
    kvt_listing_add(listing, "%s", unit);
}

static void print_table(const struct kvt_links *links)
{
    struct kvt_listing *listing = kvt_alloc(1, sizeof *listing);
    if (!listing) return;
    kvt_listing_init(listing, "lrl");
    add(listing, "device to host", links->to_host.bytes_per_s * 1e-9, "GB/s");
    add(listing, "  an op", links->to_host.op_ns * 1e-3, "us");
    add(listing, "host to device", links->to_device.bytes_per_s * 1e-9, "GB/s");
    add(listing, "  an op", links->to_device.op_ns * 1e-3, "us");
    for (uint32_t d = 0; d < KVT_LINKS_DTYPES; d++) {
        char what[32];
        if (!links->codec[d].is_measured) continue;
        (void)snprintf(what, sizeof what, "codec, %s: pack", kvt_dtype_name((enum kvt_dtype)d));
        add(listing, what, links->codec[d].pack_ns_per_byte, "ns a byte");
        add(listing, "  unpack", links->codec[d].unpack_ns_per_byte, "ns a byte");
        add(listing, "  raw over packed", links->codec[d].ratio, "");
    }
    for (uint32_t p = 0; links->has_disk && p < 2 * links->point_count; p++) {
        const bool is_read = p < links->point_count;
        const struct kvt_link_point *point = is_read ? &links->reads[p] : &links->writes[p - links->point_count];
        char what[64];
        (void)snprintf(what, sizeof what, "store %s, %u bytes, %u at once", is_read ? "get" : "put", point->op_bytes,
                       point->depth);
        add(listing, what, point->bytes_per_s * 1e-9, "GB/s");
        add(listing, "  latency, p50", point->latency_p50_ns * 1e-3, "us");
    }
    if (links->has_disk) {
        add(listing, "store, gets and puts, 16 at once", links->mixed_bytes_per_s * 1e-9, "GB/s");
        add(listing, "  processor time of a put", links->put_ns * 1e-3, "us");
        add(listing, "  processor time of a get", links->get_ns * 1e-3, "us");
    }
    add(listing, "engine: write KV", links->engine.write_ns_per_byte, "ns a byte");
    add(listing, "  look at a block", links->engine.line_ns, "ns");
    add(listing, "  a step takes longer by", links->engine.oversleep_ns * 1e-3, "us");
    add(listing, "  between two steps", links->engine.between_ns * 1e-3, "us");
    add(listing, "  a transfer is seen after", links->engine.wake_ns * 1e-3, "us");
    kvt_listing_print(listing, stdout, "");
    kvt_free(listing);
}

static bool measure(struct kvt_calibration *calibration)
{
    static const struct {
        const char *name;
        bool (*run)(struct kvt_calibration *calibration);
    } parts[] = {
        { "device and codec", kvt_calibrate_device },
        { "disk", kvt_calibrate_disk },
        { "engine", kvt_calibrate_engine },
    };
    struct kvt_progress progress;
    bool is_ok = true;
    kvt_progress_begin(&progress, "calibrate", KVT_ARRAY_COUNT(parts));
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(parts) && is_ok; i++) {
        kvt_progress_update(&progress, i, parts[i].name);
        is_ok = parts[i].run(calibration);
    }
    kvt_progress_end(&progress);
    return is_ok;
}

static bool write_links(const struct kvt_links *links, const char *path, struct kvt_output_file *file)
{
    FILE *stream = NULL;
    int error = kvt_output_file_begin(file, &stream);
    if (error == 0 && kvt_links_write(links, stream) != KVT_OK) error = errno ? errno : EIO;
    if (error == 0) error = kvt_output_file_commit(file);
    return error == 0 || kvt_calibrate_fail("%.200s cannot be written: %s", path, strerror(error));
}

int kvt_bench_calibrate(const struct kvt_bench_calibrate_options *options)
{
    struct kvt_calibration calibration = { .directory = options->directory };
    struct kvt_model model;
    char error[256];
    const char *shape = options->shape ? options->shape : SHAPE_DEFAULT;
    if (kvt_model_parse_shape(shape, &model, error, sizeof error) != KVT_OK)
        return kvt_usage_error(command, "--shape: %s", error);
    model.shape.block_tokens = options->block_tokens > 0 ? (uint32_t)options->block_tokens : BLOCK_TOKENS_DEFAULT;
    if (kvt_shape_check(&model.shape, error, sizeof error) != KVT_OK)
        return kvt_usage_error(command, "--shape: %s", error);
    calibration.shape = model.shape;
    struct kvt_output_file file;
    const int refused = kvt_output_file_open_option(&file, command, "--calibrate", options->path);
    if (refused != KVT_EXIT_OK) return refused;
    const bool is_ok = measure(&calibration) && write_links(&calibration.links, options->path, &file);
    kvt_output_file_abandon(&file);
    if (!is_ok) return KVT_EXIT_FAILED;
    if (!options->is_json) print_table(&calibration.links);
    else if (kvt_links_write(&calibration.links, stdout) != KVT_OK) return KVT_EXIT_FAILED;
    return KVT_EXIT_OK;
}
