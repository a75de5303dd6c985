// The Runner of one rank on CUDA: each op of a walk becomes copies, kernels and stream memory operations, enqueued at once.
//
// A stream of the walk is a CUDA stream. Where memory lies, which words are counters and what a put is, the World says. Ops of one stream keep
// their order; of an unordered set, what stays on the own GPU may go by a stream beside it, so that it does not hold up copies to peers, until the join.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/chain.hpp"
#include "cuda/graphs.hpp"
#include "cuda/kernels.hpp"
#include "cuda/streams.hpp"
#include "cuda/terms.hpp"
#include "tidec/layout.hpp"
#include "tidec/module.hpp"
#include "tidec/runner.hpp"

namespace tidec::cuda {

// Ranks are numbered n*L + j.
class World {
 public:
  virtual ~World() = default;
  // The address of a place on one lane of its node, with that many bytes behind it. Throws Failure where there is no such memory.
  virtual char* at(const Place& place, int64_t lane, int64_t bytes) = 0;
  // The word of a counter that lies with rank `owner` and that rank `raiser` raises.
  virtual void* counter(const Counter& counter, int64_t owner, int64_t raiser) = 0;
  // The CUDA stream of a stream of the walk.
  virtual cudaStream_t stream(const Stream& s) = 0;
  virtual void put(const Stream& s, const Copy& copy, int64_t to, const Level& then, const Level& done, int64_t context) = 0;
  virtual void read(const Stream& s, const Extent& extent) = 0;
  virtual void free(const Stream& s, const Extent& extent) = 0;
  // A wait is about to be issued: kept for the message of a session that does not end.
  virtual void waits(const Stream& s, const Level& level, int line) = 0;
  // kCountBytes that are zero, of sums that wait and tell by themselves; null where none do.
  virtual uint32_t* counts() { return nullptr; }
};

// CTAs of one launch.
struct Budget {
  int sum = 16;
  int land = 8;
  int other = 8;
};

// The stream beside one of the walk. is_open: it holds copies that no join has come after. It is not urgent: an urgent copy inside a GPU takes the
// memory from a kernel that is bound by it, and is no sooner over.
struct Side {
  OwnStream stream{false};
  OwnEvent forked;
  OwnEvent joined;
  bool is_open = false;
};

// Beside a stream of the walk: what waits for counters in its place, and what raises them, so that it loses no time between two kernels. An event
// costs a stream next to nothing, a memory operation 2.5 us.
// has_waits: the stream has not taken them over yet.  is_reached: nothing was enqueued on it since `reached` was recorded.
// has_waited: in this call.  sums: kernels run on it.
struct Aside {
  OwnStream waits, signals;
  OwnEvent waited, reached;
  bool has_waits = false, is_reached = false, has_waited = false, sums = false;
};

class Issuer {
 public:
  // has_side: copies of a set that stay on the own lane go by a stream beside the others, and so do counters of sums.  deadline_ns: of a wait in a
  // kernel.
  Issuer(World& world, const tidec_program& program, const Rank& rank, const Budget& budget, bool has_side, uint64_t deadline_ns = 0);

  // With `is_on`, walks enqueue nothing: graphs are made of the sets of many copies on the own lane. Later walks with the same sets launch those.
  void prepare(bool is_on) { is_preparing_ = is_on; }

  // Of the calls that are issued from here on.
  void begin_calls(float alpha, bool accumulates);

  void wait(const Stream& s, const Level& x, int line);
  void signal(const Stream& s, const Level& x);
  void copy(const Stream& s, const Move& m);
  void begin_copy(const Stream&) { in_copy_ = true; }
  void end_copy(const Stream& s);
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context);
  void zero(const Stream& s, const Extent& x);
  void cast(const Stream& s, const Move& m);
  void begin_sum(const Stream& s, const Extent& into, bool seed) { begin(s, into, accumulates_ && seed); }
  void add(const Stream& s, const Move& m);
  void end_sum(const Stream& s);
  void begin_land(const Stream& s, const Extent& into, bool seed) { begin(s, into, accumulates_ || !seed); }
  void land(const Stream& s, const Move& m, Reduction how);
  void end_land(const Stream& s);
  void begin_set(const Stream&) { in_set_ = true; }
  void end_set(const Stream& s);
  void join(const Stream& s);
  void read(const Stream& s, const Extent& x);
  void free(const Stream& s, const Extent& x);
  // Enqueues what was kept back to be enqueued together. Comes after the last op of a walk, or of a part of it.
  void finish();
  // `all` goes on once the streams beside those of the walk have ended.
  void end_before(cudaStream_t all, cudaEvent_t event);
  // The stream, to enqueue something other than a wait or a signal on it, now.
  cudaStream_t on(const Stream& s);

 private:
  int64_t number(const Rank& rank) const { return rank.node * program_.lanes + rank.lane; }
  void begin(const Stream& s, const Extent& into, bool adds);
  // Whether the last `num` terms reach all of what is written.
  bool fills(size_t num) const;
  // Zeroes what they do not reach.
  void fill_gaps(cudaStream_t stream, size_t num);
  void flush(const Stream& s);
  void copy_near(cudaStream_t stream);
  cudaStream_t reached(const Stream& s);
  void wait_by_stream(const Stream& s, const void* word, uint64_t value);
  void signal_by_stream(const Stream& s, void* word, uint64_t value, bool is_far);
  bool is_chained(const Stream& s) const { return !chain_.is_empty() && chain_stream_.index == s.index; }
  // Launches the sums that were kept back.
  void launch_chain();

  World& world_;
  const tidec_program& program_;
  const Rank rank_;
  const int64_t number_;
  const Budget budget_;
  const Kernels& kernels_;
  const SumEntry* sum_ = nullptr;
  const LandEntry* land_ = nullptr;
  float alpha_ = 1.f;
  bool accumulates_ = false;

  bool in_set_ = false, in_copy_ = false;
  std::vector<Copy> far_, near_;
  const bool has_side_;
  std::map<int, Side> sides_;
  const bool has_asides_;
  std::map<int, Aside> asides_;
  bool is_preparing_ = false;
  CopyGraphs graphs_;
  CounterOps counters_;

  Extent into_{};
  bool adds_ = false;
  char* to_ = nullptr;
  std::vector<Term> terms_;
  SumPieces sums_;
  SumChain chain_;
  Stream chain_stream_{};
  // Which flag the chain's sums tell by.
  const Flag* chain_flag_ = nullptr;
  const uint64_t deadline_ns_;
  std::vector<LandPiece> lands_;
  int64_t land_node_ = 0;
};

// Loads every kernel of the bundle on the current device and launches each once, on nothing.
void prepare_kernels();

}  // namespace tidec::cuda
