/*
 * store: mutated directories, as many as fit in KVTIER_FUZZ_SECONDS (2 by default). Meant for ASan and UBSan.
 *
 * A small store is built, its files are damaged: bits, bytes, blocks moved, swapped, cut off, fields set to extremes, checksums made
 * to hold again. Then it is opened and used. The oracle: it opens or refuses in one line; a get is exact or a miss; it goes on working.
 * Whoever can make checksums hold can forge the name of a record, so in a store without a key those fields are left alone; in an
 * encrypted one everything is forged.
 *
 * KVTIER_FUZZ_SEED replays from one seed on.
 */
#include "tests/unit/store_bench.h"

#include "runtime/base/crc32c.h"
#include "tiers/store_format.h"

enum { KIB = 1024, KEYS = 70, SEGMENTS = 8 };
static const uint8_t secret[32] = { 42 };

static uint32_t length_of(uint64_t key) { return 1 + (uint32_t)(kvt_mix64(key) % (key % 16 == 3 ? 50 * KIB : 9 * KIB)); }

static void build(struct bench *bench, struct kvt_rng *rng)
{
    bench_open(bench);
    for (uint64_t key = 0; key < KEYS; key++) {
        assert_int_equal(bench_put_as(bench, key, 1, length_of(key), key % 11 == 7 ? KVT_STORE_PRIVATE : 0), KVT_OK);
        if (kvt_rng_below(rng, 60) == 0) assert_int_equal(kvt_store_reset(bench->store), KVT_OK);
        if (kvt_rng_below(rng, 40) == 0) bench_reopen(bench);
    }
    if (kvt_rng_below(rng, 3) == 0) { /* the end of it is torn */
        io_faulty_cut_at(bench->image, 1 + kvt_rng_below(rng, 20));
        for (uint64_t key = KEYS; key < KEYS + 10; key++) (void)bench_put(bench, key, length_of(key));
    }
    kvt_store_close(&bench->store);
    io_faulty_power_cycle(bench->image);
}

struct file { char name[24]; uint64_t size; uint8_t *bytes; };

static uint32_t read_files(struct bench *bench, struct file *files)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= SEGMENTS; i++) {
        struct file *file = &files[count];
        if (i == SEGMENTS) (void)snprintf(file->name, sizeof file->name, "superblock");
        else (void)snprintf(file->name, sizeof file->name, "segment-%06u", i);
        if (!io_faulty_file_size(bench->image, bench->path, file->name, &file->size) || file->size < 8192) continue;
        file->bytes = kvt_alloc(1, file->size);
        assert_true(io_faulty_peek(bench->image, bench->path, file->name, 0, file->bytes, file->size));
        count++;
    }
    return count;
}

static void spoil(uint8_t *bytes, uint64_t size, struct kvt_rng *rng)
{
    static const uint64_t extremes[] = { 0, 1, 127, 512, 4096, 65536, INT32_MAX, UINT32_MAX, (uint64_t)1 << 47, INT64_MAX, UINT64_MAX };
    for (uint64_t n = 1 + kvt_rng_below(rng, 4); n > 0; n--) {
        const uint64_t at = kvt_rng_below(rng, size);
        const uint64_t width = kvt_min_u64((uint64_t)1 << kvt_rng_below(rng, 4), size - at);
        const uint64_t value = kvt_rng_below(rng, 2) ? extremes[kvt_rng_below(rng, KVT_ARRAY_COUNT(extremes))] : kvt_rng_next(rng);
        if (kvt_rng_below(rng, 3) == 0) bytes[at] ^= (uint8_t)(1u << kvt_rng_below(rng, 8));
        else memcpy(bytes + at, &value, width);
    }
}

static void fix(uint8_t *block, size_t crc_at)
{
    const uint32_t crc = kvt_crc32c(0, block, crc_at);
    memcpy(block + crc_at, &crc, sizeof crc);
}

/* A structure that has a checksum: spoiled, and mostly made to hold. */
static void forge(struct file *file, bool is_sealed, struct kvt_rng *rng)
{
    const bool is_fixed = kvt_rng_below(rng, 5) > 0;
    if (file->name[1] == 'u') {
        uint8_t *copy = file->bytes + kvt_rng_below(rng, 2) * KVT_STORE_BLOCK_BYTES;
        spoil(copy, kvt_rng_below(rng, 2) ? sizeof(struct kvt_superblock) : 160, rng);
        if (is_fixed) fix(copy, offsetof(struct kvt_superblock, crc));
        if (is_fixed) fix(copy + KVT_SUPERBLOCK_KEY_AT, offsetof(struct kvt_superblock_key, crc));
        return;
    }
    uint8_t *footer = file->bytes + file->size - KVT_STORE_BLOCK_BYTES;
    switch (kvt_rng_below(rng, 4)) {
    case 0:
        spoil(file->bytes, 104, rng);
        if (is_fixed) fix(file->bytes, offsetof(struct kvt_segment_header, crc));
        return;
    case 1:
        spoil(footer, sizeof(struct kvt_segment_footer), rng);
        if (is_fixed) fix(footer, offsetof(struct kvt_segment_footer, crc));
        return;
    case 2: {
        struct kvt_segment_footer parsed;
        memcpy(&parsed, footer, sizeof parsed);
        const uint64_t bytes = (uint64_t)parsed.entry_count * sizeof(struct kvt_summary_entry);
        if (bytes == 0 || parsed.summary_offset > file->size || bytes > file->size - parsed.summary_offset) return;
        spoil(file->bytes + parsed.summary_offset, bytes, rng);
        parsed.summary_crc = kvt_crc32c(0, file->bytes + parsed.summary_offset, bytes);
        memcpy(footer, &parsed, sizeof parsed);
        if (is_fixed) fix(footer, offsetof(struct kvt_segment_footer, crc));
        return;
    }
    default: break;
    }
    uint64_t at = KVT_STORE_BLOCK_BYTES;
    for (uint64_t skip = kvt_rng_below(rng, 12);; skip--) { /* one of the records, as far as they follow each other */
        struct kvt_record_header header;
        memcpy(&header, file->bytes + at, sizeof header);
        if (skip == 0 || header.magic != KVT_RECORD_MAGIC || header.stored == 0 || header.stored > file->size || at + header.stored + 4096 > file->size) break;
        at += header.stored;
    }
    uint8_t *record = file->bytes + at;
    const uint64_t first = is_sealed ? 0 : offsetof(struct kvt_record_header, length);
    const uint64_t end = is_sealed ? offsetof(struct kvt_record_header, crc) : offsetof(struct kvt_record_header, payload_crc);
    spoil(record + first, end - first, rng);
    if (is_sealed && kvt_rng_below(rng, 2)) { /* other bytes, and a checksum that says they are right */
        struct kvt_record_header header;
        spoil(record + sizeof header, 300, rng);
        memcpy(&header, record, sizeof header);
        header.payload_crc = kvt_crc32c(0, record + sizeof header, kvt_min_u64(header.length, file->size - at - sizeof header));
        memcpy(record, &header, sizeof header);
    }
    if (is_fixed) fix(record, offsetof(struct kvt_record_header, crc));
}

static void mutate(struct file *files, uint32_t count, bool is_sealed, struct kvt_rng *rng)
{
    struct file *file = &files[kvt_rng_below(rng, count)], *other = &files[kvt_rng_below(rng, count)];
    const uint64_t unit = kvt_rng_below(rng, 2) ? 512 : 4096;
    const uint64_t size = kvt_min_u64(unit * (1 + kvt_rng_below(rng, 20)), kvt_min_u64(file->size, other->size));
    const uint64_t target = kvt_rng_below(rng, (file->size - size) / unit + 1) * unit;
    const uint64_t source = kvt_rng_below(rng, (other->size - size) / unit + 1) * unit;
    switch (kvt_rng_below(rng, 8)) {
    case 0: memmove(file->bytes + target, other->bytes + source, size); return; /* misdirected, or stale */
    case 1: memset(file->bytes + target, kvt_rng_below(rng, 2) ? 0 : 0xff, size); return;
    case 2: spoil(file->bytes, file->size, rng); return;
    case 3: memcpy(file->bytes, other->bytes, kvt_min_u64(file->size, other->size)); return; /* one segment in the place of another */
    default: forge(file, is_sealed, rng);
    }
}

static void damage(struct bench *bench, bool is_sealed, struct kvt_rng *rng)
{
    struct file files[SEGMENTS + 1] = { 0 };
    const uint32_t count = read_files(bench, files);
    assert_true(count > 1);
    for (uint64_t n = 1 + kvt_rng_below(rng, 5); n > 0; n--) mutate(files, count, is_sealed, rng);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(io_faulty_poke(bench->image, bench->path, files[i].name, 0, files[i].bytes, files[i].size));
        if (kvt_rng_below(rng, 12) == 0)
            assert_true(io_faulty_truncate(bench->image, bench->path, files[i].name, kvt_rng_below(rng, files[i].size / 512) * 512));
        kvt_free(files[i].bytes);
    }
}

static void read_all(struct bench *bench, uint64_t seed)
{
    static uint8_t bytes[60 * KIB];
    for (uint64_t key = 0; key < KEYS + 10; key++) {
        struct kvt_store_op op = { .kind = KVT_STORE_GET, .flags = KVT_STORE_GENERATION_ANY, .name = bench_name(key), .buffer = bytes,
                                   .length = sizeof bytes };
        if (bench_run(bench, &op) != KVT_OK) continue;
        if (op.ret_generation != 1 || op.ret_length != length_of(key) || !bench_is_filled(bytes, op.ret_length, key, 1))
            fail_msg("seed %llu: key %llu has other bytes", (unsigned long long)seed, (unsigned long long)key);
    }
}

static void use(struct bench *bench, uint64_t seed, struct kvt_rng *rng)
{
    if (bench_try_open(bench) != KVT_OK) {
        assert_int_not_equal(bench->error[0], '\0');
        return;
    }
    if (kvt_rng_below(rng, 2)) read_all(bench, seed);
    for (uint64_t key = 0; key < KEYS; key += 9) {
        const struct kvt_store_name name = bench_name(key);
        struct kvt_store_found found;
        (void)kvt_store_hold(bench->store, &name, &found);
    }
    for (uint64_t key = 1000; key < 1030; key++) (void)bench_put(bench, key, 12 * KIB); /* may be FULL: what was forged is held */
    if (kvt_rng_below(rng, 3) == 0) assert_int_equal(kvt_store_compact(bench->store), KVT_OK);
    read_all(bench, seed);
    struct kvt_store_listed listed[16];
    for (uint64_t cursor = 0; kvt_store_list(bench->store, &cursor, listed, 16) > 0;) {}
    assert_true(bench_stats(bench).allocated_peak <= bench->config.capacity_bytes);
    bench_reopen(bench);
    assert_int_equal(bench_put(bench, 2000, 12 * KIB), KVT_OK);
    assert_int_equal(bench_get(bench, 2000, 12 * KIB), KVT_OK);
    read_all(bench, seed);
    kvt_store_close(&bench->store);
}

static void a_mutated_directory_gives_exact_bytes_or_misses(void **state)
{
    (void)state;
    const char *const more = getenv("KVTIER_FUZZ_SECONDS"), *const from = getenv("KVTIER_FUZZ_SEED");
    const struct kvt_env clock = kvt_env_default();
    const uint64_t seconds = more ? strtoull(more, NULL, 10) : 2;
    const uint64_t end_ns = kvt_env_now_ns(&clock) + seconds * UINT64_C(1000000000);
    const uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    uint64_t seed = first;
    for (; seed < first + 3 || kvt_env_now_ns(&clock) < end_ns; seed++) {
        struct bench bench;
        struct kvt_rng rng = { seed };
        bench_init_faulty(&bench, seed);
        bench.config.capacity_bytes = 700 * KIB;
        if (seed % 2) bench.config.key = secret;
        build(&bench, &rng);
        damage(&bench, seed % 2, &rng);
        use(&bench, seed, &rng);
        bench_done(&bench);
    }
    print_message("%llu directories, seeds from %llu on\n", (unsigned long long)(seed - first), (unsigned long long)first);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_mutated_directory_gives_exact_bytes_or_misses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
