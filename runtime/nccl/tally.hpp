// What was issued of the last calls of a rank, by kind of op.
#pragma once

#include "tidec/node.h"
#include "tidec/runner.hpp"

namespace tidec::nccl {

inline constexpr int64_t kTallied = 8;

// Of one call: of each kind how many ops, and how many bytes they read, or of zeros wrote.
struct Tally {
  int64_t call = -1;
  int64_t ops[TIDEC_NODE_KINDS] = {};
  int64_t bytes[TIDEC_NODE_KINDS] = {};
};

class Tallies {
 public:
  explicit Tallies(int64_t lanes) : lanes_(lanes) {}

  // call: to which one ops are counted, below 0 = to none.
  void begin(int64_t call) {
    now_ = &tallies_[call < 0 ? kTallied : call % kTallied];
    if (now_->call != call) *now_ = Tally{call, {}, {}};
  }
  // Of one of the last kTallied calls.
  const Tally& of(int64_t call) const { return tallies_[call % kTallied]; }

  void wait() { count(TIDEC_NODE_WAITS, 0); }
  void signal() { count(TIDEC_NODE_SIGNALS, 0); }
  void copy(const Move& m) {
    const int64_t each = m.dst.rank.lane == kAll ? lanes_ : 1;
    count(TIDEC_NODE_COPIES, each * m.width * m.rows, each);
  }
  void put(const Move& m) {
    count(TIDEC_NODE_PUTS, m.width * m.rows);
    count(TIDEC_NODE_SIGNALS, 0, 2);
  }
  void cast(const Move& m) { count(TIDEC_NODE_CASTS, m.width * m.rows); }
  void zero(const Extent& x) { count(TIDEC_NODE_ZEROS, x.bytes); }
  void add(const Move& m) { count(TIDEC_NODE_SUMS, m.width * m.rows, 0); }
  void end_sum() { count(TIDEC_NODE_SUMS, 0); }
  void land(const Move& m) { count(TIDEC_NODE_LANDINGS, lanes_ * m.width * m.rows, 0); }
  void end_land() { count(TIDEC_NODE_LANDINGS, 0); }

 private:
  void count(int kind, int64_t bytes, int64_t ops = 1) {
    now_->ops[kind] += ops;
    now_->bytes[kind] += bytes;
  }

  const int64_t lanes_;
  // The last one is of no call.
  Tally tallies_[kTallied + 1];
  Tally* now_ = &tallies_[kTallied];
};

}  // namespace tidec::nccl
