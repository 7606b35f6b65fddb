/* machine: the disk, the device and the clock under the runtime; their faults; restarts. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/options.h"
#include "tests/sim/sim.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tiers/nvme_tier.h"

#define FIRST_NS (1000 * SIM_MS)

/* Relative paths: the same seed gives the same run in every process, each of which has a directory of its own. */
static const char *const paths[] = { NULL, "kv", "kv0,kv1", "kv0,kv1,kv2" };

static const uint8_t store_keys[][32] = { { 0 }, { 1, 2, 3, 4, 5, 6, 7, 8 }, { 8, 7, 6, 5, 4, 3, 2, 1 } };

/* ---- What enters through env ------------------------------------------------------------------------------------- */

static uint64_t now_ns(void *user) { return ((const struct sim *)user)->now_ns; }

/* A caller waits: time passes until a job of the device is over, or as long as it wants to wait. */
static void pass(void *user, uint64_t timeout_ns)
{
    struct sim *sim = user;
    uint64_t until_ns = sim->now_ns + kvt_min_u64(timeout_ns, 10 * SIM_MS);
    if (sim->gpu) until_ns = kvt_max_u64(sim->now_ns, kvt_min_u64(until_ns, kvt_gpu_emulated_next_ns(sim->gpu)));
    sim->now_ns = until_ns;
}

/* The store waits for a disk that has nothing to give. */
static void disk_waits(void *user, uint64_t wait_ns) { ((struct sim *)user)->now_ns += wait_ns; }

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

static const struct {
    enum sim_fault fault;
    enum io_faulty_kind kind;
    enum io_faulty_fault io;
} disk_faults[] = {
    { SIM_FAULT_EIO, IO_FAULTY_ANY, IO_FAULTY_EIO },
    { SIM_FAULT_SHORT, IO_FAULTY_ANY, IO_FAULTY_SHORT },
    { SIM_FAULT_DELAY, IO_FAULTY_ANY, IO_FAULTY_DELAY },
    { SIM_FAULT_QUEUE, IO_FAULTY_ANY, IO_FAULTY_FULL },
    { SIM_FAULT_FLIP, IO_FAULTY_READ, IO_FAULTY_FLIP },
    { SIM_FAULT_TORN, IO_FAULTY_WRITE, IO_FAULTY_TORN },
    { SIM_FAULT_MISDIRECT, IO_FAULTY_WRITE, IO_FAULTY_MISDIRECT },
    { SIM_FAULT_NOSPACE, IO_FAULTY_WRITE, IO_FAULTY_ENOSPC },
    { SIM_FAULT_NOSPACE, IO_FAULTY_CALL, IO_FAULTY_ENOSPC },
    { SIM_FAULT_LOST, IO_FAULTY_ANY, IO_FAULTY_HELD },
};

static void set_disk_faults(struct sim *sim, bool is_on)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(disk_faults); i++)
        io_faulty_rate(sim->image, disk_faults[i].kind, disk_faults[i].io,
                       is_on ? sim->plan.rates[disk_faults[i].fault] : 0);
}

/* One kind of failure at a time on each copy stream. */
static void set_device_faults(struct sim *sim)
{
    for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) {
        const uint32_t copy = sim->plan.rates[SIM_FAULT_COPY], stuck = sim->plan.rates[SIM_FAULT_STUCK];
        enum kvt_gpu_fault fault = kvt_rng_below(&sim->fault_rng, 2) ? KVT_GPU_FAULT_FAIL : KVT_GPU_FAULT_FAIL_LATE;
        uint32_t rate = copy;
        if (stuck > 0 && (copy == 0 || kvt_rng_below(&sim->fault_rng, 2))) {
            fault = kvt_rng_below(&sim->fault_rng, 2) ? KVT_GPU_FAULT_STUCK_START : KVT_GPU_FAULT_STUCK_END;
            rate = stuck;
        }
        if (sim->is_device_lost) {
            fault = KVT_GPU_FAULT_FAIL;
            rate = 1000000;
        }
        kvt_gpu_emulated_fault_randomly(sim->gpu, s, rate, kvt_rng_next(&sim->fault_rng), fault);
    }
}

static void open_device(struct sim *sim)
{
    for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) {
        kvt_gpu_emulated_gate(sim->gpu, s, false);
        kvt_gpu_emulated_fault_randomly(sim->gpu, s, 0, 0, KVT_GPU_FAULT_NONE);
        (void)kvt_gpu_emulated_release(sim->gpu, s);
    }
}

bool sim_memory_short(struct sim *sim)
{
    const uint32_t rate = sim->is_calm ? 0 : sim->plan.rates[SIM_FAULT_MEMORY];
    if (rate == 0 || kvt_rng_below(&sim->fault_rng, 1000000) >= rate) return false;
    sim->counts.faults[SIM_FAULT_MEMORY]++;
    kvt_alloc_fail_at(1 + kvt_rng_below(&sim->fault_rng, 3));
    return true;
}

void sim_memory_done(struct sim *sim)
{
    (void)sim;
    kvt_alloc_fail_at(0);
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

const char *const *sim_directories(const struct sim *sim)
{
    static const char *const one[] = { "kv" }, *const several[] = { "kv0", "kv1", "kv2" };
    return sim->plan.stripes > 1 ? several : one;
}

struct kvt_store *sim_store(struct sim *sim)
{
    if (sim->directory) return sim->directory;
    return sim->runtime && sim->runtime->nvme ? kvt_nvme_tier_store(sim->runtime->nvme) : NULL;
}

/* Host memory for so many bytes of slots: the buffers of transfers come on top. */
static uint64_t host_bytes(const struct sim_plan *plan, uint64_t scratch_bytes)
{
    if (plan->host_slot_bytes == 0) return 0;
    return plan->host_slot_bytes + scratch_bytes + (plan->nvme_bytes > 0 ? KVT_MIB : 0);
}

static void choose_device_bytes(struct sim *sim, uint64_t scratch_bytes)
{
    struct kvt_options options;
    uint64_t block_max = 0;
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++)
        block_max = kvt_max_u64(block_max,
                                kvt_group_block_bytes(&sim->plan.shape.groups[g], sim->plan.shape.block_tokens));
    uint64_t bytes = sim->plan.device_slots_min * block_max;
    for (uint32_t round = 0; round < 60; round++, bytes += bytes / 6) {
        sim->config.device_bytes = bytes;
        char error[256];
        const enum kvt_status status = kvt_options_resolve(&sim->config, scratch_bytes, &options, error, sizeof error);
        if (status != KVT_OK && strncmp(error, "device_bytes", 12) != 0)
            sim_fail(sim, "the plan is refused: %s", error);
        uint32_t least = status == KVT_OK ? UINT32_MAX : 0;
        for (uint32_t p = 0; status == KVT_OK && p < options.core.pool_count; p++)
            least = kvt_min_u32(least, options.core.pool_slots[p]);
        if (least >= sim->plan.device_slots_min) return;
    }
    sim_fail(sim, "no size of the device gives each pool %u slots", sim->plan.device_slots_min);
}

void sim_configure(struct sim *sim)
{
    const struct sim_plan *plan = &sim->plan;
    uint64_t scratch_bytes = 0;
    if (plan->is_codec_on) {
        struct kvt_codec *codec;
        const enum kvt_status status = kvt_codec_create(&plan->shape, &codec);
        KVT_ASSERT(status == KVT_OK);
        scratch_bytes = KVT_DEVICE_STREAMS * (uint64_t)kvt_codec_scratch_bytes(codec);
        kvt_codec_destroy(&codec);
    }
    struct kvt_config *config = &sim->config;
    *config = kvt_config_default();
    config->shape = plan->shape;
    config->device = KVT_DEVICE_EMULATED;
    config->host_bytes = host_bytes(plan, scratch_bytes);
    config->nvme_path = plan->nvme_bytes > 0 ? paths[plan->stripes] : NULL;
    config->nvme_bytes = plan->nvme_bytes;
    config->nvme_bytes_per_day = plan->nvme_bytes > 0 ? plan->nvme_bytes_per_day : 0;
    config->nvme_key = sim->key_number > 0 ? store_keys[sim->key_number] : NULL;
    config->is_codec_off = !plan->is_codec_on;
    config->is_codec_tables_off = plan->is_codec_tables_off;
    config->device_policy = plan->device_policy;
    config->host_policy = plan->host_policy;
    config->admission = plan->admission;
    config->prefetch = plan->prefetch;
    config->is_layered = plan->is_layered;
    config->sequences_max = plan->sequences_max;
    config->transfers_max = plan->transfers_max;
    config->prefetch_bytes_max = 64 * KVT_KIB;
    config->transfer_deadline_ns = plan->deadline_ns;
    config->prefill_tokens_per_s = plan->prefill_tokens_per_s;
    config->link_hbm_bytes_per_s = plan->link_bytes_per_s;
    config->link_hbm_latency_ns = plan->link_latency_ns;
    config->env = &sim->env;
    sim_world_apply(sim, config);
    sim->nvme_bytes_most = kvt_max_u32(sim->nvme_bytes_most, plan->nvme_bytes);
    choose_device_bytes(sim, scratch_bytes);
}

/* The runtime is open: the device's streams get their numbers, in the same order each time. */
static void meet_device(struct sim *sim)
{
    sim->gpu = sim->runtime->core.gpu;
    for (uint32_t i = 0; i < SIM_ENGINE_STREAMS; i++) {
        const enum kvt_status status = sim->gpu->ops->stream(sim->gpu, sim_stream(sim, i), &sim->engine_streams[i]);
        KVT_ASSERT(status == KVT_OK);
    }
    sim->is_device_lost = false;
    twin_add(&sim->twin, &sim->before_reset);
    twin_forget(&sim->before_reset);
    if (!sim->is_calm) set_device_faults(sim);
    sim_tally_begin(sim);
    sim->counts.opens++;
}

static enum kvt_status open_runtime(struct sim *sim, char error[256])
{
    sim->runtime = NULL;
    sim->gpu = NULL;
    const enum kvt_status status = kvt_open(&sim->config, &sim->runtime, error, 256);
    kvt_alloc_fail_at(0);
    sim->opened = sim->runtime;
    if (status == KVT_OK) meet_device(sim);
    else SIM_CHECK(sim, sim->runtime == NULL, "a runtime that was refused: %s", error);
    sim_say(sim, "open: status %d%s%s", (int)status, status == KVT_OK ? "" : ": ", status == KVT_OK ? "" : error);
    if (status == KVT_OK && sim_store(sim)) {
        struct kvt_store_stats stats;
        kvt_store_stats(sim_store(sim), &stats);
        sim_say(sim, "the store: %u directories, %u left out, %llu records, %llu bad", stats.directories,
                stats.directories_lost, (unsigned long long)stats.records, (unsigned long long)stats.recovered_bad);
        SIM_CHECK(sim, !sim->is_emptied || stats.records == 0, "%llu records under another key",
                  (unsigned long long)stats.records);
        SIM_CHECK(sim, stats.directories_lost == 0 || sim->away > 0 || sim->is_open_in_trouble,
                  "%u directories are left out", stats.directories_lost);
        sim->is_emptied = false;
    }
    return status;
}

/* Nothing is wrong with the disk: opening must succeed. */
static void open_healthy(struct sim *sim)
{
    char error[256];
    const enum kvt_status status = open_runtime(sim, error);
    SIM_CHECK(sim, status == KVT_OK, "open on a healthy disk: status %d: %s", (int)status, error);
}

static void add_counters(struct sim *sim)
{
    const struct kvt_counters *counters = &sim_core(sim)->counters;
    sim->counts.fetches += counters->fetches;
    sim->counts.stashes += counters->stashes;
    sim->counts.abandoned += counters->abandoned;
    sim->counts.failures += counters->failures;
    for (uint32_t t = 0; t < KVT_TIERS; t++) sim->counts.hits[t] += counters->hits[t];
    struct kvt_store_stats stats = { 0 };
    if (sim_store(sim)) kvt_store_stats(sim_store(sim), &stats);
    sim->counts.reclaims += stats.reclaims;
}

static void close_runtime(struct sim *sim)
{
    sim_forget_sequences(sim);
    if (!sim->runtime) return;
    add_counters(sim);
    open_device(sim);
    /* What never comes back would keep its memory for good: here everything comes back, if only as failed. */
    io_faulty_rate(sim->image, IO_FAULTY_ANY, IO_FAULTY_HELD, 0);
    (void)io_faulty_release(sim->image);
    sim->gpu = NULL; /* pass() is called while the device goes */
    kvt_close(&sim->runtime);
    const struct io_faulty_counters disk = io_faulty_counters(sim->image);
    SIM_CHECK(sim, disk.in_flight == 0, "%u disk ops are still in flight after close", disk.in_flight);
}

void sim_machine_start(struct sim *sim)
{
    sim->now_ns = FIRST_NS;
    sim->env = (struct kvt_env){ .now_ns = now_ns,
                                 .clock_user = sim,
                                 .is_single_threaded = true,
                                 .pass = pass,
                                 .block_io = &io_faulty_ops,
                                 .on_transfer = sim_note_transfer,
                                 .transfer_user = sim,
                                 .seed = sim->plan.seed };
    const struct io_faulty_config disk = { .seed = sim->plan.seed,
                                           .alignment = sim->plan.disk_alignment,
                                           .is_reordering = sim_plan_has(&sim->plan, SIM_FAULT_REORDER),
                                           .wait = disk_waits,
                                           .user = sim };
    sim->image = io_faulty_image_create(&disk);
    KVT_ASSERT(sim->image != NULL);
    sim->env.block_io_user = sim->image;
    sim->key_number = sim->plan.is_encrypted ? 1 : 0;
    sim->nvme_bytes_first = sim->plan.nvme_bytes;
    sim->was_codec_on = sim->plan.is_codec_on;
    sim_configure(sim);
    open_healthy(sim);
    set_disk_faults(sim, true);
}

void sim_close(struct sim *sim) { close_runtime(sim); }

/* How often the disk's faults struck; LOST stands for STALL, too. */
static void count_disk_faults(struct sim *sim)
{
    const struct io_faulty_counters disk = io_faulty_counters(sim->image);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(disk_faults); i++)
        sim->counts.faults[disk_faults[i].fault] = disk.faults[disk_faults[i].io];
}

void sim_machine_end(struct sim *sim)
{
    close_runtime(sim);
    count_disk_faults(sim);
    io_faulty_image_destroy(&sim->image);
}

static void set_away(struct sim *sim, uint32_t away)
{
    sim->away = away;
    io_faulty_set_away(sim->image, away > 0 ? sim_directories(sim)[away - 1] : NULL);
    sim_say(sim, away > 0 ? "directory %u is away" : "all directories are there", away > 0 ? away - 1 : 0);
}

/* Before an open: a directory that is away is back, or is left out, and then nothing of it is promised. */
static void call_back(struct sim *sim)
{
    if (sim->away == 0) return;
    if (sim->is_calm || kvt_rng_below(&sim->fault_rng, 2) == 0) set_away(sim, 0);
    else sim->durable_run++;
}

void sim_reopen(struct sim *sim)
{
    io_faulty_heal(sim->image);
    io_faulty_cut_at(sim->image, 0);
    sim->stall_until = 0;
    close_runtime(sim);
    call_back(sim);
    sim_change(sim);
    open_healthy(sim);
    sim_check_store(sim);
    if (!sim->is_calm) set_disk_faults(sim, true);
    sim->was_restarted = true;
}

/* ---- Restarts ---------------------------------------------------------------------------------------------------- */

/* Opens with faults on, or memory short, or the power going again: it is refused with a reason, or it works. */
static bool open_in_trouble(struct sim *sim)
{
    char error[256];
    set_disk_faults(sim, true);
    if (sim_plan_has(&sim->plan, SIM_FAULT_POWER) && kvt_rng_below(&sim->fault_rng, 3) == 0)
        io_faulty_cut_at(sim->image, 1 + kvt_rng_below(&sim->fault_rng, 60));
    const bool is_short = sim_plan_has(&sim->plan, SIM_FAULT_MEMORY) && kvt_rng_below(&sim->fault_rng, 2) == 0;
    if (is_short) kvt_alloc_fail_at(1 + kvt_rng_below(&sim->fault_rng, 80));
    sim->is_open_in_trouble = true;
    const enum kvt_status status = open_runtime(sim, error);
    sim->is_open_in_trouble = false;
    if (status == KVT_OK) return true;
    SIM_CHECK(sim, status == KVT_IO || status == KVT_NOMEM, "open: status %d: %s", (int)status, error);
    if (status == KVT_NOMEM) SIM_CHECK(sim, is_short, "open: out of memory, and there was enough: %s", error);
    return false;
}

/* The process is gone, or the power went. Then the runtime opens again, sometimes after attempts that fail. */
static void crash(struct sim *sim, bool is_power_cut)
{
    sim_say(sim, is_power_cut ? "the power went" : "the process dies");
    if (sim->runtime) sim_check_before_crash(sim);
    /* A record may have been put again without a word. */
    for (uint32_t i = 0; i < sim->content.capacity; i++) sim->content.entries[i].digest = 0;
    const bool was_off = io_faulty_was_cut(sim->image);
    (void)io_faulty_release(sim->image);
    if (!was_off) io_faulty_cut_at(sim->image, 1);
    close_runtime(sim);
    sim->stall_until = 0;
    if (is_power_cut) io_faulty_power_cycle(sim->image);
    else io_faulty_process_restart(sim->image);
    if (is_power_cut) sim->counts.power_cuts++;
    else sim->counts.kills++;
    sim->was_restarted = sim->was_crashed = true;
    if (!sim->is_calm && kvt_rng_below(&sim->fault_rng, 3) == 0 && open_in_trouble(sim)) {
        sim->durable_run++; /* a record that could not be read at open may be missing */
        sim_note_unread(sim);
        return;
    }
    if (io_faulty_was_cut(sim->image)) io_faulty_power_cycle(sim->image);
    io_faulty_heal(sim->image);
    io_faulty_cut_at(sim->image, 0);
    call_back(sim);
    sim_change(sim);
    open_healthy(sim);
    sim_check_after_crash(sim);
    if (!sim->is_calm) set_disk_faults(sim, true);
}

void sim_bring_back(struct sim *sim)
{
    if (io_faulty_was_cut(sim->image) || !sim->runtime) crash(sim, true);
}

static bool strikes(struct sim *sim, enum sim_fault fault)
{
    const bool is_struck = kvt_rng_below(&sim->fault_rng, 1000000) < sim->plan.rates[fault];
    if (is_struck) sim->counts.faults[fault]++;
    return is_struck;
}

static void stall(struct sim *sim)
{
    sim->stall_until = sim->tick + 1 + kvt_rng_below(&sim->fault_rng, 80);
    io_faulty_rate(sim->image, IO_FAULTY_ANY, IO_FAULTY_HELD, 1000000);
    sim_say(sim, "the disk stands still until tick %llu", (unsigned long long)sim->stall_until);
}

static void end_stall(struct sim *sim)
{
    io_faulty_rate(sim->image, IO_FAULTY_ANY, IO_FAULTY_HELD, sim->plan.rates[SIM_FAULT_LOST]);
    (void)io_faulty_release(sim->image);
    sim->stall_until = 0;
    sim_say(sim, "the disk goes on");
}

void sim_strike(struct sim *sim)
{
    const bool is_restart = strikes(sim, SIM_FAULT_RESTART);
    const bool is_kill = strikes(sim, SIM_FAULT_KILL);
    const bool is_cut = strikes(sim, SIM_FAULT_POWER);
    const bool is_jump = strikes(sim, SIM_FAULT_JUMP);
    const bool is_stall = strikes(sim, SIM_FAULT_STALL);
    const bool is_loss = strikes(sim, SIM_FAULT_DEVICE);
    const bool is_away = sim_plan_has(&sim->plan, SIM_FAULT_AWAY) && strikes(sim, SIM_FAULT_AWAY);
    if (is_away) set_away(sim, sim->away ? 0 : 1 + (uint32_t)kvt_rng_below(&sim->fault_rng, sim->plan.stripes));
    const bool is_off = io_faulty_was_cut(sim->image);
    /* A runtime whose disk is gone goes on for a while. */
    if (is_off && kvt_rng_below(&sim->fault_rng, 10) == 0) crash(sim, true);
    if (is_jump) sim->now_ns += kvt_rng_below(&sim->fault_rng, 2) ? 40000 * SIM_MS : UINT64_C(90000000) * SIM_MS;
    if (sim->stall_until > 0 && sim->tick >= sim->stall_until) end_stall(sim);
    if (is_stall && sim->stall_until == 0 && !is_off) stall(sim);
    if (is_loss) {
        sim->is_device_lost = true;
        sim_say(sim, "the device is lost");
        set_device_faults(sim);
    }
    /* An engine that lost its device ends sooner or later. */
    if (is_kill || (sim->is_device_lost && kvt_rng_below(&sim->fault_rng, 60) == 0)) {
        crash(sim, io_faulty_was_cut(sim->image));
    } else if (is_restart && !io_faulty_was_cut(sim->image)) {
        sim_say(sim, "an orderly restart");
        sim->counts.restarts++;
        sim_reopen(sim);
    } else if (is_cut && !io_faulty_was_cut(sim->image)) {
        io_faulty_cut_at(sim->image, 1 + kvt_rng_below(&sim->fault_rng, 40));
    }
}

/* ---- What runs by itself ----------------------------------------------------------------------------------------- */

static void run_stream(struct sim *sim, uint32_t stream, uint32_t turns)
{
    while (turns-- > 0 && kvt_gpu_emulated_run(sim->gpu, stream)) continue;
}

void sim_drift(struct sim *sim)
{
    switch (sim_below(sim, 10)) {
    case 0:
    case 1:
    case 2: run_stream(sim, sim->engine_streams[sim_below(sim, SIM_ENGINE_STREAMS)], 1 + sim_below(sim, 12)); break;
    case 3:
        for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) kvt_gpu_emulated_gate(sim->gpu, s, sim_chance(sim, 10));
        break;
    case 4:
    case 5: run_stream(sim, sim_below(sim, KVT_DEVICE_STREAMS), 1 + sim_below(sim, 4)); break;
    case 6: sim->now_ns += sim_chance(sim, 10) ? 100 * SIM_MS : sim_below(sim, 20 * SIM_MS); break;
    case 7:
        if (sim_chance(sim, 30)) (void)io_faulty_release(sim->image);
        for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) {
            if (sim_chance(sim, 20)) (void)kvt_gpu_emulated_release(sim->gpu, s);
        }
        break;
    case 8: (void)kvt_wait(sim->runtime, sim_below(sim, 5 * SIM_MS)); break;
    default: break;
    }
    if (sim_chance(sim, 60)) (void)kvt_wait(sim->runtime, 0);
}

void sim_heal(struct sim *sim)
{
    sim->is_calm = true;
    sim->stall_until = 0;
    if (sim->away) set_away(sim, 0);
    io_faulty_heal(sim->image);
    io_faulty_cut_at(sim->image, 0); /* one that was to come */
    open_device(sim);
}

void sim_round(struct sim *sim)
{
    sim->now_ns += 10 * SIM_MS;
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t s = 0; s < SIM_ENGINE_STREAMS; s++) run_stream(sim, sim->engine_streams[s], 1000);
        for (uint32_t n = 0; n < 8 && kvt_wait(sim->runtime, 0); n++) continue;
    }
}
