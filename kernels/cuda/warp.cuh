/* warp: what a warp does together with kernels/rank_body.h: ballots, and or-ing the lanes' parts of a word. */
#ifndef KVT_KERNELS_CUDA_WARP_CUH
#define KVT_KERNELS_CUDA_WARP_CUH

#include "kernels/rank_body.h"

#define KVT_WARP_ALL 0xffffffffu

static __device__ inline uint64_t kvt_warp_or(uint64_t part)
{
    const uint32_t low = __reduce_or_sync(KVT_WARP_ALL, (uint32_t)part);
    const uint32_t high = __reduce_or_sync(KVT_WARP_ALL, (uint32_t)(part >> 32));
    return (uint64_t)high << 32 | low;
}

static __device__ inline struct kvt_rank_votes kvt_warp_vote(const struct kvt_rank_lane *lane, uint32_t level)
{
    struct kvt_rank_votes votes;
    votes.even = __ballot_sync(KVT_WARP_ALL, kvt_rank_lane_takes_part(lane, 0, level));
    votes.odd = __ballot_sync(KVT_WARP_ALL, kvt_rank_lane_takes_part(lane, 1, level));
    return votes;
}

/* Both words of a level's planes, in every lane. */
static __device__ inline void kvt_warp_words(const struct kvt_rank_lane *lane, uint32_t index, uint32_t level,
                                             struct kvt_rank_votes votes, uint64_t ret_words[2])
{
    uint64_t part[2];
    kvt_rank_lane_words(lane, index, level, votes, part);
    ret_words[0] = kvt_warp_or(part[0]);
    ret_words[1] = kvt_warp_or(part[1]);
}

/* Ors `word` into shared words from a bit on. */
static __device__ inline void kvt_shared_or(uint32_t *words, uint32_t position, uint64_t word)
{
    const uint32_t shift = position & 31;
    const uint64_t low = word << shift;
    const uint32_t high = shift ? (uint32_t)(word >> (64 - shift)) : 0;
    uint32_t *at = words + (position >> 5);
    if ((uint32_t)low) atomicOr(&at[0], (uint32_t)low);
    if ((uint32_t)(low >> 32)) atomicOr(&at[1], (uint32_t)(low >> 32));
    if (high) atomicOr(&at[2], high);
}

/* 64 bits of shared words from a bit on; what lies behind the caller's count is anything. */
static __device__ inline uint64_t kvt_shared_bits(const uint32_t *words, uint32_t position)
{
    const uint32_t *at = words + (position >> 5);
    const uint32_t shift = position & 31;
    const uint64_t low = (uint64_t)at[1] << 32 | at[0];
    return shift ? low >> shift | (uint64_t)at[2] << (64 - shift) : low;
}

#endif
