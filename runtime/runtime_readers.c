/* runtime_readers: the public calls on readers: handles, the lock, and the core's functions. */
#include "runtime/reader.h"

#include "runtime/runtime.h"

/* Begins a call on one reader: leaves the calling function when that is impossible. */
#define BEGIN_READER(runtime, id, reader)                              \
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;            \
    kvt_runtime_lock(runtime);                                         \
    struct kvt_reader *reader = kvt_reader_of(&(runtime)->core, (id)); \
    if (!reader) {                                                     \
        kvt_runtime_unlock(runtime);                                   \
        return KVT_INVAL;                                              \
    }

static enum kvt_status end_call(struct kvt_runtime *runtime, enum kvt_status status)
{
    kvt_runtime_unlock(runtime);
    return status;
}

enum kvt_status kvt_seq_stream(struct kvt_runtime *runtime, kvt_seq seq)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    struct kvt_sequence *sequence = kvt_sequence_of(&runtime->core, seq);
    return end_call(runtime, sequence ? kvt_sequence_stream(&runtime->core, sequence) : KVT_INVAL);
}

enum kvt_status kvt_reader_open(struct kvt_runtime *runtime, kvt_seq seq, uint32_t group, uint32_t slots,
                                enum kvt_room *ret_room, kvt_reader_id *ret_reader)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    struct kvt_sequence *sequence = kvt_sequence_of(&runtime->core, seq);
    if (!sequence) return end_call(runtime, KVT_INVAL);
    return end_call(runtime, kvt_reader_take(&runtime->core, sequence, group, slots, ret_room, ret_reader));
}

enum kvt_status kvt_reader_begin(struct kvt_runtime *runtime, kvt_reader_id id, uint32_t layer, uint64_t first,
                                 uint64_t end)
{
    BEGIN_READER(runtime, id, reader)
    return end_call(runtime, kvt_reader_pass(&runtime->core, reader, layer, first, end));
}

enum kvt_status kvt_reader_next(struct kvt_runtime *runtime, kvt_reader_id id, kvt_stream stream, uint32_t *ret_chunks,
                                uint32_t max, struct kvt_piece *ret_piece)
{
    BEGIN_READER(runtime, id, reader)
    uint32_t number = 0;
    enum kvt_status status = kvt_runtime_stream_number(runtime, stream, &number);
    if (status == KVT_OK) status = kvt_reader_next_piece(&runtime->core, reader, number, ret_chunks, max, ret_piece);
    return end_call(runtime, status);
}

enum kvt_status kvt_reader_close(struct kvt_runtime *runtime, kvt_reader_id *id)
{
    if (kvt_runtime_is_child(runtime)) return KVT_SHUTDOWN;
    kvt_runtime_lock(runtime);
    struct kvt_reader *reader = kvt_reader_of(&runtime->core, *id);
    if (reader) {
        const struct kvt_sequence *sequence = kvt_sequence_of(&runtime->core, reader->seq);
        if (sequence && sequence->step != UINT32_MAX) return end_call(runtime, KVT_INVAL);
        kvt_reader_give(&runtime->core, reader);
    }
    *id = 0;
    return end_call(runtime, KVT_OK);
}
