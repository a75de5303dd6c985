// What every target implements: a Runner, and the ops with bytes and counters resolved that it is given.
//
// An emitted walk is `template <class Runner> void issue(Runner&, const Rank&, Call)`. It calls the members below in position order, which is
// the order in which the host issues. A Runner maps a stream to what it has: a CUDA stream, a FIFO of a worker, a printer. It keeps the order
// of the ops of one stream; what lies between begin_set and end_set may run in any order and at the same time, and so may all descriptors of
// one copy; only what follows the next join of that stream is after it. A Runner may not spread ordered ops of one stream over several
// streams, nor hand them over as a batch that has no order.
//
//   void wait(const Stream&, const Level&, int line)        the stream goes on once the counter has reached the level; level.rank raises it.
//                                                           line: of the emitted walk
//   void signal(const Stream&, const Level&)                all earlier ops of the stream have ended; level.rank is told
//   void copy(const Stream&, const Move&)                   one descriptor inside the node; dst.rank.lane may be kAll (multicast)
//   void begin_copy(const Stream&), end_copy(const Stream&) between them stand the descriptors of one copy that has several
//   void put(const Stream&, const Move&, const Level& then, const Level& done, int64_t context)
//                                                           to another node on the same rail, over that RMA context. then: told there
//                                                           once the data is visible; done: told here once the source may be reused
//   void zero(const Stream&, const Extent&)
//   void cast(const Stream&, const Move&)                   move.width bytes of move.from become as many values of move.to
//   void begin_sum(const Stream&, const Extent& into, bool seed)
//                                                           into is written as a whole: 0 where there is no term
//   void add(const Stream&, const Move&)                    a term, in the order in which it is added, in fp32; its destination is fp32
//   void end_sum(const Stream&)                             into = alpha * the sum of the terms; with seed, plus `into` if the caller accumulates
//   void begin_land(const Stream&, const Extent& into, bool seed)
//                                                           seed: the output starts from what the caller accumulates into, or from zero
//   void land(const Stream&, const Move&, Reduction)        dst += the blocks at the source's offset on every lane
//   void end_land(const Stream&)
//   void begin_set(const Stream&), end_set(const Stream&), join(const Stream&)
//   void read(const Stream&, const Extent&)                 the caller's kernels read it between calls
//   void free(const Stream&, const Extent&)                 the caller may free or overwrite its input
//   bool skips(const Stream&) const                         may be missing: whether all ops of this stream are nothing to it for now
//
// A target's header gives its Runner the name tidec::Target.
#pragma once

#include <cstdint>

#include "tidec/rank.hpp"

namespace tidec {

enum class Dtype { kBf16, kFp16, kFp32, kFp64 };

constexpr int64_t item_bytes(Dtype type) { return type == Dtype::kFp64 ? 8 : type == Dtype::kFp32 ? 4 : 2; }

struct Stream {
  int index;
  const char* name;
};

// For whom a flag is raised: itself, every lane of its node, the other lanes, or the other nodes on its rail.
enum class Scope { kSelf, kNode, kLanes, kRail };

inline constexpr int kMaxKeys = 4;

struct Flag;

// One counter of a flag: the keys that choose it. With `rank` the cell is known: it has one raiser.
struct Counter {
  const Flag* flag;
  int num_keys;
  int64_t keys[kMaxKeys];

  struct Signal at(int64_t node, int64_t lane) const;
  struct Signal by(int64_t node, int64_t lane) const;
};

// A counter and the rank at its other end: whom it is raised for, or in a wait who raises it.
struct Signal {
  Counter counter;
  Rank rank;
};

inline Signal Counter::at(int64_t node, int64_t lane) const { return {*this, {node, lane}}; }
inline Signal Counter::by(int64_t node, int64_t lane) const { return {*this, {node, lane}}; }

struct Flag {
  int index;
  const char* name;
  Scope scope;

  template <class... Keys>
  constexpr Counter operator()(Keys... keys) const {
    static_assert(sizeof...(Keys) <= kMaxKeys, "more keys than a counter holds: raise kMaxKeys");
    return {this, sizeof...(Keys), {static_cast<int64_t>(keys)...}};
  }
};

struct Level {
  Counter counter;
  Rank rank;
  int64_t value;
};

// Which memory an offset counts in: temporary buffers and the landing, the resident shard, one gradient, the packed fp32 output row.
enum class Space { kArena, kShard, kGrad, kOut };

// A byte of a rank's memory. param: whose gradient, 0 in other spaces.
struct Place {
  Space space;
  int64_t param;
  Rank rank;
  int64_t offset;
};

struct Extent {
  Place place;
  int64_t bytes;
};

// One descriptor: `rows` rows of `width` bytes of the source. Pitches in bytes, 0 where there is one row. In a sum and in a cast the
// destination's row has as many values, of type `to`.
struct Move {
  Place src;
  Place dst;
  int64_t width;
  int64_t rows;
  int64_t src_pitch;
  int64_t dst_pitch;
  Dtype from;
  Dtype to;
};

// How the lanes of a node are added: in order 0..L-1, or in one reduction of the switch.
enum class Reduction { kInOrder, kInSwitch };

}  // namespace tidec
