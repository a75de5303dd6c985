// The landing: the output plus the blocks of all lanes of a node, loaded from each lane in order, or summed by the switch.
//
// CTAs: the caller's budget; persistent, tile by tile.  Threads: kLandThreads.  Shared memory: none.  Residence: two CTAs a multiprocessor.
// Every lane's arena is a plain address, of this GPU or of a peer. Blocks are multiples of 16 bytes apart from each other on every lane.
#pragma once

#include <cstdint>

#include "cuda/arguments.hpp"
#include "cuda/element.cuh"
#include "cuda/multimem.cuh"
#include "cuda/tma.cuh"

namespace tidec::cuda {

inline constexpr int kLandThreads = 512;
inline constexpr int kLandPieces = 256;

struct LandRun {
  int64_t from;
  int64_t into;
  int64_t elems;
  int64_t first_tile;
};

template <int kArenas>
struct LandArgs {
  char* into;
  uint32_t num_pieces;
  uint32_t num_tiles;
  bool adds;
  const char* arenas[kArenas];
  LandRun pieces[kLandPieces];
};

// L loads in the order of the lanes, added one after the other.
template <int kLanes>
struct InOrder {
  static constexpr int kArenas = kLanes;
  // Vectors a thread whose loads are in flight together; of one vector, lanes whose loads are. Registers bound both.
  static constexpr int kBatch = kLanes <= 2 ? 4 : kLanes <= 4 ? 2 : 1;
  static constexpr int kAhead = kLanes < 8 ? kLanes : 8;

  // The first lanes of one vector, and where the others' lie.
  struct Loaded {
    const char* const* arenas;
    int64_t at;
    float4 of[kAhead];
  };

  static __device__ __forceinline__ Loaded load_four(const char* const* arenas, int64_t at) {
    Loaded v{arenas, at, {}};
#pragma unroll
    for (int lane = 0; lane < kAhead; ++lane) v.of[lane] = load_once(reinterpret_cast<const float*>(arenas[lane] + at));
    return v;
  }
  static __device__ __forceinline__ float4 add_four(float4 sum, const Loaded& v) {
#pragma unroll
    for (int lane = 0; lane < kAhead; ++lane) sum = added(sum, v.of[lane]);
#pragma unroll 1
    for (int first = kAhead; first < kLanes; first += kAhead) {
      float4 more[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < kLanes) more[i] = load_once(reinterpret_cast<const float*>(v.arenas[first + i] + v.at));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < kLanes) sum = added(sum, more[i]);
      }
    }
    return sum;
  }
  static __device__ __forceinline__ float add_one(float sum, const char* const* arenas, int64_t at) {
#pragma unroll 4
    for (int lane = 0; lane < kLanes; ++lane) sum = __fadd_rn(sum, *reinterpret_cast<const float*>(arenas[lane] + at));
    return sum;
  }
};

// What the switch does, made by L loads: the lanes are added to each other first. For virtual ranks, which have no switch.
template <int kLanes>
struct InOneSum : InOrder<kLanes> {
  using Loaded = typename InOrder<kLanes>::Loaded;

  static __device__ __forceinline__ float4 add_four(float4 sum, const Loaded& v) { return added(sum, InOrder<kLanes>::add_four(float4{0.f, 0.f, 0.f, 0.f}, v)); }
  static __device__ __forceinline__ float add_one(float sum, const char* const* arenas, int64_t at) {
    return __fadd_rn(sum, InOrder<kLanes>::add_one(0.f, arenas, at));
  }
};

// One load that the switch answers with the sum.
struct InSwitch {
  static constexpr int kArenas = 1;
  static constexpr int kBatch = 4;

  static __device__ __forceinline__ float4 load_four(const char* const* arenas, int64_t at) { return load_summed(reinterpret_cast<const float4*>(arenas[0] + at)); }
  static __device__ __forceinline__ float4 add_four(float4 sum, float4 v) { return added(sum, v); }
  static __device__ __forceinline__ float add_one(float sum, const char* const* arenas, int64_t at) {
    return __fadd_rn(sum, load_summed(reinterpret_cast<const float*>(arenas[0] + at)));
  }
};

template <class How>
inline constexpr int kLandTile = 4 * kLandThreads * How::kBatch;

template <class How>
__global__ void __launch_bounds__(kLandThreads, 2) land_kernel(const __grid_constant__ LandArgs<How::kArenas> args) {
  uint32_t piece = 0;
  for (uint32_t tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    while (piece + 1 < args.num_pieces && args.pieces[piece + 1].first_tile <= tile) ++piece;
    const LandRun& p = args.pieces[piece];
    const int64_t first = (tile - p.first_tile) * kLandTile<How>;
    const int64_t from = p.from + first * 4;
    float* const into = reinterpret_cast<float*>(args.into + p.into) + first;
    const uint32_t elems = static_cast<uint32_t>(min(p.elems - first, static_cast<int64_t>(kLandTile<How>)));
    const bool is_aligned = (reinterpret_cast<uint64_t>(into) & 15) == 0 && ((reinterpret_cast<uint64_t>(args.arenas[0]) + from) & 15) == 0;
    const uint32_t vectors = is_aligned ? elems / 4 : 0;
    if (vectors == kLandThreads * How::kBatch) {
      decltype(How::load_four(args.arenas, from)) loaded[How::kBatch];
#pragma unroll
      for (int u = 0; u < How::kBatch; ++u) loaded[u] = How::load_four(args.arenas, from + 16 * (threadIdx.x + u * kLandThreads));
#pragma unroll
      for (int u = 0; u < How::kBatch; ++u) {
        float4* const at = reinterpret_cast<float4*>(into) + threadIdx.x + u * kLandThreads;
        *at = How::add_four(args.adds ? *at : float4{0.f, 0.f, 0.f, 0.f}, loaded[u]);
      }
      continue;
    }
    for (uint32_t i = threadIdx.x; i < vectors; i += kLandThreads) {
      float4* const at = reinterpret_cast<float4*>(into) + i;
      *at = How::add_four(args.adds ? *at : float4{0.f, 0.f, 0.f, 0.f}, How::load_four(args.arenas, from + 16 * i));
    }
    for (uint32_t i = 4 * vectors + threadIdx.x; i < elems; i += kLandThreads) into[i] = How::add_one(args.adds ? into[i] : 0.f, args.arenas, from + 4 * i);
  }
}

}  // namespace tidec::cuda
