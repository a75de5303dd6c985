// The Runner of the nccl target: ops are enqueued as they come, on the streams of this rank and of its rail. A walk may be issued in parts, by streams.
#pragma once

#include "cuda/issue.hpp"
#include "nccl/names.hpp"
#include "nccl/rails.hpp"
#include "nccl/tally.hpp"

namespace tidec::nccl {

// Which ops of a walk are issued: none; its copies, to an Issuer that prepares; those of the walk's own streams; or on the stream of the caller's kernels what frees its inputs, or what
// comes before its `read`, or after it.
enum class Part { kNone, kPrepare, kMoves, kFrees, kAcquire, kRelease };

// An Issuer behind that choice, and the rails for what goes to other nodes; or, without them, a list of names.
class Runner {
 public:
  explicit Runner(Names& names) : names_(&names) {}
  // rails: null where the plan has one node.  names: of the walk.  tallies: of what is issued.  They outlive this.
  Runner(cuda::Issuer& issuer, Rails* rails, const Names& names, Tallies& tallies) : issuer_(&issuer), rails_(rails), walk_(&names), tallies_(&tallies) {}

  void begin(Part part) { part_ = part, is_read_ = false; }
  // The walk is through, or the part of it: what was kept back is enqueued.
  void end() {
    next().finish();
  }

  // A part of a walk passes over what the others issue.
  bool skips(const Stream& s) const { return names_ == nullptr && part_ != Part::kPrepare && !takes(s); }

  void wait(const Stream& s, const Level& x, int line) {
    if (names_ != nullptr) names_->levels.push_back({x, true, 0});
    if (!takes(s)) return;
    tallies_->wait();
    if (goes_out(x)) out().wait(s, x, line);
    else next().wait(s, x, line);
  }
  void signal(const Stream& s, const Level& x) {
    if (names_ != nullptr) names_->levels.push_back({x, false, 0}), names_->acting.insert(s.index);
    if (!takes(s)) return;
    tallies_->signal();
    if (goes_out(x)) issuer_->join(s), out().signal(s, x);
    else next().signal(s, x);
  }
  void copy(const Stream& s, const Move& m) {
    note(s, m.src), note(s, m.dst);
    if (takes(s)) tallies_->copy(m);
    if (takes(s) || part_ == Part::kPrepare) next().copy(s, m);
  }
  void begin_copy(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) next().begin_copy(s);
  }
  void end_copy(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) next().end_copy(s);
  }
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
    // What it reads of the caller's, the rails have brought.
    note(s, m.dst);
    if (names_ != nullptr) names_->levels.push_back({then, false, context}), names_->levels.push_back({done, false, 0});
    if (!takes(s)) return;
    if (rails_ == nullptr) throw cuda::Failure{"a plan of one node puts nothing"};
    tallies_->put(m);
    issuer_->join(s);
    out().put(s, m, then, done, context);
  }
  void zero(const Stream& s, const Extent& x) {
    note(s, x.place);
    if (takes(s)) tallies_->zero(x), next().zero(s, x);
  }
  void cast(const Stream& s, const Move& m) {
    note(s, m.src), note(s, m.dst);
    if (takes(s)) tallies_->cast(m), next().cast(s, m);
  }
  void begin_sum(const Stream& s, const Extent& into, bool seed) {
    note(s, into.place);
    if (takes(s)) next().begin_sum(s, into, seed);
  }
  void add(const Stream& s, const Move& m) {
    note(s, m.src);
    if (takes(s)) tallies_->add(m), next().add(s, m);
  }
  void end_sum(const Stream& s) {
    if (takes(s)) tallies_->end_sum(), next().end_sum(s);
  }
  void begin_land(const Stream& s, const Extent& into, bool seed) {
    note(s, into.place);
    if (takes(s)) next().begin_land(s, into, seed);
  }
  void land(const Stream& s, const Move& m, Reduction how) {
    if (takes(s)) tallies_->land(m), next().land(s, m, how);
  }
  void end_land(const Stream& s) {
    if (takes(s)) tallies_->end_land(), next().end_land(s);
  }
  void begin_set(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) next().begin_set(s);
  }
  void end_set(const Stream& s) {
    if (takes(s) || part_ == Part::kPrepare) next().end_set(s);
  }
  void join(const Stream& s) {
    if (takes(s)) next().join(s);
  }
  void read(const Stream& s, const Extent& x) {
    if (names_ != nullptr) names_->compute = s.index;
    if (part_ == Part::kAcquire) next().read(s, x);
    is_read_ = true;
  }
  void free(const Stream& s, const Extent& x) {
    if (takes(s)) next().free(s, x);
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

  // Whoever issues what comes next, in the node or out of it, behind all that the other one has kept back.
  bool goes_out(const Level& x) const { return rails_ != nullptr && rails_->takes(x); }
  Rails& out() {
    issuer_->finish();
    return *rails_;
  }
  cuda::Issuer& next() {
    if (rails_ != nullptr) rails_->flush();
    return *issuer_;
  }

  cuda::Issuer* issuer_ = nullptr;
  Rails* rails_ = nullptr;
  Names* names_ = nullptr;
  const Names* walk_ = nullptr;
  Tallies* tallies_ = nullptr;
  Part part_ = Part::kNone;
  bool is_read_ = false;
};

}  // namespace tidec::nccl

namespace tidec {

using Target = nccl::Runner;

}  // namespace tidec
