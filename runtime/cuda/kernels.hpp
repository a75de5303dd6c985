// The kernels that a built bundle has, as tables: what the Runners of this folder launch, and emitted code fills.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/arguments.hpp"
#include "tidec/runner.hpp"

namespace tidec::cuda {

// A kernel with its launch. prepare: loads it and sets its limits, so that a later launch never waits behind a stream that is blocked.
template <class Call>
struct Launcher {
  cudaError_t (*prepare)();
  cudaError_t (*launch)(const Call&, int ctas, cudaStream_t);
};

// Of one type of gradients and L lanes.
struct SumEntry {
  Dtype type;
  int64_t lanes;
  Launcher<SumCall> kernel;
};

struct LandEntry {
  int64_t lanes;
  Reduction how;
  Launcher<LandCall> kernel;
};

struct CastEntry {
  Dtype from;
  Dtype to;
  Launcher<CastCall> kernel;
};

template <class Entry>
struct Entries {
  const Entry* first;
  int64_t count;

  const Entry* begin() const { return first; }
  const Entry* end() const { return first + count; }
};

struct Kernels {
  Entries<SumEntry> sums;
  Entries<LandEntry> lands;
  Entries<CastEntry> casts;
};

// Those of the bundle that this is linked with.
const Kernels& kernels();

}  // namespace tidec::cuda
