// Sums, landings and casts of rows of values. Each has a scalar and a vector form, and both give the same bits.
#pragma once

#include <cstdint>

#include "tidec/runner.hpp"

namespace tidec::host {

// Whether this machine has the vector form.
bool has_vectors();

// From so many bytes on, a copy's destination is not wanted in the cache: another rank reads it, after much else.
inline constexpr int64_t kStreamedBytes = 128 << 10;

// As memcpy.
void copy_row(char* dst, const char* src, int64_t bytes);

// dst[i] = alpha * (0 + source 0's value i + source 1's + ...), added in that order in fp32; with `adds`, dst[i] before plus that.
void sum_rows(float* dst, const char* const* sources, int64_t num_sources, Dtype from, int64_t elems, float alpha, bool adds, bool scalar);

// dst[i] = ((first + source 0's value i) + source 1's) + ...; first is 0 or, with `adds`, dst[i] before. In the switch the sources are added to 0
// first, and their sum is added to dst.
void land_rows(float* dst, const char* const* sources, int64_t num_sources, int64_t elems, bool adds, Reduction how, bool scalar);

// Each value rounded to nearest even, through fp32 where it becomes bf16 or fp16; every NaN becomes the quiet one of the type it becomes.
void cast_row(char* dst, Dtype to, const char* src, Dtype from, int64_t elems, bool scalar);

}  // namespace tidec::host
