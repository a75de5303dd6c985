// Values in memory and in arithmetic: what is stored as bf16, fp16, fp32 or fp64 is added in fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tidec::cuda {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;

__device__ __forceinline__ float widened(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widened(Fp16 x) { return __half2float(x); }
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(double x) { return __double2float_rn(x); }

// Rounded to nearest even; every NaN is the quiet one of the type.
template <class To>
__device__ __forceinline__ To narrowed(float x) {
  if constexpr (std::is_same_v<To, Bf16>) {
    return isnan(x) ? __ushort_as_bfloat16(0x7fc0) : __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<To, Fp16>) {
    return isnan(x) ? __ushort_as_half(0x7e00) : __float2half_rn(x);
  } else {
    return isnan(x) ? __uint_as_float(0x7fc00000) : x;
  }
}

// Two values in one word, the first in the low half.
template <class T>
__device__ __forceinline__ float2 widened_pair(uint32_t word) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}

// Four values from element i on of shared memory. kAligned: they are one vector; else two vectors are read and shifted.
template <class T, bool kAligned>
__device__ __forceinline__ float4 read_four(const char* from, uint32_t i) {
  const char* const at = from + i * sizeof(T);
  if constexpr (sizeof(T) == 4) {
    if constexpr (kAligned) return *reinterpret_cast<const float4*>(at);
    const float* const p = reinterpret_cast<const float*>(at);
    return {p[0], p[1], p[2], p[3]};
  } else if constexpr (sizeof(T) == 8) {
    const T* const p = reinterpret_cast<const T*>(at);
    return {widened(p[0]), widened(p[1]), widened(p[2]), widened(p[3])};
  } else {
    uint2 words;
    if constexpr (kAligned) {
      words = *reinterpret_cast<const uint2*>(at);
    } else {
      const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uint64_t>(at)) & 7;
      const uint2* const p = reinterpret_cast<const uint2*>(at - past);
      const uint2 a = p[0], b = p[1];
      const uint32_t x = past < 4 ? a.x : a.y, y = past < 4 ? a.y : b.x, z = past < 4 ? b.x : b.y, shift = past % 4 * 8;
      words = {__funnelshift_r(x, y, shift), __funnelshift_r(y, z, shift)};
    }
    const float2 low = widened_pair<T>(words.x), high = widened_pair<T>(words.y);
    return {low.x, low.y, high.x, high.y};
  }
}

template <class T>
__device__ __forceinline__ float read_one(const char* from, uint32_t i) {
  return widened(reinterpret_cast<const T*>(from)[i]);
}

// Rounded once each: the compiler may not fuse a product into a sum.
__device__ __forceinline__ float4 added(float4 a, float4 b) { return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)}; }
__device__ __forceinline__ float4 scaled(float k, float4 a) { return {__fmul_rn(k, a.x), __fmul_rn(k, a.y), __fmul_rn(k, a.z), __fmul_rn(k, a.w)}; }

}  // namespace tidec::cuda
