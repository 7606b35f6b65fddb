/*
 * block_io, the choice: what a directory, a limit or a kernel that refuses something leads to, and what the facts say
 * of it. Also the parts alone: the queue, the ids, the pacing, the probe and its time limit.
 */
#include "tests/unit/block_io_bench.h"

#include <liburing.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static const struct implementation uring = { "io_uring", &kvt_block_io_uring_ops, false, 0 };
static const struct implementation chosen = { "chosen", NULL, false, 0 };
static const struct implementation memory = { "memory", &io_faulty_ops, true, 0 };

/* ---- queue and ids ---- */

static void urgent_reads_leave_the_queue_first(void **state)
{
    (void)state;
    struct kvt_io_queue queue = { { NULL, NULL }, { NULL, NULL } };
    struct kvt_io_op ops[5] = { { .kind = KVT_IO_WRITE },
                                { .kind = KVT_IO_READ, .is_urgent = true },
                                { .kind = KVT_IO_READ },
                                { .kind = KVT_IO_READ, .is_urgent = true },
                                { .kind = KVT_IO_WRITE, .is_urgent = true } };
    for (uint32_t i = 0; i < 5; i++) kvt_io_queue_push(&queue, &ops[i]);
    assert_ptr_equal(kvt_io_queue_pop(&queue, false), &ops[1]);
    struct kvt_io_op *taken = kvt_io_queue_pop(&queue, false);
    assert_ptr_equal(taken, &ops[3]);
    assert_null(kvt_io_queue_pop(&queue, false));
    kvt_io_queue_push_front(&queue, taken);
    assert_ptr_equal(kvt_io_queue_pop(&queue, true), &ops[3]);
    assert_ptr_equal(kvt_io_queue_pop(&queue, true), &ops[0]);
    assert_ptr_equal(kvt_io_queue_pop(&queue, true), &ops[2]);
    assert_ptr_equal(kvt_io_queue_pop(&queue, true), &ops[4]);
    assert_null(kvt_io_queue_pop(&queue, true));
}

/* The id of an op that ended names nobody, even when its slot is used again. */
static void b43_a_stale_id_is_a_stranger(void **state)
{
    (void)state;
    struct kvt_io_slots slots;
    assert_true(kvt_io_slots_init(&slots, 2));
    struct kvt_io_op first = { .kind = KVT_IO_READ }, second = { .kind = KVT_IO_READ };
    kvt_io_slots_take(&slots, &first);
    const uint64_t stale = first.tag;
    assert_ptr_equal(kvt_io_slots_match(&slots, stale), &first);
    kvt_io_slots_take(&slots, &second);
    assert_int_equal((uint32_t)second.tag, (uint32_t)stale);
    assert_null(kvt_io_slots_match(&slots, stale));
    assert_null(kvt_io_slots_match(&slots, 7));
    assert_null(kvt_io_slots_match(&slots, UINT64_MAX));
    assert_int_equal(slots.strangers, 3);
    assert_ptr_equal(kvt_io_slots_match(&slots, second.tag), &second);
    assert_int_equal(slots.used, 0);
    kvt_io_slots_done(&slots);
}

/* ---- a ring that stops working ---- */

static int ring_descriptor(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char link[64], target[64] = "";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, "io_uring")) return fd;
    }
    return -1;
}

/* The ring is replaced under way: ops that it cannot take any more come back with an error, and close ends. */
static void b35_a_ring_that_breaks_gives_every_op_back(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, &uring, 8);
    const int file = bench_file(&bench, KVT_MIB);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_WRITE, file, 0, bench.buffers, 4096)), 4096);
    const int ring = ring_descriptor();
    assert_true(ring >= 0);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(null >= 0);
    struct kvt_io_op ops[4], *done[4];
    for (uint32_t i = 0; i < 2; i++) {
        ops[i] = bench_op(KVT_IO_READ, file, i * 4096u, bench.buffers + i * 4096u, 4096);
        bench_submit(&bench, &ops[i]);
    }
    assert_int_equal(dup2(null, ring), ring);
    bench_collect(&bench, 2);
    for (uint32_t i = 2; i < 4; i++) {
        ops[i] = bench_op(KVT_IO_WRITE, file, i * 4096u, bench.buffers + i * 4096u, 4096);
        bench_submit(&bench, &ops[i]);
    }
    bench_collect(&bench, 2);
    for (uint32_t i = 0; i < 4; i++) assert_true(ops[i].ret_bytes < 0);
    assert_int_equal(bench.io->ops->poll(bench.io, done, 4, 0), 0);
    bench.io->ops->close_file(bench.io, file);
    bench_close(&bench);
    (void)close(null);
}

struct reader {
    struct bench *bench;
    struct kvt_io_op *ops;
    uint32_t n;
};

static void *reader_main(void *argument)
{
    struct reader *reader = argument;
    struct kvt_block_io *io = reader->bench->io;
    struct kvt_io_op *done[1];
    for (uint32_t i = 0; i < reader->n; i++) {
        if (io->ops->submit(io, &reader->ops[i]) != KVT_OK) return reader;
    }
    return io->ops->poll(io, done, 0, 0) == 0 ? NULL : reader;
}

/*
 * The kernel fails a buffered read that waits for the disk when the thread that submitted it ends (EFAULT); it is done
 * again.
 */
static void buffered_reads_outlive_the_thread_that_submitted_them(void **state)
{
    (void)state;
    enum { READS = 32, BYTES = 65536 };
    struct bench bench;
    bench_open(&bench, &uring, READS);
    ((struct kvt_io_base *)bench.io)->facts.is_direct = false;
    const int file = bench_file(&bench, 0);
    for (uint32_t i = 0; i < READS; i++) {
        fill(bench.buffers, BYTES, i + 1);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_WRITE, file, (uint64_t)i * 4 * BYTES, bench.buffers, BYTES)),
                         BYTES);
    }
    for (uint32_t round = 0; round < 4; round++) {
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)), 0);
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); /* so that the reads go to the disk */
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
        struct kvt_io_op ops[READS];
        for (uint32_t i = 0; i < READS; i++) {
            ops[i] = bench_op(KVT_IO_READ, file, (uint64_t)i * 4 * BYTES, bench.buffers + i * BYTES, BYTES);
        }
        struct reader reader = { .bench = &bench, .ops = ops, .n = READS };
        pthread_t thread;
        void *failure = NULL;
        assert_int_equal(pthread_create(&thread, NULL, reader_main, &reader), 0);
        assert_int_equal(pthread_join(thread, &failure), 0);
        assert_null(failure);
        bench_collect(&bench, READS);
        for (uint32_t i = 0; i < READS; i++) {
            assert_int_equal(ops[i].ret_bytes, BYTES);
            assert_true(is_filled(ops[i].buffer, BYTES, i + 1));
        }
    }
    bench.io->ops->close_file(bench.io, file);
    bench_close(&bench);
}

/* ---- limits ---- */

/* Takes away or gives back the right to lock without limit; false: this process never had it. */
static bool set_lock_right(bool is_on)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, data) != 0) return false;
    struct __user_cap_data_struct *word = &data[CAP_IPC_LOCK / 32];
    const uint32_t bit = 1u << CAP_IPC_LOCK % 32;
    if (!(word->permitted & bit)) return false;
    if (is_on) word->effective |= bit;
    else word->effective &= ~bit;
    return syscall(SYS_capset, &header, data) == 0;
}

/* With 64 KiB of lockable memory nothing is registered, the facts say so, and I/O is exact all the same. */
static void b56_a_low_memlock_limit_means_unregistered_and_said_so(void **state)
{
    (void)state;
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low = (struct rlimit){ .rlim_cur = 65536, .rlim_max = before.rlim_max };
    (void)set_lock_right(false);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    struct bench bench;
    bench_open(&bench, &uring, 4);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    (void)set_lock_right(true);

    assert_false(bench.facts.is_registered);
    assert_non_null(strstr(bench.facts.note, "16384 KiB needed, memlock limit 64 KiB"));
    const int file = bench_file(&bench, KVT_MIB);
    fill(bench.buffers, 65536, 4);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_WRITE, file, 0, bench.buffers, 65536)), 65536);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 0, bench.buffers + KVT_MIB, 65536)), 65536);
    assert_true(is_filled(bench.buffers + KVT_MIB, 65536, 4));
    bench.io->ops->close_file(bench.io, file);
    bench_close(&bench);
}

/* A region larger than one registered buffer may be is sliced; an op on the seam works. */
static void b56_a_region_of_1_gib_and_4_kib_is_sliced(void **state)
{
    (void)state;
    const uint64_t region_bytes = KVT_GIB + 4096;
    const bool is_unlimited = set_lock_right(true);
    struct bench bench;
    bench_open(&bench, &uring, 4);
    bench.io->ops->close(bench.io);
    uint8_t *region = kvt_table_map(region_bytes);
    assert_non_null(region);
    bench.config.buffers = region;
    bench.config.buffers_bytes = region_bytes;
    assert_int_equal(bench_open_io(&bench), KVT_OK);
    print_message("1 GiB + 4 KiB: %s%s\n", bench.facts.is_registered ? "registered" : "", bench.facts.note);
    if (is_unlimited) assert_true(bench.facts.is_registered);
    else assert_true(bench.facts.is_registered || bench.facts.note[0] != '\0');
    const int file = bench_file(&bench, KVT_MIB);
    const uint64_t places[] = { 0, KVT_GIB - 8192, KVT_GIB - 4096, KVT_GIB }; /* the third crosses the seam */
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(places); i++) {
        const uint32_t size = i == 2 ? 8192 : 4096;
        fill(region + places[i], size, 40 + i);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_WRITE, file, 65536u * i, region + places[i], size)), size);
        memset(region + places[i], 0, size);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 65536u * i, region + places[i], size)), size);
        assert_true(is_filled(region + places[i], size, 40 + i));
    }
    bench.io->ops->close_file(bench.io, file);
    bench_close(&bench);
    kvt_table_unmap(region, region_bytes);
}

/* ---- file systems and kernels that refuse ---- */

/* Opens what there is for directory and makes a round trip. 0: works. Prints what it found. For children: no cmocka. */
static int try_directory_with(const struct kvt_block_io_ops *ops, const char *directory, const char *expected_path,
                              const char *expected_note)
{
    struct kvt_env env = kvt_env_default();
    env.block_io = ops;
    const struct kvt_block_io_config config = { .directory = directory, .queue_depth = 4 };
    struct kvt_block_io *io;
    if (kvt_block_io_open(&config, &env, &io) != KVT_OK) return 1;
    struct kvt_block_io_facts facts;
    io->ops->facts(io, &facts);
    print_message("%s: %s, %s, %u, %s\n", directory, facts.path, facts.is_direct ? "direct" : "buffered",
                  facts.alignment, facts.note[0] ? facts.note : "-");
    if (expected_path && strcmp(facts.path, expected_path) != 0) return 2;
    if (expected_note && !strstr(facts.note, expected_note)) return 3;
    int file, error;
    if (io->ops->open_file(io, "f", true, &file, &error) != KVT_OK) return 4;
    uint8_t *buffer = kvt_table_map(65536);
    struct kvt_io_op *done = NULL;
    for (uint32_t i = 0; i < 2; i++) {
        struct kvt_io_op op = bench_op(i ? KVT_IO_READ : KVT_IO_WRITE, file, facts.alignment, buffer, 32768);
        if (i) memset(buffer, 0, 32768);
        else fill(buffer, 32768, 6);
        if (io->ops->submit(io, &op) != KVT_OK) return 5;
        while (io->ops->poll(io, &done, 1, SECOND_NS) == 0) {}
        if (op.ret_bytes != 32768) return 6;
    }
    if (!is_filled(buffer, 32768, 6)) return 7;
    struct stat stat_;
    if (io->ops->allocate(io, file, KVT_MIB, &error) != KVT_OK) return 9;
    if (fstat(file, &stat_) != 0 || stat_.st_size != (off_t)KVT_MIB) return 10;
    kvt_table_unmap(buffer, 65536);
    io->ops->close_file(io, file);
    if (io->ops->remove_file(io, "f", &error) != KVT_OK) return 8;
    io->ops->close(io);
    return 0;
}

static int try_directory(const char *directory, const char *expected_path, const char *expected_note)
{
    const int result = try_directory_with(NULL, directory, expected_path, expected_note);
    if (result != 0) return result;
    return try_directory_with(&kvt_block_io_sync_ops, directory, "threads", NULL);
}

#define SKIPPED 77

/* Runs function in a child, where it may change what the process is allowed. */
static void in_a_child(int (*function)(const char *directory))
{
    char directory[64];
    bench_directory_create(directory, sizeof directory);
    (void)fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int result = function(directory);
        (void)fflush(NULL);
        _exit(result);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    char command[128];
    const char *parts[] = { "upper", "work/work", "work", "merged" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(parts); i++) {
        (void)snprintf(command, sizeof command, "%s/%s", directory, parts[i]);
        (void)rmdir(command);
    }
    (void)rmdir(directory);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int open_without_io_uring(const char *directory)
{
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { .len = KVT_ARRAY_COUNT(filter), .filter = (struct sock_filter *)filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        print_message("skipped: no seccomp here\n");
        return SKIPPED;
    }
    return try_directory(directory, "threads", "io_uring refused (Operation not permitted)");
}

/* A container's seccomp filter says EPERM to io_uring_setup: threads do the work and the facts say why. */
static void b35_io_uring_refused_means_threads_and_said_so(void **state)
{
    (void)state;
    in_a_child(open_without_io_uring);
}

static int open_on_tmpfs(const char *directory)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("tmpfs", directory, "tmpfs", 0, "size=4m") != 0) {
        struct statfs facts;
        if (statfs("/dev/shm", &facts) != 0 || facts.f_type != 0x01021994) {
            print_message("skipped: no tmpfs here\n");
            return SKIPPED;
        }
        return try_directory("/dev/shm", NULL, NULL);
    }
    return try_directory(directory, NULL, NULL);
}

static void b35_tmpfs_works(void **state)
{
    (void)state;
    in_a_child(open_on_tmpfs);
}

static int open_on_ramfs(const char *directory)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("ramfs", directory, "ramfs", 0, NULL) != 0) {
        print_message("skipped: ramfs cannot be mounted here\n");
        return SKIPPED;
    }
    return try_directory(directory, NULL, "buffered: O_DIRECT refused");
}

/* A file system that knows neither O_DIRECT nor fallocate gets buffered I/O and zeros, and the facts say so. */
static void b34_without_o_direct_it_is_buffered_and_said_so(void **state)
{
    (void)state;
    in_a_child(open_on_ramfs);
}

static int open_on_overlay(const char *directory)
{
    char upper[80], work[80], merged[80], options[300];
    (void)snprintf(upper, sizeof upper, "%s/upper", directory);
    (void)snprintf(work, sizeof work, "%s/work", directory);
    (void)snprintf(merged, sizeof merged, "%s/merged", directory);
    (void)snprintf(options, sizeof options, "lowerdir=/usr/include,upperdir=%s,workdir=%s", upper, work);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mkdir(upper, 0700) != 0
        || mkdir(work, 0700) != 0 || mkdir(merged, 0700) != 0 || mount("overlay", merged, "overlay", 0, options) != 0) {
        print_message("skipped: overlayfs cannot be mounted here (%s)\n", strerror(errno));
        return SKIPPED;
    }
    return try_directory(merged, NULL, NULL);
}

static void b35_overlayfs_works(void **state)
{
    (void)state;
    in_a_child(open_on_overlay);
}

static int open_on_full_tmpfs(const char *directory)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("tmpfs", directory, "tmpfs", 0, "size=64k") != 0) {
        print_message("skipped: tmpfs cannot be mounted here\n");
        return SKIPPED;
    }
    char path[80];
    (void)snprintf(path, sizeof path, "%s/full", directory);
    const int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    static const uint8_t zeros[65536];
    if (write(fd, zeros, sizeof zeros) != sizeof zeros) return 20;
    (void)close(fd);
    const struct kvt_env env = kvt_env_default();
    const struct kvt_block_io_config config = { .directory = directory, .queue_depth = 4 };
    struct kvt_block_io *io;
    if (kvt_block_io_open(&config, &env, &io) != KVT_OK) return 21;
    int file, error;
    if (io->ops->open_file(io, "full", false, &file, &error) != KVT_OK) return 22;
    io->ops->close_file(io, file);
    io->ops->close(io);
    return 0;
}

/* What is in a full directory can still be read. */
static void b32_a_full_disk_can_be_opened(void **state)
{
    (void)state;
    in_a_child(open_on_full_tmpfs);
}

/* What the probe says of an ordinary directory holds for a file in it, and nothing is left behind. */
static void b34_the_probe_finds_an_alignment_that_works(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, &chosen, 4);
    print_message("%s: %s, %s, %s, %u, %s\n", bench.directory, bench.facts.path,
                  bench.facts.is_direct ? "direct" : "buffered",
                  bench.facts.is_registered ? "registered" : "not registered", bench.facts.alignment,
                  bench.facts.note[0] ? bench.facts.note : "-");
    const uint32_t unit = bench.facts.alignment;
    assert_true(kvt_is_power_of_two(unit) && unit >= 512 && unit <= 4096);
    const int file = bench_file(&bench, 0);
    fill(bench.buffers + unit, unit, 9);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_WRITE, file, unit, bench.buffers + unit, unit)), unit);
    assert_int_equal(fcntl(file, F_GETFL) & O_DIRECT, bench.facts.is_direct ? O_DIRECT : 0);
    bench.io->ops->close_file(bench.io, file);
    bench_close(&bench); /* its rmdir fails when the probe's file is still there */
}

/* Each impossible option is refused before anything is touched. */
static void impossible_options_are_refused(void **state)
{
    (void)state;
    const struct kvt_block_io_ops *both[] = { &kvt_block_io_uring_ops, &kvt_block_io_sync_ops };
    const struct kvt_env env = kvt_env_default();
    uint8_t *buffers = kvt_table_map(8192);
    const struct kvt_block_io_config bad[] = {
        { .directory = NULL, .queue_depth = 4 },
        { .directory = "/tmp", .queue_depth = 0 },
        { .directory = "/tmp", .queue_depth = KVT_IO_QUEUE_DEPTH_MAX + 1 },
        { .directory = "/tmp", .queue_depth = 4, .buffers = buffers + 64, .buffers_bytes = 4096 },
        { .directory = "/tmp", .queue_depth = 4, .buffers = buffers, .buffers_bytes = 0 },
    };
    struct kvt_block_io *io;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        for (uint32_t j = 0; j < 2; j++) assert_int_equal(both[j]->open(&bad[i], &env, &io), KVT_INVAL);
        assert_int_equal(kvt_block_io_open(&bad[i], &env, &io), KVT_INVAL);
    }
    const struct kvt_block_io_config missing = { .directory = "/nonexistent/directory", .queue_depth = 4 };
    assert_int_equal(kvt_block_io_open(&missing, &env, &io), KVT_IO);
    assert_int_equal(errno, ENOENT);
    kvt_table_unmap(buffers, 8192);
}

/* Memory that runs out at any point of open is NOMEM, and nothing leaks. */
static void open_survives_every_failing_allocation(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, &chosen, 4);
    bench.io->ops->close(bench.io);
    bench.io = NULL;
    for (uint32_t pace = 0; pace < 2; pace++) {
        bench.config.link_bytes_per_s = pace * 1000000u;
        enum kvt_status status = KVT_NOMEM;
        uint64_t n = 1;
        for (; status != KVT_OK && n < 100; n++) {
            kvt_alloc_fail_at(n);
            status = kvt_block_io_open(&bench.config, &bench.env, &bench.io);
            /* Without memory for the list of slices there is no registration, and that is all. */
            assert_true(status == KVT_NOMEM || status == KVT_OK);
        }
        kvt_alloc_fail_at(0);
        assert_int_equal(status, KVT_OK);
        assert_true(n > 4);
        bench.io->ops->close(bench.io);
        bench.io = NULL;
    }
    bench_close(&bench);
}

/* ---- the time limit of the probe ---- */

static sem_t hang_entered, hang_ends, hang_closed;

static void hanging_close(struct kvt_block_io *io)
{
    kvt_block_io_sync_ops.close(io);
    (void)sem_post(&hang_closed);
}

static struct kvt_block_io_ops hanging_instance_ops;

static enum kvt_status hanging_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                    struct kvt_block_io **ret_io)
{
    (void)sem_post(&hang_entered);
    while (sem_wait(&hang_ends) != 0) {}
    KVT_TRY(kvt_block_io_sync_ops.open(config, env, ret_io));
    hanging_instance_ops = kvt_block_io_sync_ops;
    hanging_instance_ops.close = hanging_close;
    (*ret_io)->ops = &hanging_instance_ops;
    return KVT_OK;
}

/*
 * A directory that hangs costs the time limit, not the caller; the attempt cleans up after itself when it comes back.
 */
static void b35_a_directory_that_hangs_is_given_up(void **state)
{
    (void)state;
    assert_int_equal(sem_init(&hang_entered, 0, 0), 0);
    assert_int_equal(sem_init(&hang_ends, 0, 0), 0);
    assert_int_equal(sem_init(&hang_closed, 0, 0), 0);
    const struct kvt_block_io_ops hanging = { .name = "hanging", .open = hanging_open };
    char directory[64];
    bench_directory_create(directory, sizeof directory);
    const struct kvt_env env = kvt_env_default();
    const struct kvt_block_io_config config = { .directory = directory, .queue_depth = 4 };
    struct kvt_block_io *io = NULL;
    int error = 0;
    assert_int_equal(kvt_block_io_open_within(&hanging, &config, &env, 20000000, &io, &error), KVT_IO);
    assert_int_equal(error, ETIMEDOUT);
    assert_null(io);
    assert_int_equal(sem_wait(&hang_entered), 0);
    assert_int_equal(sem_post(&hang_ends), 0);
    assert_int_equal(sem_wait(&hang_closed), 0);
    assert_int_equal(rmdir(directory), 0);
}

struct virtual_clock {
    uint64_t now_ns;
};

static uint64_t virtual_now(void *user) { return ((struct virtual_clock *)user)->now_ns; }
static void virtual_wait(void *user, uint64_t wait_ns) { ((struct virtual_clock *)user)->now_ns += wait_ns; }

/* Every way in which the probe's own ops can go wrong. */
static void the_probe_sees_every_fault(void **state)
{
    (void)state;
    const struct {
        enum io_faulty_kind kind;
        enum io_faulty_fault fault;
        enum kvt_status status;
        int error;
    } cases[] = {
        { IO_FAULTY_WRITE, IO_FAULTY_NONE, KVT_OK, 0 },        { IO_FAULTY_WRITE, IO_FAULTY_EIO, KVT_IO, EIO },
        { IO_FAULTY_READ, IO_FAULTY_EIO, KVT_IO, EIO },        { IO_FAULTY_SYNC, IO_FAULTY_EIO, KVT_IO, EIO },
        { IO_FAULTY_CALL, IO_FAULTY_EIO, KVT_IO, EIO },        { IO_FAULTY_READ, IO_FAULTY_FLIP, KVT_IO, EIO },
        { IO_FAULTY_READ, IO_FAULTY_SHORT, KVT_IO, EIO },      { IO_FAULTY_WRITE, IO_FAULTY_TORN, KVT_IO, EIO },
        { IO_FAULTY_WRITE, IO_FAULTY_ENOSPC, KVT_OK, 0 },      { IO_FAULTY_READ, IO_FAULTY_DELAY, KVT_OK, 0 },
        { IO_FAULTY_READ, IO_FAULTY_HELD, KVT_IO, ETIMEDOUT }, { IO_FAULTY_WRITE, IO_FAULTY_HELD, KVT_IO, ETIMEDOUT },
        { IO_FAULTY_WRITE, IO_FAULTY_FULL, KVT_IO, EIO },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        struct virtual_clock clock = { 5 };
        struct io_faulty_image *image = io_faulty_image_create(
            &(struct io_faulty_config){ .wait = virtual_wait, .user = &clock });
        const struct kvt_env env = { .now_ns = virtual_now,
                                     .clock_user = &clock,
                                     .block_io = &io_faulty_ops,
                                     .block_io_user = image,
                                     .is_single_threaded = true };
        const struct kvt_block_io_config config = { .directory = "d", .queue_depth = 4 };
        struct kvt_block_io *io;
        assert_int_equal(kvt_block_io_open(&config, &env, &io), KVT_OK);
        if (cases[i].fault != IO_FAULTY_NONE) io_faulty_at(image, cases[i].kind, 1, cases[i].fault);
        int error = 0;
        assert_int_equal(kvt_block_io_probe(io, &env, KVT_IO_PROBE_LIMIT_NS, &error), cases[i].status);
        if (cases[i].status != KVT_OK) assert_int_equal(error, cases[i].error);
        if (error == ETIMEDOUT) {
            /* Left to the I/O for good: collect it here, so that the leak checker has nothing to say. */
            struct kvt_io_op *op = NULL;
            assert_int_equal(io_faulty_release(image), 1);
            assert_int_equal(io->ops->poll(io, &op, 1, 1), 1);
            kvt_free(op);
        } else {
            uint64_t size;
            assert_false(io_faulty_file_size(image, "d", KVT_IO_PROBE_NAME, &size));
        }
        io->ops->close(io);
        io_faulty_image_destroy(&image);
    }
}

/* ---- pacing ---- */

/* On a link of 1 MiB/s ops of 1 MiB come back at whole seconds, urgent first, and never before. */
static void paced_ops_come_back_when_the_link_has_moved_them(void **state)
{
    (void)state;
    struct virtual_clock clock = { 1000 };
    struct bench bench = { .implementation = &memory, .env = kvt_env_default() };
    bench.image = io_faulty_image_create(&(struct io_faulty_config){ .seed = 3 });
    bench.env = (struct kvt_env){ .now_ns = virtual_now,
                                  .clock_user = &clock,
                                  .block_io = &io_faulty_ops,
                                  .block_io_user = bench.image,
                                  .is_single_threaded = true };
    bench.config = (struct kvt_block_io_config){ .directory = "d", .queue_depth = 8, .link_bytes_per_s = KVT_MIB };
    bench.buffers = kvt_table_map(8 * KVT_MIB);
    assert_int_equal(kvt_block_io_open(&bench.config, &bench.env, &bench.io), KVT_OK);
    const int file = bench_file(&bench, 8 * KVT_MIB);

    struct kvt_io_op ops[5], *done[5];
    for (uint32_t i = 0; i < 4; i++) {
        ops[i] = bench_op(i < 3 ? KVT_IO_WRITE : KVT_IO_READ, file, i * KVT_MIB, bench.buffers + i * KVT_MIB, KVT_MIB);
        bench_submit(&bench, &ops[i]);
    }
    ops[4] = bench_op(KVT_IO_SYNC, file, 0, NULL, 0);
    bench_submit(&bench, &ops[4]);
    assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 0), 1); /* a sync needs no link */
    assert_ptr_equal(done[0], &ops[4]);
    const uint32_t order[] = { 0, 3, 1, 2 }; /* the first was under way when the read came */
    for (uint32_t i = 0; i < 4; i++) {
        clock.now_ns = 1000 + (i + 1) * (uint64_t)SECOND_NS - 1;
        assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 0), 0);
        assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 1), 0);
        clock.now_ns++;
        assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 0), 1);
        assert_ptr_equal(done[0], &ops[order[i]]);
        assert_int_equal(done[0]->ret_bytes, KVT_MIB);
        assert_int_equal(done[0]->ret_ns, (i + 1) * (uint64_t)SECOND_NS);
    }
    /* A link that was idle does not save up. */
    clock.now_ns += 10 * (uint64_t)SECOND_NS;
    bench_submit(&bench, &ops[0]);
    assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 0), 0);
    clock.now_ns += SECOND_NS;
    assert_int_equal(bench.io->ops->poll(bench.io, done, 5, 0), 1);
    bench.io->ops->close_file(bench.io, file);
    bench.io->ops->close(bench.io);
    io_faulty_image_destroy(&bench.image);
    kvt_table_unmap(bench.buffers, 8 * KVT_MIB);
}

/* With the real clock, in waiting polls, n bytes take at least n / speed; with and without threads. */
static void paced_waiting_takes_at_least_the_time_of_the_link(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const struct implementation paced = { "paced", NULL, i == 1, 100 * KVT_MIB };
        struct bench bench;
        bench_open(&bench, &paced, 8);
        assert_non_null(strstr(bench.facts.note, "paced at 104857600 bytes/s"));
        const int file = bench_file(&bench, 4 * KVT_MIB);
        const uint64_t start_ns = kvt_env_now_ns(&bench.env);
        struct kvt_io_op ops[4];
        for (uint32_t j = 0; j < 4; j++) {
            ops[j] = bench_op(KVT_IO_WRITE, file, j * KVT_MIB, bench.buffers + j * KVT_MIB, KVT_MIB);
            bench_submit(&bench, &ops[j]);
        }
        bench_collect(&bench, 4);
        assert_true(kvt_env_now_ns(&bench.env) - start_ns >= 40000000);
        bench.io->ops->close_file(bench.io, file);
        bench_close(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest block_io_probe_tests[] = {
        cmocka_unit_test(urgent_reads_leave_the_queue_first),
        cmocka_unit_test(b43_a_stale_id_is_a_stranger),
        cmocka_unit_test(b35_a_ring_that_breaks_gives_every_op_back),
        cmocka_unit_test(buffered_reads_outlive_the_thread_that_submitted_them),
        cmocka_unit_test(b56_a_low_memlock_limit_means_unregistered_and_said_so),
        cmocka_unit_test(b56_a_region_of_1_gib_and_4_kib_is_sliced),
        cmocka_unit_test(b35_io_uring_refused_means_threads_and_said_so),
        cmocka_unit_test(b35_tmpfs_works),
        cmocka_unit_test(b35_overlayfs_works),
        cmocka_unit_test(b34_without_o_direct_it_is_buffered_and_said_so),
        cmocka_unit_test(b32_a_full_disk_can_be_opened),
        cmocka_unit_test(b34_the_probe_finds_an_alignment_that_works),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(open_survives_every_failing_allocation),
        cmocka_unit_test(b35_a_directory_that_hangs_is_given_up),
        cmocka_unit_test(the_probe_sees_every_fault),
        cmocka_unit_test(paced_ops_come_back_when_the_link_has_moved_them),
        cmocka_unit_test(paced_waiting_takes_at_least_the_time_of_the_link),
    };
    return cmocka_run_group_tests(block_io_probe_tests, NULL, NULL);
}
