/*
 * nvme_memory: an indexed tier in ordinary memory: the contract of the nvme tier without a disk, one completion at a
 *              time.
 *
 * Nothing completes by itself: kvt_nvme_memory_run() completes one op, chosen at random among those in flight. Bytes
 * move then and no sooner. Records are dropped oldest first, unheld ones only, when room is needed; when all are held,
 * the fake either answers FULL or drops a held one and tells it as lost, as a disk that fails does.
 *
 * Faults: ops fail, get stuck, come back too late. A failed fetch leaves rubbish in its buffer; a failed stash leaves
 *         no record.
 *
 * Thread: one.
 */
#ifndef KVT_TESTS_FAKES_NVME_MEMORY_H
#define KVT_TESTS_FAKES_NVME_MEMORY_H

#include "tiers/tier.h"

struct kvt_nvme_memory_config {
    uint32_t records_max;      /* capacity */
    uint32_t record_bytes_max; /* of one record */
    uint32_t queue_depth;
    uint64_t seed;
    uint32_t fail_per_million;  /* an op fails: IO or FULL (stash), IO, CORRUPT or NOTFOUND (fetch) */
    uint32_t stuck_per_million; /* an op is not completed before kvt_nvme_memory_release() */
    bool is_losing;             /* records that are held may be lost to make room */
};

KVT_NODISCARD enum kvt_status kvt_nvme_memory_open(const struct kvt_nvme_memory_config *config,
                                                   struct kvt_tier **ret_tier);

/* Completes one op that is not stuck. False: there is none. */
bool kvt_nvme_memory_run(struct kvt_tier *tier);
/* Lets all stuck ops go on. */
void kvt_nvme_memory_release(struct kvt_tier *tier);
/* No faults from now on. */
void kvt_nvme_memory_heal(struct kvt_tier *tier);
/* Drops one record chosen at random; a held one is told as lost. False: there is none. */
bool kvt_nvme_memory_lose(struct kvt_tier *tier);

uint32_t kvt_nvme_memory_records(const struct kvt_tier *tier);
/* Holds of all records together. */
uint32_t kvt_nvme_memory_holds(const struct kvt_tier *tier);
/* Private records. */
uint32_t kvt_nvme_memory_privates(const struct kvt_tier *tier);
/* Records that were dropped, for room or by a failure, since open. */
uint64_t kvt_nvme_memory_dropped(const struct kvt_tier *tier);

#endif
