#include "runtime/tables.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "runtime/base/plant.h"
#include "tiers/nvme_tier.h"

#define RETRY_NS (UINT64_C(10) * 1000 * 1000 * 1000)

uint64_t kvt_tables_side_bytes(const struct kvt_codec *codec) { return codec ? kvt_codec_tables_bytes(codec) : 0; }

static void load(struct kvt_tables *tables)
{
    size_t size;
    const enum kvt_status loaded = kvt_nvme_tier_side_load(tables->nvme, tables->name, tables->bytes, tables->bytes_max,
                                                           &size);
    if (loaded == KVT_NOTFOUND) return;
    const enum kvt_status status = loaded == KVT_OK ? kvt_codec_tables_import(tables->codec, tables->bytes, size)
                                                    : loaded;
    tables->saved = kvt_codec_tables_count(tables->codec);
    if (status == KVT_OK) return;
    kvt_log(tables->env, KVT_LOG_WARN,
            "the codec's tables cannot be used (%s): blocks that need them are misses, new ones are learned",
            kvt_status_text(status));
    kvt_nvme_tier_side_remove(tables->nvme, tables->name);
}

struct kvt_key kvt_tables_name(const struct kvt_key *spaces, uint32_t space_count)
{
    return kvt_key_digest(spaces, space_count * sizeof *spaces);
}

enum kvt_status kvt_tables_open(struct kvt_tables *tables, struct kvt_codec *codec, struct kvt_tier *nvme,
                                const struct kvt_env *env, const struct kvt_key *spaces, uint32_t space_count,
                                bool is_off)
{
    *tables = (struct kvt_tables){ .codec = codec, .nvme = nvme, .env = env };
    if (!codec) return KVT_OK;
    if (nvme) {
        tables->name = kvt_tables_name(spaces, space_count);
        tables->bytes_max = kvt_codec_tables_bytes(codec);
        tables->bytes = kvt_alloc(1, tables->bytes_max);
        if (!tables->bytes) return KVT_NOMEM;
        /* Held ones unpack, but do not pack. */
        kvt_codec_tables_hold(codec, is_off);
        load(tables);
        kvt_codec_tables_hold(codec, !KVT_PLANTED(PACK_BEFORE_SAVE));
    }
    return is_off ? KVT_OK : kvt_codec_learn(codec, true);
}

void kvt_tables_close(struct kvt_tables *tables)
{
    kvt_free(tables->bytes);
    *tables = (struct kvt_tables){ 0 };
}

void kvt_tables_save(struct kvt_tables *tables)
{
    if (!tables->codec || !tables->nvme) return;
    if (kvt_codec_tables_count(tables->codec) == tables->saved) return;
    const uint64_t now_ns = kvt_env_now_ns(tables->env);
    if (now_ns < tables->retry_ns) return;
    const uint32_t count = kvt_codec_tables_count(tables->codec);
    const size_t size = kvt_codec_tables_export(tables->codec, tables->bytes, tables->bytes_max);
    KVT_ASSERT(size <= tables->bytes_max); /* one table a group is all that is ever learned */
    int os_errno;
    enum kvt_status status = kvt_nvme_tier_side_save(tables->nvme, tables->name, tables->bytes, size, &os_errno);
    if (status == KVT_OK) {
        /* One that was published in between is in the export, or is seen as new the next time. */
        tables->saved = count;
        status = kvt_codec_tables_import(tables->codec, tables->bytes, size);
    }
    if (status == KVT_OK) return;
    tables->retry_ns = now_ns + RETRY_NS;
    kvt_log(tables->env, KVT_LOG_WARN, "the codec's tables cannot be saved (%s): blocks are packed without",
            os_errno ? strerror(os_errno) : kvt_status_text(status));
}
