// Index arithmetic of the schedules: what C++ has no operator for.
//
// M nodes. The readings of one tree agree: these functions give what tidec/index/evaluate.py gives.
#pragma once

#include <cstdint>

namespace tidec {

// a / b rounded down, for b >= 1. C++'s / rounds towards zero.
constexpr int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// What a is more than the multiple of b below it, 0 <= result < b, for b >= 1.
constexpr int64_t floor_mod(int64_t a, int64_t b) { return a % b < 0 ? a % b + b : a % b; }

// x mod m for 0 <= x < 2m, which is proved of every use (V101).
constexpr int64_t wrap(int64_t x, int64_t m) { return x >= m ? x - m : x; }

// x mod m for -m <= x < m, which is proved of every use (V101).
constexpr int64_t back(int64_t x, int64_t m) { return x < 0 ? x + m : x; }

// The largest power of two that is at most x; 0 for x < 1.
constexpr int64_t top2(int64_t x) {
  int64_t power = x < 1 ? 0 : 1;
  while (power <= x / 2 && power > 0) power *= 2;
  return power;
}

constexpr int64_t least(int64_t a, int64_t b) { return a <= b ? a : b; }
constexpr int64_t most(int64_t a, int64_t b) { return a <= b ? b : a; }

}  // namespace tidec
