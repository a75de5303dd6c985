// Launches: a call's pieces cut into tiles and handed to a kernel, in as many launches as its parameters hold.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/cast.cuh"
#include "cuda/kernels.hpp"
#include "cuda/land.cuh"
#include "cuda/sum.cuh"
#include "cuda/zero.cuh"

namespace tidec::cuda {

// Pieces of one launch: kFew in the 4 KiB that every launch copies quickly, kMany in the 32 KiB that a kernel's parameters may be.
inline constexpr int kFewPieces = 48;
inline constexpr int kManyPieces = kManySumPieces;
inline constexpr int64_t kMaxTiles = int64_t{1} << 30;

// The largest tile of which three stages fit, but where L is large two small ones: short bulk copies cost more than few stages.
template <class T, int kLanes, bool kAccumulates>
constexpr int sum_tile_elems() {
  const auto stage = [](int elems) { return kLanes * (elems * static_cast<int>(sizeof(T)) + kLine) + (kAccumulates ? elems * 4 + kLine : 0); };
  int elems = 4096;
  while (elems > 512 && 3 * stage(elems) > kMaxSharedBytes - 2048) elems /= 2;
  while (elems > 128 && 2 * stage(elems) > kMaxSharedBytes - 2048) elems /= 2;
  return elems;
}

template <class T, int kLanes, bool kAccumulates>
using DefaultShape = SumShape<T, kLanes, kAccumulates, sum_tile_elems<T, kLanes, kAccumulates>(), std::min(8, sum_tile_elems<T, kLanes, kAccumulates>() / 128), 12>;

template <class T, int kLanes, template <class, int, bool> class ShapeOf = DefaultShape>
struct Sum {
  using Call = SumCall;

  static cudaError_t prepare() {
    for (const cudaError_t error : {prepared<false, kFewPieces>(), prepared<false, kManyPieces>(), prepared<true, kFewPieces>(), prepared<true, kManyPieces>()}) {
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  // NOTE: a call of several steps is one launch.
  static cudaError_t launch(const SumCall& call, int ctas, cudaStream_t stream) {
    if (call.num_steps > 0) {
      if (call.num_pieces > kManyPieces || call.num_steps > kMaxSumSteps) return cudaErrorInvalidValue;
      return call.accumulates ? some<true>(call, 0, call.num_pieces, ctas, stream) : some<false>(call, 0, call.num_pieces, ctas, stream);
    }
    for (int64_t first = 0; first < call.num_pieces;) {
      const int64_t count = std::min<int64_t>(call.num_pieces - first, kManyPieces);
      const cudaError_t error = call.accumulates ? some<true>(call, first, count, ctas, stream) : some<false>(call, first, count, ctas, stream);
      if (error != cudaSuccess) return error;
      first += count;
    }
    return cudaSuccess;
  }

 private:
  template <bool kAccumulates, int kPieces>
  static constexpr auto kernel = sum_kernel<T, kLanes, kAccumulates, ShapeOf<T, kLanes, kAccumulates>, kPieces>;

  template <bool kAccumulates, int kPieces>
  static cudaError_t prepared() {
    constexpr auto run = kernel<kAccumulates, kPieces>;
    const int bytes = ShapeOf<T, kLanes, kAccumulates>::kSharedBytes;
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(run), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    static SumArgs<kLanes, kPieces> nothing{};
    return start<kAccumulates>(nothing, 1, nullptr);
  }

  template <bool kAccumulates>
  static cudaError_t some(const SumCall& call, int64_t first, int64_t count, int ctas, cudaStream_t stream) {
    return count <= kFewPieces ? fill<kAccumulates, kFewPieces>(call, first, count, ctas, stream) : fill<kAccumulates, kManyPieces>(call, first, count, ctas, stream);
  }

  template <bool kAccumulates, int kPieces>
  static cudaError_t fill(const SumCall& call, int64_t first, int64_t count, int ctas, cudaStream_t stream) {
    constexpr int kTile = ShapeOf<T, kLanes, kAccumulates>::kTile;
    thread_local SumArgs<kLanes, kPieces> args;
    args.into = call.into;
    args.alpha = call.alpha;
    args.num_pieces = static_cast<uint32_t>(count);
    for (int i = 0; i < kLanes - 1; ++i) args.staged[i] = call.staged[i];
    if (kLanes == 1) args.staged[0] = nullptr;
    args.num_steps = static_cast<uint32_t>(call.num_steps);
    args.counts = call.counts;
    args.deadline_ns = call.deadline_ns;
    for (int i = 0; i < kLanes - 1 && call.num_steps > 0; ++i) {
      args.awaits[i] = call.awaits != nullptr ? call.awaits[i] : nullptr;
      args.tells[i] = call.tells[i];
    }
    int64_t tiles = 0, step = 0, end_of_steps = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (; step < call.num_steps && i == end_of_steps; ++step) {
        args.steps[step] = {static_cast<uint32_t>(tiles), call.steps[step].awaited, call.steps[step].told};
        end_of_steps += call.steps[step].num_pieces;
      }
      const SumPiece& p = call.pieces[first + i];
      // A row's first tile ends at a line of the destination; how far that is may differ from row to row.
      const int64_t before = p.rows == 1 || p.into_pitch % kLine == 0 ? static_cast<int64_t>(reinterpret_cast<uint64_t>(call.into + p.into) % kLine) / 4 : kLine / 4 - 1;
      const int64_t row_tiles = (p.elems + before + kTile - 1) / kTile;
      args.pieces[i] = {p.own, p.own_pitch, p.staged, p.staged_pitch, p.into, p.into_pitch, p.elems, static_cast<uint32_t>(tiles), static_cast<uint32_t>(row_tiles)};
      tiles += row_tiles * p.rows;
      if (tiles > kMaxTiles) return cudaErrorInvalidValue;
    }
    for (; step < call.num_steps; ++step) args.steps[step] = {static_cast<uint32_t>(tiles), call.steps[step].awaited, call.steps[step].told};
    args.num_tiles = static_cast<uint32_t>(tiles);
    // A call of steps tells others even where it has nothing to add.
    return start<kAccumulates>(args, static_cast<int>(std::min<int64_t>(ctas, std::max<int64_t>(tiles, call.num_steps > 0 ? 1 : 0))), stream);
  }

  template <bool kAccumulates, int kPieces>
  static cudaError_t start(const SumArgs<kLanes, kPieces>& args, int ctas, cudaStream_t stream) {
    using Shape = ShapeOf<T, kLanes, kAccumulates>;
    if (ctas > 0) kernel<kAccumulates, kPieces><<<ctas, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
    return cudaGetLastError();
  }
};

template <class How>
struct Landing {
  using Call = LandCall;
  static constexpr int kArenas = How::kArenas;

  static cudaError_t prepare() {
    static LandArgs<How::kArenas> nothing{};
    return start(nothing, 1, nullptr);
  }

  static cudaError_t launch(const LandCall& call, int ctas, cudaStream_t stream) {
    for (int64_t first = 0; first < call.num_pieces; first += kLandPieces) {
      thread_local LandArgs<How::kArenas> args;
      const int64_t count = std::min<int64_t>(call.num_pieces - first, kLandPieces);
      args.into = call.into;
      args.adds = call.adds;
      args.num_pieces = static_cast<uint32_t>(count);
      for (int i = 0; i < How::kArenas; ++i) args.arenas[i] = call.arenas[i];
      int64_t tiles = 0;
      for (int64_t i = 0; i < count; ++i) {
        const LandPiece& p = call.pieces[first + i];
        args.pieces[i] = {p.from, p.into, p.elems, tiles};
        tiles += (p.elems + kLandTile<How> - 1) / kLandTile<How>;
      }
      if (tiles > kMaxTiles) return cudaErrorInvalidValue;
      args.num_tiles = static_cast<uint32_t>(tiles);
      const cudaError_t error = start(args, static_cast<int>(std::min<int64_t>(ctas, tiles)), stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  static cudaError_t start(const LandArgs<How::kArenas>& args, int ctas, cudaStream_t stream) {
    if (ctas > 0) land_kernel<How><<<ctas, kLandThreads, 0, stream>>>(args);
    return cudaGetLastError();
  }
};

// A landing of a plan that lets the switch sum. Virtual ranks have no switch: there it is made by loads, with the same grouping.
#ifdef TIDEC_VIRTUAL_SWITCH
template <int kLanes>
using BySwitch = InOneSum<kLanes>;
#else
template <int kLanes>
using BySwitch = std::conditional_t<kLanes == 1, InOneSum<1>, InSwitch>;
#endif

template <class From, class To>
struct Casting {
  using Call = CastCall;

  static cudaError_t prepare() { return start({nullptr, nullptr, 0}, 1, nullptr); }
  static cudaError_t launch(const CastCall& call, int ctas, cudaStream_t stream) { return call.count > 0 ? start(call, ctas, stream) : cudaSuccess; }

 private:
  static cudaError_t start(const CastCall& call, int ctas, cudaStream_t stream) {
    cast_kernel<From, To><<<ctas, kCastThreads, 0, stream>>>(call);
    return cudaGetLastError();
  }
};

struct Zeroing {
  using Call = ZeroCall;

  static cudaError_t prepare() { return start({nullptr, 0}, 1, nullptr); }
  static cudaError_t launch(const ZeroCall& call, int ctas, cudaStream_t stream) { return call.bytes > 0 ? start(call, ctas, stream) : cudaSuccess; }

 private:
  static cudaError_t start(const ZeroCall& call, int ctas, cudaStream_t stream) {
    zero_kernel<kZeroThreads><<<ctas, kZeroThreads, 0, stream>>>(call);
    return cudaGetLastError();
  }
};

template <class Kernel>
constexpr Launcher<typename Kernel::Call> launcher() {
  return {Kernel::prepare, Kernel::launch};
}

}  // namespace tidec::cuda
