#include "tests/unit/fake_runtime.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

enum { SEQUENCES = 64, BLOCKS = 512, CACHED = 256 };

struct fake_seq {
    bool is_live, is_idle, is_in_step;
    uint32_t *tokens;
    uint64_t committed, reserved;
    uint32_t slots[KVT_GROUPS_MAX][BLOCKS];
    uint32_t slot_count[KVT_GROUPS_MAX];
    uint8_t *saved[KVT_GROUPS_MAX]; /* blocks of an idle sequence */
    uint32_t unready;
    uint64_t lost_from; /* 0: nothing is lost */
};

struct cached {
    uint32_t *tokens;
    uint64_t count;
    uint8_t *bytes[KVT_GROUPS_MAX];
};

struct kvt_runtime {
    struct kvt_model_shape shape;
    struct fake_knobs knobs;
    struct fake_seen seen;
    struct fake_seq seqs[SEQUENCES + 1]; /* a handle is an index; 0 is none */
    struct cached cache[CACHED];
    uint32_t cached;
    uint8_t *device[KVT_GROUPS_MAX];
    bool *used[KVT_GROUPS_MAX];
    bool is_stepping, is_launched, has_lost, has_flipped;
    pthread_t job;
    void (*run)(void *user);
    void *user;
};

static bool is_state(const struct kvt_runtime *r, uint32_t g) { return r->shape.groups[g].kind == KVT_GROUP_STATE; }
static uint64_t block_bytes(const struct kvt_runtime *r, uint32_t g)
{
    return kvt_group_block_bytes(&r->shape.groups[g], r->shape.block_tokens);
}

static uint32_t blocks_for(const struct kvt_runtime *r, uint32_t g, uint64_t tokens)
{
    if (is_state(r, g)) return tokens > 0;
    return (uint32_t)((tokens + r->shape.block_tokens - 1) / r->shape.block_tokens);
}

struct kvt_runtime *fake_open(const struct kvt_model_shape *shape, const struct fake_knobs *knobs)
{
    struct kvt_runtime *r = kvt_alloc(1, sizeof *r);
    KVT_ASSERT(r);
    r->shape = *shape;
    r->knobs = *knobs;
    for (uint32_t g = 0; g < shape->group_count; g++) {
        r->device[g] = kvt_alloc(knobs->slots, block_bytes(r, g));
        r->used[g] = kvt_alloc(knobs->slots, sizeof(bool));
        KVT_ASSERT(r->device[g] && r->used[g]);
    }
    return r;
}

const struct fake_seen *fake_seen(const struct kvt_runtime *runtime) { return &runtime->seen; }

uint32_t fake_live(const struct kvt_runtime *runtime)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i <= SEQUENCES; i++) n += runtime->seqs[i].is_live;
    return n;
}

void fake_close(struct kvt_runtime **runtime)
{
    struct kvt_runtime *r = *runtime;
    kvt_emulated_synchronize(r, r);
    for (uint32_t g = 0; g < KVT_GROUPS_MAX; g++) {
        for (uint32_t i = 1; i <= SEQUENCES; i++) kvt_free(r->seqs[i].saved[g]);
        for (uint32_t i = 0; i < r->cached; i++) kvt_free(r->cache[i].bytes[g]);
        kvt_free(r->device[g]);
        kvt_free(r->used[g]);
    }
    for (uint32_t i = 1; i <= SEQUENCES; i++) kvt_free(r->seqs[i].tokens);
    for (uint32_t i = 0; i < r->cached; i++) kvt_free(r->cache[i].tokens);
    kvt_free(r);
    *runtime = NULL;
}

struct kvt_config kvt_config_default(void)
{
    return (struct kvt_config){ .size = sizeof(struct kvt_config), .version = KVT_VERSION };
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static uint8_t *slot_address(struct kvt_runtime *r, uint32_t g, uint32_t slot)
{
    return r->device[g] + slot * block_bytes(r, g);
}

static uint32_t free_slots(const struct kvt_runtime *r, uint32_t g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->knobs.slots; i++) n += !r->used[g][i];
    return n;
}

static void take_slots(struct kvt_runtime *r, struct fake_seq *seq, uint32_t g, uint32_t count)
{
    while (seq->slot_count[g] < count) {
        uint32_t slot = 0;
        while (r->used[g][slot]) slot++;
        r->used[g][slot] = true;
        memset(slot_address(r, g, slot), 0xaa, block_bytes(r, g));
        seq->slots[g][seq->slot_count[g]++] = slot;
    }
}

static void give_slots(struct kvt_runtime *r, struct fake_seq *seq, uint32_t g, uint32_t count)
{
    while (seq->slot_count[g] > count) r->used[g][seq->slots[g][--seq->slot_count[g]]] = false;
}

static bool is_idle_full(const struct kvt_runtime *r)
{
    uint32_t idle = 0;
    for (uint32_t i = 1; i <= SEQUENCES; i++) idle += r->seqs[i].is_live && r->seqs[i].is_idle;
    return r->knobs.idle_max > 0 && idle > r->knobs.idle_max;
}

static enum kvt_room room_for(const struct kvt_runtime *r, const struct fake_seq *seq, uint64_t tokens)
{
    for (uint32_t g = 0; g < r->shape.group_count; g++) {
        const uint32_t needed = blocks_for(r, g, tokens);
        if (needed > r->knobs.slots) return KVT_ROOM_TOO_LONG;
        if (needed > seq->slot_count[g] && needed - seq->slot_count[g] > free_slots(r, g)) return KVT_ROOM_FULL;
    }
    return KVT_ROOM_OK;
}

static struct fake_seq *find(struct kvt_runtime *r, kvt_seq seq)
{
    return seq >= 1 && seq <= SEQUENCES && r->seqs[seq].is_live ? &r->seqs[seq] : NULL;
}

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

static uint64_t match(const struct kvt_runtime *r, const struct cached *cached, const struct kvt_seq_params *params)
{
    uint64_t n = 0;
    const uint64_t limit = kvt_min_u64(cached->count, params->token_count - 1);
    for (uint32_t g = 0; g < r->shape.group_count; g++) {
        if (is_state(r, g)) return 0; /* only the last state is kept */
    }
    while (n < limit && cached->tokens[n] == params->tokens[n]) n++;
    return n - n % r->shape.block_tokens;
}

enum kvt_status kvt_seq_create(struct kvt_runtime *r, const struct kvt_seq_params *params, kvt_seq *ret_seq,
                               uint64_t *ret_reused)
{
    uint32_t id = 1;
    while (id <= SEQUENCES && r->seqs[id].is_live) id++;
    if (id > SEQUENCES) return KVT_FULL;
    struct fake_seq *seq = &r->seqs[id];
    kvt_free(seq->tokens);
    *seq = (struct fake_seq){ .is_live = true };
    seq->tokens = kvt_alloc((size_t)BLOCKS * r->shape.block_tokens, sizeof *seq->tokens);
    const struct cached *best = NULL;
    uint64_t reused = 0;
    for (uint32_t i = 0; i < r->cached; i++) {
        const uint64_t n = match(r, &r->cache[i], params);
        if (n > reused && room_for(r, seq, n) == KVT_ROOM_OK) {
            reused = n;
            best = &r->cache[i];
        }
    }
    for (uint32_t g = 0; best && g < r->shape.group_count; g++) {
        take_slots(r, seq, g, blocks_for(r, g, reused));
        for (uint32_t b = 0; b < seq->slot_count[g]; b++) {
            memcpy(slot_address(r, g, seq->slots[g][b]), best->bytes[g] + b * block_bytes(r, g), block_bytes(r, g));
        }
    }
    memcpy(seq->tokens, params->tokens, reused * sizeof *seq->tokens);
    seq->committed = reused;
    seq->unready = reused > 0 ? r->knobs.unready_begins : 0;
    *ret_seq = id;
    *ret_reused = reused;
    return KVT_OK;
}

enum kvt_status kvt_seq_append(struct kvt_runtime *r, kvt_seq id, uint64_t n, enum kvt_room *ret_room)
{
    struct fake_seq *seq = find(r, id);
    if (!seq || seq->is_idle) return KVT_INVAL;
    const uint64_t tokens = seq->committed + seq->reserved + n;
    *ret_room = is_idle_full(r) ? KVT_ROOM_FULL : room_for(r, seq, tokens);
    if (*ret_room != KVT_ROOM_OK) return KVT_OK;
    for (uint32_t g = 0; g < r->shape.group_count; g++) take_slots(r, seq, g, blocks_for(r, g, tokens));
    seq->reserved += n;
    return KVT_OK;
}

enum kvt_status kvt_seq_commit(struct kvt_runtime *r, kvt_seq id, const uint32_t *tokens, uint64_t n, uint32_t flags,
                               kvt_stream stream)
{
    (void)stream;
    struct fake_seq *seq = find(r, id);
    if (!seq || !seq->is_in_step || n > seq->reserved) return KVT_INVAL;
    memcpy(seq->tokens + seq->committed, tokens, n * sizeof *tokens);
    seq->committed += n;
    seq->reserved -= n;
    if (flags & KVT_COMMIT_SNAPSHOT) {
        r->seen.snapshots++;
        if (seq->committed % r->shape.block_tokens != 0) return KVT_INVAL;
    }
    return KVT_OK;
}

enum kvt_status kvt_seq_truncate(struct kvt_runtime *r, kvt_seq id, uint64_t tokens, const uint32_t *tail_tokens,
                                 uint64_t *ret_kept)
{
    struct fake_seq *seq = find(r, id);
    const uint64_t tail = tokens % r->shape.block_tokens;
    if (!seq || seq->is_in_step || tokens > seq->committed || (tail > 0 && !tail_tokens)) return KVT_INVAL;
    if (tail > 0 && memcmp(tail_tokens, seq->tokens + tokens - tail, tail * sizeof *tail_tokens) != 0) return KVT_INVAL;
    seq->committed = tokens;
    seq->reserved = 0;
    seq->lost_from = 0;
    for (uint32_t g = 0; g < r->shape.group_count && !seq->is_idle; g++)
        give_slots(r, seq, g, blocks_for(r, g, tokens));
    *ret_kept = tokens;
    return KVT_OK;
}

static void save_blocks(struct kvt_runtime *r, const struct fake_seq *seq, uint32_t g, uint8_t **ret_bytes)
{
    kvt_free(*ret_bytes);
    *ret_bytes = kvt_alloc((size_t)seq->slot_count[g] + 1, block_bytes(r, g));
    for (uint32_t b = 0; b < seq->slot_count[g]; b++) {
        memcpy(*ret_bytes + b * block_bytes(r, g), slot_address(r, g, seq->slots[g][b]), block_bytes(r, g));
    }
}

enum kvt_status kvt_seq_hint(struct kvt_runtime *r, kvt_seq id, const struct kvt_seq_hint *hint)
{
    (void)hint;
    return find(r, id) ? KVT_OK : KVT_INVAL;
}

enum kvt_status kvt_seq_idle(struct kvt_runtime *r, kvt_seq id)
{
    struct fake_seq *seq = find(r, id);
    if (!seq || seq->is_in_step) return KVT_INVAL;
    seq->reserved = 0;
    seq->is_idle = true;
    for (uint32_t g = 0; g < r->shape.group_count; g++) {
        save_blocks(r, seq, g, &seq->saved[g]);
        give_slots(r, seq, g, 0);
    }
    r->seen.idles++;
    return KVT_OK;
}

enum kvt_status kvt_seq_resume(struct kvt_runtime *r, kvt_seq id, enum kvt_room *ret_room)
{
    struct fake_seq *seq = find(r, id);
    if (!seq || !seq->is_idle) return KVT_INVAL;
    *ret_room = room_for(r, seq, seq->committed);
    if (*ret_room != KVT_ROOM_OK) return KVT_OK;
    for (uint32_t g = 0; g < r->shape.group_count; g++) {
        take_slots(r, seq, g, blocks_for(r, g, seq->committed));
        for (uint32_t b = 0; b < seq->slot_count[g]; b++) {
            memcpy(slot_address(r, g, seq->slots[g][b]), seq->saved[g] + b * block_bytes(r, g), block_bytes(r, g));
        }
    }
    if (r->knobs.is_flipped && !r->has_flipped) {
        slot_address(r, 0, seq->slots[0][r->knobs.flip_block])[r->knobs.flip_byte] ^= 1;
        r->has_flipped = true;
    }
    if (r->knobs.lose_from > 0 && !r->has_lost) {
        seq->lost_from = r->knobs.lose_from;
        r->has_lost = true;
    }
    seq->is_idle = false;
    seq->unready = r->knobs.unready_begins;
    r->seen.resumes++;
    return KVT_OK;
}

enum kvt_status kvt_seq_finish(struct kvt_runtime *r, kvt_seq id, bool keep)
{
    struct fake_seq *seq = find(r, id);
    if (!seq || seq->is_in_step) return KVT_INVAL;
    if (keep && !seq->is_idle && r->cached < CACHED) {
        struct cached *cached = &r->cache[r->cached++];
        cached->count = seq->committed - seq->committed % r->shape.block_tokens;
        cached->tokens = kvt_alloc(cached->count + 1, sizeof *cached->tokens);
        memcpy(cached->tokens, seq->tokens, cached->count * sizeof *cached->tokens);
        for (uint32_t g = 0; g < r->shape.group_count; g++) save_blocks(r, seq, g, &cached->bytes[g]);
    }
    for (uint32_t g = 0; g < r->shape.group_count; g++) {
        give_slots(r, seq, g, 0);
        kvt_free(seq->saved[g]);
        seq->saved[g] = NULL;
    }
    seq->is_live = false;
    r->seen.finishes++;
    return KVT_OK;
}

enum kvt_status kvt_seq_table(struct kvt_runtime *r, kvt_seq id, uint32_t group, uint32_t *ret_slots, uint64_t max,
                              uint64_t *ret_first, uint64_t *ret_count)
{
    struct fake_seq *seq = find(r, id);
    if (!seq || !seq->is_in_step) return KVT_INVAL;
    memcpy(ret_slots, seq->slots[group], kvt_min_u64(max, seq->slot_count[group]) * sizeof *ret_slots);
    *ret_first = 0;
    *ret_count = seq->slot_count[group];
    return KVT_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

void kvt_expect(struct kvt_runtime *r, const kvt_seq *seqs, const uint32_t *steps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        KVT_ASSERT(find(r, seqs[i]));
        r->seen.expected_steps_max = kvt_max_u64(r->seen.expected_steps_max, steps[i]);
    }
    r->seen.expects++;
}

enum kvt_status kvt_step_begin(struct kvt_runtime *r, struct kvt_step_entry *entries, uint32_t n, kvt_stream stream,
                               kvt_step *ret_step)
{
    if (stream != r || r->is_stepping) return KVT_INVAL;
    uint32_t ready = 0;
    r->seen.begins++;
    if (r->knobs.interrupt_at_begin && r->seen.begins == r->knobs.interrupt_begin) {
        atomic_store(r->knobs.interrupt_at_begin, true);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct fake_seq *seq = find(r, entries[i].seq);
        if (!seq || seq->is_idle) return KVT_INVAL;
        entries[i].ready = KVT_READY;
        if (seq->unready > 0 || r->knobs.is_never_ready) {
            entries[i].ready = KVT_NOT_READY;
            if (seq->unready > 0) seq->unready--;
        } else if (seq->lost_from > 0) {
            entries[i].ready = KVT_LOST;
            entries[i].lost_from = seq->lost_from;
        }
        seq->is_in_step = entries[i].ready == KVT_READY;
        ready += seq->is_in_step;
    }
    r->is_stepping = ready > 0;
    *ret_step = ready > 0;
    r->seen.step_sequences_max = kvt_max_u32(r->seen.step_sequences_max, ready);
    return KVT_OK;
}

enum kvt_status kvt_step_end(struct kvt_runtime *r, kvt_step step)
{
    if (step != 1 || !r->is_stepping) return KVT_INVAL;
    for (uint32_t i = 1; i <= SEQUENCES; i++) r->seqs[i].is_in_step = false;
    r->is_stepping = false;
    r->seen.steps += r->is_launched;
    return KVT_OK;
}

const char *kvt_stall_name(enum kvt_stall_cause cause)
{
    return cause == KVT_STALL_NVME_LINK ? "nvme_link" : "another";
}

enum kvt_stall_cause kvt_seq_stall(struct kvt_runtime *r, kvt_seq seq)
{
    return find(r, seq) ? KVT_STALL_NVME_LINK : KVT_STALL_OTHER;
}

bool kvt_wait(struct kvt_runtime *r, uint64_t timeout_ns)
{
    /* Nothing happens by itself here: whoever waits gets the time, and asks again. */
    (void)r;
    (void)poll(NULL, 0, timeout_ns > 0 ? 1 : 0);
    return true;
}

void kvt_stats(struct kvt_runtime *r, struct kvt_stats *ret_stats)
{
    *ret_stats = (struct kvt_stats){ 0 };
    for (uint32_t i = 1; i <= SEQUENCES; i++) {
        if (!r->seqs[i].is_live || r->seqs[i].is_idle) continue;
        ret_stats->slot_tokens += (uint64_t)r->seqs[i].slot_count[0] * r->shape.block_tokens;
        ret_stats->used_tokens += r->seqs[i].committed;
    }
}

/* ---- The device -------------------------------------------------------------------------------------------------- */

const char *kvt_device_name(struct kvt_runtime *r)
{
    (void)r;
    return "emulated";
}
void *kvt_device_slot(struct kvt_runtime *r, uint32_t group, uint32_t slot) { return slot_address(r, group, slot); }
uint32_t kvt_device_slots(struct kvt_runtime *r, uint32_t group)
{
    (void)group;
    return r->knobs.slots;
}
kvt_stream kvt_device_stream(struct kvt_runtime *r, uint32_t i) { return i == 0 ? r : NULL; }
enum kvt_status kvt_device_read(struct kvt_runtime *r, kvt_stream stream, uint32_t group, uint32_t slot,
                                uint64_t offset, void *host, uint64_t size_bytes)
{
    kvt_emulated_synchronize(r, stream);
    memcpy(host, (uint8_t *)slot_address(r, group, slot) + offset, size_bytes);
    return KVT_OK;
}
enum kvt_status kvt_device_write(struct kvt_runtime *r, kvt_stream stream, uint32_t group, uint32_t slot,
                                 uint64_t offset, const void *host, uint64_t size_bytes)
{
    kvt_emulated_synchronize(r, stream);
    memcpy((uint8_t *)slot_address(r, group, slot) + offset, host, size_bytes);
    return KVT_OK;
}
bool kvt_device_wait(struct kvt_runtime *r, kvt_stream stream, uint64_t timeout_ns)
{
    (void)timeout_ns;
    kvt_emulated_synchronize(r, stream);
    return true;
}
void *kvt_host_alloc(struct kvt_runtime *r, size_t size_bytes)
{
    (void)r;
    return kvt_alloc(1, size_bytes);
}
void kvt_host_free(struct kvt_runtime *r, void *memory, size_t size_bytes)
{
    (void)r;
    (void)size_bytes;
    kvt_free(memory);
}
kvt_stream kvt_emulated_stream(struct kvt_runtime *r, uint32_t i) { return i == 0 ? r : NULL; }

static void *run_job(void *user)
{
    struct kvt_runtime *r = user;
    r->run(r->user);
    return NULL;
}

enum kvt_status kvt_emulated_launch(struct kvt_runtime *r, kvt_stream stream, void (*run)(void *user), void *user)
{
    KVT_ASSERT(stream == r);
    kvt_emulated_synchronize(r, stream);
    r->run = run;
    r->user = user;
    KVT_ASSERT(pthread_create(&r->job, NULL, run_job, r) == 0);
    r->is_launched = true;
    return KVT_OK;
}

void kvt_emulated_synchronize(struct kvt_runtime *r, kvt_stream stream)
{
    (void)stream;
    if (r->is_launched) (void)pthread_join(r->job, NULL);
    r->is_launched = false;
}
