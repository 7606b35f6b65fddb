/* doctor: what this machine gives, and what to change, before anything is built on it. */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <json-c/json.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "kernels/gpu.h"
#include "kernels/rank_planes_simd.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"
#include "tiers/block_io.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/text.h"

enum { OPTION_JSON = 0x100, OPTION_LLAMA };
enum { CHECKS_MAX = 16, VALUE_BYTES = 200, ADVICE_BYTES = 240 };

struct options {
    const char *directory; /* NULL: the current one */
    const char *llama;     /* NULL: the one that the loader finds */
    bool is_json;
};

/* ok: there is nothing to change. */
struct check {
    const char *name;
    bool is_ok;
    char value[VALUE_BYTES], advice[ADVICE_BYTES];
};

struct findings {
    struct check checks[CHECKS_MAX];
    uint32_t count;
    bool is_unusable; /* of the directory: no store can live there */
};

static const struct argp_option option_table[] = {
    { "llama", OPTION_LLAMA, "FILE", 0, "the libllama.so to look at: a file, or a name for the loader (default: libllama.so)", 0 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 0 },
    { 0 }
};

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_LLAMA: options->llama = value; return 0;
    case ARGP_KEY_ARG:
        if (options->directory) return kvt_refuse_extra_argument(state, value);
        options->directory = value;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp doctor_argp = {
    .options = option_table,
    .parser = read_option,
    .args_doc = "[DIR]",
    .doc = "Says what this machine gives to kvtier, and what to change. DIR is where a store would be kept (otherwise the "
           "current directory): a small file is written there, read back, and removed.\v"
           "Exit status 0 when a store can be kept in DIR, also where something could be better; 1 when it cannot."
};

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static struct check *add(struct findings *findings, const char *name, bool is_ok)
{
    KVT_ASSERT(findings->count < CHECKS_MAX);
    struct check *check = &findings->checks[findings->count++];
    *check = (struct check){ .name = name, .is_ok = is_ok };
    return check;
}

static __attribute__((format(printf, 2, 3))) void value(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(check->value, VALUE_BYTES, format, arguments);
    va_end(arguments);
    for (char *c = check->value; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
}

/* What is fine needs no advice. */
static __attribute__((format(printf, 2, 3))) void advice(struct check *check, const char *format, ...)
{
    if (check->is_ok) return;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(check->advice, ADVICE_BYTES, format, arguments);
    va_end(arguments);
}

static void check_processor(struct findings *findings)
{
    struct check *check = add(findings, "processor", kvt_rank_is_avx2_here());
    value(check, "packs with %s, checksums by %s",
          kvt_rank_is_avx512_here()     ? "AVX-512"
              : kvt_rank_is_avx2_here() ? "AVX2"
                                        : "plain C",
          kvt_crc32c_name(kvt_crc32c_chosen()));
    advice(check, "blocks are packed several times faster with AVX2; with slow packing, try codec off");
}

/* MemAvailable of /proc/meminfo, in bytes; 0: unknown. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return 0;
    while (kib == 0 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1) kib = 0;
    }
    (void)fclose(file);
    return kib * KVT_KIB;
}

static void check_memory(struct findings *findings)
{
    const uint64_t bytes = available_bytes();
    struct check *check = add(findings, "memory", bytes >= KVT_GIB);
    value(check, "%s available", kvt_format_bytes(bytes).text);
    advice(check, "the host tier takes its capacity from this: keep it well below");
}

static void check_huge_pages(struct findings *findings)
{
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file) {
        if (!fgets(line, sizeof line, file)) line[0] = '\0';
        (void)fclose(file);
    }
    line[strcspn(line, "\n")] = '\0';
    struct check *check = add(findings, "huge pages", strstr(line, "[always]") || strstr(line, "[madvise]"));
    value(check, "%s", line[0] ? line : "not in this kernel");
    advice(check, "large I/O is faster from huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

static void check_limit(struct findings *findings, const char *name, __rlimit_resource_t resource, uint64_t wanted,
                        bool is_bytes, const char *unlimited_by)
{
    struct rlimit limit = { 0 };
    (void)getrlimit(resource, &limit);
    struct check *check = add(findings, name, limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted);
    if (limit.rlim_cur == RLIM_INFINITY) value(check, "unlimited");
    else value(check, "%s", is_bytes ? kvt_format_bytes(limit.rlim_cur).text : kvt_format_count(limit.rlim_cur).text);
    advice(check, "at least %s: %s", is_bytes ? kvt_format_bytes(wanted).text : kvt_format_count(wanted).text,
           unlimited_by);
}

/* ---- The directory ----------------------------------------------------------------------------------------------- */

static const struct {
    long magic;
    const char *name, *advice; /* NULL: as good as any */
} file_systems[] = {
    { EXT4_SUPER_MAGIC, "ext4", NULL },
    { XFS_SUPER_MAGIC, "xfs", NULL },
    { BTRFS_SUPER_MAGIC, "btrfs", "switch copy-on-write off for the directory (chattr +C), or use ext4 or xfs" },
    { F2FS_SUPER_MAGIC, "f2fs", NULL },
    { TMPFS_MAGIC, "tmpfs", "this is memory, and gone at the next start: name a directory on a disk" },
    { RAMFS_MAGIC, "ramfs", "this is memory, and gone at the next start: name a directory on a disk" },
    { OVERLAYFS_SUPER_MAGIC, "overlay", "a container's layer: mount a volume of the host for the store" },
    { NFS_SUPER_MAGIC, "nfs", "a network is in between: a local disk is what the store is made for" },
    { FUSE_SUPER_MAGIC, "fuse", "a process is in between: a local disk is what the store is made for" },
};

static void check_file_system(struct findings *findings, const char *directory)
{
    struct statfs system;
    if (statfs(directory, &system) != 0) return; /* said where it is written to */
    const char *name = NULL, *text = NULL;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(file_systems); i++) {
        if (file_systems[i].magic != (long)system.f_type) continue;
        name = file_systems[i].name;
        text = file_systems[i].advice;
    }
    struct check *check = add(findings, "file system", !text);
    if (name) value(check, "%s", name);
    else value(check, "of kind 0x%lx", (long)system.f_type);
    if (text) advice(check, "%s", text);

    const uint64_t free_bytes = (uint64_t)system.f_bavail * (uint64_t)system.f_bsize;
    check = add(findings, "free space", free_bytes >= KVT_GIB);
    value(check, "%s", kvt_format_bytes(free_bytes).text);
    advice(check, "a store wants room for many contexts: free some, or name another directory");
}

static void say_facts(struct findings *findings, const struct kvt_block_io_facts *facts)
{
    struct check *check = add(findings, "asynchronous I/O", strcmp(facts->path, "io_uring") == 0);
    value(check, "%s%s%s", facts->path, facts->note[0] ? ": " : "", facts->note);
    advice(check, "io_uring is several times faster than threads: allow it (kernel.io_uring_disabled=0; in a container, "
                  "its seccomp profile)");
    check = add(findings, "direct I/O", facts->is_direct);
    if (facts->is_direct) value(check, "O_DIRECT, aligned to %u", facts->alignment);
    else value(check, "refused: through the page cache");
    advice(check, "every byte is cached twice: choose a directory on ext4 or xfs");
    check = add(findings, "registered buffers", facts->is_registered);
    value(check, facts->is_registered ? "yes" : "no");
    advice(check, "raise the limit of locked memory, or go on: it costs some processor time for each transfer");
}

static void check_directory(struct findings *findings, const char *directory)
{
    enum { BUFFER_BYTES = 16 << 20 };
    const struct kvt_env env = kvt_env_default();
    struct kvt_env quiet = env;
    quiet.log = NULL;
    void *buffers = kvt_table_map(BUFFER_BYTES);
    const struct kvt_block_io_config config = {
        .directory = directory, .queue_depth = 32, .buffers = buffers, .buffers_bytes = buffers ? BUFFER_BYTES : 0
    };
    struct kvt_block_io *io;
    if (kvt_block_io_open(&config, &quiet, &io) == KVT_OK) {
        struct kvt_block_io_facts facts;
        io->ops->facts(io, &facts);
        io->ops->close(io);
        check_file_system(findings, directory);
        say_facts(findings, &facts);
    } else {
        char text[64];
        const int error = errno;
        const char *why = strerror_r(error, text, sizeof text);
        struct check *check = add(findings, "directory", false);
        struct stat status;
        /* What a file system without files of ours answers (/proc) reads as if the directory were not there. */
        if (error == ENOENT && stat(directory, &status) == 0) value(check, "%s: no file can be made there", directory);
        else value(check, "%s: %s", directory, why);
        advice(check, "name a directory that can be written to");
        findings->is_unusable = true;
    }
    if (buffers) kvt_table_unmap(buffers, BUFFER_BYTES);
}

/* ---- The device, and the engines --------------------------------------------------------------------------------- */

static void check_gpu(struct findings *findings)
{
    const struct kvt_gpu_config config = { .segments_max = 64 };
    const struct kvt_env env = kvt_env_default();
    struct kvt_env quiet = env;
    quiet.log = NULL;
    struct kvt_gpu *gpu = NULL;
    const bool is_open = kvt_gpu_cuda_ops.is_present() && kvt_gpu_cuda_ops.open(&config, &quiet, &gpu) == KVT_OK;
    struct check *check = add(findings, "GPU", is_open);
    if (!is_open) {
        value(check, kvt_gpu_cuda_ops.is_present() ? "it does not open" : "no CUDA device");
        advice(check, "all runs on an emulated device, for trying and testing; to serve, install NVIDIA's driver, and the "
                      "toolkit where kvtier is built");
        return;
    }
    gpu->ops->describe(gpu, check->value, VALUE_BYTES);

    enum { PINNED_BYTES = 64 << 20 };
    void *memory = kvt_table_map(PINNED_BYTES);
    const bool is_pinned = memory && gpu->ops->host_pin(gpu, memory, PINNED_BYTES);
    check = add(findings, "pinned memory", is_pinned);
    value(check, is_pinned ? "%s pinned for a try" : "%s refused", kvt_format_bytes(PINNED_BYTES).text);
    advice(check, "copies go through staging: raise the limit of locked memory");
    if (is_pinned) gpu->ops->host_unpin(gpu, memory, PINNED_BYTES);
    if (memory) kvt_table_unmap(memory, PINNED_BYTES);
    gpu->ops->close(gpu);
}

/* The youngest of the functions that the connector calls (docs/connectors/llama.md). */
static const char *const llama_functions[] = { "llama_state_seq_get_data_ext", "llama_state_seq_set_data_ext",
                                               "llama_memory_seq_pos_min", "llama_model_is_hybrid" };

/*
 * What to hand to the loader: a bare name that is a file here is meant as that file, which the loader would not look
 * for. ret_where says which it was.
 */
static const char *loadable(const char *given, char *target, size_t bytes, const char **ret_where)
{
    *ret_where = "";
    if (given && strchr(given, '/')) return given;
    if (given && access(given, F_OK) == 0 && (size_t)snprintf(target, bytes, "./%s", given) < bytes) {
        *ret_where = " in this directory";
        return target;
    }
    *ret_where = " in the loader's search path";
    return given ? given : "libllama.so";
}

/* dlerror says "NAME: reason": the name is said already. */
static const char *loader_reason(const char *name)
{
    const char *reason = dlerror();
    if (!reason) return "it does not load";
    const size_t length = strlen(name);
    return strncmp(reason, name, length) == 0 && strncmp(reason + length, ": ", 2) == 0 ? reason + length + 2 : reason;
}

static void check_llama(struct findings *findings, const char *given)
{
    char here[PATH_MAX];
    const char *where, *path = loadable(given, here, sizeof here, &where);
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    const char *reason = library ? NULL : loader_reason(path);
    const bool is_absent = reason && strcmp(reason, "cannot open shared object file: No such file or directory") == 0;
    const char *missing = NULL;
    for (uint32_t i = 0; library && i < KVT_ARRAY_COUNT(llama_functions); i++) {
        if (!dlsym(library, llama_functions[i])) missing = llama_functions[i];
    }
    struct check *check = add(findings, "llama.cpp", library && !missing);
    const char *name = given ? given : path;
    if (is_absent) value(check, "%s not found%s", name, where);
    else if (!library) value(check, "%s%s is no shared library that loads: %s", name, where, reason);
    else if (missing) value(check, "%s%s lacks %s", name, where, missing);
    else value(check, "%s%s", name, where);
    if (!library && !is_absent) advice(check, "name a shared library: the libllama.so of a llama.cpp that was built");
    else if (library) advice(check, "the connector needs a younger llama.cpp");
    else advice(check, "only for the llama.cpp connector; Python packages bring their own: --llama FILE looks at one");
    if (library) (void)dlclose(library);
}

/* ---- Report ------------------------------------------------------------------------------------------------------ */

static void print_table(const struct findings *findings)
{
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct check *check = &findings->checks[i];
        (void)printf("  %s  %-18s  %s\n", check->is_ok ? "ok" : "--", check->name, check->value);
    }
    bool is_first = true;
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct check *check = &findings->checks[i];
        if (check->is_ok) continue;
        (void)printf("%s%s: %s.\n", is_first ? "\nWhat could be better:\n  " : "  ", check->name, check->advice);
        is_first = false;
    }
}

static void print_json(const struct findings *findings, const char *directory)
{
    struct json_object *root = json_object_new_object(), *list = json_object_new_array();
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct check *check = &findings->checks[i];
        struct json_object *item = json_object_new_object();
        (void)json_object_object_add(item, "name", json_object_new_string(check->name));
        (void)json_object_object_add(item, "ok", json_object_new_boolean(check->is_ok));
        (void)json_object_object_add(item, "value", json_object_new_string(check->value));
        (void)json_object_object_add(item, "advice", json_object_new_string(check->advice));
        (void)json_object_array_add(list, item);
    }
    (void)json_object_object_add(root, "directory", json_object_new_string(directory));
    (void)json_object_object_add(root, "usable", json_object_new_boolean(!findings->is_unusable));
    (void)json_object_object_add(root, "checks", list);
    (void)printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED
                                                                  | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(root);
}

int kvt_cmd_doctor(int argc, char **argv)
{
    struct options options = { 0 };
    const int exit_status = kvt_parse_options(&doctor_argp, argc, argv, &options);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    const char *directory = options.directory ? options.directory : ".";
    struct findings findings = { 0 };
    check_processor(&findings);
    check_memory(&findings);
    check_huge_pages(&findings);
    check_limit(&findings, "locked memory", RLIMIT_MEMLOCK, 64 * KVT_MIB, true,
                "ulimit -l unlimited, LimitMEMLOCK=infinity in a service, or --ulimit memlock=-1 in a container");
    check_limit(&findings, "open files", RLIMIT_NOFILE, 1024, false, "ulimit -n 65536, or LimitNOFILE= in a service");
    check_directory(&findings, directory);
    check_gpu(&findings);
    check_llama(&findings, options.llama);
    if (options.is_json) print_json(&findings, directory);
    else print_table(&findings);
    return findings.is_unusable ? KVT_EXIT_FAILED : KVT_EXIT_OK;
}
