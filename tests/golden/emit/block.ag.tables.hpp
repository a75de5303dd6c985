// The tables of the bundle's plans: where parameters, sub-slices and buffers lie. See tidec/layout.hpp for what an entry means.
#pragma once

#include <cstdint>

#include "tidec/layout.hpp"

// The all-gather of "block" on 3x2, p2p.
// Schedule tide_ag(cast=True, multicast=False); plan <digest>.
namespace tidec::plans::block_ag {

inline constexpr Param kParams[] = {
    {21, 6, 12, 0, true},
    {33, 6, 12, 12, true},
};

inline constexpr CastRun kCasts[] = {
    {0, 0, 12, Dtype::kFp32, Dtype::kBf16},
};

inline constexpr Layout kLayout{
    3,  // nodes M
    2,  // lanes L
    24,  // shard_bytes S
    12,  // packed_elems E
    8,  // slice_elems E_sub
    1,  // num_chunks K
    1,  // stripe_chunks
    8,  // chunk_elems
    Dtype::kBf16,  // moved
    Reduction::kInOrder,  // reduction
    {kParams, 2},  // params
    {kCasts, 1},  // casts
    {nullptr, 0},  // segments
    {nullptr, 0},  // segment_starts
};

inline constexpr Buffer<Block::kShard, 1> kShard{Space::kShard, 0, 48, 48, {0}, {48}};
inline constexpr Buffer<Block::kShard, 1> kStage{Space::kArena, 512, 584, 24, {0}, {24}};
inline constexpr Buffer<Block::kPlaced, 3> kLand{Space::kArena, 0, 288, 0, {0, 0, 0}, {144, 0, 0}};

inline constexpr int64_t kArenaBytes = 1024;

}  // namespace tidec::plans::block_ag
