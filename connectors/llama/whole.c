/*
 * States that are not split: of a layout that is not known, with recurrent layers, or when it was asked for.
 *
 * A state is cut into parts, so that no record is large; part 0 begins with
 *     u32 "KVLW" | u32 parts | u64 bytes of the state | u32 CRC-32C of the state | u32 0
 * It can be restored at exactly the tokens it was saved at.
 */
#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"

#define MAGIC 0x574c564bu /* "KVLW" */
enum { HEADER_BYTES = 24 };

static struct kvt_key end_of(const struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    const uint64_t block = count / llama->block_tokens;
    const uint32_t rest = (uint32_t)(count % llama->block_tokens);
    return rest == 0 ? llama->chain[block] : kvt_llama_chain_end(llama, tokens, block, rest);
}

static struct kvt_key part_key(struct kvt_key end, uint32_t part)
{
    return kvt_llama_record_key(KVT_LLAMA_RECORD_WHOLE, 0, part, end);
}

static uint32_t parts_of(const struct kvt_llama *llama, uint64_t size)
{
    return (uint32_t)((size + HEADER_BYTES + llama->record_bytes - 1) / llama->record_bytes);
}

/* Part i holds what follows the parts before it; the header is in front of the first one's bytes. */
static uint32_t fill_part(struct kvt_llama *llama, size_t size, uint32_t parts, uint32_t part)
{
    size_t at = part == 0 ? 0 : part * llama->record_bytes - HEADER_BYTES;
    uint32_t length = 0;
    if (part == 0) {
        memset(llama->record, 0, HEADER_BYTES);
        kvt_store_u32(llama->record, MAGIC);
        kvt_store_u32(llama->record + 4, parts);
        kvt_store_u64(llama->record + 8, size);
        kvt_store_u32(llama->record + 16, kvt_crc32c(0, llama->staging, size));
        length = HEADER_BYTES;
    }
    const uint32_t bytes = (uint32_t)kvt_min_u64(llama->record_bytes - length, size - at);
    memcpy(llama->record + length, llama->staging + at, bytes);
    return length + bytes;
}

static uint64_t forget_parts(struct kvt_llama *llama, struct kvt_key end)
{
    uint32_t part = 0;
    while (kvt_llama_vault_forget(llama->vault, part_key(end, part))) part++;
    return part;
}

enum kvt_status kvt_llama_save_whole(struct kvt_llama *llama, int32_t seq, const int32_t *tokens, uint64_t count,
                                     size_t size)
{
    struct kvt_llama_vault_stats vault;
    kvt_llama_vault_stats(llama->vault, &vault);
    const uint64_t cap = kvt_max_u64(vault.host.capacity_bytes, vault.has_store ? vault.store.capacity_bytes : 0);
    if (size > cap) {
        llama->stats.too_large++;
        kvt_log(&llama->env, KVT_LOG_WARN, "a state of %llu bytes is not kept: the larger cap is %llu bytes",
                (unsigned long long)size, (unsigned long long)cap);
        return KVT_FULL;
    }
    KVT_TRY(kvt_llama_chain(llama, tokens, count));
    const struct kvt_key end = end_of(llama, tokens, count);
    const uint32_t parts = parts_of(llama, size);
    bool is_whole = true;
    for (uint32_t part = 0; part < parts && is_whole; part++)
        is_whole = kvt_llama_vault_has(llama->vault, part_key(end, part));
    /* Parts of two saves make no state: another sequence's differs in its bytes. */
    for (uint32_t part = 0; part < parts && !is_whole; part++)
        (void)kvt_llama_vault_forget(llama->vault, part_key(end, part));
    for (uint32_t part = 0; part < parts; part++) {
        if (kvt_llama_vault_has(llama->vault, part_key(end, part))) {
            llama->stats.shared_blocks++;
            continue;
        }
        const uint32_t length = fill_part(llama, size, parts, part);
        KVT_TRY(kvt_llama_vault_put(llama->vault, part_key(end, part), llama->record, length, true));
        llama->stats.saved_blocks++;
        llama->stats.raw_bytes += length;
        llama->stats.packed_bytes += length;
    }
    const uint64_t before = llama->seqs[seq].saved_tokens;
    for (uint32_t part = 0; before > 0 && before < count && part < parts; part++)
        kvt_llama_vault_outdate(llama->vault, part_key(end_of(llama, tokens, before), part));
    llama->seqs[seq].saved_tokens = count;
    return KVT_OK;
}

uint64_t kvt_llama_match_whole(struct kvt_llama *llama, const int32_t *tokens, uint64_t tokens_max)
{
    if (kvt_llama_chain(llama, tokens, tokens_max) != KVT_OK) return 0;
    uint64_t count = tokens_max;
    while (count > 0 && !kvt_llama_vault_has(llama->vault, part_key(end_of(llama, tokens, count), 0))) count--;
    return count;
}

struct joining {
    struct kvt_llama *llama;
    size_t size;
    uint32_t parts, crc, taken;
};

static bool take_first(void *user, uint32_t i, const uint8_t *bytes, uint32_t length)
{
    struct joining *joining = user;
    (void)i;
    if (!bytes || length < HEADER_BYTES || kvt_load_u32(bytes) != MAGIC) return false;
    const uint64_t size = kvt_load_u64(bytes + 8);
    if (size == 0 || size > SIZE_MAX / 2 || parts_of(joining->llama, size) != kvt_load_u32(bytes + 4)) return false;
    if (length - HEADER_BYTES != kvt_min_u64(size, joining->llama->record_bytes - HEADER_BYTES)) return false;
    if (kvt_llama_staging(joining->llama, (size_t)size) != KVT_OK) return false;
    joining->size = (size_t)size;
    joining->parts = kvt_load_u32(bytes + 4);
    joining->crc = kvt_load_u32(bytes + 16);
    joining->taken = 1;
    memcpy(joining->llama->staging, bytes + HEADER_BYTES, length - HEADER_BYTES);
    return true;
}

static bool take_next(void *user, uint32_t i, const uint8_t *bytes, uint32_t length)
{
    struct joining *joining = user;
    const size_t at = (i + 1) * joining->llama->record_bytes - HEADER_BYTES;
    if (!bytes || length != kvt_min_u64(joining->llama->record_bytes, joining->size - at)) return false;
    memcpy(joining->llama->staging + at, bytes, length);
    joining->taken++;
    return true;
}

/* The state at end, into staging. False: it is not all there, or not what was saved. */
static bool join_parts(struct kvt_llama *llama, struct kvt_key end, size_t *ret_size)
{
    struct joining joining = { .llama = llama };
    const struct kvt_key first = part_key(end, 0);
    kvt_llama_vault_get(llama->vault, &first, 1, take_first, &joining);
    if (joining.taken == 0) return false;
    struct kvt_key *keys = kvt_alloc(joining.parts, sizeof *keys);
    if (!keys) return false;
    for (uint32_t part = 1; part < joining.parts; part++) keys[part - 1] = part_key(end, part);
    kvt_llama_vault_get(llama->vault, keys, joining.parts - 1, take_next, &joining);
    kvt_free(keys);
    *ret_size = joining.size;
    return joining.taken == joining.parts && kvt_crc32c(0, llama->staging, joining.size) == joining.crc;
}

enum kvt_status kvt_llama_restore_whole(struct kvt_llama *llama, int32_t seq, const int32_t *tokens,
                                        uint64_t tokens_max, uint64_t *ret_tokens)
{
    *ret_tokens = 0;
    for (;;) {
        const uint64_t found = kvt_llama_match_whole(llama, tokens, tokens_max);
        if (found == 0) return KVT_OK;
        const struct kvt_key end = end_of(llama, tokens, found);
        size_t size;
        if (!join_parts(llama, end, &size)) {
            (void)forget_parts(llama, end);
            (void)kvt_llama_vault_forget(llama->vault, part_key(end, 0));
            continue;
        }
        if (kvt_llama_hand_over(llama, seq, llama->staging, size, found)) {
            *ret_tokens = found;
            return KVT_OK;
        }
        if (!kvt_llama_has_room(llama, seq, found)) return KVT_FULL;
        (void)forget_parts(llama, end);
        llama->stats.refused_restores++;
        kvt_log(&llama->env, KVT_LOG_WARN, "the engine refused a state of %llu tokens: it is forgotten, serving a miss",
                (unsigned long long)found);
        return KVT_OK;
    }
}

uint64_t kvt_llama_forget_whole(struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    uint64_t forgotten = 0;
    if (kvt_llama_chain(llama, tokens, count) != KVT_OK) return 0;
    for (uint64_t n = 1; n <= count; n++) forgotten += forget_parts(llama, end_of(llama, tokens, n));
    return forgotten;
}
