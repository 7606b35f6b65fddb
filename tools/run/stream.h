/*
 * stream: a request whose KV the device does not hold, from its first token to its last.
 *
 * Its sequence is streamed (kvt_seq_stream): the prompt is written chunk by chunk, and what is full leaves the device
 * while the next chunk is computed. A step that decodes goes through the layers; of each it reads the layer's part of
 * every block through a window of a few device slots, piece by piece: a kernel on the engine's stream verifies the
 * piece's bytes, attends to it, and merges its partial result into the layer's (kernels/attention.h).
 *
 * In the first and the last step that decodes, every byte of every block is verified, and each layer's result is
 * compared with a softmax in double precision over the bytes that all its tokens must have: what attention over
 * everything at once would give.
 *
 * Owns:    the window, and what the kernels of one pass work on.
 * Thread:  one caller; kernels run on the stream's thread, and touch what the caller does not touch meanwhile.
 * Fails:   by ending the run (schedule.h).
 */
#ifndef KVT_TOOLS_RUN_STREAM_H
#define KVT_TOOLS_RUN_STREAM_H

#include "kvtier/kvtier.h"
#include "tools/run/content.h"
#include "tools/run/engine.h"

/* Of the largest value of a head's result: what the result in pieces may differ by. */
#define KVT_STREAM_ERROR_MAX 1e-3

struct kvt_stream_counts {
    uint64_t requests;   /* that ran this way */
    uint64_t tokens_max; /* longest context that was attended to in pieces */
    uint64_t bytes_max;  /* its KV */
    uint64_t passes, pieces;
    uint64_t chunks;                 /* layers of blocks that were read */
    uint64_t chunks_verified;        /* of them with every byte compared */
    struct kvt_engine_counts checks; /* a block counts as whole when all its layers were compared */
    uint64_t results;                /* attention results that were compared with the reference */
    double error_max;                /* the largest difference */
    uint32_t slots_max;              /* of a window */
};

struct kvt_streamer;
struct kvt_schedule;
struct kvt_conversation;

/* All borrowed until destroy. UNSUPPORTED: not an emulated device. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_streamer_create(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                                  const struct kvt_content *content,
                                                  const struct kvt_engine_options *options,
                                                  struct kvt_streamer **ret_streamer);
void kvt_streamer_destroy(struct kvt_streamer **streamer);

/* For kvt_schedule_options.on_larger; the user is the streamer. */
bool kvt_streamer_run(void *user, struct kvt_schedule *schedule, struct kvt_conversation *conversation);

const struct kvt_stream_counts *kvt_streamer_counts(const struct kvt_streamer *streamer);

#endif
