// The terms of a sum or landing, as a walk gives them, made into the call of a kernel. No CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/arguments.hpp"

namespace tidec::cuda {

// What a walk can ask, and no kernel does.
struct Unfit {
  std::string why;
};

// A term: rows of values that are added to rows of fp32 values.
struct Term {
  const char* from;
  int64_t from_pitch;
  char* into;
  int64_t into_pitch;
  int64_t elems;
  int64_t rows;
};

// Bytes of a destination that no term reaches: they become 0.
struct Gap {
  char* into;
  int64_t bytes;
};

// A sum as kernels take it.
struct SumPieces {
  std::vector<const char*> staged;
  std::vector<SumPiece> pieces;
};

// terms: those of every other lane in order, then the own ones; every lane has the same ones. into: where the sum begins.
// Throws Unfit where the lanes' terms differ in more than their block's place, or where their blocks differ modulo 16.
void gather(const std::vector<Term>& terms, int64_t lanes, char* into, SumPieces& sum);

// The bytes of [into, into + bytes) that no row of these terms covers; only the last `num_pieces` terms are looked at, which are the own ones.
// Throws Unfit where rows overlap or lie outside.
std::vector<Gap> gaps(const std::vector<Term>& terms, size_t num_pieces, char* into, int64_t bytes);

}  // namespace tidec::cuda
