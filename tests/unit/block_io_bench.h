/*
 * block_io_bench: one opened block I/O of any kind for a test: directory, buffers, env, and the few calls every test
 * makes.
 */
#ifndef KVT_TESTS_UNIT_BLOCK_IO_BENCH_H
#define KVT_TESTS_UNIT_BLOCK_IO_BENCH_H

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tests/fakes/io_faulty.h"
#include "tiers/block_io.h"
#include "tiers/block_io_base.h"
#include "tiers/block_io_queue.h"

#define BENCH_BUFFERS_BYTES (16 * KVT_MIB)
#define SECOND_NS 1000000000u

struct implementation {
    const char *name;
    const struct kvt_block_io_ops *ops; /* NULL: what kvt_block_io_open chooses */
    bool is_single_threaded;
    uint64_t link_bytes_per_s;
};

static inline bool is_memory(const struct implementation *implementation)
{
    return implementation->ops == &io_faulty_ops;
}

/* Carries its ops out in a known order, inside poll. */
static inline bool is_orderly(const struct implementation *implementation)
{
    if (implementation->link_bytes_per_s > 0) return false; /* the link may have begun with another */
    return is_memory(implementation)
        || (implementation->ops == &kvt_block_io_sync_ops && implementation->is_single_threaded);
}

struct bench {
    const struct implementation *implementation;
    char directory[64];
    struct kvt_env env;
    struct kvt_block_io_config config;
    struct io_faulty_image *image; /* in memory only */
    struct kvt_block_io *io;
    struct kvt_block_io_facts facts;
    uint8_t *buffers;
};

static inline void bench_directory_create(char *ret_directory, size_t size)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(ret_directory, size, "%.40s/kvt-io-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    assert_non_null(mkdtemp(ret_directory));
}

static inline enum kvt_status bench_open_io(struct bench *bench)
{
    enum kvt_status status;
    if (bench->implementation->ops && bench->implementation->link_bytes_per_s == 0) {
        status = bench->implementation->ops->open(&bench->config, &bench->env, &bench->io);
    } else {
        bench->env.block_io = bench->implementation->ops;
        status = kvt_block_io_open(&bench->config, &bench->env, &bench->io);
    }
    if (status == KVT_OK) bench->io->ops->facts(bench->io, &bench->facts);
    return status;
}

/* Skips the test when this machine refuses io_uring: the refusal itself has its own test. */
static inline void bench_open(struct bench *bench, const struct implementation *implementation, uint32_t queue_depth)
{
    *bench = (struct bench){ .implementation = implementation, .env = kvt_env_default() };
    bench_directory_create(bench->directory, sizeof bench->directory);
    bench->env.is_single_threaded = implementation->is_single_threaded;
    if (is_memory(implementation)) {
        bench->image = io_faulty_image_create(&(struct io_faulty_config){ .seed = 11 });
        bench->env.block_io_user = bench->image;
    }
    bench->buffers = kvt_table_map(BENCH_BUFFERS_BYTES);
    assert_non_null(bench->buffers);
    bench->config = (struct kvt_block_io_config){ .directory = bench->directory,
                                                  .queue_depth = queue_depth,
                                                  .buffers = bench->buffers,
                                                  .buffers_bytes = BENCH_BUFFERS_BYTES,
                                                  .link_bytes_per_s = implementation->link_bytes_per_s };
    const enum kvt_status status = bench_open_io(bench);
    if (status == KVT_UNSUPPORTED && implementation->ops == &kvt_block_io_uring_ops) {
        print_message("skipped: io_uring is refused here\n");
        kvt_table_unmap(bench->buffers, BENCH_BUFFERS_BYTES);
        (void)rmdir(bench->directory);
        skip();
    }
    assert_int_equal(status, KVT_OK);
}

static inline void bench_close(struct bench *bench)
{
    if (bench->io) bench->io->ops->close(bench->io);
    io_faulty_image_destroy(&bench->image);
    kvt_table_unmap(bench->buffers, BENCH_BUFFERS_BYTES);
    char path[80];
    (void)snprintf(path, sizeof path, "%s/f", bench->directory);
    (void)unlink(path);
    assert_int_equal(rmdir(bench->directory), 0);
}

/* The file "f", which bench_close removes. */
static inline int bench_file(struct bench *bench, uint64_t size)
{
    int file, error = 0;
    assert_int_equal(bench->io->ops->open_file(bench->io, "f", true, &file, &error), KVT_OK);
    if (size > 0) assert_int_equal(bench->io->ops->allocate(bench->io, file, size, &error), KVT_OK);
    return file;
}

static inline struct kvt_io_op bench_op(enum kvt_io_kind kind, int file, uint64_t offset, void *buffer, uint32_t size)
{
    return (struct kvt_io_op){ .kind = kind,
                               .file = file,
                               .offset = offset,
                               .buffer = buffer,
                               .size = size,
                               .is_urgent = kind == KVT_IO_READ,
                               .ret_bytes = INT32_MIN };
}

static inline void bench_submit(struct bench *bench, struct kvt_io_op *op)
{
    assert_int_equal(bench->io->ops->submit(bench->io, op), KVT_OK);
}

/* Waits until n ops have come back; an op that never does is the test program's time-out. */
static inline void bench_collect(struct bench *bench, uint32_t n)
{
    struct kvt_io_op *done[64];
    while (n > 0) {
        const uint32_t got = bench->io->ops->poll(bench->io, done, kvt_min_u32(n, 64), SECOND_NS);
        assert_true(got <= n);
        n -= got;
    }
}

/* Submits, waits, returns ret_bytes. */
static inline int32_t bench_run(struct bench *bench, struct kvt_io_op op)
{
    struct kvt_io_op *done = NULL;
    bench_submit(bench, &op);
    while (bench->io->ops->poll(bench->io, &done, 1, SECOND_NS) == 0) {}
    assert_ptr_equal(done, &op);
    return op.ret_bytes;
}

static inline void fill(void *bytes, uint64_t size, uint64_t seed)
{
    struct kvt_rng rng = { .state = seed };
    for (uint64_t i = 0; i + 8 <= size; i += 8) kvt_store_u64((uint8_t *)bytes + i, kvt_rng_next(&rng));
}

static inline bool is_filled(const void *bytes, uint64_t size, uint64_t seed)
{
    struct kvt_rng rng = { .state = seed };
    for (uint64_t i = 0; i + 8 <= size; i += 8) {
        if (kvt_load_u64((const uint8_t *)bytes + i) != kvt_rng_next(&rng)) return false;
    }
    return true;
}

#endif
