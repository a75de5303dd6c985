// Flags between nodes as NCCL's signals: over which context and index a counter goes, and how many signals a level stands for. No CUDA.
//
// NCCL counts signals a (context, index, source), and its waits take a number of them off in the order in which they are issued. A counter between
// two nodes is one such triple of its receiver: every raise adds one to its level, so a level is the number of signals since the first call, and a
// wait takes what its level is more than the one awaited before it. What two calls of all ranks of a rail name has to balance: a signal that nobody
// takes off, or a wait for more, would move every later one.
#pragma once

#include <cstdint>
#include <map>

#include "cuda/words.hpp"
#include "nccl/names.hpp"

namespace tidec::nccl {

using cuda::CounterName;

// A counter between two nodes, as NCCL counts it for its receiver and its source.
struct Wire {
  int context;
  int index;
};

// count: how many signals are to be taken off; 0 where an earlier wait took them.
struct Await {
  Wire wire;
  int count;
};

class Signals {
 public:
  // All ranks of the rail of `own` are looked at. Throws Failure where a level leaves its rail, or counts do not balance.
  Signals(int64_t program, const Rank& own);

  // Of every rank of the rail.
  int contexts() const { return contexts_; }
  int indices() const { return indices_; }
  // All counters that this rank raises or awaits.
  const std::map<CounterName, Wire>& wires() const { return wires_; }

  bool is_rail(const Level& level) const { return level.rank.node != own_.node; }
  // This rank raises the level next, over that context. Throws Failure where it is not the next one of its counter.
  Wire raise(const Level& level, int64_t context);
  Await await(const Level& level);

  // Levels begin anew, after `calls` calls of every rank that were carried out to their end: signals that nobody awaited are taken off with the next ones.
  void restart(int64_t calls);

 private:
  struct Count {
    int64_t raised = 0;
    int64_t awaited = 0;
    int64_t left = 0;
  };

  int64_t number(const Rank& rank) const { return rank.node * program_.lanes + rank.lane; }
  const Wire& wire(const CounterName& name, const Level& level) const;

  const int64_t number_;
  const tidec_program& program_;
  const Rank own_;
  int contexts_ = 1, indices_ = 1;
  std::map<CounterName, Wire> wires_;
  std::map<CounterName, Count> counts_;
};

}  // namespace tidec::nccl
