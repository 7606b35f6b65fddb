/*
 * store_seal: authenticated encryption at rest. A sealed record's payload is a head, then the caller's bytes encrypted:
 *             AES-256-GCM
 * where the CPU has it, XChaCha20-Poly1305 otherwise. The head says which, so that either machine's records open on the
 * other (a record of a cipher that this CPU lacks is a miss).
 *
 * A nonce is never used twice under one key. Each opening of a store draws a session, 128 random bits, and derives its
 * own subkey from the caller's key and the session; within a session the nonce is a counter of 64 bits that every put
 * takes one of. Nothing that lies on the disk enters it, so it does not matter what the disk says: a segment that is
 * recycled, a torn tail that is written over, a restart that finds fewer records than were written, a directory that
 * was copied or set back to an older state, two copies of one directory open at once. (Epoch, segment sequence and
 * offset would not do: after a crash the same place of the same segment use can be written again, with other bytes.) A
 * record that is copied forward keeps its bytes, so nothing is encrypted again; what binds it to its new place is the
 * record header's checksum.
 *
 * Authenticated with the bytes: store, epoch, space, key, generation, length, tokens, form, session, counter, cipher.
 * So a record of another name, of before a reset, or of another store fails, whoever made its checksums hold. Not
 * hidden: names, lengths and forms. Not detected: a whole directory that is set back to what it was (but its records
 * are exact ones).
 *
 * Where it sits: between the callers' queues and the log's, in the I/O thread. Callers' ops wait here; each becomes an
 * inner op with a buffer of its own, which goes through the store as in any other; what comes back is opened into the
 * caller's buffer.
 *
 * The caller's key never touches the disk. A digest of it does, in the superblock: with another key, or none, the store
 * starts empty, as one of another shape does.
 */
#ifndef KVT_TIERS_STORE_SEAL_H
#define KVT_TIERS_STORE_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/status.h"

struct kvt_seal;
struct kvt_store;
struct kvt_op_queue;
struct kvt_store_op;

#define KVT_SEAL_KEY_BYTES 32
#define KVT_SEAL_ID_BYTES 16

enum kvt_seal_cipher { KVT_SEAL_AES_256_GCM = 1, KVT_SEAL_XCHACHA20_POLY1305 = 2 };

/* In front of the encrypted bytes. */
struct kvt_seal_head {
    uint8_t session[16];
    uint64_t counter;
    uint32_t cipher;
    uint32_t reserved;
    uint8_t tag[16];
};
#define KVT_SEAL_BYTES 48u
_Static_assert(sizeof(struct kvt_seal_head) == KVT_SEAL_BYTES, "byte table");

/* What is bound to the bytes beside them. */
struct kvt_seal_subject {
    uint64_t store_id, epoch;
    uint64_t name[4];
    uint64_t generation;
    uint32_t length, tokens, form, reserved;
};
_Static_assert(sizeof(struct kvt_seal_subject) == 72, "no padding: it is authenticated as bytes");

KVT_NODISCARD enum kvt_status kvt_seal_open(const uint8_t *key, struct kvt_seal **ret_seal);
/* Takes the memory for so many ops at once, and for buffers of two of the longest records. */
KVT_NODISCARD enum kvt_status kvt_seal_start(struct kvt_seal *seal, uint32_t ops, uint64_t record_bytes_max);
void kvt_seal_close(struct kvt_seal **seal);

/* What the superblock says of the key. A NULL seal has the id of zeros. */
void kvt_seal_id(const struct kvt_seal *seal, uint64_t store_id, uint8_t ret_id[KVT_SEAL_ID_BYTES]);

/* The cipher of new records; the test hook takes another one. */
enum kvt_seal_cipher kvt_seal_cipher(const struct kvt_seal *seal);
void kvt_seal_set_cipher(struct kvt_seal *seal, enum kvt_seal_cipher cipher);

/* target: KVT_SEAL_BYTES and length. Thread: the I/O thread. */
void kvt_seal_bytes(struct kvt_seal *seal, const struct kvt_seal_subject *subject, const void *plain, uint8_t *target);
/*
 * sealed: KVT_SEAL_BYTES and subject->length. False: not what was sealed under this name and key; target is undefined.
 */
KVT_NODISCARD bool kvt_unseal_bytes(struct kvt_seal *seal, const struct kvt_seal_subject *subject,
                                    const uint8_t *sealed, void *target);

/* ---- In the store ------------------------------------------------------------------------------------------------ */

/* Under the lock: a caller's op that was accepted. */
void kvt_seal_queue(struct kvt_seal *seal, struct kvt_store_op *op);
/* Under the lock: where inner ops go when they are done. */
struct kvt_op_queue *kvt_seal_done_queue(struct kvt_seal *seal);
/* The I/O thread's part: opens what came back, seals what waits. */
void kvt_seal_step(struct kvt_store *store);
/* The callers' ops that never ended get SHUTDOWN. */
void kvt_seal_abandon(struct kvt_seal *seal);

#endif
