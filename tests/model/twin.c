#include "tests/model/twin.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define CAPACITY_MIN 1024u

static uint64_t mix(uint64_t a, uint64_t b)
{
    return kvt_mix64(a * 0x9e3779b97f4a7c15u + kvt_mix64(b + 0x632be59bd9b4e019u));
}

void twin_init(struct twin *twin, const struct kvt_model_shape *shape)
{
    *twin = (struct twin){ .shape = *shape, .capacity = CAPACITY_MIN };
    twin->sealed = kvt_alloc(twin->capacity, sizeof *twin->sealed);
    KVT_ASSERT(twin->sealed != NULL);
}

void twin_done(struct twin *twin)
{
    kvt_free(twin->sealed);
    twin->sealed = NULL;
}

void twin_begin(struct twin_sequence *sequence, uint32_t salt)
{
    memset(sequence, 0, sizeof *sequence);
    sequence->is_live = true;
    sequence->salt = salt;
    sequence->past[0] = mix(1, salt);
}

void twin_push(struct twin_sequence *sequence, uint32_t id)
{
    const uint32_t i = sequence->tokens++;
    KVT_ASSERT(i < TWIN_TOKENS_MAX);
    sequence->ids[i] = id;
    sequence->value[i] = mix(sequence->past[i], id);
    sequence->past[i + 1] = sequence->value[i];
    if (sequence->prompt < sequence->tokens) sequence->prompt = sequence->tokens;
}

void twin_cut(const struct twin *twin, struct twin_sequence *sequence, uint32_t tokens)
{
    const uint32_t block_tokens = twin->shape.block_tokens;
    for (uint32_t i = (tokens + block_tokens - 1) / block_tokens; i <= TWIN_TOKENS_MAX; i++)
        sequence->dropped_at[i] = 0;
    sequence->tokens = tokens;
    sequence->prompt = tokens;
    if (sequence->last_drop > tokens) sequence->last_drop = 0;
}

bool twin_drop(struct twin_sequence *sequence, uint32_t from, uint32_t to, uint32_t sinks, uint32_t window)
{
    bool is_dropped = false;
    for (uint32_t i = from; i < to; i++) {
        if (sequence->dropped_at[i]) continue;
        sequence->dropped_at[i] = sequence->tokens;
        is_dropped = true;
    }
    if (!is_dropped) return false;
    uint64_t *past = &sequence->past[sequence->tokens];
    *past = mix(mix(*past ^ 0x64726f70, sinks), window);
    sequence->last_drop = sequence->tokens;
    return true;
}

uint64_t twin_block_value(const struct twin *twin, const struct twin_sequence *sequence, uint32_t i)
{
    return sequence->value[(i + 1) * twin->shape.block_tokens - 1];
}

static uint64_t *place(const struct twin *twin, uint64_t mark)
{
    uint32_t i = (uint32_t)(mark & (twin->capacity - 1));
    while (twin->sealed[i] != 0 && twin->sealed[i] != mark) i = (i + 1) & (twin->capacity - 1);
    return &twin->sealed[i];
}

static uint64_t mark_of(uint32_t group, uint64_t value) { return mix(value, group) | 1; }

static void grow(struct twin *twin)
{
    struct twin next = *twin;
    next.capacity *= 2;
    next.sealed = kvt_alloc(next.capacity, sizeof *next.sealed);
    KVT_ASSERT(next.sealed != NULL);
    for (uint32_t i = 0; i < twin->capacity; i++) {
        if (twin->sealed[i]) *place(&next, twin->sealed[i]) = twin->sealed[i];
    }
    kvt_free(twin->sealed);
    *twin = next;
}

static void add(struct twin *twin, uint64_t mark)
{
    uint64_t *at = place(twin, mark);
    if (*at) return;
    *at = mark;
    if (++twin->count > twin->capacity / 2) grow(twin);
}

void twin_seal(struct twin *twin, uint32_t group, uint64_t value) { add(twin, mark_of(group, value)); }

bool twin_was_sealed(const struct twin *twin, uint32_t group, uint64_t value)
{
    return *place(twin, mark_of(group, value)) != 0;
}

void twin_forget(struct twin *twin)
{
    memset(twin->sealed, 0, twin->capacity * sizeof *twin->sealed);
    twin->count = 0;
}

void twin_add(struct twin *twin, const struct twin *other)
{
    for (uint32_t i = 0; i < other->capacity && other->count > 0; i++) {
        if (other->sealed[i]) add(twin, other->sealed[i]);
    }
}

uint32_t twin_first_needed(const struct twin *twin, uint32_t group, uint32_t tokens)
{
    const struct kvt_group_shape *shape = &twin->shape.groups[group];
    if (shape->kind != KVT_GROUP_WINDOW || tokens <= shape->window_tokens) return 0;
    return (tokens - shape->window_tokens) / twin->shape.block_tokens;
}

uint32_t twin_sink_blocks(const struct twin *twin, uint32_t group)
{
    const struct kvt_group_shape *shape = &twin->shape.groups[group];
    if (shape->kind != KVT_GROUP_WINDOW) return 0;
    return (shape->sink_tokens + twin->shape.block_tokens - 1) / twin->shape.block_tokens;
}

bool twin_is_prefix(const struct twin *twin, const struct twin_sequence *sequence, uint32_t blocks)
{
    if (blocks == 0) return true;
    for (uint32_t g = 0; g < twin->shape.group_count; g++) {
        if (twin->shape.groups[g].kind == KVT_GROUP_STATE) {
            if (!twin_was_sealed(twin, g, twin_block_value(twin, sequence, blocks - 1))) return false;
            continue;
        }
        const uint32_t first = twin_first_needed(twin, g, blocks * twin->shape.block_tokens);
        for (uint32_t i = 0; i < blocks; i++) {
            if (i < first && i >= twin_sink_blocks(twin, g)) continue;
            if (!twin_was_sealed(twin, g, twin_block_value(twin, sequence, i))) return false;
        }
    }
    return true;
}

void twin_row(uint64_t value, uint32_t group, uint32_t segment, uint8_t *ret_bytes, uint32_t size)
{
    uint64_t state = mix(value, group * 64 + segment);
    for (uint32_t i = 0; i < size; i += 8) {
        /* Four bf16 numbers whose exponents differ little, as KV has them. */
        const uint64_t random = kvt_mix64(state += 0x9e3779b97f4a7c15u);
        uint64_t word = (random & 0x807f807f807f807fu) | 0x3b803b803b803b80u | ((random >> 3) & 0x0080018000800180u);
        memcpy(ret_bytes + i, &word, kvt_min_u32(8, size - i));
    }
}
