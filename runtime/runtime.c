/*
 * runtime: the composition root: opens the parts, holds the lock, serves the public calls.
 *
 * Each call takes the lock, lets the core decide, pumps it once, and tells waiters when something became ready. The
 * pump thread (pump.c) does the same when a tier completes something or a timer is due.
 */
#include "runtime/runtime.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/flow.h"
#include "runtime/layers.h"
#include "runtime/options.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tiers/nvme_tier.h"
#include "kvtier/store.h"

#define COPY_STREAMS 2 /* the device tier packs and unpacks on one stream per direction, each with its scratch */
#define DRAIN_SLICE_NS (10u * 1000u * 1000u)
#define WAIT_SLICE_NS 20000 /* between two looks at a stream */

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t fork_count; /* shared: grows in every child */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&fork_count, 1); }
static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

bool kvt_runtime_is_child(const struct kvt_runtime *runtime) { return atomic_load(&fork_count) != runtime->fork_count; }

/* ---- The lock ---------------------------------------------------------------------------------------------------- */

void kvt_runtime_lock(struct kvt_runtime *runtime)
{
    (void)pthread_mutex_lock(&runtime->lock);
    runtime->core.now_ns = kvt_max_u64(runtime->core.now_ns, kvt_env_now_ns(&runtime->env));
}

/* One bounded round of the core, and the news of it to whoever waits. */
bool kvt_runtime_pump(struct kvt_runtime *runtime)
{
    const bool is_more = kvt_core_pump(&runtime->core, kvt_env_now_ns(&runtime->env));
    kvt_fault_log_write(&runtime->fault_log, &runtime->core, &runtime->env, false);
    if (runtime->core.events != runtime->events_told) {
        runtime->events_told = runtime->core.events;
        (void)pthread_cond_broadcast(&runtime->changed);
        const uint64_t one = 1;
        (void)!write(runtime->event_fd, &one, sizeof one);
    }
    return is_more;
}

void kvt_runtime_unlock(struct kvt_runtime *runtime)
{
    if (runtime->env.is_single_threaded) kvt_tables_save(&runtime->tables); /* otherwise the pump's thread does */
    if (kvt_runtime_pump(runtime)) kvt_runtime_wake(runtime);
    const uint64_t timer_ns = kvt_core_next_timer(&runtime->core);
    const bool is_sooner = timer_ns < runtime->pump_timer_ns;
    (void)pthread_mutex_unlock(&runtime->lock);
    if (is_sooner) kvt_runtime_wake(runtime);
}

void kvt_runtime_wake(void *user)
{
    struct kvt_runtime *runtime = user;
    const uint64_t one = 1;
    (void)!write(runtime->wake_fd, &one, sizeof one);
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

struct kvt_config kvt_config_default(void)
{
    return (struct kvt_config){ .size = sizeof(struct kvt_config), .version = KVT_VERSION };
}

/* The store speaks of its own path and capacity: the caller's fields are these. */
static void name_field(char *error, size_t error_bytes)
{
    if (!error || error_bytes == 0) return;
    char line[256];
    const char *field = strncmp(error, "capacity", 8) == 0 ? "nvme_bytes" : "nvme_path";
    (void)snprintf(line, sizeof line, "%s: %s", field, error);
    (void)snprintf(error, error_bytes, "%s", line);
}

static bool pin_for_device(void *user, void *memory, size_t size_bytes)
{
    struct kvt_gpu *gpu = user;
    return gpu->ops->host_pin(gpu, memory, size_bytes);
}

static void unpin_for_device(void *user, void *memory, size_t size_bytes)
{
    struct kvt_gpu *gpu = user;
    gpu->ops->host_unpin(gpu, memory, size_bytes);
}

/* gpu: what host memory is pinned for; NULL: nothing but the system. */
static enum kvt_status open_host(struct kvt_runtime *runtime, const struct kvt_options *options, struct kvt_gpu *gpu)
{
    if (options->config.host_bytes == 0) return KVT_OK;
    const struct kvt_host_pin pin = { .pin = gpu ? pin_for_device : NULL, .unpin = unpin_for_device, .user = gpu };
    const struct kvt_host_tier_config host = { .capacity_bytes = options->host_slot_bytes,
                                               .chunk_bytes = options->host_chunk_bytes,
                                               .is_pinning_wanted = true,
                                               .pin = pin,
                                               .wake = { kvt_runtime_wake, runtime } };
    return kvt_host_tier_open(&host, &runtime->env, &runtime->host);
}

static enum kvt_status open_tiers(struct kvt_runtime *runtime, const struct kvt_options *options, char *ret_error,
                                  size_t error_bytes)
{
    const struct kvt_config *config = &options->config;
    const struct kvt_wake wake = { kvt_runtime_wake, runtime };
    if (config->nvme_path) {
        const struct kvt_nvme_tier_config nvme = { .path = config->nvme_path,
                                                   .capacity_bytes = config->nvme_bytes,
                                                   .link_bytes_per_s = config->link_nvme_bytes_per_s,
                                                   .staging_bytes = options->staging_bytes,
                                                   .record_bytes_max = options->block_bytes_max,
                                                   .bytes_per_day = config->nvme_bytes_per_day,
                                                   .key = config->nvme_key,
                                                   .side_bytes_max = kvt_tables_side_bytes(runtime->codec),
                                                   .side_name = kvt_tables_name(options->core.space,
                                                                                config->shape.group_count),
                                                   .wake = wake,
                                                   .ret_error = ret_error,
                                                   .error_bytes = (uint32_t)error_bytes };
        const enum kvt_status status = kvt_nvme_tier_open(&nvme, &runtime->env, &runtime->nvme);
        if (status == KVT_INVAL) name_field(ret_error, error_bytes);
        KVT_TRY(status);
    }
    struct kvt_device_tier_config device = { .shape = config->shape,
                                             .pool_count = options->core.pool_count,
                                             .gpu = runtime->env.gpu,
                                             .codec = runtime->codec,
                                             .wake = wake,
                                             .queue_depth = config->is_layered ? config->transfers_max : 0,
                                             .gpu_config = { .link_bytes_per_s = config->link_hbm_bytes_per_s,
                                                             .link_latency_ns = config->link_hbm_latency_ns } };
    memcpy(device.pool_of_group, options->core.pool_of_group, sizeof device.pool_of_group);
    memcpy(device.pool_slots, options->core.pool_slots, sizeof device.pool_slots);
    struct kvt_device_segments segments[KVT_GROUPS_MAX];
    for (uint32_t g = 0; g < config->shape.group_count && config->device_maps; g++) {
        const struct kvt_device_map *map = &config->device_maps[g];
        segments[g] = (struct kvt_device_segments){ map->segment_count, map->base, map->stride };
        if (map->segment_count > 0) device.segments[g] = &segments[g];
    }
    /* A real device goes on by itself, so it has no place where nothing may. */
    const bool is_emulated_wanted = config->device == KVT_DEVICE_EMULATED
        || (config->device == KVT_DEVICE_AUTO && runtime->env.is_single_threaded && !runtime->env.gpu);
    if (is_emulated_wanted) device.gpu = &kvt_gpu_emulated_ops;
    KVT_TRY(kvt_device_tier_open(&device, &runtime->env, &runtime->device));
    struct kvt_gpu *gpu = kvt_device_tier_gpu(runtime->device);
    return open_host(runtime, options, gpu->ops == &kvt_gpu_emulated_ops ? NULL : gpu);
}

/* A caller's tiers instead of the real ones. */
static enum kvt_status open_model(struct kvt_runtime *runtime, const struct kvt_runtime_parts *parts,
                                  struct kvt_options *options, struct kvt_gpu **ret_gpu)
{
    runtime->is_modelled = true;
    options->core.is_packing = parts->is_packing;
    if (options->config.nvme_path) KVT_TRY(parts->open_nvme(parts->user, options, &runtime->nvme));
    KVT_TRY(open_host(runtime, options, NULL));
    return parts->open_device(parts->user, options, &runtime->device, ret_gpu);
}

static enum kvt_status open_core(struct kvt_runtime *runtime, struct kvt_options *options, struct kvt_gpu *gpu)
{
    options->core.device = runtime->device;
    options->core.host = runtime->host;
    options->core.host_chunk_bytes = options->host_chunk_bytes;
    options->core.nvme = runtime->nvme;
    options->core.gpu = gpu;
    options->core.env = &runtime->env;
    /* Private records carry a name that no other process and no later run can ask for; a caller's own disk has no others. */
    const bool is_own_world = runtime->is_modelled || runtime->env.block_io != NULL;
    const uint64_t nonce[3] = { is_own_world ? 0 : (uint64_t)getpid(), kvt_env_now_ns(&runtime->env),
                                runtime->env.seed };
    options->core.private_space = kvt_key_digest(nonce, sizeof nonce);
    options->core.seed = runtime->env.seed;
    const enum kvt_status status = kvt_core_init(&runtime->core, &options->core);
    if (status != KVT_OK) kvt_core_done(&runtime->core);
    return status;
}

static enum kvt_status open_parts(struct kvt_runtime *runtime, const struct kvt_config *config,
                                  const struct kvt_runtime_parts *parts, char *ret_error, size_t error_bytes)
{
    KVT_TRY(kvt_key_init());
    if (kvt_shape_check(&config->shape, NULL, 0) == KVT_OK && !config->is_codec_off)
        KVT_TRY(kvt_codec_create(&config->shape, &runtime->codec));
    const uint64_t scratch = runtime->codec ? COPY_STREAMS * (uint64_t)kvt_codec_scratch_bytes(runtime->codec) : 0;
    struct kvt_options options;
    KVT_TRY(kvt_options_resolve(config, scratch, &options, ret_error, error_bytes));
    if (config->device == KVT_DEVICE_CUDA && !runtime->env.gpu && !kvt_gpu_cuda_ops.is_present()) {
        if (ret_error)
            (void)snprintf(ret_error, error_bytes, "device is cuda: no CUDA device is built in, or none was found");
        return KVT_UNSUPPORTED;
    }
    struct kvt_gpu *gpu = NULL;
    if (parts) {
        KVT_TRY(open_model(runtime, parts, &options, &gpu));
    } else {
        KVT_TRY(open_tiers(runtime, &options, ret_error, error_bytes));
        gpu = kvt_device_tier_gpu(runtime->device);
    }
    KVT_TRY(kvt_tables_open(&runtime->tables, runtime->codec, runtime->nvme, &runtime->env, options.core.space,
                            config->shape.group_count, config->is_codec_tables_off));
    runtime->overhead_bytes = options.staging_bytes + options.scratch_bytes;
    KVT_TRY(open_core(runtime, &options, gpu));
    runtime->is_core_open = true;
    return KVT_OK;
}

enum kvt_status kvt_open(const struct kvt_config *config, struct kvt_runtime **ret_runtime, char *ret_error,
                         size_t error_bytes)
{
    return kvt_runtime_open(config, NULL, ret_runtime, ret_error, error_bytes);
}

enum kvt_status kvt_runtime_open(const struct kvt_config *config, const struct kvt_runtime_parts *parts,
                                 struct kvt_runtime **ret_runtime, char *ret_error, size_t error_bytes)
{
    if (ret_error && error_bytes) ret_error[0] = '\0';
    KVT_TRY(kvt_options_check_version(config, ret_error, error_bytes));
    (void)pthread_once(&fork_once, watch_forks);
    struct kvt_runtime *runtime = kvt_alloc(1, sizeof *runtime);
    if (!runtime) return KVT_NOMEM;
    runtime->env = config->env ? *config->env : kvt_env_default();
    if (!runtime->env.now_ns) runtime->env.now_ns = kvt_env_default().now_ns;
    runtime->fork_count = atomic_load(&fork_count);
    runtime->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    runtime->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&runtime->lock, NULL);
    (void)pthread_cond_init(&runtime->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);

    enum kvt_status status = runtime->wake_fd < 0 || runtime->event_fd < 0 ? KVT_IO : KVT_OK;
    if (status == KVT_OK) status = open_parts(runtime, config, parts, ret_error, error_bytes);
    if (status == KVT_OK && !runtime->env.is_single_threaded) status = kvt_pump_start(runtime);
    if (status != KVT_OK) {
        kvt_close(&runtime);
        return status;
    }
    *ret_runtime = runtime;
    return KVT_OK;
}

static void finish_all(struct kvt_core *core)
{
    for (uint32_t s = 0; s < KVT_STEPS_MAX; s++) {
        struct kvt_step_state *step = &core->steps[s];
        if (step->is_open) (void)kvt_core_step_end(core, ((uint64_t)step->generation << 32) | (s + 1));
    }
    for (uint32_t s = 0; s < core->config.sequences_max && core->sequences[s].generation != 0; s++) {
        if (core->sequences[s].mode != KVT_SEQUENCE_FREE) kvt_sequence_finish(core, &core->sequences[s], true);
    }
}

/* In an env without threads: all that the emulated device's streams can do now; they may wait for each other in turns. */
static void run_device(const struct kvt_core *core)
{
    if (core->gpu->ops != &kvt_gpu_emulated_ops) return;
    for (bool is_progress = true; is_progress;) {
        is_progress = false;
        for (uint32_t s = 0; s < KVT_GPU_STREAMS_MAX; s++) {
            while (kvt_gpu_emulated_run(core->gpu, s)) is_progress = true;
        }
    }
}

/*
 * Waits for what is in flight, as long as some of it comes back within each deadline. False: the rest did not; its memory
 * must stay.
 */
static bool drain(struct kvt_runtime *runtime)
{
    struct kvt_core *core = &runtime->core;
    uint32_t left = core->transfers.in_flight;
    uint64_t news_ns = kvt_env_now_ns(&runtime->env);
    while (core->transfers.in_flight > 0) {
        kvt_core_drain(core, kvt_env_now_ns(&runtime->env));
        if (runtime->env.is_single_threaded) {
            run_device(core);
            if (runtime->env.pass) runtime->env.pass(runtime->env.clock_user, DRAIN_SLICE_NS);
        } else if (core->transfers.in_flight > 0) {
            (void)kvt_pump_sleep(runtime, DRAIN_SLICE_NS);
        }
        const uint64_t now_ns = kvt_env_now_ns(&runtime->env);
        if (core->transfers.in_flight < left) news_ns = now_ns;
        left = core->transfers.in_flight;
        if (now_ns > news_ns + core->config.transfer_deadline_ns) break;
    }
    /* What a tier never took (a store that pauses on a full disk, say) is in nobody's hands. */
    kvt_flow_cancel_waiting(core);
    return core->transfers.in_flight == 0;
}

void kvt_close(struct kvt_runtime **runtime_pointer)
{
    struct kvt_runtime *runtime = *runtime_pointer;
    if (!runtime) return;
    *runtime_pointer = NULL;
    if (kvt_runtime_is_child(runtime)) return; /* threads, rings and the device stayed with the parent */
    kvt_pump_stop(runtime);
    bool is_drained = true;
    if (runtime->is_core_open) {
        finish_all(&runtime->core);
        is_drained = drain(runtime);
        kvt_fault_log_write(&runtime->fault_log, &runtime->core, &runtime->env, true);
    }
    if (!is_drained) {
        /* A device or a disk still owns some of the memory: leaking it is the only safe way. */
        kvt_log(&runtime->env, KVT_LOG_ERROR, "close: transfers did not come back; their memory stays mapped");
        /* A store that is no part of it is closed all the same: what it has is durable, and its directory free again. */
        if (runtime->nvme && runtime->nvme->in_flight == 0) kvt_tier_close(&runtime->nvme);
        return;
    }
    if (runtime->is_core_open) kvt_core_done(&runtime->core);
    kvt_tier_close(&runtime->nvme);
    kvt_host_tier_close(&runtime->host); /* its memory is the device's, too, until it is unpinned */
    kvt_tier_close(&runtime->device);
    kvt_tables_close(&runtime->tables);
    kvt_codec_destroy(&runtime->codec);
    if (runtime->wake_fd >= 0) (void)close(runtime->wake_fd);
    if (runtime->event_fd >= 0) (void)close(runtime->event_fd);
    (void)pthread_cond_destroy(&runtime->changed);
    (void)pthread_mutex_destroy(&runtime->lock);
    kvt_free(runtime);
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

/* Begins a call on one sequence: leaves the calling function when that is impossible. */
#define BEGIN_SEQUENCE(runtime, seq, sequence)                              \
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;                 \
    kvt_runtime_lock(runtime);                                              \
    struct kvt_sequence *sequence = kvt_sequence_of(&(runtime)->core, seq); \
    if (!sequence) {                                                        \
        kvt_runtime_unlock(runtime);                                        \
        return KVT_INVAL;                                                   \
    }

static enum kvt_status end_call(struct kvt_runtime *runtime, enum kvt_status status)
{
    kvt_runtime_unlock(runtime);
    return status;
}

enum kvt_status kvt_runtime_stream_number(struct kvt_runtime *runtime, kvt_stream stream, uint32_t *ret_number)
{
    struct kvt_gpu *gpu = runtime->core.gpu;
    if (!stream && gpu->ops == &kvt_gpu_cuda_ops) stream = KVT_GPU_STREAM_DEFAULT;
    return gpu->ops->stream(gpu, stream ? stream : kvt_emulated_stream(runtime, 0), ret_number);
}

enum kvt_status kvt_seq_create(struct kvt_runtime *runtime, const struct kvt_seq_params *params, kvt_seq *ret_seq,
                               uint64_t *ret_reused)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    struct kvt_sequence *sequence;
    const enum kvt_status status = kvt_sequence_create(&runtime->core, params, &sequence);
    if (status == KVT_OK) {
        *ret_seq = kvt_sequence_handle(&runtime->core, sequence);
        *ret_reused = sequence->reused;
    }
    return end_call(runtime, status);
}

enum kvt_status kvt_seq_append(struct kvt_runtime *runtime, kvt_seq seq, uint64_t n, enum kvt_room *ret_room)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    return end_call(runtime, kvt_sequence_append(&runtime->core, sequence, n, ret_room));
}

enum kvt_status kvt_seq_commit(struct kvt_runtime *runtime, kvt_seq seq, const uint32_t *tokens, uint64_t n,
                               uint32_t flags, kvt_stream stream)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    uint32_t number = 0;
    enum kvt_status status = kvt_runtime_stream_number(runtime, stream, &number);
    if (status == KVT_OK) status = kvt_sequence_commit(&runtime->core, sequence, tokens, n, flags, number, NULL);
    return end_call(runtime, status);
}

enum kvt_status kvt_seq_fork(struct kvt_runtime *runtime, kvt_seq seq, kvt_seq *ret_fork)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    struct kvt_sequence *fork;
    const enum kvt_status status = kvt_sequence_fork(&runtime->core, sequence, &fork);
    if (status == KVT_OK) *ret_fork = kvt_sequence_handle(&runtime->core, fork);
    return end_call(runtime, status);
}

enum kvt_status kvt_seq_truncate(struct kvt_runtime *runtime, kvt_seq seq, uint64_t tokens, const uint32_t *tail_tokens,
                                 uint64_t *ret_kept)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    return end_call(runtime, kvt_sequence_truncate(&runtime->core, sequence, tokens, tail_tokens, ret_kept));
}

enum kvt_status kvt_seq_window(struct kvt_runtime *runtime, kvt_seq seq, uint64_t sinks, uint64_t window)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    return end_call(runtime, kvt_sequence_window(&runtime->core, sequence, sinks, window));
}

enum kvt_status kvt_seq_idle(struct kvt_runtime *runtime, kvt_seq seq)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    return end_call(runtime, kvt_sequence_idle(&runtime->core, sequence));
}

enum kvt_status kvt_seq_hint(struct kvt_runtime *runtime, kvt_seq seq, const struct kvt_seq_hint *hint)
{
    _Static_assert((int)KVT_NEXT_TOOL == (int)KVT_POLICY_NEXT_TOOL, "the core hands it on as it is");
    _Static_assert((int)KVT_NEXT_PERSON == (int)KVT_POLICY_NEXT_PERSON, "the core hands it on as it is");
    _Static_assert((int)KVT_NEXT_NOBODY == (int)KVT_POLICY_NEXT_NOBODY, "the core hands it on as it is");
    BEGIN_SEQUENCE(runtime, seq, sequence)
    if ((unsigned)hint->next > KVT_NEXT_NOBODY) return end_call(runtime, KVT_INVAL);
    sequence->next_use = (uint8_t)hint->next;
    sequence->turn = hint->turn;
    sequence->is_hint_fresh = true;
    return end_call(runtime, KVT_OK);
}

enum kvt_status kvt_seq_resume(struct kvt_runtime *runtime, kvt_seq seq, enum kvt_room *ret_room)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    return end_call(runtime, kvt_sequence_resume(&runtime->core, sequence, ret_room));
}

enum kvt_status kvt_seq_finish(struct kvt_runtime *runtime, kvt_seq seq, bool keep)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    if (sequence->step != UINT32_MAX) return end_call(runtime, KVT_INVAL);
    kvt_sequence_finish(&runtime->core, sequence, keep);
    return end_call(runtime, KVT_OK);
}

uint64_t kvt_seq_tokens(struct kvt_runtime *runtime, kvt_seq seq)
{
    if (kvt_runtime_is_child(runtime)) return 0;
    kvt_runtime_lock(runtime);
    const struct kvt_sequence *sequence = kvt_sequence_of(&runtime->core, seq);
    const uint64_t tokens = sequence ? sequence->tokens : 0;
    kvt_runtime_unlock(runtime);
    return tokens;
}

enum kvt_status kvt_seq_table(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group, uint32_t *ret_slots,
                              uint64_t max, uint64_t *ret_first, uint64_t *ret_count)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    const struct kvt_core *core = &runtime->core;
    if (group >= core->group_count || sequence->step == UINT32_MAX) return end_call(runtime, KVT_INVAL);
    const struct kvt_sequence_table *table = &sequence->groups[group];
    const bool is_state = core->groups[group].kind == KVT_GROUP_STATE;
    const uint32_t first = is_state || core->groups[group].sink_tokens > 0 ? 0 : table->first;
    const uint64_t count = is_state ? (table->live != KVT_NO_BLOCK) : table->count - first;
    for (uint64_t i = 0; i < kvt_min_u64(count, max); i++) {
        const uint32_t block = is_state ? table->live : table->blocks[first + i];
        const bool is_pinned = block != KVT_NO_BLOCK && (is_state || first + i >= table->claimed_from);
        ret_slots[i] = is_pinned ? kvt_core_block(core, block)->device_slot : KVT_NO_SLOT;
        /* A block that failed to land has no slot any more. Its sequence is lost, whatever the kernels read. */
        if (is_pinned && ret_slots[i] == KVT_NO_SLOT && kvt_sequence_is_suspect(sequence)) ret_slots[i] = 0;
    }
    *ret_first = first;
    *ret_count = count;
    return end_call(runtime, KVT_OK);
}

enum kvt_status kvt_seq_keys(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group, struct kvt_block_key *ret_keys,
                             uint64_t max, uint64_t *ret_first, uint64_t *ret_count)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    const struct kvt_core *core = &runtime->core;
    if (group >= core->group_count) return end_call(runtime, KVT_INVAL);
    const struct kvt_sequence_table *table = &sequence->groups[group];
    const uint64_t count = table->count - table->first;
    for (uint64_t i = 0; i < kvt_min_u64(count, max); i++) {
        ret_keys[i] = (struct kvt_block_key){ 0, 0 };
        const uint32_t block = table->blocks[table->first + i];
        if (block == KVT_NO_BLOCK || !kvt_block_has(kvt_core_block(core, block), KVT_BLOCK_SEALED)) continue;
        ret_keys[i] = (struct kvt_block_key){ kvt_core_block(core, block)->key.lo,
                                              kvt_core_block(core, block)->key.hi };
    }
    *ret_first = table->first;
    *ret_count = count;
    return end_call(runtime, KVT_OK);
}

enum kvt_status kvt_reset(struct kvt_runtime *runtime, uint64_t *ret_kept)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    return end_call(runtime, kvt_core_reset(&runtime->core, ret_kept));
}

/* ---- Steps and waiting ------------------------------------------------------------------------------------------- */

void kvt_expect(struct kvt_runtime *runtime, const kvt_seq *seqs, const uint32_t *steps, uint32_t n)
{
    if (kvt_runtime_is_child(runtime)) return;
    kvt_runtime_lock(runtime);
    kvt_core_expect(&runtime->core, seqs, steps, n);
    kvt_runtime_unlock(runtime);
}

enum kvt_status kvt_step_begin(struct kvt_runtime *runtime, struct kvt_step_entry *entries, uint32_t n,
                               kvt_stream stream, kvt_step *ret_step)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    uint32_t number = 0;
    enum kvt_status status = kvt_runtime_stream_number(runtime, stream, &number);
    if (status == KVT_OK) status = kvt_core_step_begin(&runtime->core, entries, n, number, ret_step);
    return end_call(runtime, status);
}

enum kvt_status kvt_step_wait_layer(struct kvt_runtime *runtime, kvt_step step, uint32_t group, uint32_t layer,
                                    kvt_stream stream)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    uint32_t number = 0;
    enum kvt_status status = kvt_runtime_stream_number(runtime, stream, &number);
    if (status == KVT_OK) status = kvt_core_step_wait_layer(&runtime->core, step, group, layer, number);
    return end_call(runtime, status);
}

enum kvt_status kvt_seq_landed(struct kvt_runtime *runtime, kvt_seq seq, enum kvt_ready *ret_ready,
                               uint64_t *ret_lost_from)
{
    BEGIN_SEQUENCE(runtime, seq, sequence)
    (void)kvt_runtime_pump(runtime);
    *ret_ready = kvt_layers_settle(&runtime->core, sequence);
    *ret_lost_from = sequence->lost_from;
    return end_call(runtime, KVT_OK);
}

enum kvt_status kvt_step_end(struct kvt_runtime *runtime, kvt_step step)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    return end_call(runtime, kvt_core_step_end(&runtime->core, step));
}

const char *kvt_stall_name(enum kvt_stall_cause cause)
{
    static const char *const names[KVT_STALL_COUNT] = { "late_hint", "no_slot", "nvme_queue", "nvme_link",
                                                        "host_link", "codec",   "other" };
    return cause < KVT_STALL_COUNT ? names[cause] : "?";
}

enum kvt_stall_cause kvt_seq_stall(struct kvt_runtime *runtime, kvt_seq seq)
{
    if (kvt_runtime_is_child(runtime)) return KVT_STALL_OTHER;
    kvt_runtime_lock(runtime);
    struct kvt_sequence *sequence = kvt_sequence_of(&runtime->core, seq);
    const enum kvt_stall_cause cause = sequence ? kvt_core_stall(&runtime->core, sequence) : KVT_STALL_OTHER;
    kvt_runtime_unlock(runtime);
    return cause;
}

static bool wait_for_event(struct kvt_runtime *runtime, uint64_t timeout_ns)
{
    const uint64_t deadline_ns = kvt_env_default().now_ns(NULL) + kvt_min_u64(timeout_ns, UINT64_C(1) << 60);
    const struct timespec deadline = { (time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u) };
    while (runtime->core.events == runtime->events_waited) {
        if (pthread_cond_timedwait(&runtime->changed, &runtime->lock, &deadline) == ETIMEDOUT) break;
    }
    return runtime->core.events != runtime->events_waited;
}

/* The one thread waits: what can be done at once is done, then time passes once. */
static bool pass_time(struct kvt_runtime *runtime, uint64_t timeout_ns)
{
    while (kvt_runtime_pump(runtime)) continue;
    if (runtime->core.events != runtime->events_waited) return true;
    runtime->env.pass(runtime->env.clock_user, timeout_ns);
    while (kvt_runtime_pump(runtime)) continue;
    return runtime->core.events != runtime->events_waited;
}

bool kvt_wait(struct kvt_runtime *runtime, uint64_t timeout_ns)
{
    if (kvt_runtime_is_child(runtime)) return false;
    kvt_runtime_lock(runtime);
    (void)kvt_runtime_pump(runtime);
    bool is_news = runtime->core.events != runtime->events_waited;
    if (!is_news && !runtime->env.is_single_threaded) is_news = wait_for_event(runtime, timeout_ns);
    if (!is_news && runtime->env.is_single_threaded && runtime->env.pass) is_news = pass_time(runtime, timeout_ns);
    runtime->events_waited = runtime->core.events;
    uint64_t count;
    (void)!read(runtime->event_fd, &count, sizeof count);
    kvt_runtime_unlock(runtime);
    return is_news;
}

int kvt_eventfd(struct kvt_runtime *runtime) { return runtime->event_fd; }

/* ---- The device -------------------------------------------------------------------------------------------------- */

const char *kvt_device_name(struct kvt_runtime *runtime) { return runtime->core.gpu->ops->name; }

void *kvt_device_slot(struct kvt_runtime *runtime, uint32_t group, uint32_t slot)
{
    if (slot >= kvt_device_slots(runtime, group)) return NULL;
    return runtime->device->ops->map(runtime->device, group, slot);
}

uint32_t kvt_device_slots(struct kvt_runtime *runtime, uint32_t group)
{
    if (group >= runtime->core.group_count) return 0;
    return runtime->core.pools[runtime->core.config.pool_of_group[group]].slot_count;
}

static bool is_emulated(const struct kvt_runtime *runtime) { return runtime->core.gpu->ops == &kvt_gpu_emulated_ops; }

kvt_stream kvt_device_stream(struct kvt_runtime *runtime, uint32_t i)
{
    struct kvt_gpu *gpu = runtime->core.gpu;
    return gpu->ops->engine_stream(gpu, i);
}

kvt_stream kvt_emulated_stream(struct kvt_runtime *runtime, uint32_t i)
{
    return is_emulated(runtime) ? kvt_device_stream(runtime, i) : NULL;
}

static void free_launch(struct kvt_gpu_job *job) { kvt_free(job->user); }

/* A copy of a part of a slot, as a job on an engine's stream: one segment that begins where the part does. */
struct part_copy {
    struct kvt_gpu_job job;
    void *base;
    uint64_t stride;
    bool is_read;
};

static void run_part_copy(struct kvt_gpu_job *job)
{
    const struct part_copy *copy = job->user;
    if (copy->is_read) kvt_pages_gather_ref(&job->move.pages, job->move.host);
    else kvt_pages_scatter_ref(&job->move.pages, job->move.host);
}

static enum kvt_status copy_part(struct kvt_runtime *runtime, kvt_stream stream, uint32_t group, uint32_t slot,
                                 uint64_t offset, void *host, uint64_t size_bytes, bool is_read)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    if (group >= runtime->core.group_count) return KVT_INVAL;
    const struct kvt_model_shape *shape = &runtime->core.config.shape;
    const uint64_t block_bytes = kvt_group_block_bytes(&shape->groups[group], shape->block_tokens);
    uint8_t *memory = kvt_device_slot(runtime, group, slot);
    if (!memory || size_bytes > block_bytes || offset > block_bytes - size_bytes) return KVT_INVAL;
    uint32_t number;
    KVT_TRY(kvt_runtime_stream_number(runtime, stream, &number));
    struct part_copy *copy = kvt_alloc(1, sizeof *copy);
    if (!copy) return KVT_NOMEM;
    *copy = (struct part_copy){ .base = memory + offset, .is_read = is_read };
    copy->job = (struct kvt_gpu_job){
        .run = run_part_copy,
        .done = free_launch,
        .user = copy,
        .move = { .kind = is_read ? KVT_GPU_MOVE_GATHER : KVT_GPU_MOVE_SCATTER,
                  .pages = { .count = 1, .base = &copy->base, .stride = &copy->stride, .bytes = size_bytes },
                  .host = host },
    };
    runtime->core.gpu->ops->submit(runtime->core.gpu, number, &copy->job);
    return KVT_OK;
}

enum kvt_status kvt_device_read(struct kvt_runtime *runtime, kvt_stream stream, uint32_t group, uint32_t slot,
                                uint64_t offset, void *host, uint64_t size_bytes)
{
    return copy_part(runtime, stream, group, slot, offset, host, size_bytes, true);
}

enum kvt_status kvt_device_write(struct kvt_runtime *runtime, kvt_stream stream, uint32_t group, uint32_t slot,
                                 uint64_t offset, const void *host, uint64_t size_bytes)
{
    return copy_part(runtime, stream, group, slot, offset, (void *)(uintptr_t)host, size_bytes, false);
}

bool kvt_device_wait(struct kvt_runtime *runtime, kvt_stream stream, uint64_t timeout_ns)
{
    uint32_t number;
    if (kvt_runtime_is_child(runtime) || kvt_runtime_stream_number(runtime, stream, &number) != KVT_OK) return false;
    struct kvt_gpu *gpu = runtime->core.gpu;
    const kvt_mark mark = gpu->ops->mark(gpu, number);
    if (runtime->env.is_single_threaded) gpu->ops->synchronize(gpu, mark);
    const uint64_t start_ns = kvt_env_default().now_ns(NULL);
    while (!gpu->ops->is_reached(gpu, mark)) {
        if (kvt_env_default().now_ns(NULL) - start_ns >= timeout_ns) return false;
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = WAIT_SLICE_NS }, NULL);
    }
    return true;
}

void *kvt_host_alloc(struct kvt_runtime *runtime, size_t size_bytes)
{
    struct kvt_gpu *gpu = runtime->core.gpu;
    void *memory = size_bytes > 0 ? kvt_table_map(size_bytes) : NULL;
    if (memory && !gpu->ops->host_pin(gpu, memory, size_bytes))
        kvt_log(&runtime->env, KVT_LOG_WARN, "%zu bytes of host memory could not be pinned: copies of them take longer",
                size_bytes);
    return memory;
}

void kvt_host_free(struct kvt_runtime *runtime, void *memory, size_t size_bytes)
{
    struct kvt_gpu *gpu = runtime->core.gpu;
    if (!memory) return;
    if (gpu->ops->host_is_pinned(gpu, memory)) gpu->ops->host_unpin(gpu, memory, size_bytes);
    kvt_table_unmap(memory, size_bytes);
}

bool kvt_device_is_lost(struct kvt_runtime *runtime)
{
    return runtime->core.gpu->ops->is_lost(runtime->core.gpu);
}

struct launch {
    struct kvt_gpu_job job;
    void (*run)(void *user);
    void *user;
};

static void run_launch(struct kvt_gpu_job *job)
{
    const struct launch *launch = job->user;
    launch->run(launch->user);
}

enum kvt_status kvt_emulated_launch(struct kvt_runtime *runtime, kvt_stream stream, void (*run)(void *user), void *user)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    if (!is_emulated(runtime)) return KVT_UNSUPPORTED;
    if (!run) return KVT_INVAL;
    uint32_t number;
    KVT_TRY(kvt_runtime_stream_number(runtime, stream, &number));
    struct launch *launch = kvt_alloc(1, sizeof *launch);
    if (!launch) return KVT_NOMEM;
    *launch = (struct launch){ .job = { .run = run_launch, .done = free_launch, .user = launch },
                               .run = run,
                               .user = user };
    runtime->core.gpu->ops->submit(runtime->core.gpu, number, &launch->job);
    return KVT_OK;
}

void kvt_emulated_synchronize(struct kvt_runtime *runtime, kvt_stream stream)
{
    uint32_t number;
    if (kvt_runtime_is_child(runtime) || !is_emulated(runtime) || kvt_runtime_stream_number(runtime, stream, &number) != KVT_OK)
        return;
    struct kvt_gpu *gpu = runtime->core.gpu;
    gpu->ops->synchronize(gpu, gpu->ops->mark(gpu, number));
}
