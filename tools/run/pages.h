/*
 * pages: a sample of real KV, embedded in the executable, to fill blocks with.
 *
 * Random bytes would say nothing about packing, and constant ones too much. These are the K (after RoPE) and V of
 * real attention layers: the first half from Gemma 3 270M (layers 2, 5, 9 and 13: English text, then Python source),
 * the second half from a small Llama-style decoder trained on English (layers 1 to 4).
 *
 * Layout: blocks of [plane: K, V][16 tokens][256 channels], little-endian, each a whole of one layer; the blocks of a
 * layer follow each other, KVT_PAGES_LAYERS layers in all, the same number of blocks in each.
 *
 * Thread:  any. The bytes are constant.
 */
#ifndef KVT_TOOLS_RUN_PAGES_H
#define KVT_TOOLS_RUN_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "kvtier/shape.h"

enum { KVT_PAGES_LAYERS = 8, KVT_PAGES_TOKENS = 16, KVT_PAGES_CHANNELS = 256 };

/*
 * The pages of a type, 64-byte aligned, *ret_bytes of them. NULL and 0 for fp32 and int8: there is no sample of
 * those.
 */
const uint8_t *kvt_pages(enum kvt_dtype dtype, size_t *ret_bytes);

#endif
