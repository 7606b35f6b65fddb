/* bench codec: how fast the codec packs and unpacks beside what a plain copy of the same bytes takes. */
#ifndef KVT_TOOLS_CMD_BENCH_CODEC_H
#define KVT_TOOLS_CMD_BENCH_CODEC_H

#include <stdbool.h>

/*
 * Measures in the calling thread and prints: a table, or one JSON object with cases[{name,value,unit,ceiling,ratio}].
 * Takes about half a minute and 900 MiB. Returns the exit status: 0, or 1 when a block did not come back exact or
 * memory was refused (one line on stderr says which).
 */
int kvt_bench_codec(bool is_json);

#endif
