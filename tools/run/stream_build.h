/* stream_build: what stream.c (a request's steps) and stream_attend.c (the passes of a step) share. */
#ifndef KVT_TOOLS_RUN_STREAM_BUILD_H
#define KVT_TOOLS_RUN_STREAM_BUILD_H

#include <pthread.h>

#include "kernels/attention.h"
#include "tools/run/schedule_build.h"
#include "tools/run/stream.h"

enum {
    KVT_STREAM_JOBS = 4,        /* kernels in flight */
    KVT_STREAM_QUERY_RATIO = 4, /* query heads of a KV head */
    KVT_STREAM_SLOTS_MAX = 32   /* of a window */
};

/* A kernel: one piece of a pass. */
struct kvt_stream_job {
    struct kvt_streamer *streamer;
    uint32_t *chunks; /* [chunks_max] */
    uint32_t count;
    uint64_t first; /* block number */
};

/* The pass that is under way. */
struct kvt_stream_pass {
    uint32_t group, layer;
    uint64_t tokens;            /* that are attended to */
    const uint64_t *identities; /* of these */
    uint32_t request;
    bool is_whole; /* every byte is verified */
};

struct kvt_streamer {
    struct kvt_runtime *runtime;
    const struct kvt_model_shape *shape;
    const struct kvt_content *content;
    const struct kvt_engine_options *options;
    const struct kvt_attention_ops *attention;
    kvt_stream stream;

    struct kvt_reader_id_of {
        kvt_reader_id id;
        uint32_t slots; /* of its window */
        uint32_t share; /* slots that the group has of its pool */
    } readers[KVT_GROUPS_MAX];
    uint32_t chunks_max; /* of a piece */
    struct kvt_stream_job jobs[KVT_STREAM_JOBS];
    struct kvt_stream_pass pass;
    float *query, *out, *lse, *piece_out, *piece_lse; /* of one layer; the stream's while kernels are in flight */
    struct kvt_stream_counts counts;                  /* likewise */
    double *weights;                                  /* of the reference: [heads][weights_capacity] */
    uint64_t weights_capacity;
    uint64_t stalled_ns; /* of all stalls so far, when the last step ended */

    /* The tokens that a step writes. */
    uint32_t *slots;
    uint64_t slots_capacity, slots_first[KVT_GROUPS_MAX], slots_at[KVT_GROUPS_MAX];
    uint64_t write_from, write_end;

    pthread_mutex_t mutex;
    pthread_cond_t done;
    uint64_t launched, ended; /* kernels; ended is shared: under mutex */
};

/* What became of going through all layers. */
enum kvt_attended { KVT_ATTENDED, KVT_ATTENDED_LOST, KVT_ATTENDED_RUN_ENDS };

/* In a step: attends to all committed tokens of the conversation, in every group and layer. */
enum kvt_attended kvt_stream_attend(struct kvt_streamer *streamer, struct kvt_schedule *s, struct kvt_conversation *c,
                                    bool is_checked, uint64_t *ret_lost_from);

/* Launches run(user) on the stream; with as many in flight as may be, waits for one first. */
enum kvt_status kvt_stream_launch(struct kvt_streamer *streamer, void (*run)(void *user), void *user);
/* Called by a kernel at its end. */
void kvt_stream_job_ended(struct kvt_streamer *streamer);
/* Waits until no kernel is in flight. */
void kvt_stream_drain(struct kvt_streamer *streamer);

#endif
