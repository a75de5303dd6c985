// What a kernel is asked: plain structs, without CUDA, filled on the host for every launch.
//
// Offsets and pitches are bytes, `elems` values. A piece is a rectangle: rows of one length, each a pitch after the one before.
#pragma once

#include <cstdint>

namespace tidec::cuda {

// One rectangle of a sum. own: its first row in the own gradient.  staged: where it begins in each staged block.  into: in what is written.
struct SumPiece {
  const char* own;
  int64_t own_pitch;
  int64_t staged;
  int64_t staged_pitch;
  int64_t into;
  int64_t into_pitch;
  int64_t elems;
  int64_t rows;
};

// Some of the pieces of a sum, from the one after those of the step before. awaited: what the words of the call that others write have to reach
// before the blocks of the step are read, 0 = nothing.  told: what the
// others' words become once all of the step's are, 0 = they stay.
struct SumStep {
  int64_t num_pieces;
  uint64_t awaited;
  uint64_t told;
};

// Of a launch.
inline constexpr int kMaxSumSteps = 32;
inline constexpr int kManySumPieces = 472;
// Of the words that a launch of several steps counts in: one a step, and one more.
inline constexpr int64_t kCountBytes = 4 * (kMaxSumSteps + 1);

// A whole sum: into = alpha * (0 + staged[0] + staged[1] + ... + own), in fp32 and in that order; accumulates: plus what `into` held.
// staged: the blocks of the other lanes, in order of lanes; their addresses are equal modulo 16.
struct SumCall {
  char* into;
  const char* const* staged;
  const SumPiece* pieces;
  int64_t num_pieces;
  float alpha;
  bool accumulates;
  // Several steps, at most kMaxSumSteps, each begun when its blocks are there; without any, all of it at once. awaits, tells: a word for each other
  // lane, in order; awaits may be missing where nothing is awaited.  counts: kCountBytes, all zero, and again when the call has ended.
  // deadline_ns: of a wait; then the program is stopped.
  const SumStep* steps = nullptr;
  int64_t num_steps = 0;
  const uint64_t* const* awaits = nullptr;
  uint64_t* const* tells = nullptr;
  uint32_t* counts = nullptr;
  uint64_t deadline_ns = 0;
};

// One run of a landing. from: offset in every lane's arena.  into: offset in the output.
struct LandPiece {
  int64_t from;
  int64_t into;
  int64_t elems;
};

// A whole landing: into = (adds ? into : 0) + lane 0 + lane 1 + ..., in fp32 and in that order.
// arenas: of the node's lanes, in order; where the switch sums, one: the multicast address.
struct LandCall {
  char* into;
  const char* const* arenas;
  const LandPiece* pieces;
  int64_t num_pieces;
  bool adds;
};

struct ZeroCall {
  char* into;
  int64_t bytes;
};

// `count` values of one type as another.
struct CastCall {
  const char* from;
  char* into;
  int64_t count;
};

}  // namespace tidec::cuda
