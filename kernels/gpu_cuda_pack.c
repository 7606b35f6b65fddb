/*
 * Blocks packed on their way to the host, and unpacked on their way back, by the kernels of kernels/block_pack.h: so
 * the link carries the packed form alone.
 *
 * A pack writes straight to pinned host memory, once and in order. What an unpack reads is copied to the device
 * first, since it is read in steps that depend on each other. Bases, which differ between layers and channels, are
 * brought to the device once for each stream; what comes behind on the stream finds them there.
 */
#include <string.h>

#include "kernels/block_pack.h"
#include "kernels/cuda/launch.h"
#include "kernels/gpu_cuda.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

/* Of a table: descriptions of the blocks of a launch that begins with it. Then come its own block's chunks. */
#define HEAD_BYTES 1024u

_Static_assert(KVT_CUDA_BATCH_MAX * sizeof(struct kvt_block_pack) <= HEAD_BYTES, "a launch's blocks have their place");
_Static_assert(KVT_CUDA_BATCH_MAX * sizeof(struct kvt_block_unpack) <= HEAD_BYTES, "likewise");

/* CTAs that work on chunks at a time: a quarter of a large GPU, while blocks move. */
enum { PACK_CTAS = 32 };

/* A table's part: the blocks, then a chunk for each layer; there are no more layers than segments. */
static size_t pack_bytes(const struct kvt_cuda *c)
{
    return kvt_align_up(HEAD_BYTES + c->config.segments_max * sizeof(struct kvt_block_chunk), 64);
}

static size_t plans_bytes(const struct kvt_cuda *c)
{
    return kvt_align_up(c->config.segments_max * sizeof(struct kvt_block_plan), 64);
}

/* Where the set lies on the device; brought there when the stream meets it for the first time. NULL: refused. */
static const uint8_t *bases_on_device(struct kvt_cuda *c, struct kvt_cuda_stream *s, const struct kvt_gpu_pack *pack,
                                      cudaStream_t handle)
{
    uint32_t i = 0;
    while (i < s->bases_count && s->bases[i] != pack->bases) i++;
    uint8_t *target = s->bases_device + i * c->config.bases_bytes,
            *source = s->bases_pinned + i * c->config.bases_bytes;
    if (i < s->bases_count) return target;
    const size_t bytes = (size_t)pack->layers * pack->shape.plane_count * pack->bases_row_bytes;
    KVT_ASSERT(i < KVT_GPU_BASES_MAX);
    KVT_ASSERT(bytes <= c->config.bases_bytes);
    memcpy(source, pack->bases, bytes); /* its place is written once: the copy may be late */
    if (!kvt_cuda_ok(c, cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, handle))) return NULL;
    s->bases[s->bases_count++] = pack->bases;
    return target;
}

static void fill_chunks(struct kvt_block_chunk *chunks, const struct kvt_gpu_move *move, const uint8_t *bases)
{
    const struct kvt_gpu_pack *pack = &move->pack;
    const uint32_t planes = pack->shape.plane_count;
    for (uint32_t i = 0; i < pack->layers * planes; i++) {
        struct kvt_block_chunk *chunk = &chunks[i / planes];
        if (i % planes == 0) memset(chunk, 0, sizeof *chunk);
        chunk->plane[i % planes] = kvt_pages_segment(&move->pages, i);
        if (bases) chunk->bases[i % planes] = bases + i * (size_t)pack->bases_row_bytes;
    }
}

static struct kvt_block_pack pack_of(const struct kvt_cuda_packing *block)
{
    const struct kvt_gpu_pack *pack = &block->move->pack;
    return (struct kvt_block_pack){
        .shape = pack->shape,
        .layers = pack->layers,
        .tokens = pack->tokens,
        .tables_id = pack->bases_id,
        .capacity = pack->length,
        .chunks = (const struct kvt_block_chunk *)(const void *)(block->table->device_pack + HEAD_BYTES),
        .plans = block->table->device_plans,
        .target = block->host,
        .ret_length = block->table->result,
    };
}

static struct kvt_block_unpack unpack_of(const struct kvt_cuda_packing *block)
{
    const struct kvt_gpu_pack *pack = &block->move->pack;
    return (struct kvt_block_unpack){
        .shape = pack->shape,
        .layers = pack->layers,
        .tokens = pack->tokens,
        .tables_id = pack->bases_id,
        .length = pack->length,
        .chunks = (const struct kvt_block_chunk *)(const void *)(block->table->device_pack + HEAD_BYTES),
        .packed = block->packed,
        .ret_verdict = block->table->result,
    };
}

/* Writes what the kernel will read of a block, and brings an unpack's bytes to the device. */
static bool prepare(struct kvt_cuda *c, struct kvt_cuda_stream *s, const struct kvt_cuda_packing *first,
                    const struct kvt_cuda_packing *block, cudaStream_t handle)
{
    const struct kvt_gpu_pack *pack = &block->move->pack;
    const size_t i = (size_t)(block - first);
    KVT_ASSERT(pack->layers * pack->shape.plane_count == block->move->pages.count);
    KVT_ASSERT(pack->layers <= c->config.segments_max);
    const uint8_t *bases = pack->bases_id ? bases_on_device(c, s, pack, handle) : NULL;
    if (pack->bases_id && !bases) return false;
    fill_chunks((struct kvt_block_chunk *)(void *)(block->table->pack + HEAD_BYTES), block->move, bases);
    if (block->move->kind == KVT_GPU_MOVE_PACK) {
        ((struct kvt_block_pack *)(void *)first->table->pack)[i] = pack_of(block);
        *block->table->result = 0;
        return true;
    }
    KVT_ASSERT(pack->length <= c->config.staging_bytes);
    ((struct kvt_block_unpack *)(void *)first->table->pack)[i] = unpack_of(block);
    *block->table->result = KVT_BLOCK_CORRUPT;
    return kvt_cuda_ok(c, cudaMemcpyAsync(block->packed, block->host, pack->length, cudaMemcpyHostToDevice, handle));
}

bool kvt_cuda_issue_packing(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream,
                            const struct kvt_cuda_packing *blocks, uint32_t count, cudaStream_t handle)
{
    const uint8_t *pinned = blocks[0].table->pack;
    uint8_t *device = blocks[0].table->device_pack;
    uint32_t layers_max = 0;
    for (uint32_t i = 0; i < count; i++) {
        KVT_ASSERT(blocks[i].table->pack == pinned + i * pack_bytes(cuda));
        if (!prepare(cuda, stream, blocks, &blocks[i], handle)) return false;
        layers_max = kvt_max_u32(layers_max, blocks[i].move->pack.layers);
    }
    const size_t bytes = (count - 1) * pack_bytes(cuda) + HEAD_BYTES + layers_max * sizeof(struct kvt_block_chunk);
    if (!kvt_cuda_ok(cuda, cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, handle))) return false;
    enum kvt_status status;
    if (blocks[0].move->kind == KVT_GPU_MOVE_PACK)
        status = kvt_cuda_block_pack((const void *)device, count, layers_max, PACK_CTAS, handle);
    else status = kvt_cuda_block_unpack((const void *)device, count, layers_max, PACK_CTAS, handle);
    /* The launch takes the error; whether it stays is asked here. */
    return status == KVT_OK || kvt_cuda_ok(cuda, cudaErrorLaunchFailure);
}

/*
 * Each kernel is launched once before anything runs, for the reason that gpu_cuda_copy.c has; a block that is no
 * constant goes to the host and back.
 */
static bool try_packing(struct kvt_cuda *c, struct kvt_cuda_stream *s)
{
    enum { ELEMENTS = 256, BYTES = 2 * ELEMENTS };
    uint64_t stride = 0;
    void *base = s->packed_device + KVT_RANK_SLACK;
    struct kvt_gpu_move move = {
        .kind = KVT_GPU_MOVE_PACK,
        .pages = { .count = 1, .base = &base, .stride = &stride, .bytes = BYTES },
        .pack = { .shape = { KVT_DTYPE_BF16, 1, 64, ELEMENTS }, .layers = 1, .tokens = 4, .length = BYTES },
    };
    const struct kvt_cuda_packing block = { &move, &s->tables[0], s->staging, s->packed_device };
    uint8_t sample[BYTES], back[BYTES];
    if (c->config.staging_bytes < 2 * BYTES + KVT_RANK_SLACK) return true; /* blocks of tests: too small to try with */
    for (uint32_t i = 0; i < ELEMENTS; i++) kvt_store_u16(sample + 2 * i, (uint16_t)(0x3f80 + i % 5 * 128 + i % 97));
    memcpy(s->staging, sample, BYTES);
    bool is_good = kvt_cuda_ok(c, cudaMemcpyAsync(base, s->staging, BYTES, cudaMemcpyHostToDevice, s->handle))
        && kvt_cuda_ok(c, cudaStreamSynchronize(s->handle)) && kvt_cuda_issue_packing(c, s, &block, 1, s->handle)
        && kvt_cuda_ok(c, cudaStreamSynchronize(s->handle));
    move.kind = KVT_GPU_MOVE_UNPACK;
    move.pack.length = *(volatile uint32_t *)s->tables[0].result;
    is_good = is_good && move.pack.length > 0 && move.pack.length < BYTES;
    base = s->packed_device + c->config.staging_bytes;
    is_good = is_good && kvt_cuda_issue_packing(c, s, &block, 1, s->handle)
        && kvt_cuda_ok(c, cudaStreamSynchronize(s->handle))
        && kvt_cuda_ok(c, cudaMemcpyAsync(s->staging, base, BYTES, cudaMemcpyDeviceToHost, s->handle))
        && kvt_cuda_ok(c, cudaStreamSynchronize(s->handle));
    memcpy(back, s->staging, BYTES);
    return is_good && *(volatile uint32_t *)s->tables[0].result == KVT_BLOCK_OK && memcmp(sample, back, BYTES) == 0;
}

void kvt_cuda_pack_init(struct kvt_cuda *cuda, struct kvt_cuda_stream *stream)
{
    const size_t table_bytes = pack_bytes(cuda), result_bytes = 64, bases_bytes = cuda->config.bases_bytes;
    if (bases_bytes == 0 || !cuda->is_unified) return;
    stream->pack_pinned = kvt_cuda_pinned_alloc(cuda, KVT_CUDA_TABLES * (table_bytes + result_bytes));
    stream->pack_device = kvt_cuda_device_alloc(cuda, KVT_CUDA_TABLES * (table_bytes + plans_bytes(cuda)));
    stream->bases_pinned = kvt_cuda_pinned_alloc(cuda, KVT_GPU_BASES_MAX * bases_bytes);
    stream->bases_device = kvt_cuda_device_alloc(cuda, KVT_GPU_BASES_MAX * bases_bytes);
    stream->packed_device = kvt_cuda_device_alloc(
        cuda, KVT_CUDA_UNPACK_DEPTH * cuda->config.staging_bytes + KVT_RANK_SLACK); /* is read behind the last one */
    if (!stream->pack_pinned || !stream->pack_device || !stream->bases_pinned || !stream->bases_device
        || !stream->packed_device) {
        kvt_cuda_pack_done(stream);
        return;
    }
    for (uint32_t t = 0; t < KVT_CUDA_TABLES; t++) {
        struct kvt_cuda_table *table = &stream->tables[t];
        table->pack = stream->pack_pinned + t * table_bytes;
        table->result = (uint32_t *)(void *)(stream->pack_pinned + KVT_CUDA_TABLES * table_bytes + t * result_bytes);
        table->device_pack = stream->pack_device + t * table_bytes;
        table->device_plans = stream->pack_device + KVT_CUDA_TABLES * table_bytes + t * plans_bytes(cuda);
    }
    if (!try_packing(cuda, stream)) kvt_cuda_pack_done(stream);
}

void kvt_cuda_pack_done(struct kvt_cuda_stream *stream)
{
    if (stream->pack_pinned) (void)cudaFreeHost(stream->pack_pinned);
    if (stream->bases_pinned) (void)cudaFreeHost(stream->bases_pinned);
    if (stream->pack_device) (void)cudaFree(stream->pack_device);
    if (stream->bases_device) (void)cudaFree(stream->bases_device);
    if (stream->packed_device) (void)cudaFree(stream->packed_device);
    stream->pack_pinned = stream->bases_pinned = NULL;
    stream->pack_device = stream->bases_device = stream->packed_device = NULL;
}
