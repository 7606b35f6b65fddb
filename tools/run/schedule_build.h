/* schedule_build: what schedule.c (the step), admit.c (who is in the batch) and queues.c (who is next) share. */
#ifndef KVT_TOOLS_RUN_SCHEDULE_BUILD_H
#define KVT_TOOLS_RUN_SCHEDULE_BUILD_H

#include "runtime/base/env.h"
#include "tools/run/conversation.h"
#include "tools/run/schedule.h"

/* A list of conversations; capacity is the conversation count, so it never grows. */
struct kvt_list {
    struct kvt_conversation **at;
    uint32_t count;
};

/* The order in which the conversations that a step was planned for stand in it. */
struct kvt_planned {
    struct kvt_conversation *conversation;
    uint64_t count; /* tokens to compute */
    bool is_ready;
};

struct kvt_schedule {
    struct kvt_runtime *runtime;
    const struct kvt_model_shape *shape;
    const struct kvt_schedule_options *options;
    struct kvt_engine *engine; /* NULL where options->calls are given */
    struct kvt_env env;        /* its clock is the run's */
    struct kvt_conversations conversations;
    struct kvt_schedule_result *result;

    struct kvt_list waiting; /* a heap: the earliest due first */
    struct kvt_list queued;  /* a ring: from queue_first on, in order of arrival */
    uint32_t queue_first;
    struct kvt_list running; /* by ticket */
    struct kvt_list parked;  /* by ticket */
    struct kvt_list idle;    /* waiting with a sequence, in no order */
    uint64_t next_ticket;
    uint32_t next_request; /* sequential arrival */
    uint64_t room_epoch;   /* grows when a running sequence gives up its room */
    bool is_room_pending;  /* admission waits for room, with nothing else to run */

    struct kvt_planned *plan; /* [batch] */
    uint32_t plan_count;
    struct kvt_step_entry *entries; /* [batch] */
    kvt_seq *expect_seqs;
    uint32_t *expect_steps;

    uint32_t pool_of[KVT_GROUPS_MAX]; /* groups with equal block bytes share the first one's pool */
    uint64_t pool_slots[KVT_GROUPS_MAX];
    uint64_t shared_tokens; /* prefix that all sequences share: claimed once */

    uint64_t start_ns;    /* of the run's clock */
    uint64_t mark_ns;     /* end of the last step, or of the last wait for arrivals: stalls count from here */
    uint64_t moved_ns;    /* when something last went on */
    uint64_t given_up_ns; /* when a sequence was last given up */
    uint64_t step_estimate_ns;
    uint64_t told_ns; /* when look-ahead was last told */
};

/* Calls a member of each watch that has it. */
#define KVT_SCHEDULE_TELL(s, member, ...)                                                                       \
    for (const struct kvt_schedule_watch *const *watch_ = (s)->options->watches; watch_ && *watch_; watch_++) { \
        if ((*watch_)->member) (*watch_)->member((*watch_)->user, __VA_ARGS__);                                 \
    }

uint64_t kvt_schedule_now_ns(const struct kvt_schedule *s);
bool kvt_schedule_is_interrupted(const struct kvt_schedule *s);

/* Waits for the runtime once; the time since the last mark is a stall of this cause. False: the run ends. */
bool kvt_schedule_wait_stalled(struct kvt_schedule *s, enum kvt_stall_cause cause);

/* Cuts what was lost, with no step open. False: the run ends. */
bool kvt_schedule_lose(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t lost_from);

/* The sequence has computed n more tokens. False: the run ends. */
bool kvt_schedule_advance_one(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t n, uint64_t now_ns);

/* What a request that is larger than the device is told. */
const char *kvt_schedule_larger_rule(const struct kvt_schedule *s);

/* Ends the run with an error: the call's name and its status. Always false, for `return`. */
bool kvt_schedule_fail(struct kvt_schedule *s, const char *call, enum kvt_status status);

/* ---- queues.c ---------------------------------------------------------------------------------------------------- */

/*
 * Puts a conversation whose next turn is c->request among the waiting, at its due time after `ended_ns` (0: the start).
 */
void kvt_schedule_wait_for_turn(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t ended_ns);

/* Moves what has arrived to the queue. */
void kvt_schedule_take_arrivals(struct kvt_schedule *s, uint64_t now_ns);

/* When the next one arrives; UINT64_MAX: none will. */
uint64_t kvt_schedule_next_arrival_ns(const struct kvt_schedule *s);

struct kvt_conversation *kvt_schedule_queue_head(const struct kvt_schedule *s); /* NULL: empty */
void kvt_schedule_queue_pop(struct kvt_schedule *s);

/* A waiting conversation whose sequence is given up. */
void kvt_schedule_idle_remove(struct kvt_schedule *s, const struct kvt_conversation *c);

void kvt_list_insert_by_ticket(struct kvt_list *list, struct kvt_conversation *c);
void kvt_list_remove(struct kvt_list *list, const struct kvt_conversation *c);

/* Tells the runtime in how many steps each idle, queued or parked sequence is expected. */
void kvt_schedule_expect(struct kvt_schedule *s, uint64_t now_ns);

/* ---- admit.c ----------------------------------------------------------------------------------------------------- */

/* Fills the batch: parked sequences first, then the queue in order. False: the run ends. */
bool kvt_schedule_admit(struct kvt_schedule *s);

/* Sets a running sequence idle to make room. False: the run ends. */
bool kvt_schedule_park(struct kvt_schedule *s, struct kvt_conversation *c);

/*
 * The last resort when every tier is full of blocks that are held: the sequence that is needed last is finished. What
 * of it stays cached is reused later, the rest computed again. False: the run ends. *ret_is_given: there was one.
 */
bool kvt_schedule_give_up_one(struct kvt_schedule *s, bool *ret_is_given);

/* The turn's request fails by name, and with it the later turns of its session. False: the run ends. */
bool kvt_schedule_refuse(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t tokens, const char *rule);

/* A turn that was taken from the queue begins in a sequence that has `committed` of its tokens, and is in the batch. */
void kvt_schedule_begin_streamed(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t committed);

/* The turn is over: idle until the next one, or finished. False: the run ends. */
bool kvt_schedule_end_turn(struct kvt_schedule *s, struct kvt_conversation *c, uint64_t now_ns);

#endif
