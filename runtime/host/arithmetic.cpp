#include "host/arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#define TIDEC_VECTOR __attribute__((target("avx2,f16c")))
#endif

// NOTE: products are never fused into sums: the build gives -ffp-contract=off, and the vector form's target has no fma.

namespace tidec::host {

namespace {

template <class T>
T loaded(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void store(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0x1f) return from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0));
  if (exponent == 0) return from_bits(sign | to_bits(static_cast<float>(mantissa) * 0x1p-24f));
  return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t to_half(float value) {
  uint32_t u = to_bits(value);
  const uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return 0x7e00;
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (u >= 0x38800000) return static_cast<uint16_t>(sign | (u + 0xfff + (u >> 13 & 1) - 0x38000000) >> 13);
  if (u < 0x33000000) return static_cast<uint16_t>(sign);
  // Below the normal numbers: a multiple of 2**-24.
  const uint32_t shift = 126 - (u >> 23), mantissa = (u & 0x7fffff) | 0x800000, half = 1u << (shift - 1);
  const uint32_t whole = mantissa >> shift, rest = mantissa & ((1u << shift) - 1);
  return static_cast<uint16_t>(sign | (whole + (rest > half || (rest == half && whole % 2 == 1) ? 1 : 0)));
}

uint16_t to_bf16(float value) {
  const uint32_t u = to_bits(value);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float value_of(const char* row, Dtype from, int64_t i) {
  switch (from) {
    case Dtype::kBf16: return from_bits(static_cast<uint32_t>(loaded<uint16_t>(row + 2 * i)) << 16);
    case Dtype::kFp16: return from_half(loaded<uint16_t>(row + 2 * i));
    case Dtype::kFp32: return loaded<float>(row + 4 * i);
    case Dtype::kFp64: return static_cast<float>(loaded<double>(row + 8 * i));
  }
  return 0;
}

void sum_scalar(float* dst, const char* const* sources, int64_t num_sources, Dtype from, int64_t first, int64_t elems, float alpha, bool adds) {
  for (int64_t i = first; i < elems; ++i) {
    float sum = 0;
    for (int64_t s = 0; s < num_sources; ++s) sum += value_of(sources[s], from, i);
    sum *= alpha;
    dst[i] = adds ? dst[i] + sum : sum;
  }
}

void land_scalar(float* dst, const char* const* sources, int64_t num_sources, int64_t first, int64_t elems, bool adds, Reduction how) {
  for (int64_t i = first; i < elems; ++i) {
    const float before = adds ? dst[i] : 0;
    float sum = how == Reduction::kInOrder ? before : 0;
    for (int64_t s = 0; s < num_sources; ++s) sum += loaded<float>(sources[s] + 4 * i);
    dst[i] = how == Reduction::kInOrder ? sum : before + sum;
  }
}

#if defined(__x86_64__)

template <Dtype kFrom>
TIDEC_VECTOR inline __m256 load8(const char* at) {
  if constexpr (kFrom == Dtype::kFp32) return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if constexpr (kFrom == Dtype::kFp16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// Four times eight values at once, so that the additions of one do not wait for those of another. Returns how many values were done.
template <Dtype kFrom>
TIDEC_VECTOR int64_t sum_vector(float* dst, const char* const* sources, int64_t num_sources, int64_t elems, float alpha, bool adds) {
  constexpr int64_t kItem = item_bytes(kFrom);
  const __m256 factor = _mm256_set1_ps(alpha);
  int64_t i = 0;
  for (; i + 32 <= elems; i += 32) {
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    for (int64_t s = 0; s < num_sources; ++s) {
      const char* at = sources[s] + i * kItem;
      a = _mm256_add_ps(a, load8<kFrom>(at));
      b = _mm256_add_ps(b, load8<kFrom>(at + 8 * kItem));
      c = _mm256_add_ps(c, load8<kFrom>(at + 16 * kItem));
      d = _mm256_add_ps(d, load8<kFrom>(at + 24 * kItem));
    }
    a = _mm256_mul_ps(a, factor);
    b = _mm256_mul_ps(b, factor);
    c = _mm256_mul_ps(c, factor);
    d = _mm256_mul_ps(d, factor);
    if (adds) {
      a = _mm256_add_ps(_mm256_loadu_ps(dst + i), a);
      b = _mm256_add_ps(_mm256_loadu_ps(dst + i + 8), b);
      c = _mm256_add_ps(_mm256_loadu_ps(dst + i + 16), c);
      d = _mm256_add_ps(_mm256_loadu_ps(dst + i + 24), d);
    }
    _mm256_storeu_ps(dst + i, a);
    _mm256_storeu_ps(dst + i + 8, b);
    _mm256_storeu_ps(dst + i + 16, c);
    _mm256_storeu_ps(dst + i + 24, d);
  }
  return i;
}

TIDEC_VECTOR int64_t land_vector(float* dst, const char* const* sources, int64_t num_sources, int64_t elems, bool adds, Reduction how) {
  int64_t i = 0;
  for (; i + 16 <= elems; i += 16) {
    const __m256 zero = _mm256_setzero_ps();
    const __m256 before_a = adds ? _mm256_loadu_ps(dst + i) : zero, before_b = adds ? _mm256_loadu_ps(dst + i + 8) : zero;
    const bool in_order = how == Reduction::kInOrder;
    __m256 a = in_order ? before_a : zero, b = in_order ? before_b : zero;
    for (int64_t s = 0; s < num_sources; ++s) {
      const float* at = reinterpret_cast<const float*>(sources[s]) + i;
      a = _mm256_add_ps(a, _mm256_loadu_ps(at));
      b = _mm256_add_ps(b, _mm256_loadu_ps(at + 8));
    }
    _mm256_storeu_ps(dst + i, in_order ? a : _mm256_add_ps(before_a, a));
    _mm256_storeu_ps(dst + i + 8, in_order ? b : _mm256_add_ps(before_b, b));
  }
  return i;
}

// Stores that do not read their lines first, and leave nothing in the cache. Returns how many bytes were copied.
TIDEC_VECTOR int64_t stream_vector(char* dst, const char* src, int64_t bytes) {
  int64_t i = std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 31));
  std::memcpy(dst, src, static_cast<size_t>(i));
  for (; i + 128 <= bytes; i += 128) {
    __m256i values[4];
    for (int k = 0; k < 4; ++k) values[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i + 32 * k));
    for (int k = 0; k < 4; ++k) _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i + 32 * k), values[k]);
  }
  // NOTE: nothing else orders such stores before the counter that says they are there.
  _mm_sfence();
  return i;
}

// The same a line at a time, where there are such stores: half a line takes as long as all of it.
__attribute__((target("avx512f"))) int64_t stream_lines(char* dst, const char* src, int64_t bytes) {
  int64_t i = std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 63));
  std::memcpy(dst, src, static_cast<size_t>(i));
  for (; i + 256 <= bytes; i += 256) {
    __m512i values[4];
    for (int k = 0; k < 4; ++k) values[k] = _mm512_loadu_si512(src + i + 64 * k);
    for (int k = 0; k < 4; ++k) _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 64 * k), values[k]);
  }
  _mm_sfence();
  return i;
}

// fp32 to bf16, sixteen values at once. Returns how many values were done.
TIDEC_VECTOR int64_t narrow_vector(char* dst, const char* src, int64_t elems) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff), quiet = _mm256_set1_epi32(0x7fc0);
  int64_t i = 0;
  for (; i + 16 <= elems; i += 16) {
    __m256i halves[2];
    for (int k = 0; k < 2; ++k) {
      const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(src + 4 * (i + 8 * k)));
      const __m256i bits = _mm256_castps_si256(value);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
      const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd), 16);
      halves[k] = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
    }
    // Packed by 128-bit halves: put them back in order.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves[0], halves[1]), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 2 * i), packed);
  }
  return i;
}

#endif

}  // namespace

bool has_vectors() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

void copy_row(char* dst, const char* src, int64_t bytes) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (bytes >= kStreamedBytes) done = __builtin_cpu_supports("avx512f") ? stream_lines(dst, src, bytes) : has_vectors() ? stream_vector(dst, src, bytes) : 0;
#endif
  std::memcpy(dst + done, src + done, static_cast<size_t>(bytes - done));
}

void sum_rows(float* dst, const char* const* sources, int64_t num_sources, Dtype from, int64_t elems, float alpha, bool adds, bool scalar) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (!scalar && has_vectors()) {
    switch (from) {
      case Dtype::kBf16: done = sum_vector<Dtype::kBf16>(dst, sources, num_sources, elems, alpha, adds); break;
      case Dtype::kFp16: done = sum_vector<Dtype::kFp16>(dst, sources, num_sources, elems, alpha, adds); break;
      case Dtype::kFp32: done = sum_vector<Dtype::kFp32>(dst, sources, num_sources, elems, alpha, adds); break;
      case Dtype::kFp64: break;
    }
  }
#endif
  sum_scalar(dst, sources, num_sources, from, done, elems, alpha, adds);
}

void land_rows(float* dst, const char* const* sources, int64_t num_sources, int64_t elems, bool adds, Reduction how, bool scalar) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (!scalar && has_vectors()) done = land_vector(dst, sources, num_sources, elems, adds, how);
#endif
  land_scalar(dst, sources, num_sources, done, elems, adds, how);
}

void cast_row(char* dst, Dtype to, const char* src, Dtype from, int64_t elems, bool scalar) {
  if (to == from) {
    std::memcpy(dst, src, static_cast<size_t>(elems * item_bytes(to)));
    return;
  }
  int64_t done = 0;
#if defined(__x86_64__)
  if (!scalar && has_vectors() && from == Dtype::kFp32 && to == Dtype::kBf16) done = narrow_vector(dst, src, elems);
#else
  static_cast<void>(scalar);
#endif
  for (int64_t i = done; i < elems; ++i) {
    if (to == Dtype::kFp64) {
      const double value = static_cast<double>(value_of(src, from, i));
      store(dst + 8 * i, std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
      continue;
    }
    const float value = value_of(src, from, i);
    switch (to) {
      case Dtype::kBf16: store(dst + 2 * i, to_bf16(value)); break;
      case Dtype::kFp16: store(dst + 2 * i, to_half(value)); break;
      default: store(dst + 4 * i, std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value); break;
    }
  }
}

}  // namespace tidec::host
