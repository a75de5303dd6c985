// The ops of a schedule over blocks, spread into the descriptors that a Runner is given.
//
// This is the only place where a block becomes bytes at run time. Which blocks can be moved to which is settled by overloads: another pair
// does not compile. E_sub elements a sub-slice, S bytes a shard, L lanes, N ranks.
#pragma once

#include <cstdint>

#include "tidec/layout.hpp"
#include "tidec/runner.hpp"

namespace tidec {

template <class Runner>
class Ops {
 public:
  Ops(Runner& runner, const Layout& layout) : runner_(runner), layout_(layout) {}

  // ---- order

  // line: of the emitted walk, so that a wait that never ends can be named.
  void wait(const Stream& s, const Signal& awaited, int64_t value, int line = __builtin_LINE()) { runner_.wait(s, level(awaited, value), line); }
  void signal(const Stream& s, const Signal& told, int64_t value) { runner_.signal(s, level(told, value)); }
  void begin_set(const Stream& s) { runner_.begin_set(s); }
  void end_set(const Stream& s) { runner_.end_set(s); }
  void join(const Stream& s) { runner_.join(s); }

  // ---- moves

  // A shard to its final address: one descriptor a parameter.
  template <int kA, int kB>
  void copy(const Stream& s, const Cell<Block::kShard, kA>& src, const Cell<Block::kPlaced, kB>& dst) {
    copy_run(s, src, dst, 1);
  }

  // The shards of `rows` stage slots, from src on, to those of as many nodes, from dst on: one strided descriptor a parameter.
  template <int kA, int kB>
  void copy_run(const Stream& s, const Cell<Block::kShard, kA>& src, const Cell<Block::kPlaced, kB>& dst, int64_t rows) {
    if (rows < 1 || is_skipped(runner_, s, 0)) return;
    const int64_t ranks = layout_.nodes * layout_.lanes;
    const int64_t rank = dst.key[1] * layout_.lanes + dst.key[2];
    runner_.begin_copy(s);
    for (const Param& p : layout_.params) {
      if (p.shard_bytes == 0) continue;
      const Place to = dst.place(p.start_bytes * ranks + rank * p.shard_bytes);
      runner_.copy(s, strided(src.place(p.start_bytes), to, p.shard_bytes, rows, layout_.shard_bytes, layout_.lanes * p.shard_bytes, layout_.moved));
    }
    runner_.end_copy(s);
  }

  // One sub-slice of the L rows of a node's ranks, packed.
  template <int kA, int kB>
  void copy(const Stream& s, const Cell<Block::kGradSlice, kA>& src, const Cell<Block::kSlice, kB>& dst) {
    runner_.begin_copy(s);
    gather(src, [&](const Piece& p) { runner_.copy(s, gradient(src.rank, p, dst.place(), layout_.moved)); });
    runner_.end_copy(s);
  }

  // One pass of one rank's row, packed.
  template <int kA, int kB>
  void copy(const Stream& s, const Cell<Block::kGradRow, kA>& src, const Cell<Block::kRow, kB>& dst) {
    runner_.begin_copy(s);
    gather(src, [&](const Piece& p) { runner_.copy(s, gradient(src.rank, p, dst.place(), layout_.moved)); });
    runner_.end_copy(s);
  }

  // A packed block to another of its kind.
  template <Block kBlock, int kA, int kB>
  void copy(const Stream& s, const Cell<kBlock, kA>& src, const Cell<kBlock, kB>& dst) {
    runner_.copy(s, whole(src, dst));
  }

  template <Block kBlock, int kA, int kB>
  void put(const Stream& s, const Cell<kBlock, kA>& src, const Cell<kBlock, kB>& dst, const Signal& then, int64_t then_value, const Signal& done,
           int64_t done_value, int64_t context = 0) {
    runner_.put(s, whole(src, dst), level(then, then_value), level(done, done_value), context);
  }

  template <Block kBlock, int kDims>
  void zero(const Stream& s, const Cell<kBlock, kDims>& dst) {
    static_assert(is_packed(kBlock), "only a packed block is zeroed");
    runner_.zero(s, {dst.place(), dst.bytes()});
  }

  // The resident shard in the type that is gathered: one descriptor a run of parameters of one stored type.
  template <int kA, int kB>
  void cast(const Stream& s, const Cell<Block::kShard, kA>& src, const Cell<Block::kShard, kB>& dst) {
    for (const CastRun& r : layout_.casts) {
      runner_.cast(s, {src.place(r.src), dst.place(r.dst), r.elems * item_bytes(r.from), 1, 0, 0, r.from, r.to});
    }
  }

  // ---- sums

  // The staged blocks of the other lanes, in order, then the own one; only what the gradients have, so that padding is never summed.
  template <Block kStaged, int kA, Block kOwn, int kB, Block kInto, int kC>
  void sum(const Stream& s, const Cell<kStaged, kA>& staged, const Cell<kOwn, kB>& own, const Cell<kInto, kC>& into, bool seed) {
    static_assert((kStaged == Block::kSlice && kOwn == Block::kGradSlice && kInto == Block::kPartial) ||
                      (kStaged == Block::kRow && kOwn == Block::kGradRow && kInto == Block::kOutRow),
                  "a sum adds slices to a partial, or rows to the output");
    runner_.begin_sum(s, all_of(into), seed);
    const int64_t item = item_bytes(layout_.moved);
    for (int64_t lane = 0; lane < layout_.lanes; ++lane) {
      if (lane == into.rank.lane) continue;
      const Place block = of_lane(staged, lane);
      gather(own, [&](const Piece& p) {
        runner_.add(s, strided(moved(block, p.at * item), moved(into.place(), p.at * kFp32Bytes), p.count * item, p.rows, layout_.chunk_elems * item,
                               layout_.chunk_elems * kFp32Bytes, Dtype::kFp32));
      });
    }
    gather(own, [&](const Piece& p) { runner_.add(s, gradient(own.rank, p, into.place(), Dtype::kFp32)); });
    runner_.end_sum(s);
  }

  // Of each chunk of each sub-slice, the rank's own row of the blocks at one offset of every lane, added to the output; clipped to E.
  template <int kA, int kB>
  void land(const Stream& s, const Cell<Block::kPartial, kA>& src, const Cell<Block::kOutSlice, kB>& into, bool seed) {
    runner_.begin_land(s, all_of(into), seed);
    const int64_t own_row = into.rank.lane * layout_.chunk_elems * kFp32Bytes;
    // The sub-slice is the last dimension of the inbox but those of a block that is cut.
    const int64_t step = src.buffer->strides[layout_.num_chunks > 1 && kA > 2 ? kA - 3 : kA - 1];
    for (int64_t slice = 0; slice < layout_.lanes; ++slice) {
      const int64_t start = (into.key[0] * layout_.lanes + slice) * layout_.slice_elems;
      const int64_t end = least(start + layout_.slice_elems, layout_.packed_elems);
      for (int64_t chunk = 0; chunk < layout_.num_chunks; ++chunk) {
        const int64_t first = start + chunk * layout_.chunk_elems;
        const int64_t last = least(first + layout_.chunk_elems, end);
        if (first >= last) continue;
        // A chunk of a block is L rows.
        const int64_t block = slice * step + chunk * layout_.lanes * layout_.chunk_elems * kFp32Bytes;
        const Place to = {Space::kOut, 0, into.rank, first * kFp32Bytes};
        runner_.land(s, {moved(src.place(), block + own_row), to, (last - first) * kFp32Bytes, 1, 0, 0, Dtype::kFp32, Dtype::kFp32}, layout_.reduction);
      }
    }
    runner_.end_land(s);
  }

  // ---- what the caller does

  template <Block kBlock, int kDims>
  void read(const Stream& s, const Cell<kBlock, kDims>& src) {
    named(src, [&](const Extent& extent) { runner_.read(s, extent); });
  }

  template <Block kBlock, int kDims>
  void free(const Stream& s, const Cell<kBlock, kDims>& dst) {
    named(dst, [&](const Extent& extent) { runner_.free(s, extent); });
  }

 private:
  static constexpr int64_t kFp32Bytes = 4;

  // Whether a Runner says that it takes nothing of this stream now: then its descriptors need not be worked out.
  template <class Asked>
  static auto is_skipped(const Asked& runner, const Stream& s, int) -> decltype(runner.skips(s)) {
    return runner.skips(s);
  }
  template <class Asked>
  static bool is_skipped(const Asked&, const Stream&, long) {
    return false;
  }

  static Level level(const Signal& signal, int64_t value) { return {signal.counter, signal.rank, value}; }

  static Place moved(Place place, int64_t more_bytes) {
    place.offset += more_bytes;
    return place;
  }

  // Pitches count only where there are several rows.
  Move strided(const Place& src, const Place& dst, int64_t width, int64_t rows, int64_t src_pitch, int64_t dst_pitch, Dtype to) const {
    return rows == 1 ? Move{src, dst, width, 1, 0, 0, layout_.moved, to} : Move{src, dst, width, rows, src_pitch, dst_pitch, layout_.moved, to};
  }

  template <Block kBlock, int kA, int kB>
  Move whole(const Cell<kBlock, kA>& src, const Cell<kBlock, kB>& dst) const {
    static_assert(is_packed(kBlock), "a block that is not packed has no one descriptor");
    const Dtype type = kBlock == Block::kPartial ? Dtype::kFp32 : layout_.moved;
    return {src.place(), dst.place(), src.bytes(), 1, 0, 0, type, type};
  }

  // A piece of a gradient on its way to a packed block of that type.
  Move gradient(const Rank& rank, const Piece& p, const Place& block, Dtype to) const {
    const int64_t item = item_bytes(layout_.moved);
    const Place from = {Space::kGrad, p.param, rank, p.start * item};
    return strided(from, moved(block, p.at * item_bytes(to)), p.count * item, p.rows, p.pitch * item, layout_.chunk_elems * item_bytes(to), to);
  }

  // The chunk that the last two keys (stripe, chunk of it) name; a block that is whole has no such keys.
  template <int kWhole, Block kBlock, int kDims>
  int64_t chunk_of(const Cell<kBlock, kDims>& cell) const {
    static_assert(kDims == kWhole || kDims == kWhole + 2, "a block is whole, or a chunk of a stripe");
    if constexpr (kDims == kWhole) return 0;
    else return cell.key[kWhole] * layout_.stripe_chunks + cell.key[kWhole + 1];
  }

  // The rows of gradients in block (part, node, sub-slice), for all L ranks of the node.
  template <int kDims, class Use>
  void gather(const Cell<Block::kGradSlice, kDims>& cell, Use use) const {
    const int64_t slice = cell.key[0] * layout_.lanes + cell.key[2];
    const Rows<Segment> segments = layout_.segments_of(slice * layout_.num_chunks + chunk_of<3>(cell));
    each_piece(layout_, segments, cell.key[1] * layout_.lanes, layout_.lanes, layout_.chunk_elems, use);
  }

  // The rows of gradients in block (part, lane) of one node.
  template <int kDims, class Use>
  void gather(const Cell<Block::kGradRow, kDims>& cell, Use use) const {
    const Rows<Segment> segments = layout_.segments_of(cell.key[0] * layout_.num_chunks + chunk_of<2>(cell));
    each_piece(layout_, segments, cell.key[1], 1, layout_.chunk_elems, use);
  }

  // The block of one lane, of a cell that names the other lanes.
  template <Block kBlock, int kDims>
  static Place of_lane(const Cell<kBlock, kDims>& cell, int64_t lane) {
    Cell<kBlock, kDims> one = cell;
    for (int64_t& key : one.key) key = key == kOthers ? lane : key;
    return one.place();
  }

  // What a sum or a landing writes as a whole, clipped to the end of the buffer.
  template <Block kBlock, int kDims>
  static Extent all_of(const Cell<kBlock, kDims>& cell) {
    return {cell.place(), least(cell.bytes(), cell.buffer->end - cell.offset())};
  }

  // The memory that a cell names as a whole: its block, all blocks of its last dimensions, or every gradient.
  template <Block kBlock, int kDims, class Use>
  void named(const Cell<kBlock, kDims>& cell, Use use) const {
    if constexpr (kBlock == Block::kGradSlice || kBlock == Block::kGradRow) {
      for (int64_t i = 0; i < layout_.params.count; ++i) {
        const Param& p = layout_.params[i];
        if (p.is_trainable && p.real_elems > 0) use(Extent{{Space::kGrad, i, cell.rank, 0}, p.real_elems * item_bytes(layout_.moved)});
      }
    } else {
      use(Extent{cell.place(), cell.bytes()});
    }
  }

  Runner& runner_;
  const Layout& layout_;
};

}  // namespace tidec
