/*
 * bench_codec_samples: how much the samples of real KV shrink, by the codec and by what else one would try.
 *
 * Samples: the embedded pages; and $KVTIER_SHARED/data (or ../shared/data) when it is there, files of whole layers:
 * kv, a small model's, and kv_gemma3_270m. Each layer is cut into chunks of 64 KiB (or half of the layer). Base tables
 * are learned on the first half of a layer; everything is measured on the second.
 *
 * Beside it the order-0 entropy of the same chunks: of the exponents of each one, sign and mantissa taken as they are. It
 * is no bound: base tables know the channel, and LZ4 and zstd see repetitions, of which it knows nothing.
 */
#ifndef KVT_TOOLS_BENCH_CODEC_SAMPLES_H
#define KVT_TOOLS_BENCH_CODEC_SAMPLES_H

#include <stdint.h>

enum { KVT_SAMPLE_RATIOS_MAX = 9 };

/* Raw over packed. 0: not measured. */
struct kvt_sample_ratios {
    char name[24];
    double plain, tables;     /* the codec's, without and with base tables */
    double lz4, shuffled_lz4; /* LZ4 of the bytes as they lie; of their bits, each in a plane of its own */
    double zstd;              /* level 1; 0 when it was not built in */
    double order0;            /* what a coder at the order-0 entropy would reach */
};

/* Returns how many there are. Memory that is refused leaves the rest out. */
uint32_t kvt_bench_sample_ratios(struct kvt_sample_ratios ret_ratios[KVT_SAMPLE_RATIOS_MAX]);

#endif
