#include "tools/bench/store_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <json-c/json.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/nearest_rank.h"

#define FILE_NAME "raw-file"

extern char **environ;

/* ---- Clock, cases ------------------------------------------------------------------------------------------------ */

double kvt_store_bench_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double kvt_store_bench_cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
        + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kvt_store_bench_quantile(double *values, uint32_t count, double quantile)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof values[0], compare_doubles);
    return values[kvt_nearest_rank(count, quantile)];
}

double kvt_store_bench_median(double *values, uint32_t count) { return kvt_store_bench_quantile(values, count, 0.5); }

bool kvt_store_bench_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fputs("kvtier bench store: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    return false;
}

struct kvt_store_bench_case *kvt_store_bench_add(struct kvt_store_bench *bench, const char *unit, double value,
                                                 double ceiling, const char *name, ...)
{
    struct kvt_store_bench_case *added = &bench->cases[kvt_min_u32(bench->case_count, KVT_STORE_BENCH_CASES_MAX - 1)];
    bench->case_count = kvt_min_u32(bench->case_count + 1, KVT_STORE_BENCH_CASES_MAX);
    *added = (struct kvt_store_bench_case){
        .unit = unit, .value = value, .ceiling = ceiling, .ratio = ceiling > 0 ? value / ceiling : 0
    };
    va_list arguments;
    va_start(arguments, name);
    (void)vsnprintf(added->name, sizeof added->name, name, arguments);
    va_end(arguments);
    return added;
}

/* ---- The order --------------------------------------------------------------------------------------------------- */

void kvt_store_bench_order(struct kvt_store_bench *bench, uint32_t count, bool is_random)
{
    for (uint32_t i = 0; i < count; i++) bench->order[i] = i;
    for (uint32_t i = is_random ? count : 0; i > 1; i--) {
        const uint32_t j = (uint32_t)kvt_rng_below(&bench->rng, i);
        const uint32_t swap = bench->order[i - 1];
        bench->order[i - 1] = bench->order[j];
        bench->order[j] = swap;
    }
}

static uint8_t *buffer_of(struct kvt_store_bench *bench, const struct kvt_store_load *load, uint32_t i)
{
    return bench->buffers + (uint64_t)i * load->length;
}

static bool fits(const struct kvt_store_bench *bench, const struct kvt_store_load *load)
{
    if (load->count <= bench->order_max && (uint64_t)load->depth * load->length <= bench->buffers_bytes) return true;
    return kvt_store_bench_fail("a load of %u records of %u bytes does not fit", load->count, load->length);
}

/* ---- The store --------------------------------------------------------------------------------------------------- */

struct kvt_store_name kvt_store_bench_name(uint64_t index)
{
    return (struct kvt_store_name){ .space = { 1, 2 }, .key = { kvt_mix64(index + 1), index } };
}

struct kvt_store *kvt_store_bench_open(struct kvt_store_bench *bench, const char *name, struct kvt_store_config *config)
{
    char path[600], error[256];
    struct kvt_store *store = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", bench->directory, name);
    config->path = path;
    const enum kvt_status status = kvt_store_open(config, NULL, &store, error, sizeof error);
    config->path = NULL;
    if (status == KVT_OK) return store;
    (void)kvt_store_bench_fail("%s", error);
    return NULL;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    (void)where;
    (void)remove(path);
    return 0;
}

void kvt_store_bench_remove(const struct kvt_store_bench *bench, const char *name)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", bench->directory, name);
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct store_run {
    struct kvt_store_bench *bench;
    struct kvt_store *store;
    const struct kvt_store_load *load;
    struct kvt_store_op ops[KVT_STORE_BENCH_DEPTH_MAX];
    struct kvt_store_op *idle[KVT_STORE_BENCH_DEPTH_MAX];
    uint32_t idle_count;
    uint32_t next, until; /* records up to `until` may be submitted */
};

/* Gives the op the next record; a put's first bytes say which one it is. */
static void set_op(struct store_run *run, struct kvt_store_op *op)
{
    const uint64_t index = run->bench->order[run->next++];
    op->kind = run->load->is_put ? KVT_STORE_PUT : KVT_STORE_GET;
    op->flags = KVT_STORE_IN_PLACE | (run->load->is_put ? 0 : KVT_STORE_URGENT);
    op->name = kvt_store_bench_name(index);
    op->generation = 1;
    op->length = run->load->length;
    op->buffer = buffer_of(run->bench, run->load, (uint32_t)(op - run->ops));
    if (run->load->is_put) kvt_store_u64(op->buffer, index);
}

static bool is_right(const struct kvt_store_op *op)
{
    return op->status == KVT_OK && (op->kind == KVT_STORE_PUT || kvt_load_u64(op->buffer) == op->name.key[1]);
}

/*
 * Puts idle ops to work on the next records, as many as there are and as the store takes: it refuses puts for a while
 * when its disk has become slow.
 */
static void submit_next(struct store_run *run)
{
    const uint32_t n = kvt_min_u32(run->idle_count, run->until - run->next);
    if (n == 0) return;
    struct kvt_store_op **ops = run->idle + (run->idle_count - n);
    for (uint32_t i = 0; i < n; i++) set_op(run, ops[i]);
    const uint32_t accepted = kvt_store_submit(run->store, ops, n);
    run->next -= n - accepted;
    run->idle_count -= accepted;
    for (uint32_t i = 0; i < n - accepted; i++) ops[i] = ops[accepted + i];
}

static bool run_until(struct store_run *run, uint32_t until)
{
    enum { REFUSED_MAX = 10000, REFUSED_NS = 1000000 };
    struct kvt_store_op *done[KVT_STORE_BENCH_DEPTH_MAX];
    run->until = until;
    for (uint32_t refused = 0; run->next < until || run->idle_count < run->load->depth;) {
        submit_next(run);
        if (run->idle_count == run->load->depth && ++refused > REFUSED_MAX)
            return kvt_store_bench_fail("the store takes no ops");
        (void)kvt_store_wait(run->store, run->idle_count == run->load->depth ? REFUSED_NS : UINT64_MAX);
        const uint32_t n = kvt_store_poll(run->store, done, KVT_STORE_BENCH_DEPTH_MAX);
        for (uint32_t i = 0; i < n; i++) run->idle[run->idle_count++] = done[i];
        for (uint32_t i = 0; i < n; i++)
            if (!is_right(done[i]))
                return kvt_store_bench_fail("a %s failed: %s", run->load->is_put ? "put" : "get",
                                            kvt_status_text(done[i]->status));
    }
    return true;
}

bool kvt_store_bench_run_store(struct kvt_store_bench *bench, struct kvt_store *store,
                               const struct kvt_store_load *load, struct kvt_store_took *ret_took)
{
    if (!fits(bench, load)) return false;
    struct store_run *run = kvt_alloc(1, sizeof *run);
    if (!run) return kvt_store_bench_fail("out of memory");
    run->bench = bench;
    run->store = store;
    run->load = load;
    for (; run->idle_count < load->depth; run->idle_count++) run->idle[run->idle_count] = &run->ops[run->idle_count];
    kvt_store_bench_order(bench, load->count, load->is_random);
    const uint32_t batch = load->is_put && load->sync_every ? load->sync_every : load->count;
    const double cpu_start = kvt_store_bench_cpu_seconds(), start = kvt_store_bench_seconds();
    bool is_ok = true;
    for (uint32_t done = 0; is_ok && done < load->count; done += batch) {
        is_ok = run_until(run, kvt_min_u32(done + batch, load->count));
        if (is_ok && load->is_put && kvt_store_sync(store) != KVT_OK) is_ok = kvt_store_bench_fail("a sync failed");
    }
    ret_took->seconds = kvt_store_bench_seconds() - start;
    ret_took->cpu_seconds = kvt_store_bench_cpu_seconds() - cpu_start;
    /* The ops are the store's until they come back. */
    while (run->idle_count < load->depth) {
        struct kvt_store_op *done;
        (void)kvt_store_wait(store, UINT64_MAX);
        run->idle_count += kvt_store_poll(store, &done, 1);
    }
    kvt_free(run);
    return is_ok;
}

/* ---- The raw file ------------------------------------------------------------------------------------------------ */

static struct kvt_block_io *open_io(struct kvt_store_bench *bench)
{
    const struct kvt_env env = kvt_env_default();
    const struct kvt_block_io_config config = { .directory = bench->directory,
                                                .queue_depth = 1024,
                                                .buffers = bench->buffers,
                                                .buffers_bytes = bench->buffers_bytes };
    struct kvt_block_io *io = NULL;
    if (kvt_block_io_open(&config, &env, &io) == KVT_OK) return io;
    (void)kvt_store_bench_fail("block I/O was refused in %s: %s", bench->directory, strerror(errno));
    return NULL;
}

bool kvt_store_bench_probe(struct kvt_store_bench *bench)
{
    struct kvt_block_io *io = open_io(bench);
    if (!io) return false;
    io->ops->facts(io, &bench->facts);
    io->ops->close(io);
    return true;
}

bool kvt_store_bench_file_open(struct kvt_store_bench *bench, uint64_t size_bytes,
                               struct kvt_store_bench_file *ret_file)
{
    struct kvt_store_bench_file opened = { .io = open_io(bench), .size_bytes = size_bytes };
    int error = 0;
    if (!opened.io) return false;
    if (opened.io->ops->open_file(opened.io, FILE_NAME, true, &opened.file, &error) != KVT_OK) {
        opened.io->ops->close(opened.io);
        return kvt_store_bench_fail("no file could be made: %s", strerror(error));
    }
    if (opened.io->ops->allocate(opened.io, opened.file, size_bytes, &error) != KVT_OK) {
        kvt_store_bench_file_close(&opened);
        return kvt_store_bench_fail("no room for a file of %llu bytes: %s", (unsigned long long)size_bytes,
                                    strerror(error));
    }
    *ret_file = opened;
    return true;
}

void kvt_store_bench_file_close(struct kvt_store_bench_file *file)
{
    int ignored;
    if (!file->io) return;
    file->io->ops->close_file(file->io, file->file);
    (void)file->io->ops->remove_file(file->io, FILE_NAME, &ignored);
    file->io->ops->close(file->io);
    file->io = NULL;
}

static bool file_submit(struct kvt_store_bench *bench, const struct kvt_store_bench_file *file,
                        const struct kvt_store_load *load, struct kvt_io_op *op, uint32_t slot, uint32_t *next)
{
    *op = (struct kvt_io_op){ .kind = load->is_put ? KVT_IO_WRITE : KVT_IO_READ,
                              .file = file->file,
                              .size = load->length,
                              .offset = (uint64_t)bench->order[(*next)++] * load->length,
                              .is_urgent = !load->is_put,
                              .buffer = buffer_of(bench, load, slot) };
    return file->io->ops->submit(file->io, op) == KVT_OK;
}

/* Waits for one op or more; false: one failed. */
static bool file_collect(const struct kvt_store_bench_file *file, struct kvt_io_op **ret_done, uint32_t max,
                         uint32_t *ret_count)
{
    *ret_count = 0;
    while (*ret_count == 0) *ret_count = file->io->ops->poll(file->io, ret_done, max, 1000000000);
    for (uint32_t i = 0; i < *ret_count; i++)
        if (ret_done[i]->kind == KVT_IO_SYNC ? ret_done[i]->ret_bytes < 0
                                             : ret_done[i]->ret_bytes != (int32_t)ret_done[i]->size)
            return false;
    return true;
}

bool kvt_store_bench_run_file(struct kvt_store_bench *bench, struct kvt_store_bench_file *file,
                              const struct kvt_store_load *load, struct kvt_store_took *ret_took)
{
    struct kvt_io_op ops[KVT_STORE_BENCH_DEPTH_MAX], *done[KVT_STORE_BENCH_DEPTH_MAX];
    if (!fits(bench, load)) return false;
    kvt_store_bench_order(bench, load->count, load->is_random);
    uint32_t next = 0, in_flight = 0, n;
    bool is_ok = true;
    const double cpu_start = kvt_store_bench_cpu_seconds(), start = kvt_store_bench_seconds();
    for (; in_flight < load->depth && next < load->count; in_flight++)
        is_ok = file_submit(bench, file, load, &ops[in_flight], in_flight, &next) && is_ok;
    while (in_flight > 0) {
        is_ok = file_collect(file, done, KVT_STORE_BENCH_DEPTH_MAX, &n) && is_ok;
        in_flight -= n;
        for (uint32_t i = 0; i < n && next < load->count && is_ok; i++, in_flight++)
            is_ok = file_submit(bench, file, load, done[i], (uint32_t)(done[i] - ops), &next);
    }
    if (is_ok && load->is_put) {
        ops[0] = (struct kvt_io_op){ .kind = KVT_IO_SYNC, .file = file->file };
        is_ok = file->io->ops->submit(file->io, &ops[0]) == KVT_OK && file_collect(file, done, 1, &n);
    }
    ret_took->seconds = kvt_store_bench_seconds() - start;
    ret_took->cpu_seconds = kvt_store_bench_cpu_seconds() - cpu_start;
    return is_ok || kvt_store_bench_fail("a raw %s failed", load->is_put ? "write" : "read");
}

/* ---- fio --------------------------------------------------------------------------------------------------------- */

/* Runs a program and returns what it printed, or NULL when it did not end well; the caller frees it. */
static char *output_of(char *const *arguments)
{
    enum { OUTPUT_BYTES_MAX = 1 << 20 };
    FILE *out = tmpfile();
    char *text = kvt_alloc(OUTPUT_BYTES_MAX, 1);
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    if (!out || !text || posix_spawn_file_actions_init(&actions) != 0) goto fail;
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ) == 0) (void)waitpid(child, &status, 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (status != 0) goto fail;
    rewind(out);
    text[fread(text, 1, OUTPUT_BYTES_MAX - 1, out)] = '\0';
    (void)fclose(out);
    return text;
fail:
    if (out) (void)fclose(out);
    kvt_free(text);
    return NULL;
}

bool kvt_store_bench_has_fio(void)
{
    char fio[] = "fio", version[] = "--version";
    char *const arguments[] = { fio, version, NULL };
    char *text = output_of(arguments);
    kvt_free(text);
    return text != NULL;
}

static struct json_object *member(struct json_object *object, const char *name)
{
    struct json_object *found = NULL;
    return object && json_object_object_get_ex(object, name, &found) ? found : NULL;
}

bool kvt_store_bench_run_fio(struct kvt_store_bench *bench, const struct kvt_store_load *load,
                             struct kvt_store_took *ret_took)
{
    const uint64_t bytes = (uint64_t)load->length * load->count;
    char text[8][600];
    (void)snprintf(text[0], sizeof text[0], "--filename=%s/" FILE_NAME, bench->directory);
    (void)snprintf(text[1], sizeof text[1], "--size=%llu", (unsigned long long)bytes);
    (void)snprintf(text[2], sizeof text[2], "--bs=%u", load->length);
    (void)snprintf(text[3], sizeof text[3], "--iodepth=%u", load->depth);
    (void)snprintf(text[4], sizeof text[4], "--rw=%s", load->is_put ? "write" : load->is_random ? "randread" : "read");
    (void)snprintf(text[5], sizeof text[5], "--end_fsync=%d", load->is_put);
    char fixed[][24] = { "fio",
                         "--name=bench",
                         "--ioengine=io_uring",
                         "--direct=1",
                         "--randrepeat=0",
                         "--output-format=json",
                         "--fallocate=none",
                         "--allow_file_create=0" };
    char *arguments[16] = { 0 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(fixed); i++) arguments[n++] = fixed[i];
    for (uint32_t i = 0; i < 6; i++) arguments[n++] = text[i];
    char *output = output_of(arguments);
    const char *start = output ? strchr(output, '{') : NULL;
    struct json_object *root = start ? json_tokener_parse(start) : NULL;
    struct json_object *jobs = member(root, "jobs");
    struct json_object *job = jobs && json_object_array_length(jobs) > 0 ? json_object_array_get_idx(jobs, 0) : NULL;
    struct json_object *direction = member(job, load->is_put ? "write" : "read");
    const double rate = json_object_get_double(member(direction, "bw_bytes"));
    const double cpu = json_object_get_double(member(job, "usr_cpu")) + json_object_get_double(member(job, "sys_cpu"));
    const bool is_ok = rate > 0 && (uint64_t)json_object_get_int64(member(direction, "io_bytes")) == bytes;
    ret_took->seconds = is_ok ? (double)bytes / rate : 0;
    ret_took->cpu_seconds = ret_took->seconds * cpu / 100;
    (void)json_object_put(root);
    kvt_free(output);
    return is_ok || kvt_store_bench_fail("fio failed");
}
