/*
 * store_wear: how much the device was written in the last 24 hours, for the endurance budget.
 *
 * Buckets of an hour; the oldest leaves when its hour comes round. Each segment header carries a note (when, how much),
 * so that a restart does not make the day begin anew: the youngest note counts as written now if it is younger than a
 * day. A wall clock that went backwards makes a note younger, never older: the budget is not exceeded by it.
 * Thread:  under the store's lock.
 */
#ifndef KVT_TIERS_STORE_WEAR_H
#define KVT_TIERS_STORE_WEAR_H

#include <stdbool.h>
#include <stdint.h>

#define KVT_WEAR_HOURS 24
#define KVT_WEAR_MAGIC 0x3152414556544b31ull
#define KVT_WEAR_NOTE_AT 64u /* in the block of a segment header, behind it */

struct kvt_wear {
    uint64_t budget_bytes; /* a day; 0: none */
    uint64_t buckets[KVT_WEAR_HOURS];
    uint64_t hour;       /* of the bucket that is being filled */
    uint64_t day_bytes;  /* their sum */
    uint64_t seen_bytes; /* of the total that update was told */
};

struct kvt_wear_note {
    uint64_t magic;
    uint64_t sequence; /* of the segment: a note of an earlier use does not count */
    uint64_t wall_s;
    uint64_t day_bytes;
    uint32_t reserved;
    uint32_t crc;
};
_Static_assert(sizeof(struct kvt_wear_note) == 40, "byte table");

/* What was written since the store was opened has grown to total_bytes. */
void kvt_wear_update(struct kvt_wear *wear, uint64_t total_bytes, uint64_t now_ns);

/* `bytes` more would exceed the budget. */
bool kvt_wear_is_over(const struct kvt_wear *wear, uint64_t bytes);

/* Writes the note into the block of a segment header. */
void kvt_wear_note_write(const struct kvt_wear *wear, uint64_t sequence, uint64_t wall_s, uint8_t *block);

/* What the note in the block says was written in the 24 hours before it. False: no note, or an old one. */
bool kvt_wear_note_read(const uint8_t *block, uint64_t sequence, uint64_t wall_s, uint64_t *ret_bytes);

#endif
