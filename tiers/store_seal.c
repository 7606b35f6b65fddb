#include "tiers/store_seal.h"

#include <sodium.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/store_private.h"

#define UNIT_BYTES 16384u
#define REGION_MIN (64 * KVT_MIB)

/* A session's key, ready to use. */
struct session {
    crypto_aead_aes256gcm_state aes; /* only where the CPU has it */
    uint8_t name[16];
    uint8_t key[32];
    bool is_there;
};

struct job {
    struct kvt_store_op inner;
    struct kvt_store_op *outer; /* NULL: free */
    struct kvt_seal_subject subject;
    uint64_t epoch;
    uint8_t *buffer;
    uint32_t unit, unit_count;
    struct job *next_free;
};

struct kvt_seal {
    struct session own, other; /* other: of the last record that an earlier opening wrote */
    uint8_t key[KVT_SEAL_KEY_BYTES];
    bool has_aes;
    enum kvt_seal_cipher cipher;
    uint64_t counter;
    struct job *jobs, *free_jobs;
    uint32_t job_count;
    uint8_t *region, *units; /* units: 1: taken */
    uint32_t unit_count, put_units;
    /* Under the store's lock. */
    struct kvt_op_queue puts, gets, urgent_gets, done;
};

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* A digest under the caller's key: of what, and of which. */
static void derive(const struct kvt_seal *seal, const char *what, const void *which, size_t which_bytes, uint8_t *ret,
                   size_t ret_bytes)
{
    crypto_generichash_state state;
    (void)crypto_generichash_init(&state, seal->key, sizeof seal->key, ret_bytes);
    (void)crypto_generichash_update(&state, (const uint8_t *)what, strlen(what));
    (void)crypto_generichash_update(&state, which, which_bytes);
    (void)crypto_generichash_final(&state, ret, ret_bytes);
}

static void session_begin(const struct kvt_seal *seal, const uint8_t name[16], struct session *ret_session)
{
    memcpy(ret_session->name, name, sizeof ret_session->name);
    derive(seal, "kvtier store session 1", name, 16, ret_session->key, sizeof ret_session->key);
    if (seal->has_aes) (void)crypto_aead_aes256gcm_beforenm(&ret_session->aes, ret_session->key);
    ret_session->is_there = true;
}

static struct session *session_of(struct kvt_seal *seal, const uint8_t name[16])
{
    if (memcmp(seal->own.name, name, sizeof seal->own.name) == 0) return &seal->own;
    if (!seal->other.is_there || memcmp(seal->other.name, name, sizeof seal->other.name) != 0)
        session_begin(seal, name, &seal->other);
    return &seal->other;
}

enum kvt_status kvt_seal_open(const uint8_t *key, struct kvt_seal **ret_seal)
{
    struct kvt_seal *seal = kvt_table_map(sizeof *seal); /* aligned, and no child inherits the key */
    if (!seal) return KVT_NOMEM;
    memcpy(seal->key, key, sizeof seal->key);
    seal->has_aes = crypto_aead_aes256gcm_is_available() != 0;
    seal->cipher = seal->has_aes ? KVT_SEAL_AES_256_GCM : KVT_SEAL_XCHACHA20_POLY1305;
    uint8_t name[16];
    randombytes_buf(name, sizeof name);
    session_begin(seal, name, &seal->own);
    *ret_seal = seal;
    return KVT_OK;
}

enum kvt_status kvt_seal_start(struct kvt_seal *seal, uint32_t ops, uint64_t record_bytes_max)
{
    const uint64_t bytes = kvt_align_up(kvt_max_u64(REGION_MIN, 4 * (record_bytes_max + UNIT_BYTES)), UNIT_BYTES);
    seal->unit_count = (uint32_t)(bytes / UNIT_BYTES);
    seal->region = kvt_table_map(bytes);
    seal->units = kvt_alloc(seal->unit_count, 1);
    seal->jobs = kvt_alloc(ops, sizeof *seal->jobs);
    if (!seal->region || !seal->units || !seal->jobs) return KVT_NOMEM;
    seal->job_count = ops;
    for (uint32_t i = 0; i < ops; i++) {
        seal->jobs[i].next_free = seal->free_jobs;
        seal->free_jobs = &seal->jobs[i];
    }
    return KVT_OK;
}

void kvt_seal_close(struct kvt_seal **seal_pointer)
{
    struct kvt_seal *seal = *seal_pointer;
    if (!seal) return;
    kvt_free(seal->jobs);
    kvt_free(seal->units);
    kvt_table_unmap(seal->region, (uint64_t)seal->unit_count * UNIT_BYTES);
    sodium_memzero(seal, sizeof *seal);
    kvt_table_unmap(seal, sizeof *seal);
    *seal_pointer = NULL;
}

void kvt_seal_id(const struct kvt_seal *seal, uint64_t store_id, uint8_t ret_id[KVT_SEAL_ID_BYTES])
{
    memset(ret_id, 0, KVT_SEAL_ID_BYTES);
    if (seal) derive(seal, "kvtier store key id 1", &store_id, sizeof store_id, ret_id, KVT_SEAL_ID_BYTES);
}

enum kvt_seal_cipher kvt_seal_cipher(const struct kvt_seal *seal) { return seal->cipher; }
void kvt_seal_set_cipher(struct kvt_seal *seal, enum kvt_seal_cipher cipher) { seal->cipher = cipher; }

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Head and subject as they are authenticated; the head without its tag. */
struct bound {
    struct kvt_seal_head head;
    struct kvt_seal_subject subject;
};

static struct bound bound_of(const struct kvt_seal_head *head, const struct kvt_seal_subject *subject)
{
    struct bound bound = { .head = *head, .subject = *subject };
    memset(bound.head.tag, 0, sizeof bound.head.tag);
    return bound;
}

_Static_assert(crypto_aead_aes256gcm_ABYTES == 16 && crypto_aead_xchacha20poly1305_ietf_ABYTES == 16,
               "one size of tag");

void kvt_seal_bytes(struct kvt_seal *seal, const struct kvt_seal_subject *subject, const void *plain, uint8_t *target)
{
    struct kvt_seal_head head = { .counter = ++seal->counter, .cipher = seal->cipher };
    KVT_ASSERT(head.counter != 0);
    memcpy(head.session, seal->own.name, sizeof head.session);
    const struct bound bound = bound_of(&head, subject);
    uint8_t nonce[24] = { 0 };
    memcpy(nonce, &head.counter, sizeof head.counter);
    const uint8_t *with = (const uint8_t *)&bound;
    if (seal->cipher == KVT_SEAL_AES_256_GCM)
        (void)crypto_aead_aes256gcm_encrypt_detached_afternm(target + sizeof head, head.tag, NULL, plain,
                                                             subject->length, with, sizeof bound, NULL, nonce,
                                                             &seal->own.aes);
    else
        (void)crypto_aead_xchacha20poly1305_ietf_encrypt_detached(target + sizeof head, head.tag, NULL, plain,
                                                                  subject->length, with, sizeof bound, NULL, nonce,
                                                                  seal->own.key);
    memcpy(target, &head, sizeof head);
}

bool kvt_unseal_bytes(struct kvt_seal *seal, const struct kvt_seal_subject *subject, const uint8_t *sealed,
                      void *target)
{
    struct kvt_seal_head head;
    memcpy(&head, sealed, sizeof head);
    const struct bound bound = bound_of(&head, subject);
    uint8_t nonce[24] = { 0 };
    memcpy(nonce, &head.counter, sizeof head.counter);
    const uint8_t *with = (const uint8_t *)&bound;
    const struct session *session = session_of(seal, head.session);
    if (head.cipher == KVT_SEAL_AES_256_GCM && seal->has_aes)
        return crypto_aead_aes256gcm_decrypt_detached_afternm(target, NULL, sealed + sizeof head, subject->length,
                                                              head.tag, with, sizeof bound, nonce, &session->aes)
            == 0;
    if (head.cipher == KVT_SEAL_XCHACHA20_POLY1305)
        return crypto_aead_xchacha20poly1305_ietf_decrypt_detached(target, NULL, sealed + sizeof head, subject->length,
                                                                   head.tag, with, sizeof bound, nonce, session->key)
            == 0;
    return false;
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* First fit. Puts leave half of the region to gets, so that no get waits behind a queue of puts. */
static bool buffer_take(struct kvt_seal *seal, struct job *job, uint32_t bytes, bool is_put)
{
    const uint32_t wanted = (uint32_t)(kvt_align_up(bytes, UNIT_BYTES) / UNIT_BYTES);
    if (is_put && seal->put_units > 0 && seal->put_units + wanted > seal->unit_count / 2) return false;
    uint32_t run = 0;
    for (uint32_t i = 0; i < seal->unit_count; i++) {
        run = seal->units[i] ? 0 : run + 1;
        if (run < wanted) continue;
        job->unit = i + 1 - wanted;
        job->unit_count = wanted;
        memset(seal->units + job->unit, 1, wanted);
        job->buffer = seal->region + (uint64_t)job->unit * UNIT_BYTES;
        if (is_put) seal->put_units += wanted;
        return true;
    }
    return false;
}

static void job_free(struct kvt_seal *seal, struct job *job)
{
    memset(seal->units + job->unit, 0, job->unit_count);
    if (job->inner.kind == KVT_STORE_PUT) seal->put_units -= job->unit_count;
    job->outer = NULL;
    job->next_free = seal->free_jobs;
    seal->free_jobs = job;
}

/* ---- In the store ------------------------------------------------------------------------------------------------ */

static void push(struct kvt_op_queue *queue, struct kvt_store_op *op)
{
    op->next = NULL;
    if (queue->tail) queue->tail->next = op;
    else queue->head = op;
    queue->tail = op;
}

static struct kvt_store_op *pop(struct kvt_op_queue *queue)
{
    struct kvt_store_op *op = queue->head;
    if (!op) return NULL;
    queue->head = op->next;
    if (!queue->head) queue->tail = NULL;
    op->next = NULL;
    return op;
}

static struct kvt_op_queue *queue_for(struct kvt_op_queue *puts, struct kvt_op_queue *gets,
                                      struct kvt_op_queue *urgent_gets, const struct kvt_store_op *op)
{
    if (op->kind == KVT_STORE_PUT) return puts;
    return (op->flags & KVT_STORE_URGENT) ? urgent_gets : gets;
}

void kvt_seal_queue(struct kvt_seal *seal, struct kvt_store_op *op)
{
    push(queue_for(&seal->puts, &seal->gets, &seal->urgent_gets, op), op);
}

struct kvt_op_queue *kvt_seal_done_queue(struct kvt_seal *seal) { return &seal->done; }

static struct kvt_seal_subject subject_of(const struct kvt_store *store, const struct kvt_store_op *op, uint64_t epoch)
{
    struct kvt_seal_subject subject = { .store_id = store->store_id,
                                        .epoch = epoch,
                                        .generation = op->generation,
                                        .length = op->length,
                                        .tokens = op->tokens,
                                        .form = op->form };
    memcpy(subject.name, &op->name, sizeof subject.name);
    return subject;
}

/* Under the lock. The caller's op is done. */
static void deliver(struct kvt_store *store, struct kvt_store_op *outer, enum kvt_status status)
{
    outer->status = status;
    push(&store->done, outer);
    KVT_ASSERT(store->ops_unfinished > 0);
    store->ops_unfinished--;
    store->has_news = store->has_moved = true;
}

/* Under the lock. What can be said of a get without reading. */
static enum kvt_status look_up(struct kvt_store *store, struct kvt_store_op *outer, uint32_t *ret_length)
{
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(&outer->name));
    if (!entry || (!(outer->flags & KVT_STORE_GENERATION_ANY) && entry->generation != outer->generation)) {
        store->stats.misses++;
        return KVT_NOTFOUND;
    }
    if (entry->length <= KVT_SEAL_BYTES) {
        kvt_store_entry_drop(store, entry);
        store->stats.corrupt++;
        return KVT_CORRUPT;
    }
    if (entry->length - KVT_SEAL_BYTES > outer->length) {
        outer->ret_length = entry->length - KVT_SEAL_BYTES;
        return KVT_FULL;
    }
    *ret_length = entry->length;
    return KVT_OK;
}

/* Makes the inner op of the first that waits; false: none does, or there is no room for it now. */
static bool start_one(struct kvt_store *store, struct kvt_op_queue *queue)
{
    struct kvt_seal *seal = store->seal;
    struct job *job = seal->free_jobs;
    pthread_mutex_lock(&store->lock);
    struct kvt_store_op *outer = queue->head;
    uint32_t length = 0;
    const bool is_put = outer && outer->kind == KVT_STORE_PUT;
    enum kvt_status status = outer && !is_put ? look_up(store, outer, &length) : KVT_OK;
    const uint64_t epoch = is_put ? kvt_put_state(outer)->epoch : store->epoch;
    if (outer && status != KVT_OK) deliver(store, pop(queue), status);
    pthread_mutex_unlock(&store->lock);
    if (!outer) return false;
    if (status != KVT_OK) return true;
    if (is_put) length = outer->length + KVT_SEAL_BYTES;
    if (!job || !buffer_take(seal, job, length, is_put)) return false;
    seal->free_jobs = job->next_free;
    job->outer = outer;
    job->epoch = epoch;
    job->inner = *outer;
    job->inner.user = job;
    job->inner.buffer = job->buffer;
    job->inner.length = length;
    job->subject = subject_of(store, outer, epoch);
    if (is_put) kvt_seal_bytes(seal, &job->subject, outer->buffer, job->buffer);
    pthread_mutex_lock(&store->lock);
    (void)pop(queue);
    if (is_put) store->queued_bytes += KVT_SEAL_BYTES;
    store->ops_unfinished++; /* the inner one's own; the caller's is counted until deliver */
    push(queue_for(&store->puts, &store->gets, &store->urgent_gets, &job->inner), &job->inner);
    store->has_moved = true;
    pthread_mutex_unlock(&store->lock);
    return true;
}

/* Opens what was read. */
static enum kvt_status open_get(struct kvt_store *store, struct job *job)
{
    const struct kvt_store_op *inner = &job->inner;
    struct kvt_store_op *outer = job->outer;
    if (inner->status == KVT_FULL) return KVT_NOTFOUND; /* it was replaced by a longer one meanwhile */
    if (inner->status != KVT_OK) return inner->status;
    if (inner->ret_length <= KVT_SEAL_BYTES || inner->ret_length - KVT_SEAL_BYTES > outer->length) return KVT_CORRUPT;
    job->subject.length = inner->ret_length - KVT_SEAL_BYTES;
    job->subject.generation = inner->ret_generation;
    job->subject.tokens = inner->ret_tokens;
    job->subject.form = inner->ret_form;
    if (!kvt_unseal_bytes(store->seal, &job->subject, job->buffer, outer->buffer)) return KVT_CORRUPT;
    outer->ret_length = job->subject.length;
    outer->ret_generation = inner->ret_generation;
    outer->ret_tokens = inner->ret_tokens;
    outer->ret_form = inner->ret_form;
    return KVT_OK;
}

/* Under the lock. A record that does not open is forgotten, as one whose checksum fails is. */
static enum kvt_status forget(struct kvt_store *store, const struct job *job)
{
    if (job->epoch != store->epoch) return KVT_NOTFOUND; /* a reset came in between: it was sealed for another epoch */
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(&job->outer->name));
    if (entry && entry->generation == job->inner.ret_generation && entry->length == job->inner.ret_length)
        kvt_store_entry_drop(store, entry);
    store->stats.corrupt++;
    return KVT_CORRUPT;
}

static bool finish_one(struct kvt_store *store)
{
    struct kvt_seal *seal = store->seal;
    pthread_mutex_lock(&store->lock);
    struct kvt_store_op *inner = pop(&seal->done);
    pthread_mutex_unlock(&store->lock);
    if (!inner) return false;
    struct job *job = inner->user;
    enum kvt_status status = inner->kind == KVT_STORE_GET ? open_get(store, job) : inner->status;
    job->outer->os_errno = inner->os_errno;
    job->outer->ret_link_ns = inner->ret_link_ns;
    const bool is_tampered = status == KVT_CORRUPT && inner->status == KVT_OK;
    pthread_mutex_lock(&store->lock);
    if (is_tampered) status = forget(store, job);
    deliver(store, job->outer, status);
    pthread_mutex_unlock(&store->lock);
    if (is_tampered)
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a record of %u bytes is not authentic, serving a miss", store->path,
                inner->ret_length);
    job_free(seal, job);
    return true;
}

void kvt_seal_step(struct kvt_store *store)
{
    struct kvt_seal *seal = store->seal;
    if (!seal) return;
    enum { PUTS_PER_STEP = 16 }; /* then gets have a turn */
    while (finish_one(store)) {}
    while (start_one(store, &seal->urgent_gets)) {}
    while (start_one(store, &seal->gets)) {}
    for (int i = 0; i < PUTS_PER_STEP && start_one(store, &seal->puts); i++) {}
}

void kvt_seal_abandon(struct kvt_seal *seal)
{
    struct kvt_op_queue *const queues[] = { &seal->puts, &seal->gets, &seal->urgent_gets };
    for (size_t q = 0; q < KVT_ARRAY_COUNT(queues); q++)
        for (struct kvt_store_op *op = queues[q]->head; op; op = op->next) op->status = KVT_SHUTDOWN;
    for (uint32_t i = 0; i < seal->job_count; i++)
        if (seal->jobs[i].outer) seal->jobs[i].outer->status = KVT_SHUTDOWN;
}
