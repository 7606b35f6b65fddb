#include "tiers/store_verify.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/crc32c.h"
#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "tiers/store_private.h"

#define LISTED_BATCH 64

struct verify {
    struct kvt_store *store;
    const struct kvt_store_verify *how;
    uint8_t *bytes, *record; /* as handed back; as it lies in the file */
    uint32_t length_max;
    uint64_t record_bytes_max;
    int file; /* of the segment that was looked at last; -1: none */
    uint32_t segment;
};

static void get(struct verify *verify, const struct kvt_store_listed *listed, struct kvt_store_op *ret_op)
{
    *ret_op = (struct kvt_store_op){ .kind = KVT_STORE_GET,
                                     .name = listed->name,
                                     .generation = listed->generation,
                                     .buffer = verify->bytes,
                                     .length = verify->length_max };
    struct kvt_store_op *const ops[] = { ret_op };
    struct kvt_store_op *done;
    const uint32_t accepted = kvt_store_submit(verify->store, ops, 1);
    KVT_ASSERT(accepted == 1); /* nothing else is in flight */
    while (kvt_store_poll(verify->store, &done, 1) == 0) (void)kvt_store_wait(verify->store, UINT64_MAX);
    KVT_ASSERT(done == ret_op);
}

/* ---- The second reader ------------------------------------------------------------------------------------------- */

static bool open_segment(struct verify *verify, uint32_t segment)
{
    if (verify->file >= 0 && verify->segment == segment) return true;
    if (verify->file >= 0) (void)close(verify->file);
    char name[24];
    kvt_segment_name(segment, name);
    verify->segment = segment;
    verify->file = openat(verify->store->directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return verify->file >= 0;
}

static bool read_record(struct verify *verify, const struct kvt_store_entry *entry)
{
    const uint64_t size = kvt_store_stored_bytes(entry->length, verify->store->alignment);
    const uint64_t offset = (uint64_t)entry->offset_units * KVT_STORE_UNIT_BYTES;
    if (size > verify->record_bytes_max || !open_segment(verify, entry->segment)) return false;
    for (uint64_t at = 0; at < size;) {
        const ssize_t got = pread(verify->file, verify->record + at, size - at, (off_t)(offset + at));
        if (got <= 0) return false;
        at += (uint64_t)got;
    }
    return true;
}

/* The record lies in its file with these bytes, and its checksums hold. Of an encrypted one the sealed bytes are summed. */
static bool is_in_file(struct verify *verify, const struct kvt_store_listed *listed)
{
    struct kvt_store *store = verify->store;
    pthread_mutex_lock(&store->lock);
    const struct kvt_store_entry *found = kvt_store_index_find(&store->index, kvt_name_of(&listed->name));
    const struct kvt_store_entry entry = found ? *found : (struct kvt_store_entry){ 0 };
    pthread_mutex_unlock(&store->lock);
    if (!found || !read_record(verify, &entry)) return false;
    struct kvt_record_header header;
    memcpy(&header, verify->record, sizeof header);
    const uint8_t *payload = verify->record + kvt_store_payload_at(entry.length, store->alignment);
    if (header.magic != KVT_RECORD_MAGIC
        || header.crc != kvt_crc32c(0, &header, offsetof(struct kvt_record_header, crc)))
        return false;
    if (memcmp(&header.name, &entry.name, sizeof header.name) != 0 || header.generation != listed->generation
        || header.length != entry.length || header.form != listed->form || header.tokens != listed->tokens)
        return false;
    if (kvt_crc32c(0, payload, entry.length) != header.payload_crc) return false;
    return store->seal || memcmp(payload, verify->bytes, entry.length) == 0;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static bool is_right(struct verify *verify, const struct kvt_store_listed *listed, const struct kvt_store_op *op)
{
    const struct kvt_store_verify *how = verify->how;
    if (op->ret_length != listed->length || op->ret_form != listed->form || op->ret_tokens != listed->tokens
        || op->ret_generation != listed->generation)
        return false;
    if (how->is_right && !how->is_right(how->user, listed, verify->bytes)) return false;
    return !how->looks_itself || is_in_file(verify, listed);
}

static void verify_one(struct verify *verify, const struct kvt_store_listed *listed, struct kvt_store_verified *sum)
{
    struct kvt_store_op op;
    get(verify, listed, &op);
    if (op.status == KVT_NOTFOUND) {
        sum->unreachable++;
    } else if (op.status != KVT_OK) {
        sum->refused++;
        if (verify->how->refused) verify->how->refused(verify->how->user, listed, op.status);
    } else if (is_right(verify, listed, &op)) {
        sum->good++;
    } else {
        sum->served_bad++;
    }
}

enum kvt_status kvt_store_verify(struct kvt_store *store, const struct kvt_store_verify *how,
                                 struct kvt_store_verified *ret_verified)
{
    KVT_ASSERT(!how->looks_itself || !store->stripes);
    struct verify verify = { .store = store, .how = how, .length_max = kvt_store_length_max(store), .file = -1 };
    verify.bytes = kvt_table_map(verify.length_max);
    if (how->looks_itself) {
        const uint64_t length_max = (uint64_t)verify.length_max + store->seal_bytes;
        verify.record_bytes_max = kvt_store_stored_bytes((uint32_t)length_max, store->alignment);
        verify.record = kvt_table_map(verify.record_bytes_max);
    }
    struct kvt_store_verified sum = { 0 };
    const bool has_memory = verify.bytes && (verify.record || !how->looks_itself);
    if (has_memory) {
        struct kvt_store_listed listed[LISTED_BATCH];
        uint64_t cursor = 0;
        uint32_t n;
        while ((n = kvt_store_list(store, &cursor, listed, LISTED_BATCH)) > 0) {
            for (uint32_t i = 0; i < n; i++) verify_one(&verify, &listed[i], &sum);
            if (how->progress) how->progress(how->user, kvt_store_verified_count(&sum));
        }
        *ret_verified = sum;
    }
    if (verify.file >= 0) (void)close(verify.file);
    kvt_table_unmap(verify.bytes, verify.length_max);
    kvt_table_unmap(verify.record, verify.record_bytes_max);
    return has_memory ? KVT_OK : KVT_NOMEM;
}
