// The sum of staged gradients and the own one: fp32, in the stated order, at any alignment.
//
// CTAs: the caller's budget; persistent, tile by tile.  Threads: 32 * (kWarps + kFeeders).  Shared memory: kStages * kStageBytes + 1 KiB, dynamic.
// Residence: one CTA a multiprocessor, because of the shared memory.
//
// The last warps feed a ring of stages by bulk copies, in turns, the others add and store: one warp alone issues too few copies for a CTA. A bulk copy takes whole granules of 16 bytes around the rows
// that it is for, so that any alignment has one path; the values are then read from shared memory at their phase. Memory is given out in
// granules, so that the bytes beside a row can be read; they are never used.
//
// A launch may have steps, of which each but the first waits for words that copies of other GPUs raise, and tells others that its blocks are read. A CTA
// waits only where it has a tile of the step, and takes its tiles in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/arguments.hpp"
#include "cuda/element.cuh"
#include "cuda/tma.cuh"

namespace tidec::cuda {

inline constexpr int kMaxSharedBytes = 227 * 1024;
inline constexpr int kLine = 128;

// How a sum is cut. kTile elements a tile, a multiple of 4 * 32 * kWarps.
template <class T, int kLanes, bool kAccumulates, int kTileElems, int kConsumers, int kMaxStages>
struct SumShape {
  static constexpr int kTile = kTileElems;
  static constexpr int kWarps = kConsumers;
  // A row lies as far from a line of 128 bytes in its slot as in memory: else a bulk copy writes every line in two halves, which costs a
  // quarter of the rate of a CTA.
  static constexpr int kSlotBytes = kTile * static_cast<int>(sizeof(T)) + kLine;
  static constexpr int kIntoBytes = kTile * 4 + kLine;
  static constexpr int kStageBytes = kLanes * kSlotBytes + (kAccumulates ? kIntoBytes : 0);
  static constexpr int kHeadBytes = 1024;
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - kHeadBytes - kLine) / kStageBytes);
  // NOTE: no more than stages: a feeder has then seen the use before last of its next stage read, and tells phases apart by their parity.
  static constexpr int kFeeders = std::min(4, kStages);
  static constexpr int kThreads = 32 * (kWarps + kFeeders);
  // The last vector of a slot may be read a little past it.
  static constexpr int kSharedBytes = kHeadBytes + kStages * kStageBytes + kLine;
  static constexpr int kVectors = kTile / (4 * 32 * kWarps);
  // Vectors whose loads are in flight together: registers bound it.
  static constexpr int kBatch = std::min(kVectors, kLanes <= 4 ? 4 : 2);
  static_assert(kStages >= 2, "too few stages fit: take smaller tiles");
  static_assert(kVectors >= 1 && kVectors % kBatch == 0 && kTile % (4 * 32 * kWarps) == 0, "a tile is a whole number of vectors a thread");
};

// A piece of a launch. first_tile: tiles before it.  row_tiles: tiles that one row takes.
struct SumRows {
  const char* own;
  int64_t own_pitch;
  int64_t staged;
  int64_t staged_pitch;
  int64_t into;
  int64_t into_pitch;
  int64_t elems;
  uint32_t first_tile;
  uint32_t row_tiles;
};

// A step of a launch, from its first tile on.
struct SumSince {
  uint32_t first_tile;
  uint64_t awaited;
  uint64_t told;
};

template <int kLanes, int kPieces>
struct SumArgs {
  static constexpr int kOthers = kLanes > 1 ? kLanes - 1 : 1;
  char* into;
  float alpha;
  uint32_t num_pieces;
  uint32_t num_tiles;
  uint32_t num_steps;
  uint32_t* counts;
  uint64_t deadline_ns;
  const char* staged[kOthers];
  const uint64_t* awaits[kOthers];
  uint64_t* tells[kOthers];
  SumSince steps[kMaxSumSteps];
  SumRows pieces[kPieces];
};

// How the values of a tile lie. kAligned: vectors but for a few at the ends.  kShifted: no vectors.  kWhole: kTile of them, all vectors.
enum class Lie : uint8_t { kAligned, kShifted, kWhole };

// A tile in a stage: where it goes, how many values it has, and at which byte of a slot they begin. A value lies in its slot as far from a line
// as it does in memory.
struct alignas(16) SumTile {
  float* into;
  uint16_t elems;
  uint8_t staged_at;
  uint8_t own_at;
  uint8_t into_at;
  Lie lie;

  // Values before the first one that begins a vector of the destination.
  __device__ __forceinline__ uint32_t head() const { return min((0u - into_at / 4) & 3u, static_cast<uint32_t>(elems)); }
};

template <int kStages>
struct SumHead {
  Barrier full[kStages];
  Barrier empty[kStages];
  SumTile tiles[kStages];
};

__device__ __forceinline__ uint32_t past_line(const void* p) { return static_cast<uint32_t>(reinterpret_cast<uint64_t>(p)) & (kLine - 1); }
__device__ __forceinline__ uint32_t past_granule(const void* p) { return static_cast<uint32_t>(reinterpret_cast<uint64_t>(p)) & (kGranule - 1); }

// The granules that hold a range.
struct Granules {
  const char* from;
  uint32_t bytes;
};

__device__ __forceinline__ Granules granules(const char* p, uint32_t bytes) {
  const uint32_t before = past_granule(p);
  return {p - before, (before + bytes + kGranule - 1) & ~(kGranule - 1)};
}

// What a tile reads. staged: of the first other lane, the others' are as far from their blocks.
struct SumFeed {
  SumTile tile;
  Granules staged;
  Granules own;
  Granules into;
};

template <class T, int kLanes, int kTile, class Args>
__device__ __forceinline__ SumFeed sum_feed(const Args& args, uint32_t tile) {
  uint32_t low = 0, high = args.num_pieces - 1;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (args.pieces[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const SumRows& p = args.pieces[low];
  const uint32_t row = (tile - p.first_tile) / p.row_tiles, column = (tile - p.first_tile) - row * p.row_tiles;
  char* const into_row = args.into + p.into + row * p.into_pitch;
  // All tiles of a row but the first one begin at a line of the destination, so that a warp's stores touch no line in parts.
  const int64_t before = past_line(into_row) / 4, start = static_cast<int64_t>(column) * kTile - before;
  const int64_t first = max(start, int64_t{0}), end = min(start + kTile, p.elems);
  SumFeed f{};
  if (end <= first) return f;
  f.tile.elems = static_cast<uint16_t>(end - first);
  const uint32_t bytes = f.tile.elems * sizeof(T);
  const char* own = p.own + row * p.own_pitch + first * static_cast<int64_t>(sizeof(T));
  const char* staged = args.staged[0] + p.staged + row * p.staged_pitch + first * static_cast<int64_t>(sizeof(T));
  char* into = into_row + first * 4;
  f.tile.into = reinterpret_cast<float*>(into);
  f.tile.own_at = static_cast<uint8_t>(past_line(own));
  f.tile.staged_at = static_cast<uint8_t>(past_line(staged));
  f.tile.into_at = static_cast<uint8_t>(past_line(into));
  const uint32_t head = f.tile.head() * sizeof(T);
  const bool is_aligned = (f.tile.own_at + head) % (4 * sizeof(T)) == 0 && (kLanes == 1 || (f.tile.staged_at + head) % (4 * sizeof(T)) == 0);
  f.tile.lie = !is_aligned ? Lie::kShifted : head == 0 && f.tile.elems == kTile ? Lie::kWhole : Lie::kAligned;
  f.own = granules(own, bytes);
  f.staged = granules(staged, bytes);
  f.into = granules(into, f.tile.elems * 4);
  return f;
}

// Four sums, from element i of the tile on. kAligned: the four values of every source are one vector.
template <class T, int kLanes, bool kAccumulates, class Shape, bool kAligned>
__device__ __forceinline__ float4 sum_four(const char* stage, const SumTile& t, uint32_t i, float alpha) {
  float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int s = 0; s < kLanes - 1; ++s) sum = added(sum, read_four<T, kAligned>(stage + s * Shape::kSlotBytes + t.staged_at, i));
  sum = scaled(alpha, added(sum, read_four<T, kAligned>(stage + (kLanes - 1) * Shape::kSlotBytes + t.own_at, i)));
  // The vectors begin where the destination is aligned.
  if constexpr (kAccumulates) sum = added(read_four<float, true>(stage + kLanes * Shape::kSlotBytes + t.into_at, i), sum);
  return sum;
}

template <class T, int kLanes, bool kAccumulates, class Shape>
__device__ __forceinline__ float sum_one(const char* stage, const SumTile& t, uint32_t i, float alpha) {
  float sum = 0.f;
  for (int s = 0; s < kLanes - 1; ++s) sum = __fadd_rn(sum, read_one<T>(stage + s * Shape::kSlotBytes + t.staged_at, i));
  sum = __fmul_rn(alpha, __fadd_rn(sum, read_one<T>(stage + (kLanes - 1) * Shape::kSlotBytes + t.own_at, i)));
  if constexpr (kAccumulates) sum = __fadd_rn(read_one<float>(stage + kLanes * Shape::kSlotBytes + t.into_at, i), sum);
  return sum;
}

// The vectors of a tile, from element `head` up to `end`. Loads of a batch come before its stores, so that they are in
// flight together; what is read past the end lies in the stage and is not stored.
template <class T, int kLanes, bool kAccumulates, class Shape, bool kWhole, bool kAligned>
__device__ __forceinline__ void sum_vectors(const char* stage, const SumTile& t, uint32_t head, uint32_t end, float alpha) {
  constexpr uint32_t kStep = 4 * 32 * Shape::kWarps;
#pragma unroll
  for (int first = 0; first < Shape::kVectors; first += Shape::kBatch) {
    if (!kWhole && head + first * kStep >= end) break;
    const uint32_t start = head + first * kStep + 4 * threadIdx.x;
    float4 sums[Shape::kBatch];
#pragma unroll
    for (int u = 0; u < Shape::kBatch; ++u) sums[u] = sum_four<T, kLanes, kAccumulates, Shape, kAligned>(stage, t, start + u * kStep, alpha);
#pragma unroll
    for (int u = 0; u < Shape::kBatch; ++u) {
      if (kWhole || start + u * kStep < end) *reinterpret_cast<float4*>(t.into + start + u * kStep) = sums[u];
    }
  }
}

template <class T, int kLanes, bool kAccumulates, class Shape>
__device__ __forceinline__ void sum_tile(const char* stage, const SumTile& t, float alpha) {
  if (t.lie == Lie::kWhole) {
    sum_vectors<T, kLanes, kAccumulates, Shape, true, true>(stage, t, 0, Shape::kTile, alpha);
    return;
  }
  const uint32_t head = t.head(), end = head + ((t.elems - head) & ~3u);
  if (t.lie == Lie::kAligned) {
    sum_vectors<T, kLanes, kAccumulates, Shape, false, true>(stage, t, head, end, alpha);
  } else {
    sum_vectors<T, kLanes, kAccumulates, Shape, false, false>(stage, t, head, end, alpha);
  }
  if (threadIdx.x < 8) {
    const uint32_t i = threadIdx.x < 4 ? threadIdx.x : end + threadIdx.x - 4;
    if (threadIdx.x < 4 ? i < head : i < t.elems) t.into[i] = sum_one<T, kLanes, kAccumulates, Shape>(stage, t, i, alpha);
  }
}

// Whether every other lane's word has reached what the step waits for. All lanes of the warp ask.
template <int kLanes, class Args>
__device__ __forceinline__ bool has_come(const Args& args, uint32_t step, uint32_t lane) {
  const uint64_t awaited = args.steps[step].awaited;
  if (awaited == 0) return true;
  bool has = true;
  for (uint32_t i = lane; i + 1 < kLanes; i += 32) has = has && load_acquire_system(args.awaits[i]) >= awaited;
  return __all_sync(~0u, has);
}

// A feeder's tiles of a step have been read. The last feeder of all CTAs tells the other lanes, after the one that told of the step before.
template <int kLanes, int kFeeders, class Args>
__device__ __noinline__ void tell_step(const Args& args, uint32_t step) {
  if (increment(&args.counts[step]) + 1 < kFeeders * gridDim.x) return;
  uint32_t* const told = &args.counts[kMaxSumSteps];
  args.counts[step] = 0;
  // Who tells of the step before is on the way.
  while (load_acquire(told) < step) {
  }
  const uint64_t value = args.steps[step].told;
  for (int i = 0; i + 1 < kLanes && value != 0; ++i) store_release_system(args.tells[i], value);
  store_release(told, step + 1 < args.num_steps ? step + 1 : 0);
}

// Where a feeder is. given: tiles that it gave to the others, the last one in stage `at`.  reached: the step whose blocks have come.
// told: the steps that it told of.  end: its tiles up to the end of the steps before `reached`.
struct SumFeeder {
  uint32_t given = 0, at = 0, parity = 0, reached = 0, told = 0, end = 0;
};

// Tells of the steps before `step`; all of their tiles have been read. A whole warp comes here.
template <int kLanes, int kFeeders, class Args>
__device__ __forceinline__ void tell_until(const Args& args, SumFeeder& f, uint32_t step, uint32_t lane) {
  for (; f.told < step; ++f.told) {
    if (lane == 0) tell_step<kLanes, kFeeders>(args, f.told);
  }
}

// The feeder's next tiles are of `step`, the others were of steps before it; its blocks have come. Where they have not, what is under way is read
// and told of first.
template <int kLanes, int kFeeders, class Args, class Head>
__device__ __forceinline__ void begin_step(const Args& args, Head& head, SumFeeder& f, uint32_t step, uint32_t lane) {
  const bool is_pending = f.told < f.reached, is_there = step < args.num_steps && has_come<kLanes>(args, step, lane);
  f.reached = step, f.end = f.given;
  if (is_pending || !is_there) {
    if (f.given > 0) wait(&head.empty[f.at], f.parity);
    tell_until<kLanes, kFeeders>(args, f, step, lane);
  }
  if (step == args.num_steps) return;
  const uint64_t start = nanoseconds();
  while (!is_there && !has_come<kLanes>(args, step, lane)) {
    if (nanoseconds() - start > args.deadline_ns) asm volatile("trap;");
  }
  seen_by_copies();
}

template <class T, int kLanes, bool kAccumulates, class Shape, int kPieces>
__global__ void __launch_bounds__(Shape::kThreads, 1) sum_kernel(const __grid_constant__ SumArgs<kLanes, kPieces> args) {
  extern __shared__ __align__(128) char shared[];
  using Head = SumHead<Shape::kStages>;
  static_assert(sizeof(Head) <= Shape::kHeadBytes, "the barriers do not fit before the stages");
  Head& head = *reinterpret_cast<Head*>(shared);
  char* const stages = shared + Shape::kHeadBytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(&head.full[s], 1);
      barrier_init(&head.empty[s], Shape::kWarps);
    }
    barriers_ready();
  }
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  if (threadIdx.x / 32 >= Shape::kWarps) {
    constexpr int kFeeders = Shape::kFeeders;
    const uint32_t number = threadIdx.x / 32 - Shape::kWarps, stride = kFeeders * gridDim.x;
    SumFeeder feeder;
    int s = static_cast<int>(number);
    uint32_t parity = 0, step = 0;
    for (uint32_t first = blockIdx.x + number * gridDim.x; first < args.num_tiles; first += 32 * stride) {
      const uint32_t mine = first + lane * stride;
      SumFeed f{};
      if (mine < args.num_tiles) f = sum_feed<T, kLanes, Shape::kTile>(args, mine);
      while (step + 1 < args.num_steps && args.steps[step + 1].first_tile <= mine) ++step;
      for (uint32_t turn = 0; turn < 32 && first + turn * stride < args.num_tiles; ++turn) {
        const uint32_t wanted = __shfl_sync(~0u, step, static_cast<int>(turn));
        if (wanted > feeder.reached) begin_step<kLanes, kFeeders>(args, head, feeder, wanted, lane);
        if (lane == turn) {
          wait(&head.empty[s], parity ^ 1);
          head.tiles[s] = f.tile;
          char* const stage = stages + s * Shape::kStageBytes;
          // NOTE: a tile of nothing only arrives.
          arrive_expecting(&head.full[s], (kLanes - 1) * f.staged.bytes + f.own.bytes + (kAccumulates ? f.into.bytes : 0));
          if (f.tile.elems > 0) {
            // The other lanes' rows lie like the first one's in their slots.
            char* slot = stage + past_line(f.staged.from);
            for (int i = 0; i < kLanes - 1; ++i, slot += Shape::kSlotBytes) {
              load_bulk(slot, f.staged.from + (args.staged[i] - args.staged[0]), f.staged.bytes, &head.full[s]);
            }
            load_bulk(stage + (kLanes - 1) * Shape::kSlotBytes + past_line(f.own.from), f.own.from, f.own.bytes, &head.full[s]);
            if constexpr (kAccumulates) load_bulk(stage + kLanes * Shape::kSlotBytes + past_line(f.into.from), f.into.from, f.into.bytes, &head.full[s]);
          }
        }
        __syncwarp();
        ++feeder.given;
        feeder.at = static_cast<uint32_t>(s), feeder.parity = parity;
        // A stage that is given out again has been read, and so has all before it.
        if (feeder.told < feeder.reached && (feeder.given - feeder.end) * kFeeders >= Shape::kStages) tell_until<kLanes, kFeeders>(args, feeder, feeder.reached, lane);
        s += kFeeders;
        if (s >= Shape::kStages) s -= Shape::kStages, parity ^= 1;
      }
    }
    if (args.num_steps > 0) begin_step<kLanes, kFeeders>(args, head, feeder, args.num_steps, lane);
    return;
  }
  int s = 0;
  uint32_t parity = 0;
  // A tile may wait for what another GPU copies.
  const uint64_t deadline_ns = max(kDeadlineNs, args.deadline_ns);
  for (uint32_t tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    wait(&head.full[s], parity, deadline_ns);
    const SumTile t = head.tiles[s];
    sum_tile<T, kLanes, kAccumulates, Shape>(stages + s * Shape::kStageBytes, t, args.alpha);
    __syncwarp();
    if (lane == 0) arrive(&head.empty[s]);
    if (++s == Shape::kStages) s = 0, parity ^= 1;
  }
}

}  // namespace tidec::cuda
