// The kernels that a built bundle has, as tables: what the Runners of this folder launch, and emitted code fills.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/arguments.hpp"
#include "tidec/runner.hpp"

namespace tidec::cuda {

// A kernel and its launch. prepare: loads it and sets its limits, so that a later launch never waits behind a stream that is blocked.
// launch: on at most that many CTAs; nothing is launched for nothing.
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

// arenas: how many addresses it takes: every lane's, or the one multicast address.
struct LandEntry {
  int64_t lanes;
  Reduction how;
  int64_t arenas;
  Launcher<LandCall> kernel;
};

struct CastEntry {
  Dtype from;
  Dtype to;
  Launcher<CastCall> kernel;
};

struct Kernels {
  int64_t num_sums;
  const SumEntry* sums;
  int64_t num_lands;
  const LandEntry* lands;
  int64_t num_casts;
  const CastEntry* casts;
  Launcher<ZeroCall> zero;
};

// Those of the bundle that this is linked with.
const Kernels& kernels();

}  // namespace tidec::cuda
