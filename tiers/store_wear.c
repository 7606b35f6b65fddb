#include "tiers/store_wear.h"

#include <stddef.h>
#include <string.h>

#include "runtime/base/crc32c.h"

#define HOUR_NS (UINT64_C(3600) * 1000000000)
#define DAY_S UINT64_C(86400)

static void advance(struct kvt_wear *wear, uint64_t now_ns)
{
    const uint64_t hour = now_ns / HOUR_NS;
    if (hour <= wear->hour) return;
    uint64_t passed = hour - wear->hour;
    if (passed > KVT_WEAR_HOURS) passed = KVT_WEAR_HOURS;
    wear->hour = hour;
    for (uint64_t i = 0; i < passed; i++) {
        uint64_t *bucket = &wear->buckets[(hour - i) % KVT_WEAR_HOURS];
        wear->day_bytes -= *bucket;
        *bucket = 0;
    }
}

void kvt_wear_update(struct kvt_wear *wear, uint64_t total_bytes, uint64_t now_ns)
{
    advance(wear, now_ns);
    const uint64_t bytes = total_bytes - wear->seen_bytes;
    wear->seen_bytes = total_bytes;
    wear->buckets[wear->hour % KVT_WEAR_HOURS] += bytes;
    wear->day_bytes += bytes;
}

bool kvt_wear_is_over(const struct kvt_wear *wear, uint64_t bytes)
{
    return wear->budget_bytes > 0
        && (wear->day_bytes >= wear->budget_bytes || bytes > wear->budget_bytes - wear->day_bytes);
}

void kvt_wear_note_write(const struct kvt_wear *wear, uint64_t sequence, uint64_t wall_s, uint8_t *block)
{
    struct kvt_wear_note note = {
        .magic = KVT_WEAR_MAGIC, .sequence = sequence, .wall_s = wall_s, .day_bytes = wear->day_bytes
    };
    note.crc = kvt_crc32c(0, &note, offsetof(struct kvt_wear_note, crc));
    memcpy(block + KVT_WEAR_NOTE_AT, &note, sizeof note);
}

bool kvt_wear_note_read(const uint8_t *block, uint64_t sequence, uint64_t wall_s, uint64_t *ret_bytes)
{
    struct kvt_wear_note note;
    memcpy(&note, block + KVT_WEAR_NOTE_AT, sizeof note);
    if (note.magic != KVT_WEAR_MAGIC || note.crc != kvt_crc32c(0, &note, offsetof(struct kvt_wear_note, crc)))
        return false;
    if (note.sequence != sequence || (wall_s > note.wall_s && wall_s - note.wall_s >= DAY_S)) return false;
    /* No disk writes that much a day: what says so is no note of ours, and must not make the sum wrap. */
    if (note.day_bytes > UINT64_MAX / 4) return false;
    *ret_bytes = note.day_bytes;
    return true;
}
