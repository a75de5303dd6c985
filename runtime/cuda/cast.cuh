// Values of one type as another, rounded to nearest even; what is narrower than fp32 is reached through fp32.
//
// CTAs: the caller's budget.  Threads: kCastThreads.  Shared memory: none.  Residence: two CTAs a multiprocessor.
#pragma once

#include <cstdint>

#include "cuda/arguments.hpp"
#include "cuda/element.cuh"

namespace tidec::cuda {

inline constexpr int kCastThreads = 512;

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T of[4];
};

template <class From, class To>
__global__ void __launch_bounds__(kCastThreads, 2) cast_kernel(const __grid_constant__ CastCall args) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kCastThreads + threadIdx.x, threads = static_cast<int64_t>(gridDim.x) * kCastThreads;
  const From* const from = reinterpret_cast<const From*>(args.from);
  To* const into = reinterpret_cast<To*>(args.into);
  const bool is_aligned = reinterpret_cast<uint64_t>(from) % sizeof(Four<From>) == 0 && reinterpret_cast<uint64_t>(into) % sizeof(Four<To>) == 0;
  const int64_t fours = is_aligned ? args.count / 4 : 0;
  for (int64_t i = thread; i < fours; i += threads) {
    const Four<From> in = reinterpret_cast<const Four<From>*>(from)[i];
    Four<To> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) out.of[k] = narrowed<To>(widened(in.of[k]));
    reinterpret_cast<Four<To>*>(into)[i] = out;
  }
  for (int64_t i = 4 * fours + thread; i < args.count; i += threads) into[i] = narrowed<To>(widened(from[i]));
}

}  // namespace tidec::cuda
