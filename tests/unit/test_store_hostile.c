/*
 * store: a directory that somebody wrote into. Whatever its blocks say, with checksums that hold or not: the store
 *        opens, or
 * refuses in one line; every get is exact or a miss; puts work; nothing is read or written out of bounds (run it under
 * ASan).
 */
#include "tests/unit/store_bench.h"

#include "runtime/base/crc32c.h"
#include "tiers/store_format.h"

enum { KIB = 1024, KEYS = 120 };

static uint32_t length_of(uint64_t key) { return 1 + (uint32_t)(kvt_mix64(key) % (40 * KIB)); }

/* A store in several segments: closed ones, one open, one with a torn end. */
static void build(struct bench *bench)
{
    bench_open(bench);
    for (uint64_t key = 0; key < KEYS; key++) assert_int_equal(bench_put(bench, key, length_of(key)), KVT_OK);
    kvt_store_close(&bench->store);
}

struct target {
    char file[24];
    uint64_t offset;
    uint32_t size, crc_at;
};

/* Picks a block with a checksum of its own. */
static struct target pick(struct bench *bench, struct kvt_rng *rng)
{
    struct target target = { .file = "superblock" };
    uint64_t size = 0;
    if (kvt_rng_below(rng, 6) == 0) {
        target.offset = kvt_rng_below(rng, 2) * KVT_STORE_BLOCK_BYTES;
        target.size = sizeof(struct kvt_superblock);
        target.crc_at = offsetof(struct kvt_superblock, crc);
        return target;
    }
    (void)snprintf(target.file, sizeof target.file, "segment-%06u", (unsigned)kvt_rng_below(rng, 3));
    if (!io_faulty_file_size(bench->image, bench->path, target.file, &size)) return target;
    switch (kvt_rng_below(rng, 3)) {
    case 0:
        target.size = sizeof(struct kvt_segment_header);
        target.crc_at = offsetof(struct kvt_segment_header, crc);
        break;
    case 1:
        target.offset = size - KVT_STORE_BLOCK_BYTES;
        target.size = sizeof(struct kvt_segment_footer);
        target.crc_at = offsetof(struct kvt_segment_footer, crc);
        break;
    /* the first record's lengths, form and tokens: its name is not forged, since nothing but a MAC could tell */
    default:
        target.offset = KVT_STORE_BLOCK_BYTES;
        target.size = sizeof(struct kvt_record_header);
        target.crc_at = offsetof(struct kvt_record_header, crc);
    }
    return target;
}

static void change(uint8_t *bytes, const struct target *target, struct kvt_rng *rng)
{
    const bool is_record = target->crc_at == offsetof(struct kvt_record_header, crc);
    const uint32_t first = is_record ? offsetof(struct kvt_record_header, length) : 0;
    const uint64_t extremes[] = { 0, 1, UINT32_MAX, UINT64_MAX, (uint64_t)1 << 63, 4096, 65536 };
    for (uint64_t n = 1 + kvt_rng_below(rng, 3); n > 0; n--) {
        const uint32_t at = first + (uint32_t)kvt_rng_below(rng, target->crc_at - first);
        if (kvt_rng_below(rng, 2) == 0) {
            bytes[at] = (uint8_t)kvt_rng_next(rng);
        } else {
            const uint64_t value = extremes[kvt_rng_below(rng, KVT_ARRAY_COUNT(extremes))];
            const uint32_t aligned = at & ~3u;
            const uint32_t size = target->crc_at - aligned < 8 ? target->crc_at - aligned : 8;
            memcpy(bytes + aligned, &value, size);
        }
    }
}

static void damage_block(struct bench *bench, struct kvt_rng *rng)
{
    const struct target target = pick(bench, rng);
    uint8_t bytes[256];
    if (target.size == 0 || !io_faulty_peek(bench->image, bench->path, target.file, target.offset, bytes, target.size))
        return;
    change(bytes, &target, rng);
    if (kvt_rng_below(rng, 4) > 0) { /* as somebody would who knows the format */
        const uint32_t crc = kvt_crc32c(0, bytes, target.crc_at);
        memcpy(bytes + target.crc_at, &crc, sizeof crc);
    }
    assert_true(io_faulty_poke(bench->image, bench->path, target.file, target.offset, bytes, target.size));
}

/* An entry of a summary, and the checksums over it made to hold again. */
static void damage_summary(struct bench *bench, struct kvt_rng *rng)
{
    char file[24];
    uint64_t size;
    struct kvt_segment_footer footer;
    (void)snprintf(file, sizeof file, "segment-%06u", (unsigned)kvt_rng_below(rng, 3));
    if (!io_faulty_file_size(bench->image, bench->path, file, &size)) return;
    if (!io_faulty_peek(bench->image, bench->path, file, size - KVT_STORE_BLOCK_BYTES, &footer, sizeof footer)) return;
    const uint64_t bytes = (uint64_t)footer.entry_count * sizeof(struct kvt_summary_entry);
    if (footer.magic != KVT_FOOTER_MAGIC || bytes == 0 || bytes > 65536) return;
    static uint8_t entries[65536];
    if (!io_faulty_peek(bench->image, bench->path, file, footer.summary_offset, entries, bytes)) return;
    for (uint64_t n = 1 + kvt_rng_below(rng, 8); n > 0; n--)
        entries[kvt_rng_below(rng, bytes)] = (uint8_t)kvt_rng_next(rng);
    footer.summary_crc = kvt_crc32c(0, entries, bytes);
    footer.crc = kvt_crc32c(0, &footer, offsetof(struct kvt_segment_footer, crc));
    assert_true(io_faulty_poke(bench->image, bench->path, file, footer.summary_offset, entries, bytes));
    assert_true(io_faulty_poke(bench->image, bench->path, file, size - KVT_STORE_BLOCK_BYTES, &footer, sizeof footer));
}

static void check(struct bench *bench, uint64_t seed)
{
    const enum kvt_status status = bench_try_open(bench);
    if (status != KVT_OK) {
        assert_int_not_equal(bench->error[0], '\0');
        fail_msg("seed %llu: %s", (unsigned long long)seed, bench->error);
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        static uint8_t bytes[40 * KIB + 1];
        struct kvt_store_op op = { .kind = KVT_STORE_GET,
                                   .flags = KVT_STORE_GENERATION_ANY,
                                   .name = bench_name(key),
                                   .buffer = bytes,
                                   .length = sizeof bytes };
        if (bench_run(bench, &op) != KVT_OK) continue;
        if (op.ret_length != length_of(key) || !bench_is_filled(bytes, op.ret_length, key, 1))
            fail_msg("seed %llu: key %llu has other bytes", (unsigned long long)seed, (unsigned long long)key);
    }
    for (uint64_t key = 1000; key < 1040; key++) assert_int_equal(bench_put(bench, key, 30 * KIB), KVT_OK);
    assert_int_equal(bench_get(bench, 1039, 30 * KIB), KVT_OK);
    assert_true(bench_stats(bench).allocated_peak <= bench->config.capacity_bytes);
    bench_reopen(bench);
    assert_int_equal(bench_get(bench, 1039, 30 * KIB), KVT_OK);
    kvt_store_close(&bench->store);
}

static void whatever_a_directory_says_gets_are_exact_or_misses(void **state)
{
    (void)state;
    const char *const more = getenv("KVTIER_HOSTILE_SEEDS"); /* longer by hand */
    const uint64_t seeds = more ? strtoull(more, NULL, 10) : 150;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct bench bench;
        struct kvt_rng rng = { seed };
        bench_init_faulty(&bench, seed);
        build(&bench);
        for (uint64_t n = 1 + kvt_rng_below(&rng, 4); n > 0; n--) {
            if (kvt_rng_below(&rng, 3) == 0) damage_summary(&bench, &rng);
            else damage_block(&bench, &rng);
        }
        check(&bench, seed);
        bench_done(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(whatever_a_directory_says_gets_are_exact_or_misses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
