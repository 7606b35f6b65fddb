/* The SIMD implementations of attention. Private to kernels/. */
#ifndef KVT_KERNELS_ATTENTION_SIMD_H
#define KVT_KERNELS_ATTENTION_SIMD_H

#include "kernels/attention.h"

#if defined(__x86_64__)
extern const struct kvt_attention_ops kvt_attention_ops_avx2;
extern const struct kvt_attention_ops kvt_attention_ops_avx512;

/* Asked in a file that is compiled for any machine. */
bool kvt_attention_is_avx2_here(void);
bool kvt_attention_is_avx512_here(void);
#endif

#endif
