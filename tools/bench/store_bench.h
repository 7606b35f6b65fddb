/*
 * store_bench: what the parts of `kvtier bench store` share: the cases, the loops that load a store, a raw file and
 *              fio, and
 * the clock.
 *
 *     store_loads.c   the loops: the store, block I/O without checksums, fio as a child
 *     store_speed.c   put and get against fio and against the raw loop
 *     store_small.c   synced puts and cold gets of small records against a directory with one file per block
 *     store_mixed.c   latency of gets with puts beside them, on a paced device
 *     store_codec.c   packed blocks against raw ones, when the disk is the bottleneck
 *
 * Each part appends its cases and returns false when it could not be measured, after one line on stderr.
 */
#ifndef KVT_TOOLS_BENCH_STORE_BENCH_H
#define KVT_TOOLS_BENCH_STORE_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/store.h"
#include "runtime/base/rng.h"
#include "tiers/block_io.h"

enum { KVT_STORE_BENCH_CASES_MAX = 96, KVT_STORE_BENCH_PAIRS_MAX = 101, KVT_STORE_BENCH_DEPTH_MAX = 64 };

struct kvt_store_bench_case {
    char name[64];
    const char *unit;
    double value, ceiling;
    double ratio;         /* of value and ceiling; where it was measured in pairs, the median of theirs */
    double target;        /* 0: none */
    bool is_at_most;      /* the ratio is to be at most the target, not at least */
    bool is_value_judged; /* the target is one for the value */
};

struct kvt_store_bench {
    char directory[512];
    uint64_t size_bytes; /* moved in one measurement */
    uint32_t pairs;
    bool has_fio;
    struct kvt_block_io_facts facts; /* of a start-up probe of the directory */
    uint8_t *buffers;                /* for callers' ops and for the raw loop; huge pages */
    uint64_t buffers_bytes;
    uint32_t *order; /* scratch of the loops: which record, or block, comes next */
    uint32_t order_max;
    struct kvt_rng rng;
    struct kvt_store_bench_case cases[KVT_STORE_BENCH_CASES_MAX];
    uint32_t case_count;
};

/* One measurement. */
struct kvt_store_load {
    uint32_t length; /* of a record, or of an op */
    uint32_t count, depth;
    bool is_put, is_random;
    uint32_t sync_every; /* puts: a sync after each so many, and at the end; 0: at the end */
};

struct kvt_store_took {
    double seconds, cpu_seconds;
};

bool kvt_store_bench_speed(struct kvt_store_bench *bench);
bool kvt_store_bench_small(struct kvt_store_bench *bench);
bool kvt_store_bench_mixed(struct kvt_store_bench *bench);
bool kvt_store_bench_codec(struct kvt_store_bench *bench);

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* Appends a case with ratio = value / ceiling; the caller may still change it. */
struct kvt_store_bench_case *kvt_store_bench_add(struct kvt_store_bench *bench, const char *unit, double value,
                                                 double ceiling, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Sorts. */
double kvt_store_bench_median(double *values, uint32_t count);
double kvt_store_bench_quantile(double *values, uint32_t count, double quantile);
/* One line on stderr; false, to be returned. */
bool kvt_store_bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

double kvt_store_bench_seconds(void);     /* CLOCK_MONOTONIC */
double kvt_store_bench_cpu_seconds(void); /* of the process, user and system, all threads */

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

struct kvt_store_name kvt_store_bench_name(uint64_t index);

/* Fills bench->order with 0 to count - 1, in this order or any. */
void kvt_store_bench_order(struct kvt_store_bench *bench, uint32_t count, bool is_random);

/* Opens a store `name` in the bench's directory; the caller sets the rest of config. NULL: refused, and said so. */
struct kvt_store *kvt_store_bench_open(struct kvt_store_bench *bench, const char *name,
                                       struct kvt_store_config *config);

/* Removes what lies under `name` in the bench's directory; "": the directory itself. */
void kvt_store_bench_remove(const struct kvt_store_bench *bench, const char *name);

/*
 * Moves load->count records through the store, depth at a time; puts end with a sync. A get must find the record and
 * its first bytes. False: an op failed, and said so.
 */
bool kvt_store_bench_run_store(struct kvt_store_bench *bench, struct kvt_store *store,
                               const struct kvt_store_load *load, struct kvt_store_took *ret_took);

/* Opens block I/O on the directory, as a store would, and keeps its findings. */
bool kvt_store_bench_probe(struct kvt_store_bench *bench);

/* A preallocated file through block I/O, without checksums. */
struct kvt_store_bench_file {
    struct kvt_block_io *io;
    int file;
    uint64_t size_bytes;
};
bool kvt_store_bench_file_open(struct kvt_store_bench *bench, uint64_t size_bytes,
                               struct kvt_store_bench_file *ret_file);
void kvt_store_bench_file_close(struct kvt_store_bench_file *file);
bool kvt_store_bench_run_file(struct kvt_store_bench *bench, struct kvt_store_bench_file *file,
                              const struct kvt_store_load *load, struct kvt_store_took *ret_took);

/* fio on the same file: io_uring, O_DIRECT, its default buffers, a sync at the end of writes. */
bool kvt_store_bench_has_fio(void);
bool kvt_store_bench_run_fio(struct kvt_store_bench *bench, const struct kvt_store_load *load,
                             struct kvt_store_took *ret_took);

#endif
