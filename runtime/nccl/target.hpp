// The Runner of the nccl target: ops are enqueued as they come, on the streams of this rank. A walk may be issued in parts, by streams.
#pragma once

#include <set>
#include <vector>

#include "cuda/issue.hpp"

namespace tidec::nccl {

// Which ops of a walk are issued: none; its copies, to an Issuer that prepares; those of the walk's own streams; or on the stream of the caller's kernels what frees its inputs, or what
// comes before its `read`, or after it.
enum class Part { kNone, kPrepare, kMoves, kFrees, kAcquire, kRelease };

// A level that a walk names, and whether it waits for it.
struct Named {
  Level level;
  bool is_wait;
};

// What a walk names: its levels; the stream on which the caller reads, -1 where it reads nothing; the streams that do more than wait and say that
// inputs are free; those among them that read or write memory of the caller's, and those that write its output.
struct Names {
  std::vector<Named> levels;
  int compute = -1;
  std::set<int> acting;
  std::set<int> on_callers;
  std::set<int> on_outputs;
};

// An Issuer behind that choice; or, without one, a list of names.
class Runner {
 public:
  explicit Runner(Names& names) : names_(&names) {}
  // names: of the walk, which outlive this.
  Runner(cuda::Issuer& issuer, const Names& names) : issuer_(&issuer), walk_(&names) {}

  void begin(Part part) { part_ = part, is_read_ = false; }

  void wait(const Stream& s, const Level& x, int line) {
    if (names_ != nullptr) names_->levels.push_back({x, true});
    if (takes(s)) issuer_->wait(s, x, line);
  }
  void signal(const Stream& s, const Level& x) {
    if (names_ != nullptr) names_->levels.push_back({x, false}), names_->acting.insert(s.index);
    if (takes(s)) issuer_->signal(s, x);
  }
  void copy(const Stream& s, const Move& m) {
    note(s, m.src), note(s, m.dst);
    if (takes(s) || part_ == Part::kPrepare) issuer_->copy(s, m);
  }
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
    note(s, m.src), note(s, m.dst);
    if (takes(s)) issuer_->put(s, m, then, done, context);
  }
  void zero(const Stream& s, const Extent& x) {
    note(s, x.place);
    if (takes(s)) issuer_->zero(s, x);
  }
  void cast(const Stream& s, const Move& m) {
    note(s, m.src), note(s, m.dst);
    if (takes(s)) issuer_->cast(s, m);
  }
  void begin_sum(const Stream& s, const Extent& into, bool seed) {
    note(s, into.place);
    if (takes(s)) issuer_->begin_sum(s, into, seed);
  }
  void add(const Stream& s, const Move& m) {
    note(s, m.src);
    if (takes(s)) issuer_->add(s, m);
  }
  void end_sum(const Stream& s) {
    if (takes(s)) issuer_->end_sum(s);
  }
  void begin_land(const Stream& s, const Extent& into, bool seed) {
    note(s, into.place);
    if (takes(s)) issuer_->begin_land(s, into, seed);
  }
  void land(const Stream& s, const Move& m, Reduction how) {
    if (takes(s)) issuer_->land(s, m, how);
  }
  void end_land(const Stream& s) {
    if (takes(s)) issuer_->end_land(s);
  }
  void begin_set(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) issuer_->begin_set(s);
  }
  void end_set(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) issuer_->end_set(s);
  }
  void join(const Stream& s) {
    if (takes(s)) issuer_->join(s);
  }
  void read(const Stream& s, const Extent& x) {
    if (names_ != nullptr) names_->compute = s.index;
    if (part_ == Part::kAcquire) issuer_->read(s, x);
    is_read_ = true;
  }
  void free(const Stream& s, const Extent& x) {
    if (takes(s)) issuer_->free(s, x);
  }

 private:
  void note(const Stream& s, const Place& place) {
    if (names_ == nullptr) return;
    names_->acting.insert(s.index);
    if (place.space != Space::kArena) names_->on_callers.insert(s.index);
    if (place.space == Space::kOut) names_->on_outputs.insert(s.index);
  }

  bool takes(const Stream& s) const {
    if (part_ == Part::kNone || part_ == Part::kPrepare) return false;
    if (s.index == walk_->compute) return part_ == (is_read_ ? Part::kRelease : Part::kAcquire);
    return part_ == (walk_->acting.count(s.index) != 0 ? Part::kMoves : Part::kFrees);
  }

  cuda::Issuer* issuer_ = nullptr;
  Names* names_ = nullptr;
  const Names* walk_ = nullptr;
  Part part_ = Part::kNone;
  bool is_read_ = false;
};

}  // namespace tidec::nccl

namespace tidec {

using Target = nccl::Runner;

}  // namespace tidec
