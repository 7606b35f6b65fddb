/*
 * Method: blocks of 16 KiB. The baseline is what users have today, a directory with one file per block: written under a
 * temporary name, synced, renamed, and read back, by one thread and by 32. Puts are durable on both sides: each file is
 * synced, the store is synced once per 64 puts, as one caller with a batch would. Gets are cold: the store reads past
 * the page cache, and of the files the cached pages are dropped first; their directory entries and inodes stay cached,
 * which favours the files.
 */
#include "tools/bench/store_bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { BLOCK_BYTES = 16384, THREADS = 32, ONE_THREAD_FILES_MAX = 4096, MANY_THREAD_FILES_MAX = 16384 };
enum { ROUNDS = 5, ORDERS = 2 };

/* ---- One file per block ------------------------------------------------------------------------------------------ */

struct files {
    char directory[600];
    int directory_file;
    uint32_t count;
    const uint32_t *order;
};

struct worker {
    pthread_t thread;
    const struct files *files;
    uint32_t first, step;
    bool is_put, has_failed;
    uint8_t *buffer;
};

static void file_name(uint32_t index, char ret_name[32], char ret_temporary[32])
{
    (void)snprintf(ret_name, 32, "%016llx", (unsigned long long)kvt_mix64(index + 1));
    (void)snprintf(ret_temporary, 32, "%016llx.tmp", (unsigned long long)kvt_mix64(index + 1));
}

static bool file_put(const struct files *files, uint32_t index, uint8_t *buffer)
{
    char name[32], temporary[32];
    file_name(index, name, temporary);
    const int file = openat(files->directory_file, temporary, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return false;
    kvt_store_u64(buffer, index);
    const bool is_written = write(file, buffer, BLOCK_BYTES) == BLOCK_BYTES && fsync(file) == 0;
    return close(file) == 0 && is_written
        && renameat(files->directory_file, temporary, files->directory_file, name) == 0;
}

static bool file_get(const struct files *files, uint32_t index, uint8_t *buffer)
{
    char name[32], temporary[32];
    file_name(index, name, temporary);
    const int file = openat(files->directory_file, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool is_read = read(file, buffer, BLOCK_BYTES) == BLOCK_BYTES && kvt_load_u64(buffer) == index;
    return close(file) == 0 && is_read;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    const struct files *files = worker->files;
    for (uint32_t i = worker->first; i < files->count && !worker->has_failed; i += worker->step)
        worker->has_failed = worker->is_put ? !file_put(files, i, worker->buffer)
                                            : !file_get(files, files->order[i], worker->buffer);
    return NULL;
}

/* Seconds, or negative. */
static double run_files(struct kvt_store_bench *bench, const struct files *files, uint32_t threads, bool is_put)
{
    struct worker workers[THREADS];
    uint32_t started = 0;
    bool is_ok = true;
    const double start = kvt_store_bench_seconds();
    for (; is_ok && started < threads; started += is_ok) {
        workers[started] = (struct worker){ .files = files,
                                            .first = started,
                                            .step = threads,
                                            .is_put = is_put,
                                            .buffer = bench->buffers + (uint64_t)started * BLOCK_BYTES };
        is_ok = pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0;
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        is_ok = is_ok && !workers[i].has_failed;
    }
    const double seconds = kvt_store_bench_seconds() - start;
    if (is_ok) return seconds;
    (void)kvt_store_bench_fail("a file per block could not be %s: %s", is_put ? "written" : "read", strerror(errno));
    return -1;
}

/* Calls `each` for every block's file; it may remove it. */
static void for_each_file(const struct files *files,
                          void (*each)(const struct files *files, const char *name, uint64_t *sum), uint64_t *sum)
{
    DIR *listed = opendir(files->directory);
    if (!listed) return;
    for (const struct dirent *entry = readdir(listed); entry; entry = readdir(listed))
        if (entry->d_name[0] != '.') each(files, entry->d_name, sum);
    (void)closedir(listed);
}

static void drop_cached(const struct files *files, const char *name, uint64_t *sum)
{
    (void)sum;
    const int file = openat(files->directory_file, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(file);
}

static void add_space(const struct files *files, const char *name, uint64_t *sum)
{
    struct stat found;
    if (fstatat(files->directory_file, name, &found, AT_SYMLINK_NOFOLLOW) == 0) *sum += (uint64_t)found.st_blocks * 512;
}

static void remove_one(const struct files *files, const char *name, uint64_t *sum)
{
    (void)sum;
    (void)unlinkat(files->directory_file, name, 0);
}

static bool files_open(struct kvt_store_bench *bench, struct files *ret_files)
{
    (void)snprintf(ret_files->directory, sizeof ret_files->directory, "%s/files", bench->directory);
    if (mkdir(ret_files->directory, 0700) != 0)
        return kvt_store_bench_fail("no directory could be made: %s", strerror(errno));
    ret_files->directory_file = open(ret_files->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ret_files->order = bench->order;
    return ret_files->directory_file >= 0 || kvt_store_bench_fail("no directory could be opened: %s", strerror(errno));
}

static void files_close(struct files *files)
{
    if (files->directory_file < 0) return;
    for_each_file(files, remove_one, NULL);
    (void)close(files->directory_file);
    (void)rmdir(files->directory);
}

/* ---- The rounds -------------------------------------------------------------------------------------------------- */

struct small {
    struct kvt_store_bench *bench;
    struct kvt_store *store;
    struct kvt_store_config config;
    struct files files;
    struct kvt_store_load put, get[ORDERS]; /* in order, and random */
    uint32_t rounds;
    /* Seconds a block; files: by one thread, and by many. */
    double store_put[ROUNDS], store_get[ORDERS][ROUNDS], file_put[2][ROUNDS], file_get[ORDERS][2][ROUNDS];
    double store_reopen[ROUNDS], file_reopen[ROUNDS];
    double store_space, file_space; /* bytes a block */
};

static bool run_store(struct small *small, uint32_t round)
{
    struct kvt_store_took took;
    for (uint32_t i = 0; i < small->put.count; i++) {
        const struct kvt_store_name name = kvt_store_bench_name(i);
        (void)kvt_store_delete(small->store, &name, 1);
    }
    if (!kvt_store_bench_run_store(small->bench, small->store, &small->put, &took)) return false;
    small->store_put[round] = took.seconds / small->put.count;
    for (uint32_t o = 0; o < ORDERS; o++) {
        if (!kvt_store_bench_run_store(small->bench, small->store, &small->get[o], &took)) return false;
        small->store_get[o][round] = took.seconds / small->get[o].count;
    }
    struct kvt_store_stats stats;
    kvt_store_stats(small->store, &stats);
    small->store_space = (double)stats.live_bytes / (double)stats.records;
    kvt_store_close(&small->store);
    const double start = kvt_store_bench_seconds();
    small->store = kvt_store_bench_open(small->bench, "store-small", &small->config);
    small->store_reopen[round] = kvt_store_bench_seconds() - start;
    if (!small->store) return false;
    kvt_store_stats(small->store, &stats);
    return stats.records == small->put.count
        || kvt_store_bench_fail("%llu records were found again", (unsigned long long)stats.records);
}

/* With `many` threads or one; the files of before are removed first. */
static bool run_file_store(struct small *small, uint32_t round, bool is_many)
{
    struct files *files = &small->files;
    const uint32_t threads = is_many ? THREADS : 1;
    for_each_file(files, remove_one, NULL);
    files->count = kvt_min_u32(small->put.count, is_many ? MANY_THREAD_FILES_MAX : ONE_THREAD_FILES_MAX);
    const double put = run_files(small->bench, files, threads, true);
    if (put < 0) return false;
    small->file_put[is_many][round] = put / files->count;
    for (uint32_t o = 0; o < ORDERS; o++) {
        for_each_file(files, drop_cached, NULL);
        kvt_store_bench_order(small->bench, files->count, small->get[o].is_random);
        const double get = run_files(small->bench, files, threads, false);
        if (get < 0) return false;
        small->file_get[o][is_many][round] = get / files->count;
    }
    uint64_t bytes = 0;
    const double start = kvt_store_bench_seconds();
    for_each_file(files, add_space, &bytes); /* what a file store does at its start, to know what it has */
    small->file_reopen[round] = (kvt_store_bench_seconds() - start) / files->count * small->put.count;
    small->file_space = (double)bytes / files->count;
    return true;
}

static double ratio(double *slow, double *fast, uint32_t rounds)
{
    double ratios[ROUNDS];
    for (uint32_t i = 0; i < rounds; i++) ratios[i] = slow[i] / fast[i];
    return kvt_store_bench_median(ratios, rounds);
}

static void add_pair(struct small *small, const char *what, double *store, double files[2][ROUNDS],
                     const double targets[2])
{
    static const char *const names[2] = { "1 thread", "32 threads" };
    for (uint32_t i = 0; i < 2; i++) {
        const double of_ratio = ratio(files[i], store, small->rounds);
        const double file_rate = 1e-3 / kvt_store_bench_median(files[i], small->rounds);
        struct kvt_store_bench_case *added = kvt_store_bench_add(small->bench, "k/s", 1, 1,
                                                                 "store, 16 KiB %s: a file each, %s", what, names[i]);
        added->ceiling = file_rate;
        added->ratio = of_ratio;
        added->target = targets[i];
        added->value = 1e-3 / kvt_store_bench_median(store, small->rounds);
    }
}

static void add_cases(struct small *small)
{
    struct kvt_store_bench *bench = small->bench;
    add_pair(small, "synced put", small->store_put, small->file_put, (const double[2]){ 10, 5 });
    static const char *const orders[ORDERS] = { "cold get in order", "cold get at random" };
    for (uint32_t o = 0; o < ORDERS; o++)
        add_pair(small, orders[o], small->store_get[o], small->file_get[o], (const double[2]){ 5, 1 });
    (void)kvt_store_bench_add(bench, "B/block", small->store_space, small->file_space,
                              "store, 16 KiB space: a file each");
    (void)kvt_store_bench_add(bench, "ms", 1e3 * kvt_store_bench_median(small->store_reopen, small->rounds),
                              1e3 * kvt_store_bench_median(small->file_reopen, small->rounds),
                              "store, reopen %u: a file each", small->put.count);
}

bool kvt_store_bench_small(struct kvt_store_bench *bench)
{
    struct small *small = kvt_alloc(1, sizeof *small);
    if (!small) return kvt_store_bench_fail("out of memory");
    small->bench = bench;
    small->files.directory_file = -1;
    small->rounds = kvt_min_u32(bench->pairs, ROUNDS);
    const uint32_t count = (uint32_t)(bench->size_bytes / BLOCK_BYTES);
    small->put = (struct kvt_store_load){
        .length = BLOCK_BYTES, .count = count, .depth = 64, .is_put = true, .sync_every = 64
    };
    for (uint32_t o = 0; o < ORDERS; o++)
        small->get[o] = (struct kvt_store_load){
            .length = BLOCK_BYTES, .count = count, .depth = 64, .is_random = o == 1
        };
    small->config = kvt_store_config_default();
    small->config.capacity_bytes = bench->size_bytes * 2 + 16 * KVT_MIB;
    small->store = kvt_store_bench_open(bench, "store-small", &small->config);
    bool is_ok = small->store && files_open(bench, &small->files);
    for (uint32_t round = 0; is_ok && round < small->rounds; round++)
        is_ok = run_store(small, round) && run_file_store(small, round, false) && run_file_store(small, round, true);
    if (is_ok) add_cases(small);
    files_close(&small->files);
    kvt_store_close(&small->store);
    kvt_store_bench_remove(bench, "store-small");
    kvt_free(small);
    return is_ok;
}
