/*
 * Group commit. A run makes durable what was accepted before it began: it waits until those puts have been written,
 * then for one run of the syncer. Everybody who asks while a run is under way shares the next one.
 *
 *     idle -> writes (puts accepted from now on count for the other phase) -> sync -> idle, the watermark moves
 */
#include "runtime/base/assert.h"
#include "tiers/store_private.h"

uint64_t kvt_store_want_commit(struct kvt_store *store)
{
    store->commit.wanted = store->commit.started + 1;
    return store->commit.wanted;
}

static void commit_end(struct kvt_store *store)
{
    const bool has_failed = store->sync_failed >= store->commit.run;
    store->commit.stage = KVT_COMMIT_IDLE;
    store->commit.finished = store->commit.started;
    if (has_failed) store->commit.failed = store->commit.finished;
    else if (store->commit.target > store->commit.watermark) store->commit.watermark = store->commit.target;
    (void)pthread_cond_broadcast(&store->changed);
}

void kvt_store_commit_step(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    const enum kvt_commit_stage before = store->commit.stage;
    if (store->commit.stage == KVT_COMMIT_IDLE && store->commit.wanted > store->commit.started) {
        store->commit.started++;
        store->commit.target = store->record_sequence;
        store->commit.phase = store->phase;
        store->phase ^= 1;
        KVT_ASSERT(store->phase_pending[store->phase] == 0);
        store->commit.stage = KVT_COMMIT_WRITES;
    }
    if (store->commit.stage == KVT_COMMIT_WRITES && store->phase_pending[store->commit.phase] == 0) {
        store->commit.run = kvt_store_want_sync(store);
        store->commit.stage = KVT_COMMIT_SYNC;
    }
    if (store->commit.stage == KVT_COMMIT_SYNC && store->sync_finished >= store->commit.run) commit_end(store);
    if (store->commit.stage != before) store->has_moved = true;
    pthread_mutex_unlock(&store->lock);
}
