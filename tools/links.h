/*
 * links: what a machine's links, codec and engine were measured to do, as a file: `kvtier bench --calibrate` writes it,
 * `kvtier sim --links` reads it.
 *
 * A direction takes, for one op of b bytes, op_ns + b / bytes_per_s; ops of the disk overlap in op_ns, not in bytes.
 * Times that only the emulated engine has are 0 on a GPU.
 *
 * Thread: any; no state.
 */
#ifndef KVT_TOOLS_LINKS_H
#define KVT_TOOLS_LINKS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kvtier/shape.h"
#include "runtime/base/status.h"

enum { KVT_LINKS_DEPTHS_MAX = 8, KVT_LINKS_DTYPES = 5, KVT_LINKS_SIZES_MAX = 4 };

struct kvt_link {
    double bytes_per_s; /* 0: no time */
    double op_ns;
};

/* One measurement of the disk: ops of so many bytes, so many at once. */
struct kvt_link_point {
    uint32_t op_bytes, depth;
    double bytes_per_s, latency_p50_ns, latency_p99_ns;
};

struct kvt_links {
    char device[16]; /* "emulated", "cuda"; "": none */
    struct kvt_link to_host, to_device;
    struct {
        bool is_measured;
        double pack_ns_per_byte, unpack_ns_per_byte; /* of raw bytes */
        double ratio;                                /* raw over packed */
    } codec[KVT_LINKS_DTYPES];                       /* by enum kvt_dtype */
    bool has_disk;
    struct kvt_link read, write;
    double mixed_bytes_per_s; /* both directions together, half of the ops each */
    double put_ns, get_ns;    /* processor time of the store for a record of that size: within the figures above */
    uint32_t alignment;
    struct kvt_link_point reads[KVT_LINKS_DEPTHS_MAX], writes[KVT_LINKS_DEPTHS_MAX];
    uint32_t point_count;
    struct {
        double write_ns_per_byte; /* KV of new tokens */
        double line_ns;           /* a look at a block that is attended to */
        double oversleep_ns;      /* that a step of a given time takes longer */
        double between_ns;        /* from the end of a step to the launch of the next one */
        double wake_ns;           /* from the end of a transfer until the runtime acts on it */
    } engine;
};

/* One JSON object and a newline. NOMEM | IO: errno says why. */
KVT_NODISCARD enum kvt_status kvt_links_write(const struct kvt_links *links, FILE *stream);

/* INVAL: *ret_error gets one line: what, the value, the rule. IO: likewise. */
KVT_NODISCARD enum kvt_status kvt_links_read(const char *path, struct kvt_links *ret_links, char *ret_error,
                                             uint32_t error_bytes);

#endif
