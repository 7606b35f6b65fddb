/*
 * store_bench: a store in a directory of its own, over any block I/O, and the few calls that every test of it makes.
 *
 * Bytes of a record are a function of its key and generation, so that any reader can check them.
 */
#ifndef KVT_TESTS_UNIT_STORE_BENCH_H
#define KVT_TESTS_UNIT_STORE_BENCH_H

#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvtier/store.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tests/fakes/io_faulty.h"
#include "tiers/block_io.h"
#include "tiers/store_format.h"

struct bench {
    char directory[64]; /* holds the store's, "kv" */
    char path[80];
    struct kvt_env env;
    struct io_faulty_image *image;
    struct kvt_store_config config;
    struct kvt_store *store;
    char error[256];
    uint64_t now_ns;
    uint32_t logged;
};

static inline uint64_t bench_now(void *user) { return ((struct bench *)user)->now_ns; }

static inline void bench_log(void *user, enum kvt_log_level level, const char *line)
{
    (void)level;
    (void)line;
    __atomic_add_fetch(&((struct bench *)user)->logged, 1, __ATOMIC_RELAXED);
}

/* Real files; NULL: io_uring, or what works. is_single: no threads. */
static inline void bench_init(struct bench *bench, const struct kvt_block_io_ops *io, bool is_single)
{
    *bench = (struct bench){ .now_ns = 1000000000u };
    const char *base = getenv("TMPDIR");
    (void)snprintf(bench->directory, sizeof bench->directory, "%.40s/kvt-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(bench->directory));
    (void)snprintf(bench->path, sizeof bench->path, "%s/kv", bench->directory);
    bench->env = kvt_env_default();
    bench->env.block_io = io;
    bench->env.is_single_threaded = is_single;
    bench->env.log = bench_log;
    bench->env.log_user = bench;
    bench->config = kvt_store_config_default();
    bench->config.path = bench->path;
    bench->config.capacity_bytes = 8 * KVT_MIB;
    bench->config.staging_bytes = KVT_MIB;
}

/* A disk in memory, one thread, a clock that stands still. */
static inline void bench_init_faulty(struct bench *bench, uint64_t seed)
{
    bench_init(bench, &io_faulty_ops, true);
    bench->image = io_faulty_image_create(&(struct io_faulty_config){ .seed = seed });
    assert_non_null(bench->image);
    bench->env.block_io_user = bench->image;
    bench->env.now_ns = bench_now;
    bench->env.clock_user = bench;
    bench->env.seed = seed;
}

static inline enum kvt_status bench_try_open(struct bench *bench)
{
    return kvt_store_open(&bench->config, &bench->env, &bench->store, bench->error, sizeof bench->error);
}

static inline void bench_open(struct bench *bench)
{
    const enum kvt_status status = bench_try_open(bench);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_text(status), bench->error);
}

static inline int bench_remove(const char *path, const struct stat *status, int flag, struct FTW *walk)
{
    (void)status;
    (void)flag;
    (void)walk;
    return remove(path);
}

static inline void bench_done(struct bench *bench)
{
    kvt_store_close(&bench->store);
    io_faulty_image_destroy(&bench->image);
    assert_int_equal(nftw(bench->directory, bench_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static inline void bench_reopen(struct bench *bench)
{
    kvt_store_close(&bench->store);
    bench_open(bench);
}

static inline struct kvt_store_name bench_name(uint64_t key)
{
    return (struct kvt_store_name){ .space = { 0x5eed, 1 }, .key = { key, ~key } };
}

static inline void bench_fill(uint8_t *bytes, uint32_t length, uint64_t key, uint64_t generation)
{
    struct kvt_rng rng = { key * 1000003 + generation };
    for (uint32_t i = 0; i < length; i += 8) {
        const uint64_t word = kvt_rng_next(&rng);
        memcpy(bytes + i, &word, length - i < 8 ? length - i : 8);
    }
}

static inline bool bench_is_filled(const uint8_t *bytes, uint32_t length, uint64_t key, uint64_t generation)
{
    struct kvt_rng rng = { key * 1000003 + generation };
    for (uint32_t i = 0; i < length; i += 8) {
        const uint64_t word = kvt_rng_next(&rng);
        if (memcmp(bytes + i, &word, length - i < 8 ? length - i : 8) != 0) return false;
    }
    return true;
}

/* Waits for one op; there is no other. */
static inline enum kvt_status bench_run(struct bench *bench, struct kvt_store_op *op)
{
    struct kvt_store_op *const ops[] = { op };
    if (kvt_store_submit(bench->store, ops, 1) != 1) return KVT_FULL;
    struct kvt_store_op *done = NULL;
    while (kvt_store_poll(bench->store, &done, 1) == 0) assert_true(kvt_store_wait(bench->store, 20000000000u));
    assert_ptr_equal(done, op);
    return op->status;
}

static inline enum kvt_status bench_put_as(struct bench *bench, uint64_t key, uint64_t generation, uint32_t length,
                                           uint32_t flags)
{
    uint8_t *bytes = kvt_alloc(1, length);
    bench_fill(bytes, length, key, generation);
    struct kvt_store_op op = { .kind = KVT_STORE_PUT,
                               .flags = flags,
                               .name = bench_name(key),
                               .generation = generation,
                               .buffer = bytes,
                               .length = length,
                               .form = 1,
                               .tokens = 16 };
    const enum kvt_status status = bench_run(bench, &op);
    kvt_free(bytes);
    return status;
}

static inline enum kvt_status bench_put(struct bench *bench, uint64_t key, uint32_t length)
{
    return bench_put_as(bench, key, 1, length, 0);
}

/* OK only when every byte is right. A failed get must leave a buffer that is larger untouched behind the record. */
static inline enum kvt_status bench_get_as(struct bench *bench, uint64_t key, uint64_t generation, uint32_t length)
{
    uint8_t *bytes = kvt_alloc(1, length + 64);
    memset(bytes, 0xa5, length + 64);
    struct kvt_store_op op = {
        .kind = KVT_STORE_GET, .name = bench_name(key), .generation = generation, .buffer = bytes, .length = length
    };
    const enum kvt_status status = bench_run(bench, &op);
    if (status == KVT_OK) {
        assert_int_equal(op.ret_length, length);
        assert_int_equal(op.ret_form, 1);
        assert_int_equal(op.ret_tokens, 16);
        assert_int_equal(op.ret_generation, generation);
        assert_true(bench_is_filled(bytes, length, key, generation));
    }
    for (uint32_t i = 0; i < 64; i++) assert_int_equal(bytes[length + i], 0xa5);
    kvt_free(bytes);
    return status;
}

static inline enum kvt_status bench_get(struct bench *bench, uint64_t key, uint32_t length)
{
    return bench_get_as(bench, key, 1, length);
}

static inline bool bench_has(struct bench *bench, uint64_t key)
{
    const struct kvt_store_name name = bench_name(key);
    struct kvt_store_found found;
    return kvt_store_find(bench->store, &name, &found);
}

static inline struct kvt_store_stats bench_stats(struct bench *bench)
{
    struct kvt_store_stats stats;
    kvt_store_stats(bench->store, &stats);
    return stats;
}

static inline struct kvt_store_op bench_get_op(uint64_t key, void *bytes, uint32_t length)
{
    return (struct kvt_store_op){
        .kind = KVT_STORE_GET, .name = bench_name(key), .generation = 1, .buffer = bytes, .length = length
    };
}

/* Where the only valid record of this key lies on the disk: file number and offset. */
static inline bool bench_find_record(struct bench *bench, uint64_t key, char ret_file[24], uint64_t *ret_offset)
{
    const struct kvt_store_name name = bench_name(key);
    *ret_offset = 0;
    for (uint32_t index = 0; index < 16; index++) {
        uint64_t size;
        (void)snprintf(ret_file, 24, "segment-%06u", index);
        if (!io_faulty_file_size(bench->image, bench->path, ret_file, &size)) continue;
        for (uint64_t offset = KVT_STORE_BLOCK_BYTES; offset + 512 <= size; offset += 512) {
            struct kvt_record_header header;
            if (!io_faulty_peek(bench->image, bench->path, ret_file, offset, &header, sizeof header)) break;
            if (header.magic != KVT_RECORD_MAGIC || memcmp(&header.name, &name, sizeof name) != 0) continue;
            *ret_offset = offset;
            return true;
        }
    }
    return false;
}

static inline void bench_flip(struct bench *bench, const char *file, uint64_t offset, int bit)
{
    uint8_t byte;
    assert_true(io_faulty_peek(bench->image, bench->path, file, offset, &byte, 1));
    byte ^= (uint8_t)(1 << bit);
    assert_true(io_faulty_poke(bench->image, bench->path, file, offset, &byte, 1));
}

/* Many segments with few records in each: there is much to compact. */
static inline void bench_scatter(struct bench *bench)
{
    for (uint64_t i = 0; i < 600; i++) assert_int_equal(bench_put(bench, i, 12000), KVT_OK);
    for (uint64_t i = 0; i < 600; i++) {
        const struct kvt_store_name name = bench_name(i);
        if (i % 8 != 0) (void)kvt_store_delete(bench->store, &name, 1);
    }
}

#endif
