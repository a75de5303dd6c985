#include "cuda/graphs.hpp"

#include <cuda_runtime.h>

#include <algorithm>

namespace tidec::cuda {

namespace {

// Copies side by side: measured on an H200, 30 copies of 8 MiB take 31 us in one chain, 14 us in three to six, 84 us in thirty. Of large ones two chains
// are as fast as peers' copies are, and leave more of the memory to kernels.
constexpr size_t kChains = 4, kLargeChains = 2;
constexpr int64_t kLargeBytes = int64_t{1} << 20;
constexpr size_t kMaxCopies = size_t{1} << 14;

cudaMemcpy3DParms rows_of(const Copy& c) {
  cudaMemcpy3DParms p{};
  const size_t width = static_cast<size_t>(c.width), rows = static_cast<size_t>(c.rows);
  p.srcPtr = make_cudaPitchedPtr(const_cast<char*>(c.from), static_cast<size_t>(c.from_pitch), width, rows);
  p.dstPtr = make_cudaPitchedPtr(c.into, static_cast<size_t>(c.into_pitch), width, rows);
  p.extent = make_cudaExtent(width, rows, 1);
  p.kind = cudaMemcpyDeviceToDevice;
  return p;
}

}  // namespace

CopyGraph::CopyGraph(std::vector<Copy> copies) : copies_(std::move(copies)), nodes_(copies_.size()) {
  check(cudaGraphCreate(&graph_, 0), "cudaGraphCreate");
  int64_t bytes = 0;
  for (const Copy& c : copies_) bytes += c.width * c.rows;
  const size_t chains = bytes >= kLargeBytes * static_cast<int64_t>(copies_.size()) ? kLargeChains : kChains;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const Copy& c = copies_[i];
    const cudaGraphNode_t* before = i < chains ? nullptr : &nodes_[i - chains];
    const size_t num_before = i < chains ? 0 : 1;
    if (c.rows == 1) {
      check(cudaGraphAddMemcpyNode1D(&nodes_[i], graph_, before, num_before, c.into, c.from, static_cast<size_t>(c.width), cudaMemcpyDeviceToDevice),
            "cudaGraphAddMemcpyNode1D");
    } else {
      const cudaMemcpy3DParms rows = rows_of(c);
      check(cudaGraphAddMemcpyNode(&nodes_[i], graph_, before, num_before, &rows), "cudaGraphAddMemcpyNode");
    }
  }
  check(cudaGraphInstantiate(&ready_, graph_, 0), "cudaGraphInstantiate");
  const OwnStream stream;
  check(cudaGraphUpload(ready_, stream), "cudaGraphUpload");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

CopyGraph::~CopyGraph() {
  if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
  if (graph_ != nullptr) cudaGraphDestroy(graph_);
}

bool CopyGraph::fits(const std::vector<Copy>& copies) const {
  return std::equal(copies.begin(), copies.end(), copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
    // What a node of several rows reads cannot be changed.
    return a.into == b.into && a.width == b.width && a.rows == b.rows && (a.rows == 1 || (a.from == b.from && a.into_pitch == b.into_pitch && a.from_pitch == b.from_pitch));
  });
}

bool CopyGraph::launch(const std::vector<Copy>& copies, cudaStream_t stream) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& c = copies[i];
    if (c.from == copies_[i].from) continue;
    if (cudaGraphExecMemcpyNodeSetParams1D(ready_, nodes_[i], c.into, c.from, static_cast<size_t>(c.width), cudaMemcpyDeviceToDevice) != cudaSuccess) {
      // What is no error of the copies is not kept as one.
      cudaGetLastError();
      return false;
    }
    copies_[i].from = c.from;
  }
  check(cudaGraphLaunch(ready_, stream), "cudaGraphLaunch");
  return true;
}

void CopyGraphs::make(const std::vector<Copy>& copies) {
  if (copies.empty() || num_copies_ + copies.size() > kMaxCopies) return;
  const auto [found, is_new] = graphs_.try_emplace({copies[0].into, copies.size()}, copies);
  if (is_new) num_copies_ += copies.size();
}

CopyGraph* CopyGraphs::find(const std::vector<Copy>& copies) {
  if (copies.empty()) return nullptr;
  const auto found = graphs_.find({copies[0].into, copies.size()});
  return found != graphs_.end() && found->second.fits(copies) ? &found->second : nullptr;
}

}  // namespace tidec::cuda
