/*
 * evidence: whether another order of eviction is worth more than LRU, by what requests would have found in each.
 *
 * Three caches see the same uses: the pool itself, an LRU and a rival, the last two without bytes. A request is a run of
 * uses whose offsets go up or down by one; of it, only the hits from its first block on count, because a runtime reuses
 * prefixes. Uses of unknown offset are taken in lots of a quarter of the slots, all hits counted. For each request the rival's hits less LRU's are added up, and
 * their squares, both fading over a window of 8 uses a slot (of 200 requests, if that is more). The rival is followed
 * while it is ahead by more than chance explains; but going over to it costs hits, and so does coming back, so only
 * what can be afforded is tried: an account of the pool's hits less LRU's may fall to two thousandths of all uses, then
 * LRU is followed until it has recovered.
 *
 * Thread: the caller's lock. Memory: none of its own.
 */
#ifndef KVT_POLICY_EVIDENCE_H
#define KVT_POLICY_EVIDENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Who hit: bits. */
enum { KVT_HIT_POOL = 1, KVT_HIT_LRU = 2, KVT_HIT_RIVAL = 4, KVT_HIT_PLAYERS = 3 };

struct kvt_evidence {
    uint32_t slot_count;

    /* the request under way */
    uint32_t length; /* its uses so far; 0: none is under way */
    uint32_t last_offset;
    bool is_lot;                    /* of uses of unknown offset */
    bool is_up;                     /* its offsets go up: hits end at the first miss */
    uint32_t alive;                 /* up: bits of those that have missed nothing so far */
    uint32_t runs[KVT_HIT_PLAYERS]; /* hits from its lowest offset on */

    uint64_t uses, requests;
    int64_t account;       /* the pool's hits less LRU's */
    double window;         /* uses */
    double mass, lru_hits; /* uses and LRU's hits, fading */
    double ahead, ahead_squared;
    bool is_rival_followed;
    bool is_locked; /* until the account has recovered */
};

void kvt_evidence_init(struct kvt_evidence *evidence, uint32_t slot_count);

/* True: a use of this offset belongs to the request under way. */
bool kvt_evidence_continues(const struct kvt_evidence *evidence, uint32_t offset);

/* A use by offset (KVT_POLICY_UNKNOWN), and who hit. True: it ends its request. */
bool kvt_evidence_use(struct kvt_evidence *evidence, uint32_t offset, uint32_t hits);

/* The request under way, if any, is over. apart: slots of the pool whose blocks the rival would not hold. */
void kvt_evidence_end(struct kvt_evidence *evidence, uint32_t apart);

#endif
