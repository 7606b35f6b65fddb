/*
 * conversation: one sequence's worth of requests: a session's turns in order, or a request that stands alone.
 *
 * Owns:    where each turn stands (tokens known, reserved, committed, ever held) and the identity after each token. It
 *          makes no call to the runtime.
 * Thread:  one.
 * Fails:   NOMEM.
 */
#ifndef KVT_TOOLS_RUN_CONVERSATION_H
#define KVT_TOOLS_RUN_CONVERSATION_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"
#include "tools/workload/workload.h"

#define KVT_NO_REQUEST UINT32_MAX

enum kvt_conversation_state {
    KVT_CONVERSATION_WAITING, /* its next turn has not arrived; its sequence, if any, is idle */
    KVT_CONVERSATION_QUEUED,  /* arrived; its sequence, if any, is idle */
    KVT_CONVERSATION_RUNNING, /* in the batch */
    KVT_CONVERSATION_PARKED,  /* set idle because the device was full */
    KVT_CONVERSATION_ENDED
};

struct kvt_conversation {
    enum kvt_conversation_state state;
    uint32_t request;      /* the turn that it waits for or is in */
    kvt_seq seq;           /* 0: none yet */
    uint64_t ticket;       /* order of arrival: the smallest is the oldest */
    uint64_t due_ns;       /* when the turn arrives, on the run's clock */
    uint32_t idle_index;   /* place in the schedule's list of idle sequences */
    uint64_t parked_epoch; /* room seen when it was parked */

    /* The turn. */
    uint64_t prompt, output; /* of its request */
    uint64_t known;          /* tokens whose ids are there: prompt and sampled ones */
    uint64_t reserved;       /* slots asked for and granted, beyond committed */
    uint64_t committed;
    uint64_t held;     /* highest committed of this stream of tokens: below it, computing is recomputing */
    uint64_t begun_ns; /* when it first came into the batch; 0: it did not yet */
    uint64_t first_ns; /* when its first output token was there */
    uint64_t reused;   /* leading prompt tokens that this turn has not computed */
    bool is_begun;     /* the fields above are the turn's */
    bool is_back;      /* its blocks may have come back: the next step checks them */

    uint64_t *identities; /* [identity_count], after each token */
    uint64_t identity_count, identity_capacity;
};

struct kvt_conversations {
    const struct kvt_workload *workload;
    struct kvt_conversation *all;
    uint32_t count;
    uint32_t *of_request; /* conversation of each request */
    uint32_t *next_turn;  /* request of the next turn, or KVT_NO_REQUEST */
    uint32_t *tokens;     /* scratch, as long as the longest context */
    uint64_t tokens_max;  /* prompt and output of the longest request */
};

/* workload is borrowed until done. NOMEM, nothing left behind. */
KVT_NODISCARD enum kvt_status kvt_conversations_init(struct kvt_conversations *set,
                                                     const struct kvt_workload *workload);
void kvt_conversations_done(struct kvt_conversations *set);

static inline const struct kvt_request *kvt_conversation_request(const struct kvt_conversations *set,
                                                                 const struct kvt_conversation *c)
{
    return &set->workload->requests[c->request];
}

/* Token ids of positions [first, first + count) of the turn, in the set's scratch until the next call. */
const uint32_t *kvt_conversation_tokens(struct kvt_conversations *set, const struct kvt_conversation *c, uint64_t first,
                                        uint64_t count);

/*
 * How many tokens the next turn's prompt has in common with what the sequence has committed, leaving at least one token
 * to evaluate; the identities past them are forgotten. Call when c->request is already the next turn.
 */
uint64_t kvt_conversation_common(struct kvt_conversations *set, struct kvt_conversation *c);

/* The turn begins with `committed` tokens of its context there, of which the sequence held `held` before. */
void kvt_conversation_begin(struct kvt_conversations *set, struct kvt_conversation *c, uint64_t committed,
                            uint64_t held);

/* Identities of the first `tokens` tokens are there afterwards. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_conversation_identify(struct kvt_conversations *set, struct kvt_conversation *c,
                                                        uint64_t tokens);

/* Tokens to compute next: at most `chunk` of a prompt (0 when chunk is 0), else the one that was sampled last. */
uint64_t kvt_conversation_next_count(const struct kvt_conversation *c, uint64_t chunk);

/* True when the next tokens are a prompt's, or are computed again; false: the sampled one. */
bool kvt_conversation_is_prefill(const struct kvt_conversation *c);

/* n more tokens are computed. Returns how many of them had been held before. Samples the next token when it is due. */
uint64_t kvt_conversation_advance(struct kvt_conversation *c, uint64_t n);

/* Everything from `kept` tokens on must be computed again. */
void kvt_conversation_lose(struct kvt_conversation *c, uint64_t kept);

/* The turn goes on in a new sequence that has `committed` of its tokens. */
void kvt_conversation_begin_again(struct kvt_conversation *c, uint64_t committed);

bool kvt_conversation_is_turn_over(const struct kvt_conversation *c);

/* Output tokens that were sampled so far. */
static inline uint64_t kvt_conversation_generated(const struct kvt_conversation *c) { return c->known - c->prompt; }

#endif
