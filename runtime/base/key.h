/*
 * key: what a block is called. Two blocks have the same name only if they hold the same bytes.
 *
 * root  = BLAKE2b-256, keyed by the optional secret, of (namespace text, salt).
 * key   = BLAKE2b-128 of (root, parent key, token ids of the block). For 16 tokens that is 112 bytes: one
 *         compression. The root carries the secret, the namespace and the salt into every block of a chain.
 *
 * Source: RFC 7693 (BLAKE2b), computed by libsodium.
 * Thread: any; no state. kvt_key_init() once before, from any thread.
 */
#ifndef KVT_RUNTIME_BASE_KEY_H
#define KVT_RUNTIME_BASE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

struct kvt_key {
    uint64_t lo, hi;
}; /* 128 bits; all zero is the parent of a first block */
struct kvt_key_root {
    uint8_t bytes[32];
};

/*
 * The name of a record outside the process: the namespace digest says everything that changes the bytes
 * beside the tokens (model, group, dtype, shape, block_tokens, layout, rank), the key says the tokens.
 */
struct kvt_name {
    struct kvt_key space; /* namespace digest */
    struct kvt_key key;
};

static inline bool kvt_key_equal(struct kvt_key a, struct kvt_key b) { return a.lo == b.lo && a.hi == b.hi; }
static inline bool kvt_key_is_zero(struct kvt_key a) { return a.lo == 0 && a.hi == 0; }
static inline bool kvt_name_equal(const struct kvt_name *a, const struct kvt_name *b)
{
    return kvt_key_equal(a->space, b->space) && kvt_key_equal(a->key, b->key);
}

/* Must have returned KVT_OK once before the others are called. UNSUPPORTED: the digest library refused. */
KVT_NODISCARD enum kvt_status kvt_key_init(void);

/* secret: secret_bytes (0 to 64) of it; salt: salt_bytes of it, both may be NULL with 0. */
void kvt_key_root(const void *secret, size_t secret_bytes, const struct kvt_key *space, const void *salt,
                  size_t salt_bytes, struct kvt_key_root *ret_root);

/* The key of the block that holds these tokens after parent. */
struct kvt_key kvt_key_chain(const struct kvt_key_root *root, struct kvt_key parent, const uint32_t *tokens,
                             uint32_t token_count);

/* 128-bit digest of any bytes: namespace digests, drop marks. */
struct kvt_key kvt_key_digest(const void *bytes, size_t size);

#endif
