// Copies inside one GPU as CUDA graphs. One by one the driver takes 5 us of the host for each, a batch of them no less, and blocks the host once about a
// thousand wait; a graph takes a few us whatever it holds, and its chains run side by side.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "cuda/streams.hpp"

namespace tidec::cuda {

// The copies of one set, in any order. Making one may wait until the device is idle; launching one does not.
class CopyGraph {
 public:
  explicit CopyGraph(std::vector<Copy> copies);
  CopyGraph(const CopyGraph&) = delete;
  CopyGraph& operator=(const CopyGraph&) = delete;
  ~CopyGraph();

  // Whether it is these copies, but for where those of one row come from.
  bool fits(const std::vector<Copy>& copies) const;
  // copies: as it was made for, but from where they are now. False, and nothing is launched, where the driver does not let a node read there: it keeps
  // to the kind of memory that the node was made for, such as cudaMalloc's.
  bool launch(const std::vector<Copy>& copies, cudaStream_t stream);

 private:
  std::vector<Copy> copies_;
  std::vector<cudaGraphNode_t> nodes_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

// Graphs by the sets that they were made for.
class CopyGraphs {
 public:
  // Makes one, unless it is there or they would hold too many copies together.
  void make(const std::vector<Copy>& copies);
  // Null where none was made for this set.
  CopyGraph* find(const std::vector<Copy>& copies);

 private:
  size_t num_copies_ = 0;
  std::map<std::pair<const char*, size_t>, CopyGraph> graphs_;
};

}  // namespace tidec::cuda
