// Where a walk runs and which call it is; M nodes of L lanes, n node, j lane, e call.
#pragma once

#include <cstdint>

namespace tidec {

// In the place of an index: every one, or every one but the rank's own lane.
inline constexpr int64_t kAll = -1;
inline constexpr int64_t kOthers = -2;

// Rank (n, j). As the place of a block its lane may be kAll: the same offset on every lane of the node.
struct Rank {
  int64_t node;
  int64_t lane;
};

// Calls of one plan are numbered from 0 on. alpha, accumulate and the tensors of a call are the runner's.
struct Call {
  int64_t number;
};

}  // namespace tidec
