/* bench copy: what moves between the device and the host in a second, beside what the link gives. */
#ifndef KVT_TOOLS_CMD_BENCH_COPY_H
#define KVT_TOOLS_CMD_BENCH_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/kvtier.h"

struct kvt_bench_copy_options {
    enum kvt_device_kind device;
    uint64_t size_bytes; /* moved in one measurement; 0: 512 MiB */
    uint64_t rounds;     /* 0: 5 */
    bool is_json;
};

/*
 * Measures and prints a table, or one JSON object with cases[{name,value,unit,ceiling,ratio}]. Returns the exit
 * status: 0; 1 when it could not be measured or a byte was wrong; 2 when the device asked for is not there.
 */
int kvt_bench_copy(const struct kvt_bench_copy_options *options);

#endif
