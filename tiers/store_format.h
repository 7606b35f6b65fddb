/*
 * store_format: the bytes of a store directory. Little-endian, version 1.
 *
 * superblock       two copies, at 0 and 4096; the valid one with the higher sequence counts. A reset writes the next epoch
 *                  into the older copy first, so that one of them is valid at any moment.
 * segment-NNNNNN   at 0 the segment header; from 4096 on records, back to back at the store's alignment; in a closed
 *                  segment its summary, which ends at the footer, which ends the file.
 *
 * A record is valid if and only if
 *   1. its header's magic, version and checksum hold,
 *   2. its store, epoch, segment sequence and offset are those of the place where it lies (so that what a recycled segment
 *      had before, what another store wrote, and what went to the wrong place, are no records),
 *   3. its stored length is its header plus its length, padded, and ends inside the segment,
 *   4. its space and key, and its generation where the reader names one, are what the reader asked for,
 *   5. its payload's checksum holds.
 * A reader gets bytes of valid records only. Of two valid records of one name the one with the higher record sequence
 * counts; a record that was copied forward keeps its sequence.
 *
 * In an encrypted store the payload is a struct kvt_seal_head and the encrypted bytes (store_seal.h); the id of the key is in the block of
 * each superblock copy. The block of a segment header also has a note of what was written that day (store_wear.h).
 *
 * A summary lists the records of its segment. It is written after they are on the device, so it never names what is not
 * there. A segment without a valid footer is walked: every aligned place from 4096 on that holds a valid header is a record.
 */
#ifndef KVT_TIERS_STORE_FORMAT_H
#define KVT_TIERS_STORE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/key.h"

#define KVT_STORE_FORMAT_VERSION 1
#define KVT_STORE_BLOCK_BYTES    4096u /* superblock copies, segment headers, footers */

#define KVT_SUPERBLOCK_MAGIC 0x315052535654564bull /* "KVTVSRP1" */
#define KVT_SEGMENT_MAGIC    0x314745535654564bull
#define KVT_FOOTER_MAGIC     0x31544f465654564bull
#define KVT_RECORD_MAGIC     0x3143524bu           /* "KRC1" */

/* The checksum of each struct is over its bytes before `crc`. */
struct kvt_superblock {
    uint64_t magic;
    uint32_t version;
    uint32_t alignment;      /* of records */
    uint64_t store_id;       /* drawn when the store is made; in every block of it */
    uint64_t sequence;       /* grows with each write of a superblock */
    uint64_t epoch;          /* records of another epoch are no records */
    uint64_t segment_bytes;
    uint64_t capacity_bytes; /* as it was last opened; for tools */
    uint32_t segment_slots;  /* files are numbered below it */
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_superblock) == 64, "byte table");
_Static_assert(offsetof(struct kvt_superblock, crc) == 60, "byte table");

/* Behind the superblock, in the block of each copy. In a store whose records are encrypted; zeros otherwise. */
#define KVT_SUPERBLOCK_KEY_MAGIC 0x3159454b5654564bull
#define KVT_SUPERBLOCK_KEY_AT    64u
struct kvt_superblock_key {
    uint64_t magic;
    uint8_t id[16];          /* a digest of the key and the store's id */
    uint32_t reserved;
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_superblock_key) == 32, "byte table");

struct kvt_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t index;          /* the number in the file's name */
    uint64_t store_id;
    uint64_t epoch;
    uint64_t sequence;       /* grows with each use of a segment */
    uint32_t reserved;
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_segment_header) == 48, "byte table");
_Static_assert(offsetof(struct kvt_segment_header, crc) == 44, "byte table");

struct kvt_segment_footer {
    uint64_t magic;
    uint32_t version;
    uint32_t index;
    uint64_t store_id;
    uint64_t epoch;
    uint64_t sequence;
    uint64_t summary_offset; /* its entries end before the footer, padded with zeros to KVT_STORE_BLOCK_BYTES */
    uint32_t entry_count;
    uint32_t summary_crc;    /* of the entries */
    uint32_t reserved;
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_segment_footer) == 64, "byte table");
_Static_assert(offsetof(struct kvt_segment_footer, crc) == 60, "byte table");

enum { KVT_RECORD_PRIVATE = 1 << 0 };

struct kvt_record_header {
    uint32_t magic;
    uint16_t version;
    uint16_t flags;
    uint64_t store_id;
    uint64_t epoch;
    uint64_t segment_sequence;
    uint64_t offset;         /* in the segment file */
    uint64_t sequence;       /* of the put */
    struct kvt_name name;
    uint64_t generation;
    uint32_t length;         /* payload bytes; kvt_store_payload_at() says where they begin */
    uint32_t stored;         /* header and payload, padded to the alignment */
    uint32_t tokens;
    uint32_t form;
    uint32_t payload_crc;
    uint32_t reserved[4];
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_record_header) == 128, "byte table");
_Static_assert(offsetof(struct kvt_record_header, name) == 48, "byte table");
_Static_assert(offsetof(struct kvt_record_header, crc) == 124, "byte table");

struct kvt_summary_entry {
    struct kvt_name name;
    uint64_t generation;
    uint64_t sequence;
    uint32_t offset_units;   /* of 512 bytes */
    uint32_t length;
    uint16_t tokens;
    uint8_t form;
    uint8_t flags;
    uint32_t reserved;
};
_Static_assert(sizeof(struct kvt_summary_entry) == 64, "byte table");

#define KVT_STORE_UNIT_BYTES 512u

#define KVT_STORE_LONG_BYTES 131072u

/*
 * Where the payload begins in a record: behind the header, or, when whole blocks of the device hold it or when it is long, in the
 * block behind the header's, so that it can be moved between the device and the caller's memory without a copy. The one takes no
 * more room for that, the other at most a block.
 */
static inline uint32_t kvt_store_payload_at(uint32_t length, uint32_t alignment)
{
    const bool is_apart = length >= KVT_STORE_LONG_BYTES || (length & (alignment - 1)) == 0;
    return is_apart ? alignment : (uint32_t)sizeof(struct kvt_record_header);
}

static inline uint64_t kvt_store_stored_bytes(uint32_t length, uint32_t alignment)
{
    const uint64_t bytes = kvt_store_payload_at(length, alignment) + (uint64_t)length;
    return (bytes + alignment - 1) & ~((uint64_t)alignment - 1);
}

#endif
