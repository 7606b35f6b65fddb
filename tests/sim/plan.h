/*
 * plan: what a seed decides: shapes, sizes, policies, and which faults strike how often.
 *
 * A fault that is switched off changes nothing else of the plan, so that a failing seed can be shrunk fault by fault.
 */
#ifndef KVT_TESTS_SIM_PLAN_H
#define KVT_TESTS_SIM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"

#define SIM_BLOCK_TOKENS_MAX 5
/* A state is as large as a whole block of rows: two layers, K and V, 128 elements of 2 bytes. */
#define SIM_ROW_BYTES_MAX (SIM_BLOCK_TOKENS_MAX * 2 * 2 * 128 * 2)
#define SIM_TICKS 5000

/*  fault        name            what strikes                                            per million of */
#define SIM_FAULT_LIST(X)                                                                               \
    X(EIO, "eio", "a disk op or call fails")                                     /* disk operations */  \
    X(SHORT, "short", "a read or write moves fewer bytes than asked")            /* disk operations */  \
    X(DELAY, "delay", "a disk op comes back late")                               /* disk operations */  \
    X(REORDER, "reorder", "disk ops come back in any order")                     /* 0, or all */        \
    X(QUEUE, "queue", "the disk's queue is full")                                /* disk operations */  \
    X(FLIP, "flip", "a bit of a read is wrong")                                  /* reads */            \
    X(TORN, "torn", "a write that was said to be done is not whole")             /* writes */           \
    X(MISDIRECT, "misdirect", "a write that was said to be done went elsewhere") /* writes */           \
    X(NOSPACE, "nospace", "the disk is full")                                    /* writes and calls */ \
    X(LOST, "lost", "a disk op does not come back for a long time")              /* disk operations */  \
    X(STALL, "stall", "the disk stands still for a while")                       /* ticks */            \
    X(COPY, "copy", "a copy of the device fails")                                /* device jobs */      \
    X(STUCK, "stuck", "a copy of the device gets stuck")                         /* device jobs */      \
    X(DEVICE, "device", "the device is lost until a restart")                    /* ticks */            \
    X(MEMORY, "memory", "an allocation fails")                                   /* calls */            \
    X(RESTART, "restart", "an orderly restart")                                  /* ticks */            \
    X(KILL, "kill", "the process dies")                                          /* ticks */            \
    X(POWER, "power", "the power goes")                                          /* ticks */            \
    X(JUMP, "jump", "the clock jumps")                                           /* ticks */            \
    X(AWAY, "away", "one of several directories goes, or comes back")            /* ticks */

enum sim_fault {
#define X(id, name, text) SIM_FAULT_##id,
    SIM_FAULT_LIST(X)
#undef X
        SIM_FAULTS
};

const char *sim_fault_name(enum sim_fault fault);
const char *sim_fault_text(enum sim_fault fault);
/* SIM_FAULTS: there is no such fault. */
enum sim_fault sim_fault_find(const char *name, uint32_t length);

struct sim_plan {
    uint64_t seed;
    uint32_t ticks;
    struct kvt_model_shape shape;
    uint32_t device_slots_min; /* of the smallest pool */
    uint32_t host_slot_bytes;  /* 0: no host tier */
    uint32_t nvme_bytes;       /* 0: no nvme tier */
    uint32_t stripes;          /* directories */
    uint32_t disk_alignment;
    uint32_t sequences_max, transfers_max;
    const char *device_policy, *host_policy, *admission;
    enum kvt_prefetch prefetch;
    bool is_codec_on, is_codec_tables_off, is_encrypted;
    uint64_t nvme_bytes_per_day;   /* 0: none */
    uint64_t prefill_tokens_per_s; /* 0: none */
    uint64_t link_bytes_per_s;     /* of the device; 0: none */
    uint64_t link_latency_ns;
    uint64_t deadline_ns;
    uint32_t haste;       /* how fast what runs by itself runs, beside calls */
    uint32_t check_every; /* ticks between two recounts */
    uint32_t reset_share; /* of a thousand chances for a reset, those that are taken */
    bool is_keeping;      /* every finished sequence stays cached */
    bool is_layered;      /* steps begin while blocks land */
    bool is_reading;      /* sequences are streamed and read through windows */
    bool is_hinting, is_compacting;
    bool is_changing; /* the next process is configured in another way */
    uint32_t rates[SIM_FAULTS];
};

/* without: bits of enum sim_fault that are switched off. */
struct sim_plan sim_plan_of(uint64_t seed, uint32_t ticks, uint32_t without);

static inline bool sim_plan_has(const struct sim_plan *plan, enum sim_fault fault) { return plan->rates[fault] > 0; }
bool sim_plan_is_calm(const struct sim_plan *plan);
/* No fault strikes disk operations. */
bool sim_plan_is_calm_disk(const struct sim_plan *plan);
/* The disk says that it wrote what it did not write: then nothing on it is promised but exactness. */
bool sim_plan_is_lying(const struct sim_plan *plan);

/* For people: a few lines. */
void sim_plan_print(const struct sim_plan *plan);

#endif
