// Block to bytes: the tables of a plan, and which rows a block of it stands for.
//
// M nodes, L lanes, N = M*L ranks, P params, S bytes a shard, E elements of a packed output row. Of parameter p: n_p elements and s_p bytes a
// rank, o_p where it starts. The packed row is cut into num_parts * L sub-slices of E_sub elements, each into K chunks. All counts are 64-bit.
#pragma once

#include <cstdint>

#include "tidec/index.hpp"
#include "tidec/rank.hpp"
#include "tidec/runner.hpp"

namespace tidec {

// real_elems D*K, shard_elems n_p, shard_bytes s_p, start_bytes o_p; is_trainable: it has a gradient.
struct Param {
  int64_t real_elems;
  int64_t shard_elems;
  int64_t shard_bytes;
  int64_t start_bytes;
  bool is_trainable;
};

// A run of one parameter in a sub-slice, or in a pass: from its element `first` within n_p, `count` elements, at element `at` of the block's row.
struct Segment {
  int64_t param;
  int64_t first;
  int64_t count;
  int64_t at;
};

// Parameters that are stored in one type, one after the other: byte offsets in the resident shard and in a stage slot.
struct CastRun {
  int64_t src;
  int64_t dst;
  int64_t elems;
  Dtype from;
  Dtype to;
};

// A list of rows of a table.
template <class Row>
struct Rows {
  const Row* first;
  int64_t count;

  constexpr const Row* begin() const { return first; }
  constexpr const Row* end() const { return first + count; }
  constexpr const Row& operator[](int64_t i) const { return first[i]; }
};

// Everything that the blocks of one plan need.
//
// moved: the type of shards, or of gradients.  shard_bytes S, packed_elems E, slice_elems E_sub, num_chunks K, stripe_chunks of a stripe;
// chunk_elems: elements that a block's row has of one chunk, whose rows lie one after the other.
// segments: those of chunk q of sub-slice s are rows segment_starts[i] up to segment_starts[i + 1], i = (part*L + s)*K + q. With one node the
// blocks are whole rows, cut into K chunks of L*chunk_elems, and i = part*K + q.
struct Layout {
  int64_t nodes;
  int64_t lanes;
  int64_t shard_bytes;
  int64_t packed_elems;
  int64_t slice_elems;
  int64_t num_chunks;
  int64_t stripe_chunks;
  int64_t chunk_elems;
  Dtype moved;
  Reduction reduction;
  Rows<Param> params;
  Rows<CastRun> casts;
  Rows<Segment> segments;
  Rows<int64_t> segment_starts;

  // The segments of one chunk of a sub-slice, or of a pass.
  constexpr Rows<Segment> segments_of(int64_t i) const {
    return {segments.first + segment_starts[i], segment_starts[i + 1] - segment_starts[i]};
  }
};

// What a block is made of; see tidec/schedule/program.py.
enum class Block { kShard, kPlaced, kGradSlice, kSlice, kPartial, kOutSlice, kGradRow, kRow, kOutRow };

// Whether a block is one contiguous range of bytes.
constexpr bool is_packed(Block block) {
  return block == Block::kShard || block == Block::kSlice || block == Block::kPartial || block == Block::kRow;
}

template <Block kBlock, int kDims>
struct Buffer;

// A block of a buffer on a rank. A key may be kAll or kOthers.
template <Block kBlock, int kDims>
struct Cell {
  const Buffer<kBlock, kDims>* buffer;
  int64_t key[kDims];
  Rank rank;

  // Where it begins; a whole dimension counts from its first index.
  constexpr int64_t offset() const {
    int64_t bytes = buffer->base;
    for (int d = 0; d < kDims; ++d) bytes += key[d] < 0 ? 0 : (key[d] - buffer->lows[d]) * buffer->strides[d];
    return least(bytes, buffer->end);
  }

  constexpr Place place(int64_t more_bytes = 0) const { return {buffer->space, 0, rank, offset() + more_bytes}; }

  // How much of a packed buffer it names: its block, or all blocks of its last dimensions.
  constexpr int64_t bytes() const {
    int whole = 0;
    while (whole < kDims && key[whole] >= 0) ++whole;
    return whole > 0 ? buffer->strides[whole - 1] : buffer->end - buffer->base;
  }
};

// A block that has no rank yet.
template <Block kBlock, int kDims>
struct BlockName {
  const Buffer<kBlock, kDims>* buffer;
  int64_t key[kDims];

  constexpr Cell<kBlock, kDims> at(int64_t node, int64_t lane) const {
    Cell<kBlock, kDims> cell{buffer, {}, {node, lane}};
    for (int d = 0; d < kDims; ++d) cell.key[d] = key[d];
    return cell;
  }
};

// A buffer of the schedule: block (k, ...) begins at base + the sum of (k - low) * stride. block_bytes: of one block, 0 where it is not packed.
template <Block kBlock, int kDims>
struct Buffer {
  Space space;
  int64_t base;
  int64_t end;
  int64_t block_bytes;
  int64_t lows[kDims];
  int64_t strides[kDims];

  template <class... Keys>
  constexpr BlockName<kBlock, kDims> operator()(Keys... keys) const {
    static_assert(sizeof...(Keys) == kDims, "a block has one key a dimension");
    return {this, {static_cast<int64_t>(keys)...}};
  }
};

// Rows of one gradient, in elements: in the tensor from `start` with `pitch`, in the packed block from `at` with the pitch of its rows.
struct Piece {
  int64_t param;
  int64_t start;
  int64_t pitch;
  int64_t at;
  int64_t count;
  int64_t rows;
};

// Calls use(piece) for each run of rows that gradients have of a block's row `segments`, for the ranks first_rank .. first_rank + num_rows-1.
//
// Rank r's part of gradient p starts at element r*n_p of its D*K, so of a segment clamp(D*K - r*n_p - first, 0, count) elements are real. That
// falls with r: the full rows come first, and one row at most is partial. Nothing past a gradient's end is ever named.
template <class Use>
constexpr void each_piece(const Layout& layout, Rows<Segment> segments, int64_t first_rank, int64_t num_rows, int64_t row_elems, Use use) {
  for (const Segment& s : segments) {
    const Param& p = layout.params[s.param];
    const int64_t start = first_rank * p.shard_elems + s.first;
    const int64_t past = p.real_elems - start;
    const int64_t full_rows = past >= s.count ? least(num_rows, (past - s.count) / p.shard_elems + 1) : 0;
    const int64_t tail_elems = full_rows < num_rows ? most(0, past - full_rows * p.shard_elems) : 0;
    if (full_rows > 0) use(Piece{s.param, start, p.shard_elems, s.at, s.count, full_rows});
    if (tail_elems > 0) use(Piece{s.param, start + full_rows * p.shard_elems, p.shard_elems, full_rows * row_elems + s.at, tail_elems, 1});
  }
}

}  // namespace tidec
