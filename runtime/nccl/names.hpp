// What a walk names: the levels that it waits for and raises, and what its streams are about. No CUDA.
#pragma once

#include <set>
#include <vector>

#include "tidec/runner.hpp"

namespace tidec::nccl {

// A level, and whether it is awaited. context: of a level that a put tells, the RMA context that it goes over; else 0.
struct Named {
  Level level;
  bool is_wait;
  int64_t context;
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

// Those of one call on one rank, in order.
Names names_of(int64_t program, const Rank& rank, int64_t call);

}  // namespace tidec::nccl
