#include "runtime/base/key.h"

#include <sodium.h>
#include <string.h>

#include "runtime/base/assert.h"

_Static_assert(sizeof(struct kvt_key) == 16, "a key is a 128-bit digest");

enum kvt_status kvt_key_init(void) { return sodium_init() < 0 ? KVT_UNSUPPORTED : KVT_OK; }

void kvt_key_root(const void *secret, size_t secret_bytes, const struct kvt_key *space, const void *salt,
                  size_t salt_bytes, struct kvt_key_root *ret_root)
{
    KVT_ASSERT(secret_bytes <= crypto_generichash_KEYBYTES_MAX);
    crypto_generichash_state state;
    const uint64_t salt_size = salt_bytes;
    /* libsodium takes 16 bytes of key or more, or none: a short secret is padded with zeros, its length is digested. */
    uint8_t padded[crypto_generichash_KEYBYTES_MAX] = { 0 };
    const uint64_t secret_size = secret_bytes;
    if (secret_bytes) memcpy(padded, secret, secret_bytes);
    (void)crypto_generichash_init(&state, secret_bytes ? padded : NULL, secret_bytes ? sizeof padded : 0,
                                  sizeof ret_root->bytes);
    (void)crypto_generichash_update(&state, (const uint8_t *)&secret_size, sizeof secret_size);
    (void)crypto_generichash_update(&state, (const uint8_t *)space, sizeof *space);
    (void)crypto_generichash_update(&state, (const uint8_t *)&salt_size, sizeof salt_size);
    if (salt_bytes) (void)crypto_generichash_update(&state, salt, salt_bytes);
    (void)crypto_generichash_final(&state, ret_root->bytes, sizeof ret_root->bytes);
    sodium_memzero(padded, sizeof padded);
}

struct kvt_key kvt_key_chain(const struct kvt_key_root *root, struct kvt_key parent, const uint32_t *tokens,
                             uint32_t token_count)
{
    enum { TOKENS_ON_STACK = 1024 };
    struct kvt_key key;
    const size_t head = sizeof *root + sizeof parent;
    const size_t size = head + (size_t)token_count * sizeof *tokens;
    if (token_count <= TOKENS_ON_STACK) {
        uint8_t input[sizeof *root + sizeof parent + TOKENS_ON_STACK * sizeof *tokens];
        memcpy(input, root, sizeof *root);
        memcpy(input + sizeof *root, &parent, sizeof parent);
        memcpy(input + head, tokens, size - head);
        (void)crypto_generichash((uint8_t *)&key, sizeof key, input, size, NULL, 0);
    } else {
        crypto_generichash_state state;
        (void)crypto_generichash_init(&state, NULL, 0, sizeof key);
        (void)crypto_generichash_update(&state, root->bytes, sizeof root->bytes);
        (void)crypto_generichash_update(&state, (const uint8_t *)&parent, sizeof parent);
        (void)crypto_generichash_update(&state, (const uint8_t *)tokens, size - head);
        (void)crypto_generichash_final(&state, (uint8_t *)&key, sizeof key);
    }
    return key;
}

struct kvt_key kvt_key_digest(const void *bytes, size_t size)
{
    struct kvt_key key;
    (void)crypto_generichash((uint8_t *)&key, sizeof key, bytes, size, NULL, 0);
    return key;
}
