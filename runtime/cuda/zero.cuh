// A range of bytes set to zero.
//
// CTAs: the caller's budget.  Threads: kZeroThreads.  Shared memory: none.  Residence: two CTAs a multiprocessor.
#pragma once

#include <cstdint>

#include "cuda/arguments.hpp"

namespace tidec::cuda {

inline constexpr int kZeroThreads = 512;

// A template, so that it may stand in several objects.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 2) zero_kernel(const __grid_constant__ ZeroCall args) {
  char* const into = args.into;
  const int64_t bytes = args.bytes;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t head = min(static_cast<int64_t>(-reinterpret_cast<uint64_t>(into) & 15), bytes);
  const int64_t vectors = (bytes - head) / 16;
  for (int64_t i = thread; i < vectors; i += threads) reinterpret_cast<uint4*>(into + head)[i] = uint4{0, 0, 0, 0};
  for (int64_t i = thread; i < bytes - 16 * vectors; i += threads) into[i < head ? i : i + 16 * vectors] = 0;
}

}  // namespace tidec::cuda
