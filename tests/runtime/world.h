/*
 * world: a runtime in one thread that does nothing by itself, and an engine that can tell every byte.
 *
 * The device is emulated; its streams run when a call pumps the runtime (copies, unless a test gates them) or when the
 * test cranks them (kernels). The clock stands still until the test moves it. The disk is in memory
 * (tests/fakes/io_faulty) unless the test wants a real directory.
 *
 * The KV of a token is a function of it and of all tokens before it, as in a model. So a kernel that reads a block can
 * tell whether each row is the row of exactly its tokens; what is wrong is counted in `wrong`.
 */
#ifndef KVT_TESTS_RUNTIME_WORLD_H
#define KVT_TESTS_RUNTIME_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_emulated.h"
#include "kvtier/kvtier.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "runtime/runtime.h"
#include "tests/fakes/io_faulty.h"
#include "tiers/device_tier.h"

enum { BLOCK_TOKENS = 16, BLOCK_BYTES = 4096, TEXT_TOKENS_MAX = 1024, ROUNDS_MAX = 400 };

#define SECOND (UINT64_C(1000000000))

/* Tokens, and what they make of each other: chain[i] names the KV of token i. */
struct text {
    uint64_t count;
    uint32_t tokens[TEXT_TOKENS_MAX];
    uint64_t chain[TEXT_TOKENS_MAX];
};

struct world {
    char directory[64]; /* of its own; the store's is "kv" in it */
    char path[80];
    struct io_faulty_image *image; /* NULL: real files, or no nvme tier */
    struct kvt_env env;
    struct kvt_config config;
    struct kvt_runtime *runtime;
    struct kvt_gpu *gpu;
    uint64_t now_ns;
    uint64_t rows_checked, rows_wrong;
    char error[256];
};

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

/* One full group, device_slots blocks in HBM, host_slots in host memory (0: no host tier), and no nvme tier. */
void world_init(struct world *world, uint32_t device_slots, uint32_t host_slots);
/* Before open: an nvme tier of nvme_bytes on a disk in memory. host_slots as given to init. */
void world_add_disk(struct world *world, uint32_t host_slots, uint64_t nvme_bytes);
enum kvt_status world_try_open(struct world *world);
void world_open(struct world *world);
/* Verifies, closes, removes the directory. No row may have been wrong. */
void world_close(struct world *world);
/* Closes and opens again, on the same directory. */
void world_reopen(struct world *world);
/* Closes only the runtime. */
void world_shut(struct world *world);

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* n random tokens. */
void text_make(struct text *text, uint64_t seed, uint64_t n);
/* As far as `shared` tokens equal to those of `from`, then n - shared others. */
void text_branch(struct text *text, const struct text *from, uint64_t shared, uint64_t seed, uint64_t n);
/* Replaces the tokens from `at` on. */
void text_change(struct text *text, uint64_t at, uint64_t seed, uint64_t n);

/* ---- Time and turns ---------------------------------------------------------------------------------------------- */

struct kvt_core *world_core(struct world *world);
/* Calls into the runtime: completions are taken, transfers started, ungated copy streams run. */
void world_pump(struct world *world, uint32_t rounds);
void world_advance(struct world *world, uint64_t ns);
/* Gates one of the device tier's streams (KVT_DEVICE_STREAM_STASH, KVT_DEVICE_STREAM_FETCH). */
void world_gate(struct world *world, uint32_t stream, bool is_closed);
/* The gpu's number of the engine's i-th stream. */
uint32_t world_stream(struct world *world, uint32_t i);
/* Runs the kernels of the engine's stream i, as far as they can. */
void world_crank(struct world *world, uint32_t i);
/* Pumps and cranks until no transfer is in flight. Fails when that does not come. */
void world_settle(struct world *world);
/* Everything recounted; asserts inside. */
void world_verify(struct world *world);
/*
 * No sequence is live and nothing is in flight: nothing may be held, claimed, read, quarantined, or counted as on its
 * way.
 */
void world_verify_idle(struct world *world);
struct kvt_stats world_stats(struct world *world);

/* ---- The engine -------------------------------------------------------------------------------------------------- */

/* Creates a sequence for n tokens of the text (n at most text->count). Returns what was reused. */
uint64_t world_create(struct world *world, const struct text *text, uint64_t n, bool is_idle, kvt_seq *ret_seq);
/* Asks for room until it is there, is refused, or ROUNDS_MAX pumps have passed. */
enum kvt_room world_reserve(struct world *world, kvt_seq seq, uint64_t n);
enum kvt_room world_append(struct world *world, kvt_seq seq, uint64_t n); /* asks once */
enum kvt_room world_resume(struct world *world, kvt_seq seq);
/* Begins a step with it once it is ready, or ends after ROUNDS_MAX pumps. */
enum kvt_ready world_begin(struct world *world, kvt_seq seq, uint32_t stream, kvt_step *ret_step,
                           uint64_t *ret_lost_from);
/* In a step: what is submitted to the stream from now on comes after the layer's load. */
void world_wait_layer(struct world *world, kvt_step step, uint32_t group, uint32_t layer, uint32_t stream);
/* Once. A sequence that is LANDING counts as ready: the stream then waits for all of its layers. */
enum kvt_ready world_begin_once(struct world *world, kvt_seq seq, uint32_t stream, kvt_step *ret_step,
                                uint64_t *ret_lost_from);
void world_end(struct world *world, kvt_step step);
/* In a step: kernels that write the KV of tokens [from, from + n), and the commit. */
void world_write(struct world *world, const struct text *text, kvt_seq seq, uint64_t from, uint64_t n, uint32_t stream);
/* In a step: kernels that compare what attention reads of the first n tokens with what it must be. */
void world_check(struct world *world, const struct text *text, kvt_seq seq, uint64_t n, uint32_t stream);
/*
 * In a step: a kernel that compares one layer of block `number`, at chunk `chunk` (kvt_reader_next), with what tokens
 * below n must be there.
 */
void world_check_chunk(struct world *world, const struct text *text, uint32_t layer, uint64_t number, uint32_t chunk,
                       uint64_t n, uint32_t stream);
/*
 * A whole step: room (unless it is reserved already), begin, check what is there, write n more, end; run at once when
 * is_cranked. Fails when it is not ready.
 */
void world_step(struct world *world, const struct text *text, kvt_seq seq, uint64_t n, bool is_cranked);
void world_finish(struct world *world, kvt_seq seq, bool is_kept);
void world_idle(struct world *world, kvt_seq seq);

/*
 * A request from its beginning to its end: reuses what is found, checks it, computes the rest, leaves it cached.
 * Returns what was reused.
 */
uint64_t world_serve(struct world *world, const struct text *text);
/*
 * Like it, but computes nothing: returns how many tokens were found, each of them checked. One token is always left to
 * compute.
 */
uint64_t world_read(struct world *world, const struct text *text);
/* Serves other texts until everything else has left the device (and the host, when is_host_too). */
void world_flush(struct world *world, uint64_t seed, bool is_host_too);

/* ---- Random use -------------------------------------------------------------------------------------------------- */

struct mix {
    uint64_t seed;
    uint32_t steps;
    uint32_t live_max;                  /* sequences at once, at most 16 */
    uint64_t tokens_max;                /* of a text */
    uint32_t verify_every;              /* steps; 0: never */
    bool is_gating;                     /* copy streams are closed and opened at random */
    void (*after)(struct world *world); /* after each step; may be NULL */
};
/*
 * Random calls on few texts and small tiers; every row that attention would read is checked. Ends with everything
 * finished and idle.
 */
void world_mix(struct world *world, const struct mix *mix);

#endif
