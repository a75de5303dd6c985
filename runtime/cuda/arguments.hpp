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

// A whole sum: into = alpha * (0 + staged[0] + staged[1] + ... + own), in fp32 and in that order; accumulates: plus what `into` held.
// staged: the blocks of the other lanes, in order of lanes; their addresses are equal modulo 16.
struct SumCall {
  char* into;
  const char* const* staged;
  const SumPiece* pieces;
  int64_t num_pieces;
  float alpha;
  bool accumulates;
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
