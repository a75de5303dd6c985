// The Runner of the host target: it writes down what a walk issues, op by op, and moves nothing. rank.hpp carries the ops out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidec/runner.hpp"

namespace tidec::host {

enum class Kind : uint8_t { kWait, kSignal, kCopy, kPut, kZero, kCast, kSum, kTerm, kLand, kLanding, kJoin, kRead, kFree };

// One call of a Runner's member. in_set: it stands between begin_set and end_set.  line: of the emitted walk, of waits.
// first: the level of a wait or signal, or a put's `then`; second: a put's `done`.  A sum's terms follow it, and so do a landing's.
struct Op {
  Kind kind;
  bool in_set;
  bool seed;
  Reduction reduction;
  int stream;
  int line;
  int64_t context;
  Move move;
  Extent extent;
  Level first;
  Level second;
};

class Recorder {
 public:
  const std::vector<Op>& ops() const { return ops_; }
  void clear() { ops_.clear(), read_stream_ = -1; }

  // The stream on which the caller reads, -1 where it reads nothing.
  int read_stream() const { return read_stream_; }

  // By Stream::index and Flag::index; null where the walk has named none of that index.
  const std::vector<const char*>& streams() const { return streams_; }
  const std::vector<const char*>& flags() const { return flags_; }

  void wait(const Stream& s, const Level& x, int line) { add(s, Kind::kWait, x).line = line; }
  void signal(const Stream& s, const Level& x) { add(s, Kind::kSignal, x); }
  void copy(const Stream& s, const Move& m) { add(s, Kind::kCopy).move = m; }
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
    Op& op = add(s, Kind::kPut, then);
    op.move = m;
    op.second = done;
    op.context = context;
    note(flags_, done.counter.flag->index, done.counter.flag->name);
  }
  void zero(const Stream& s, const Extent& x) { add(s, Kind::kZero).extent = x; }
  void cast(const Stream& s, const Move& m) { add(s, Kind::kCast).move = m; }
  void begin_sum(const Stream& s, const Extent& into, bool seed) { begin(s, Kind::kSum, into, seed); }
  void add(const Stream& s, const Move& m) { add(s, Kind::kTerm).move = m; }
  void end_sum(const Stream&) {}
  void begin_land(const Stream& s, const Extent& into, bool seed) { begin(s, Kind::kLand, into, seed); }
  void land(const Stream& s, const Move& m, Reduction how) {
    Op& op = add(s, Kind::kLanding);
    op.move = m;
    op.reduction = how;
  }
  void end_land(const Stream&) {}
  void begin_copy(const Stream&) {}
  void end_copy(const Stream&) {}
  void begin_set(const Stream&) { in_set_ = true; }
  void end_set(const Stream&) { in_set_ = false; }
  void join(const Stream& s) { add(s, Kind::kJoin); }
  void read(const Stream& s, const Extent& x) {
    add(s, Kind::kRead).extent = x;
    read_stream_ = s.index;
  }
  void free(const Stream& s, const Extent& x) { add(s, Kind::kFree).extent = x; }

 private:
  Op& add(const Stream& s, Kind kind) {
    note(streams_, s.index, s.name);
    ops_.push_back(Op{});
    Op& op = ops_.back();
    op.kind = kind;
    op.in_set = in_set_;
    op.stream = s.index;
    return op;
  }

  Op& add(const Stream& s, Kind kind, const Level& level) {
    note(flags_, level.counter.flag->index, level.counter.flag->name);
    Op& op = add(s, kind);
    op.first = level;
    return op;
  }

  void begin(const Stream& s, Kind kind, const Extent& into, bool seed) {
    Op& op = add(s, kind);
    op.extent = into;
    op.seed = seed;
  }

  static void note(std::vector<const char*>& names, int index, const char* name) {
    if (static_cast<size_t>(index) >= names.size()) names.resize(static_cast<size_t>(index) + 1, nullptr);
    names[static_cast<size_t>(index)] = name;
  }

  std::vector<Op> ops_;
  std::vector<const char*> streams_;
  std::vector<const char*> flags_;
  int read_stream_ = -1;
  bool in_set_ = false;
};

}  // namespace tidec::host

namespace tidec {

using Target = host::Recorder;

}  // namespace tidec
