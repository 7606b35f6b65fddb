/* fold: a 64-bit digest of bytes, for telling tables apart and noticing damage; not against an adversary. */
#ifndef KVT_TIERS_FOLD_H
#define KVT_TIERS_FOLD_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/bytes.h"
#include "runtime/base/rng.h"

/* The digest of what seed is the digest of, and then these bytes. */
static inline uint64_t kvt_fold(uint64_t seed, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    uint64_t digest = kvt_mix64(seed + size + 0x9e3779b97f4a7c15u);
    for (; size >= 8; size -= 8, p += 8) digest = kvt_mix64(digest ^ kvt_load_u64(p)) + 0x9e3779b97f4a7c15u;
    uint64_t last = 0;
    memcpy(&last, p, size);
    return kvt_mix64(digest ^ last);
}

#endif
