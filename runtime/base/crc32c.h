/*
 * crc32c: the checksum of the store's headers and payloads (Castagnoli polynomial, as iSCSI and ext4 use it).
 *
 * The way is chosen once at the first call: 512-bit folding (VPCLMULQDQ), 128-bit folding (PCLMULQDQ), the crc32
 * instruction (SSE4.2), or tables. All give the same numbers.
 *
 * Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009.
 * Thread: any; no state but the choice.
 */
#ifndef KVT_RUNTIME_BASE_CRC32C_H
#define KVT_RUNTIME_BASE_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The checksum of what crc covers followed by bytes[0 .. size). crc of nothing is 0. */
uint32_t kvt_crc32c(uint32_t crc, const void *bytes, size_t size);

/* The same, and copies source to target, which do not overlap: each piece is summed while it is in the cache. */
uint32_t kvt_crc32c_copy(uint32_t crc, void *target, const void *source, size_t size);

enum kvt_crc32c_way { KVT_CRC32C_TABLES, KVT_CRC32C_SSE42, KVT_CRC32C_FOLD128, KVT_CRC32C_FOLD512, KVT_CRC32C_WAYS };

bool kvt_crc32c_has(enum kvt_crc32c_way way); /* on this CPU */
const char *kvt_crc32c_name(enum kvt_crc32c_way way);
enum kvt_crc32c_way kvt_crc32c_chosen(void);

/* By one way, which this CPU must have; for tests and benchmarks. */
uint32_t kvt_crc32c_by(enum kvt_crc32c_way way, uint32_t crc, const void *bytes, size_t size);

#endif
