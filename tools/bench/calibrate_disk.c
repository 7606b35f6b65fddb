/*
 * Method: records as long as a packed block go through the nvme tier, so many at once, first puts, then gets in random
 *         order, then both. Throughput and latency at each depth are kept; the best throughput of a direction is its
 *         speed, and what an op that is alone takes beyond its bytes is its latency.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtier/store.h"
#include "runtime/base/bytes.h"
#include "runtime/base/env.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tiers/nvme_tier.h"
#include "tools/bench/calibrate.h"

enum { DEPTH_MAX = 48, OPS_MAX = 4096, RECORDS_MIN = 64, RECORDS_MAX = 2048 };
#define BUDGET_NS UINT64_C(1500000000) /* of one measurement */
#define PATIENCE_NS UINT64_C(20000000000)
#define RECORDS_BYTES (UINT64_C(128) << 20)

static const uint32_t depths[] = { 1, 4, 16, DEPTH_MAX };

struct slot {
    struct kvt_tier_op op;
    uint64_t begun_ns;
    bool is_busy;
};

struct disk {
    struct kvt_env env;
    struct kvt_tier *tier;
    char path[512];
    uint32_t length, records;
    uint64_t next_put; /* names of puts go round */
    uint64_t stored;   /* names that are there */
    uint8_t *buffers;
    uint64_t buffer_bytes;
    struct slot slots[DEPTH_MAX];
    struct kvt_rng rng;
    double latencies[2][OPS_MAX]; /* of gets; of puts */
    uint32_t counts[2];
};

enum mix { MIX_GETS, MIX_PUTS, MIX_BOTH };

static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
        + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static bool begin(struct disk *disk, uint32_t s, enum mix mix)
{
    struct slot *slot = &disk->slots[s];
    const bool is_put = mix == MIX_PUTS || (mix == MIX_BOTH && kvt_rng_below(&disk->rng, 2) == 0);
    const uint64_t name = is_put ? disk->next_put % disk->records : kvt_rng_below(&disk->rng, disk->stored);
    slot->op = (struct kvt_tier_op){ .kind = is_put ? KVT_OP_STASH : KVT_OP_FETCH,
                                     .priority = is_put ? KVT_PRIORITY_WRITE_BACK : KVT_PRIORITY_DEMAND,
                                     .tokens = 1,
                                     .host = disk->buffers + s * disk->buffer_bytes,
                                     .host_capacity = (uint32_t)disk->buffer_bytes,
                                     .length = disk->length,
                                     .name = { .space = { 1, 2 }, .key = { name + 1, ~name } },
                                     .generation = 1 };
    if (is_put) kvt_store_u64(slot->op.host, name);
    slot->begun_ns = kvt_env_now_ns(&disk->env);
    slot->is_busy = kvt_tier_submit(disk->tier, &slot->op) == KVT_OK;
    if (slot->is_busy && is_put) disk->next_put++;
    return slot->is_busy;
}

/* A get of a record that was replaced or reclaimed meanwhile is a miss, which is no failure here. */
static bool collect(struct disk *disk, uint32_t *ret_count)
{
    struct kvt_tier_op *done[DEPTH_MAX];
    const uint32_t count = kvt_tier_poll(disk->tier, done, DEPTH_MAX);
    const uint64_t now_ns = kvt_env_now_ns(&disk->env);
    *ret_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = (struct slot *)(void *)done[i];
        const uint32_t kind = done[i]->kind == KVT_OP_STASH;
        slot->is_busy = false;
        if (done[i]->status == KVT_NOTFOUND || done[i]->status == KVT_FULL) continue;
        if (done[i]->status != KVT_OK) return kvt_calibrate_fail("the disk: %s", kvt_status_text(done[i]->status));
        if (disk->counts[kind] < OPS_MAX)
            disk->latencies[kind][disk->counts[kind]++] = (double)(now_ns - slot->begun_ns);
    }
    return true;
}

/* Ops at a depth, for so many or until the time is up. */
static bool load(struct disk *disk, enum mix mix, uint32_t depth, uint32_t ops, struct kvt_link_point *ret_point,
                 double *ret_cpu_ns)
{
    uint32_t begun = 0, over = 0, busy = 0;
    const uint64_t start_ns = kvt_env_now_ns(&disk->env);
    const double cpu = cpu_seconds();
    disk->counts[0] = disk->counts[1] = 0;
    struct pollfd news = { .fd = kvt_store_eventfd(kvt_nvme_tier_store(disk->tier)), .events = POLLIN };
    while (over < ops || busy > 0) {
        const uint64_t now_ns = kvt_env_now_ns(&disk->env);
        if (now_ns - start_ns > PATIENCE_NS) return kvt_calibrate_fail("the disk: an op did not come back");
        const bool is_time_up = now_ns - start_ns > BUDGET_NS;
        for (uint32_t s = 0; s < depth && begun < ops && !is_time_up; s++) {
            if (disk->slots[s].is_busy) continue;
            if (!begin(disk, s, mix)) break;
            begun++;
            busy++;
        }
        if (busy == 0 && (is_time_up || begun == ops)) break;
        uint32_t count;
        (void)poll(&news, 1, 20);
        if (!collect(disk, &count)) return false;
        busy -= count;
        over += count;
    }
    const double seconds = (double)(kvt_env_now_ns(&disk->env) - start_ns) * 1e-9;
    if (over == 0) return kvt_calibrate_fail("the disk took no op");
    *ret_cpu_ns = (cpu_seconds() - cpu) * 1e9 / over;
    const uint32_t kind = mix == MIX_PUTS;
    *ret_point = (struct kvt_link_point){ .op_bytes = disk->length,
                                          .depth = depth,
                                          .bytes_per_s = (double)over * disk->length / seconds };
    ret_point->latency_p50_ns = kvt_calibrate_quantile(disk->latencies[kind], disk->counts[kind], 0.5);
    ret_point->latency_p99_ns = kvt_calibrate_quantile(disk->latencies[kind], disk->counts[kind], 0.99);
    return true;
}

static struct kvt_link link_of(const struct kvt_link_point *points, uint32_t count)
{
    struct kvt_link link = { 0 };
    for (uint32_t i = 0; i < count; i++) {
        if (points[i].bytes_per_s > link.bytes_per_s) link.bytes_per_s = points[i].bytes_per_s;
    }
    const double bytes_ns = 1e9 * points[0].op_bytes / link.bytes_per_s;
    link.op_ns = points[0].latency_p50_ns > bytes_ns ? points[0].latency_p50_ns - bytes_ns : 0;
    return link;
}

static bool measure(struct disk *disk, struct kvt_links *links)
{
    struct kvt_link_point mixed = { 0 };
    double ignored;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(depths); i++) {
        if (!load(disk, MIX_PUTS, depths[i], disk->records / 2, &links->writes[i], &links->put_ns)) return false;
        disk->stored = kvt_min_u64(disk->records, disk->next_put);
    }
    if (kvt_store_sync(kvt_nvme_tier_store(disk->tier)) != KVT_OK) return kvt_calibrate_fail("the disk: a sync failed");
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(depths); i++) {
        if (!load(disk, MIX_GETS, depths[i], disk->records, &links->reads[i], &links->get_ns)) return false;
    }
    if (!load(disk, MIX_BOTH, 16, disk->records, &mixed, &ignored)) return false;
    links->point_count = KVT_ARRAY_COUNT(depths);
    links->read = link_of(links->reads, links->point_count);
    links->write = link_of(links->writes, links->point_count);
    links->mixed_bytes_per_s = mixed.bytes_per_s;
    struct kvt_store_stats stats;
    kvt_store_stats(kvt_nvme_tier_store(disk->tier), &stats);
    links->alignment = stats.alignment;
    links->has_disk = true;
    return true;
}

static bool open_disk(struct disk *disk, const struct kvt_calibration *calibration)
{
    const struct kvt_model_shape *shape = &calibration->shape;
    const uint64_t raw = kvt_group_block_bytes(&shape->groups[0], shape->block_tokens);
    const double ratio = calibration->links.codec[shape->groups[0].dtype].ratio;
    char error[256] = "";
    disk->env = kvt_env_default();
    disk->rng.state = 1;
    disk->length = (uint32_t)((double)raw / (ratio > 1 ? ratio : 1));
    disk->records = (uint32_t)kvt_min_u64(RECORDS_MAX, kvt_max_u64(RECORDS_MIN, RECORDS_BYTES / disk->length));
    disk->buffer_bytes = kvt_align_up((uint64_t)disk->length + 8192, 4096);
    disk->buffers = kvt_table_map(DEPTH_MAX * disk->buffer_bytes);
    if (!disk->buffers) return kvt_calibrate_fail("out of memory");
    for (uint64_t i = 0; i < DEPTH_MAX * disk->buffer_bytes; i += 8)
        kvt_store_u64(disk->buffers + i, kvt_rng_next(&disk->rng));
    (void)snprintf(disk->path, sizeof disk->path, "%s/kvtier-calibrate-XXXXXX", calibration->directory);
    if (!mkdtemp(disk->path)) {
        disk->path[0] = '\0';
        return kvt_calibrate_fail("no directory can be made in %s: %s", calibration->directory, strerror(errno));
    }
    const struct kvt_nvme_tier_config config = {
        .path = disk->path,
        .capacity_bytes = kvt_max_u64(3 * (uint64_t)disk->records * kvt_align_up(disk->length + 512, 4096),
                                      8 * KVT_MIB),
        .staging_bytes = kvt_align_up(kvt_max_u64(16 * KVT_MIB, 8 * disk->buffer_bytes), KVT_MIB),
        .queue_depth = DEPTH_MAX,
        .record_bytes_max = disk->length,
        .ret_error = error,
        .error_bytes = sizeof error,
    };
    const enum kvt_status status = kvt_nvme_tier_open(&config, &disk->env, &disk->tier);
    if (status == KVT_OK) return true;
    return kvt_calibrate_fail("the store: %s", error[0] ? error : kvt_status_text(status));
}

static void close_disk(struct disk *disk)
{
    kvt_tier_close(&disk->tier);
    kvt_table_unmap(disk->buffers, DEPTH_MAX * disk->buffer_bytes);
    DIR *directory = disk->path[0] ? opendir(disk->path) : NULL;
    for (const struct dirent *entry = directory ? readdir(directory) : NULL; entry; entry = readdir(directory))
        (void)unlinkat(dirfd(directory), entry->d_name, 0); /* it has files only */
    if (directory) (void)closedir(directory);
    if (disk->path[0]) (void)rmdir(disk->path);
}

bool kvt_calibrate_disk(struct kvt_calibration *calibration)
{
    if (!calibration->directory) return true;
    struct disk *disk = kvt_alloc(1, sizeof *disk);
    if (!disk) return kvt_calibrate_fail("out of memory");
    const bool is_ok = open_disk(disk, calibration) && measure(disk, &calibration->links);
    close_disk(disk);
    kvt_free(disk);
    return is_ok;
}
