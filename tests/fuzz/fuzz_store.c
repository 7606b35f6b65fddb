/*
 * A store's directory. The input is a list of changes to a good one: which file, where, and which bytes; the first byte
 * says whether the store is encrypted, and whether checksums are made to hold again. It opens or refuses in one line;
 * a get is exact or a miss; it takes and gives back what is stored then.
 */
#include "tests/unit/store_bench.h"

#include "runtime/base/crc32c.h"
#include "tests/fuzz/fuzz.h"
#include "tiers/store_format.h"

enum { KIB = 1024, KEYS = 12, FILES = 9, CHANGES_MAX = 32, LENGTH_MAX = 9 * KIB };
static const uint8_t secret[32] = { 42 };

static uint32_t length_of(uint64_t key) { return 1 + (uint32_t)(kvt_mix64(key) % LENGTH_MAX); }

static void name_file(uint32_t i, char name[24])
{
    if (i == 0) (void)snprintf(name, 24, "superblock");
    else (void)snprintf(name, 24, "segment-%06u", i - 1);
}

static void build(struct bench *bench)
{
    FUZZ_HOLDS(bench_try_open(bench) == KVT_OK);
    for (uint64_t key = 0; key < KEYS; key++)
        FUZZ_HOLDS(bench_put_as(bench, key, 1, length_of(key), key % 5 == 3 ? KVT_STORE_PRIVATE : 0) == KVT_OK);
    kvt_store_close(&bench->store);
}

/* Six bytes name a change: file, place (4 bytes), length; the bytes themselves follow. Returns how many were used. */
static size_t change(struct bench *bench, const uint8_t *data, size_t size)
{
    char name[24];
    uint32_t at;
    uint64_t file_bytes;
    uint8_t bytes[64];
    const size_t length = data[5] % sizeof bytes;
    name_file(data[0] % FILES, name);
    memcpy(&at, data + 1, sizeof at);
    const size_t used = kvt_min_u64(6 + length, size);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, data + 6, used - 6);
    if (!io_faulty_file_size(bench->image, bench->path, name, &file_bytes) || file_bytes < sizeof bytes) return used;
    (void)io_faulty_poke(bench->image, bench->path, name, at % (file_bytes - length), bytes, length);
    return used;
}

/* Structures whose own checksum is wrong by now get a right one. */
static void mend(struct bench *bench)
{
    for (uint32_t i = 0; i < FILES; i++) {
        char name[24];
        uint64_t size;
        uint8_t block[KVT_STORE_BLOCK_BYTES];
        name_file(i, name);
        if (!io_faulty_file_size(bench->image, bench->path, name, &size) || size < 2 * sizeof block) continue;
        const uint64_t places[] = { 0, i == 0 ? KVT_STORE_BLOCK_BYTES : size - KVT_STORE_BLOCK_BYTES };
        for (uint32_t p = 0; p < KVT_ARRAY_COUNT(places); p++) {
            if (!io_faulty_peek(bench->image, bench->path, name, places[p], block, sizeof block)) continue;
            const size_t crc_at = i == 0 ? offsetof(struct kvt_superblock, crc)
                : p == 0                 ? offsetof(struct kvt_segment_header, crc)
                                         : offsetof(struct kvt_segment_footer, crc);
            const uint32_t crc = kvt_crc32c(0, block, crc_at);
            memcpy(block + crc_at, &crc, sizeof crc);
            (void)io_faulty_poke(bench->image, bench->path, name, places[p], block, sizeof block);
        }
    }
}

static void read_all(struct bench *bench)
{
    static uint8_t bytes[LENGTH_MAX + 1];
    for (uint64_t key = 0; key < KEYS; key++) {
        struct kvt_store_op op = { .kind = KVT_STORE_GET,
                                   .flags = KVT_STORE_GENERATION_ANY,
                                   .name = bench_name(key),
                                   .buffer = bytes,
                                   .length = sizeof bytes };
        if (bench_run(bench, &op) != KVT_OK) continue;
        FUZZ_HOLDS(op.ret_length == length_of(key) && op.ret_generation == 1);
        FUZZ_HOLDS(bench_is_filled(bytes, op.ret_length, key, 1));
    }
}

static void use(struct bench *bench)
{
    if (bench_try_open(bench) != KVT_OK) {
        fuzz_check_error(bench->error);
        return;
    }
    read_all(bench);
    for (uint64_t key = 100; key < 104; key++) {
        if (bench_put(bench, key, 8 * KIB) != KVT_OK) continue; /* what was forged may be held */
        const enum kvt_status status = bench_get(bench, key, 8 * KIB);
        FUZZ_HOLDS(status == KVT_OK || status == KVT_NOTFOUND);
    }
    struct kvt_store_listed listed[16];
    for (uint64_t cursor = 0; kvt_store_list(bench->store, &cursor, listed, 16) > 0;) {}
    FUZZ_HOLDS(bench_stats(bench).allocated_peak <= bench->config.capacity_bytes);
    read_all(bench);
    kvt_store_close(&bench->store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench.config.capacity_bytes = 700 * KIB;
    if (data[0] & 1) bench.config.key = secret;
    build(&bench);
    const uint8_t how = data[0];
    data++;
    size--;
    for (uint32_t n = 0; n < CHANGES_MAX && size >= 6; n++) {
        const size_t used = change(&bench, data, size);
        data += used;
        size -= used;
    }
    if (how & 2) mend(&bench);
    use(&bench);
    bench_done(&bench);
    return 0;
}
