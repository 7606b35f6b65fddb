#include "kernels/checksum.h"

#include "runtime/base/crc32c.h"

void kvt_checksum_ref(const struct kvt_checksum_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        uint32_t state = ~runs[r].before;
        for (uint64_t i = 0; i < runs[r].size; i++) {
            state ^= runs[r].bytes[i];
            for (uint32_t bit = 0; bit < 8; bit++) state = kvt_checksum_times_x(state);
        }
        *runs[r].ret_crc = ~state;
    }
}

/* Pieces from the last to the first: their order does not matter, and a GPU has none. */
void kvt_checksum_body(const struct kvt_checksum_run *runs, uint32_t count)
{
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) table[i] = kvt_checksum_entry(i);
    for (uint32_t r = 0; r < count; r++) {
        uint32_t crc = kvt_checksum_start(&runs[r]);
        for (uint64_t piece = (runs[r].size + KVT_CHECKSUM_PIECE - 1) / KVT_CHECKSUM_PIECE; piece-- > 0;)
            crc ^= kvt_checksum_piece(&runs[r], piece * KVT_CHECKSUM_PIECE, table);
        *runs[r].ret_crc = crc;
    }
}

void kvt_checksum_best(const struct kvt_checksum_run *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) *runs[r].ret_crc = kvt_crc32c(runs[r].before, runs[r].bytes, runs[r].size);
}

uint32_t kvt_checksum_combine(uint32_t first, uint32_t second, uint64_t second_size)
{
    return kvt_checksum_times(first, kvt_checksum_power(second_size)) ^ second;
}
