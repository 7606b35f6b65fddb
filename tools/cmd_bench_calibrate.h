/* cmd_bench_calibrate: `kvtier bench --calibrate FILE`: what this machine does, for `kvtier sim --links`. */
#ifndef KVT_TOOLS_CMD_BENCH_CALIBRATE_H
#define KVT_TOOLS_CMD_BENCH_CALIBRATE_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_bench_calibrate_options {
    const char *path;      /* to write */
    const char *directory; /* of the disk; NULL: no disk */
    const char *shape;     /* NULL: the default of kvtier run */
    uint64_t block_tokens; /* 0: 16 */
    bool is_json;
};

/* The exit status. */
int kvt_bench_calibrate(const struct kvt_bench_calibrate_options *options);

#endif
