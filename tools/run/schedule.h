/*
 * schedule: continuous batching over the runtime, as a serving engine does it.
 *
 * First come first served, up to `batch` sequences in a step, prompts in chunks of `prefill_chunk` tokens a step in
 * all. A session is idle between its turns. When the device is full the youngest running sequence is set idle (parked),
 * and it comes back before anything new is begun. When no tier has room left for what idle sequences hold, the one that
 * is needed last is given up and computed again when its time comes. Each step waits until every sequence in it is
 * ready; that wait is the step's stall.
 *
 * Never waits without a limit: when nothing has moved for stuck_ns the run ends and says what it was waiting for.
 *
 * Owns:    the queues. The runtime and the engine are the caller's.
 * Thread:  one.
 * Fails:   with an outcome and one line of text.
 */
#ifndef KVT_TOOLS_RUN_SCHEDULE_H
#define KVT_TOOLS_RUN_SCHEDULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"
#include "tools/run/engine.h"
#include "tools/workload/workload.h"

enum kvt_arrival {
    KVT_ARRIVAL_SEQUENTIAL, /* one after another, each to its end; no pauses */
    KVT_ARRIVAL_TRACE,      /* at its time, and after its pause, both divided by speed */
    KVT_ARRIVAL_ASAP        /* all at once; a session's turn after its pause, if pauses were asked for */
};

/*
 * What the schedule asks of the engine (engine.h), as a table: a simulator computes nothing and says how long it takes.
 */
struct kvt_step_calls {
    kvt_stream (*stream)(void *user);
    enum kvt_status (*add)(void *user, const struct kvt_engine_item *item);
    enum kvt_status (*launch)(void *user);
    bool (*wait)(void *user, uint64_t timeout_ns, struct kvt_engine_times *ret_times);
};

struct kvt_schedule;
struct kvt_conversation;

/* When things happened to a turn, on the run's clock. */
struct kvt_turn {
    uint32_t request, conversation; /* which; conversations are numbered in the order of their first requests */
    uint64_t due_ns, begun_ns, first_ns, ended_ns; /* first_ns: 0 when nothing was generated */
    uint64_t prompt, reused, generated;
};

struct kvt_step_record {
    uint64_t started_ns, ended_ns; /* on the device */
    uint32_t sequences;
    uint64_t tokens; /* that it computed */
};

/* Who wants to know what happens, as it happens, in the schedule's thread. Members may be NULL. */
struct kvt_schedule_watch {
    void (*on_step)(void *user, const struct kvt_step_record *step);
    /* a wait that counts as a stall; all of them together are stall_ns */
    void (*on_stall)(void *user, enum kvt_stall_cause cause, uint64_t from_ns, uint64_t to_ns);
    void (*on_sample)(void *user, uint64_t now_ns, const struct kvt_stats *stats); /* every few steps */
    void (*on_turn)(void *user, const struct kvt_turn *turn);                      /* a turn was completed */
    void *user;
};

struct kvt_schedule_options {
    enum kvt_arrival arrival;
    double speed;
    bool has_pauses;        /* asap: think times hold */
    uint64_t pause_ns;      /* every pause is so long, whatever the workload says; UINT64_MAX: as it says */
    uint32_t batch;         /* sequences in a step, at least 1 */
    uint64_t prefill_chunk; /* prompt tokens in a step, at least 1 */
    uint64_t step_ns;       /* expected until it is measured; 0: unknown */
    bool is_lookahead;      /* tell the runtime which idle sequences are due */
    bool is_arrived_only;   /* and of those only the ones that have arrived */
    /* a step waits so long for all of its sequences, then goes on with those that are ready; 0: 5 s */
    uint64_t patience_ns;
    uint64_t give_up_ns; /* room that does not come for so long is made by giving up an idle sequence; 0: 1 s */
    uint64_t stuck_ns;   /* 0: 60 s */
    const atomic_bool *is_interrupted; /* shared: set by a signal handler; NULL: never */
    void (*on_progress)(void *user, uint64_t requests_over, uint64_t tokens_computed); /* NULL: none */
    /* one line about a request that failed, not about the later turns of its session; NULL: none */
    void (*on_refused)(void *user, uint32_t request, const char *line);
    /*
     * Runs the whole turn of a request that is larger than the device, with nothing else in the batch (stream.h). False:
     * the run ends. NULL: such requests are refused.
     */
    bool (*on_larger)(void *larger_user, struct kvt_schedule *schedule, struct kvt_conversation *conversation);
    void *larger_user;
    void *user;
    const struct kvt_schedule_watch *const *watches; /* ended by NULL; NULL: nobody. Borrowed */
    const struct kvt_env *env;                       /* whose clock is the run's; NULL: CLOCK_MONOTONIC. Borrowed */
    const struct kvt_step_calls *calls; /* what computes the steps in place of the engine; NULL: the engine does */
    void *calls_user;
};

enum kvt_outcome {
    KVT_OUTCOME_DONE,
    KVT_OUTCOME_INTERRUPTED, /* what it was running is simply left: close the runtime */
    /* nothing moved for stuck_ns. A step that never ended may still hold the engine: see is_engine_busy */
    KVT_OUTCOME_STUCK,
    KVT_OUTCOME_ERROR /* a call failed that should not have */
};

struct kvt_schedule_result {
    enum kvt_outcome outcome;
    char error[256];     /* one line when stuck or in error */
    bool is_engine_busy; /* the last step has not ended: neither engine nor runtime can be closed */

    uint64_t requests, requests_completed, requests_failed;
    uint64_t requests_failed_after; /* of the failed: because an earlier turn of their session had failed */
    uint64_t tokens_prompt;     /* of requests that were begun */
    uint64_t tokens_reused;     /* prompt tokens that their request never computed */
    uint64_t tokens_recomputed; /* computed again after their sequence had held them */
    uint64_t tokens_generated;
    uint64_t tokens_computed;

    uint64_t steps, steps_stalled;
    uint64_t stall_ns[KVT_STALL_COUNT];
    uint64_t step_ns_sum; /* time inside steps */
    uint64_t parked;      /* times that a running sequence was set idle for room */
    uint64_t given_up;    /* times that an idle sequence was finished for room, to be begun again */
    uint32_t running_max; /* sequences in the batch at once */

    double used_ratio_sum; /* committed over slot tokens of live sequences, once for each sample */
    uint64_t used_ratio_count;
    double paged_bytes_sum; /* device bytes that a sequence claimed when its turn ended */
    uint64_t paged_count;
};

/* Runs the whole workload. NOMEM: nothing was run; every other end is an outcome in *ret_result. */
KVT_NODISCARD enum kvt_status kvt_schedule_run(struct kvt_runtime *runtime, const struct kvt_model_shape *shape,
                                               const struct kvt_workload *workload, struct kvt_engine *engine,
                                               const struct kvt_schedule_options *options,
                                               struct kvt_schedule_result *ret_result);

#endif
