// Sums that the switch makes: one load of a multicast address gives the fp32 sum over all lanes of the node. sm_90 and newer.
//
// The lanes' data must have been made visible before, by the flags of the plan. The order of the additions is the switch's own.
#pragma once

namespace tidec::cuda {

// from: a multicast address, a multiple of 16.
__device__ __forceinline__ float4 load_summed(const float4* from) {
  float4 v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ float load_summed(const float* from) {
  float v;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}

}  // namespace tidec::cuda
