/*
 * The codec's base tables: what packed blocks cannot be read without. With a store they are a record of their
 * own, held there, and on the device before a block is packed with them.
 */
#include "connectors/llama/attached.h"

#include "runtime/base/mem.h"
#include "tiers/codec.h"

static struct kvt_key tables_key(const struct kvt_llama *llama)
{
    return kvt_llama_record_key(KVT_LLAMA_RECORD_TABLES, 0, 0, llama->space);
}

static enum kvt_status put_tables(struct kvt_llama *llama, uint8_t *bytes, size_t size)
{
    const size_t length = kvt_codec_tables_export(llama->blocks.codec, bytes, size);
    if (length == 0 || length > size || length > UINT32_MAX) return KVT_FULL;
    (void)kvt_llama_vault_forget(llama->vault, tables_key(llama));
    KVT_TRY(kvt_llama_vault_put(llama->vault, tables_key(llama), bytes, (uint32_t)length, false));
    KVT_TRY(kvt_llama_vault_flush(llama->vault));
    (void)kvt_llama_vault_hold(llama->vault, tables_key(llama));
    return kvt_codec_tables_import(llama->blocks.codec, bytes, length);
}

void kvt_llama_keep_tables(struct kvt_llama *llama)
{
    if (!llama->blocks.codec) return;
    const uint32_t count = kvt_codec_tables_count(llama->blocks.codec);
    if (count == llama->tables_known) return;
    llama->tables_known = count;
    const size_t size = kvt_codec_tables_export(llama->blocks.codec, NULL, 0);
    uint8_t *bytes = kvt_alloc(1, size);
    if (!bytes || put_tables(llama, bytes, size) != KVT_OK)
        kvt_log(&llama->env, KVT_LOG_WARN, "base tables could not be kept: blocks are packed without them");
    kvt_free(bytes);
}

static bool take_tables(void *user, uint32_t i, const uint8_t *bytes, uint32_t length)
{
    struct kvt_llama *llama = user;
    (void)i;
    return bytes && kvt_codec_tables_import(llama->blocks.codec, bytes, length) == KVT_OK;
}

void kvt_llama_load_tables(struct kvt_llama *llama)
{
    if (!llama->blocks.codec) return;
    const struct kvt_key key = tables_key(llama);
    kvt_llama_vault_get(llama->vault, &key, 1, take_tables, llama);
    (void)kvt_llama_vault_hold(llama->vault, key);
    llama->tables_known = kvt_codec_tables_count(llama->blocks.codec);
    kvt_codec_tables_hold(llama->blocks.codec, true);
    if (kvt_codec_learn(llama->blocks.codec, true) != KVT_OK)
        kvt_log(&llama->env, KVT_LOG_WARN, "no memory to learn base tables: blocks are packed without them");
}
