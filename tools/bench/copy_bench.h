/*
 * copy_bench: what the parts of `kvtier bench copy` share.
 *
 *     copy_links.c   jobs of a device alone: large copies, whole blocks, fragments, layers beside a compute kernel
 *     copy_blocks.c  packed blocks through the device tier
 *
 * Each part appends its cases and returns false when it could not be measured, after one line on stderr.
 */
#ifndef KVT_TOOLS_BENCH_COPY_BENCH_H
#define KVT_TOOLS_BENCH_COPY_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/gpu.h"
#include "runtime/base/env.h"

enum { KVT_COPY_BENCH_CASES_MAX = 32, KVT_COPY_BENCH_ROUNDS_MAX = 101 };
enum { KVT_COPY_TO_HOST, KVT_COPY_TO_DEVICE, KVT_COPY_DIRECTIONS };

struct kvt_copy_bench_case {
    char name[64];
    const char *unit;
    double value, ceiling, ratio;
    double target; /* of the ratio, on a real device; 0: none */
};

struct kvt_copy_bench {
    const struct kvt_gpu_ops *gpu_ops;
    struct kvt_env env;
    uint64_t size_bytes; /* moved in one measurement */
    uint32_t rounds;     /* of which the median counts */
    char description[256];
    double peak[KVT_COPY_DIRECTIONS]; /* of large copies from and to pinned memory; GB/s */
    double memcpy_rate;               /* of the CPU: what an emulated device cannot beat; GB/s */
    uint64_t bytes_checked, mismatches;
    struct kvt_copy_bench_case cases[KVT_COPY_BENCH_CASES_MAX];
    uint32_t case_count;
};

/* peak and memcpy_rate are set by the first. */
bool kvt_copy_bench_links(struct kvt_copy_bench *bench);
bool kvt_copy_bench_blocks(struct kvt_copy_bench *bench);

/* Appends a case with ratio = value / ceiling. */
void kvt_copy_bench_add(struct kvt_copy_bench *bench, const char *unit, double value, double ceiling, double target,
                        const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Sorts. */
double kvt_copy_bench_median(double *values, uint32_t count);
double kvt_copy_bench_seconds(void); /* CLOCK_MONOTONIC */
/* One line on stderr; false, to be returned. */
bool kvt_copy_bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
