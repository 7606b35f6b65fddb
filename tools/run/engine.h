/*
 * engine: the "model" of a run. Its kernels write the KV of new tokens into device slots and read the KV that they
 *         attend to.
 *
 * One step is one job on an engine stream of an emulated device: for each sequence in it, read what it attends to,
 * write the new tokens' rows and the new state, and check whole blocks where asked; then sleep until the step's time is
 * over. The job runs asynchronously, as a kernel would: the caller commits and ends the step while it is still running,
 * and then waits for it as an engine waits for its sampled tokens.
 *
 * On a CUDA device the job is a row of copies on the stream: what the step attends to comes to pinned memory and is compared when
 * the step is waited for, and new rows are made there and copied to their slots.
 *
 * Owns:    the arrays of one step, grown to the largest step seen.
 * Thread:  one caller; the job runs on the stream's thread between launch and wait, when the caller does not touch it.
 * Fails:   NOMEM, and what the runtime's calls return.
 */
#ifndef KVT_TOOLS_RUN_ENGINE_H
#define KVT_TOOLS_RUN_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"
#include "tools/run/content.h"

enum kvt_verify { KVT_VERIFY_FULL, KVT_VERIFY_SAMPLE, KVT_VERIFY_OFF };
enum kvt_read { KVT_READ_LINE, KVT_READ_FULL };

struct kvt_engine_options {
    enum kvt_verify verify;
    enum kvt_read read;
    uint64_t step_ns;                  /* a step takes at least so long; 0: as long as its bytes take */
    const atomic_bool *is_interrupted; /* shared: set by a signal handler; a step then stops sleeping */
};

/* One sequence of a step: `committed` tokens are there, `count` follow. */
struct kvt_engine_item {
    kvt_seq seq;
    uint32_t request; /* its name in messages */
    uint64_t committed, count;
    const uint64_t *identities; /* committed + count of them; borrowed until the wait */
    /* its blocks were fetched or found: check what it attends to wholly, before the step */
    bool is_back;
    bool is_last; /* check all of it wholly, after the step */
};

enum { KVT_MISMATCHES_KEPT = 16 };

struct kvt_mismatch {
    uint32_t request, group;
    uint64_t block;  /* index in the sequence */
    uint64_t offset; /* first byte that differs; KVT_CONTENT_SAME: the block has no slot */
};

/* What the steps so far found. */
struct kvt_engine_counts {
    uint64_t blocks_checked; /* whole blocks compared */
    uint64_t lines_checked;  /* headers with a line compared */
    uint64_t mismatches;
    struct kvt_mismatch kept[KVT_MISMATCHES_KEPT]; /* the first ones */
};

/* Counts a mismatch, and keeps it while there is room. */
void kvt_engine_count_mismatch(struct kvt_engine_counts *counts, const struct kvt_mismatch *mismatch);
/* Adds what another one found. */
void kvt_engine_counts_add(struct kvt_engine_counts *counts, const struct kvt_engine_counts *more);

struct kvt_engine;

/* runtime, content and options are borrowed until destroy. UNSUPPORTED: the device gives no stream. */
KVT_NODISCARD enum kvt_status kvt_engine_create(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                                const struct kvt_content *content,
                                                const struct kvt_engine_options *options,
                                                struct kvt_engine **ret_engine);
void kvt_engine_destroy(struct kvt_engine **engine); /* nothing launched is unfinished */

/* The stream that the steps run on. */
kvt_stream kvt_engine_stream(const struct kvt_engine *engine);

/* Between kvt_step_begin and launch: takes one ready sequence into the step; its tables are read here. */
KVT_NODISCARD enum kvt_status kvt_engine_add(struct kvt_engine *engine, const struct kvt_engine_item *item);

/* Submits the step's job to the stream. */
KVT_NODISCARD enum kvt_status kvt_engine_launch(struct kvt_engine *engine);

/* When the job began (after the fetches that it was ordered behind) and ended; CLOCK_MONOTONIC. */
struct kvt_engine_times {
    uint64_t launched_ns, started_ns, ended_ns;
};

/* Waits for the job. False, with nothing changed, when timeout_ns passed before it ended. */
bool kvt_engine_wait(struct kvt_engine *engine, uint64_t timeout_ns, struct kvt_engine_times *ret_times);

/* Counts of the steps that were waited for. */
const struct kvt_engine_counts *kvt_engine_counts(const struct kvt_engine *engine);

/*
 * Blocks that a sequence of so many tokens, growing by at most `chunk` at once, can claim of the group's pool at a
 * time.
 */
uint64_t kvt_engine_blocks_claimed(const struct kvt_model_shape *shape, uint32_t group, uint64_t tokens,
                                   uint64_t chunk);

#endif
