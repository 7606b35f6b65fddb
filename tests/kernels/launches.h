/*
 * launches: the CUDA kernels' launch functions as tables: "simt" on the CPU (simt/simt.h), "cuda" on the first GPU when
 * there is one. Memory of a side can be used by the CPU as well, so that cases are written once.
 */
#ifndef KVT_TESTS_KERNELS_LAUNCHES_H
#define KVT_TESTS_KERNELS_LAUNCHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention_body.h"
#include "kernels/block_pack.h"
#include "kernels/checksum.h"
#include "kernels/pages_body.h"
#include "kernels/pattern.h"
#include "kernels/quantise.h"
#include "kvtier/status.h"

struct kern_launches {
    const char *name;
    bool (*is_here)(void);
    void *(*memory_alloc)(size_t size);
    void (*memory_free)(void *memory);
    void *(*device_alloc)(size_t size); /* the fastest memory there is, for speed alone: the CPU may not reach it */
    void (*device_free)(void *memory);
    void (*copy)(void *target, const void *source, size_t size); /* between any memories; has ended on return */
    bool (*finish)(void);                                        /* waits; false: something failed */
    void (*reseed)(uint64_t seed);                               /* the order of threads, where it can be chosen */

    enum kvt_status (*attention)(const struct kvt_attention *args, uint32_t splits, float *scratch, void *stream);
    enum kvt_status (*block_pack)(const struct kvt_block_pack *blocks, uint32_t count, uint32_t layers_max,
                                  uint32_t ctas, void *stream);
    enum kvt_status (*block_unpack)(const struct kvt_block_unpack *blocks, uint32_t count, uint32_t layers_max,
                                    uint32_t ctas, void *stream);
    enum kvt_status (*checksum)(const struct kvt_checksum_run *runs, uint32_t count, uint64_t size_max, uint32_t ctas,
                                void *stream);
    enum kvt_status (*pattern_fill)(const struct kvt_pattern_run *runs, uint32_t count, uint64_t size_max,
                                    uint32_t ctas, void *stream);
    enum kvt_status (*pattern_verify)(const struct kvt_pattern_run *runs, uint32_t count, uint64_t size_max,
                                      uint32_t ctas, void *stream);
    enum kvt_status (*quantise)(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max, uint32_t ctas,
                                void *stream);
    enum kvt_status (*dequantise)(const struct kvt_quant_page *pages, uint32_t count, uint32_t rows_max, uint32_t ctas,
                                  void *stream);
    enum kvt_status (*pages_move)(const struct kvt_pages_run *runs, uint32_t count, uint64_t bytes_max, uint32_t ctas,
                                  void *stream);
};

/* Those that are built in; NULL past the last. */
const struct kern_launches *kern_launches_at(uint32_t i);

/*
 * For a kernel whose implementations are some on the CPU and then these: the launches of implementation i when `first` is
 * the index of the first of them, or NULL.
 */
static inline const struct kern_launches *kern_launches_from(uint32_t i, uint32_t first)
{
    return i < first ? NULL : kern_launches_at(i - first);
}

extern const struct kern_launches kern_launches_simt, kern_launches_cuda;

#endif
