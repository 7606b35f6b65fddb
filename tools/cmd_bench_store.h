/* bench store: how near the store comes to what its disk gives, and how far it is from a directory of files. */
#ifndef KVT_TOOLS_CMD_BENCH_STORE_H
#define KVT_TOOLS_CMD_BENCH_STORE_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_bench_store_options {
    const char *directory; /* an existing one; what is made in it is removed again */
    uint64_t size_bytes;   /* moved in one measurement; 0: 512 MiB */
    uint64_t pairs;        /* 0: 7 */
    const char *part;      /* speed, small, mixed or codec; NULL: all */
    bool is_json;
};

#define KVT_BENCH_STORE_SIZE_MIN ((uint64_t)16 << 20)
#define KVT_BENCH_STORE_SIZE_MAX ((uint64_t)16 << 30)

/* NULL, or the rule that the name of a part breaks. */
const char *kvt_bench_store_part_rule(const char *part);

/*
 * Measures and prints a table, or one JSON object with cases[{name,value,unit,ceiling,ratio}]. Returns the exit status:
 * 0 when it was measured, whatever the figures; 1 when it could not be.
 */
int kvt_bench_store(const struct kvt_bench_store_options *options);

#endif
