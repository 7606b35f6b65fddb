#include "connectors/llama/attached.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

_Static_assert(sizeof(int32_t) == sizeof(uint32_t), "token ids are hashed as they are");

enum kvt_status kvt_llama_chain(struct kvt_llama *llama, const int32_t *tokens, uint64_t count)
{
    const uint64_t blocks = count / llama->block_tokens;
    if (blocks + 1 > llama->chain_capacity) {
        struct kvt_key *chain = kvt_realloc(llama->chain, blocks + 1, sizeof *chain);
        if (!chain) return KVT_NOMEM;
        llama->chain = chain;
        llama->chain_capacity = blocks + 1;
    }
    llama->chain[0] = (struct kvt_key){ 0, 0 };
    for (uint64_t k = 0; k < blocks; k++)
        llama->chain[k + 1] = kvt_llama_chain_end(llama, tokens, k, llama->block_tokens);
    return KVT_OK;
}

struct kvt_key kvt_llama_chain_end(const struct kvt_llama *llama, const int32_t *tokens, uint64_t block, uint32_t count)
{
    KVT_ASSERT(block < llama->chain_capacity);
    KVT_ASSERT(count > 0 && count <= llama->block_tokens);
    return kvt_key_chain(&llama->root, llama->chain[block], (const uint32_t *)tokens + block * llama->block_tokens,
                         count);
}

struct kvt_key kvt_llama_record_key(enum kvt_llama_record_kind kind, uint32_t cache, uint32_t from, struct kvt_key end)
{
    uint8_t text[28];
    kvt_store_u32(text, (uint32_t)kind);
    kvt_store_u32(text + 4, cache);
    kvt_store_u32(text + 8, from);
    kvt_store_u64(text + 12, end.lo);
    kvt_store_u64(text + 20, end.hi);
    return kvt_key_digest(text, sizeof text);
}
