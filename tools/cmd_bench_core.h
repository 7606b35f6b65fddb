/* bench core: how many blocks a second the core appends, seals, finds and evicts. */
#ifndef KVT_TOOLS_CMD_BENCH_CORE_H
#define KVT_TOOLS_CMD_BENCH_CORE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Measures in the calling thread and prints a table, or one JSON object with cases[{name,value,unit,ceiling,ratio}].
 * blocks_max: the largest pool; 0: 10 million. Returns the exit status: 0, or 1 when memory was refused.
 */
int kvt_bench_core(uint64_t blocks_max, bool is_json);

#endif
