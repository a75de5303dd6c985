// Bulk copies between global and shared memory, and the barriers that count their bytes. The only PTX beside multimem.cuh.
//
// A bulk copy moves a multiple of 16 bytes between addresses that are multiples of 16. A barrier has phases: a wait names the parity of the
// phase that it waits for, 0 first.
#pragma once

#include <cstdint>

namespace tidec::cuda {

using Barrier = uint64_t;

inline constexpr uint32_t kGranule = 16;
// A barrier of a kernel waits for copies and warps of its own CTA only, so no wait is long; one that is stops the program.
inline constexpr uint64_t kDeadlineNs = 4'000'000'000;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void barrier_init(Barrier* b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(Barrier* b) {
  asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" ::"r"(shared_address(b)) : "memory");
}

// Arrives, and adds bytes that the phase waits for as well.
__device__ __forceinline__ void arrive_expecting(Barrier* b, uint32_t bytes) {
  asm volatile("{.reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;}" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool is_over(Barrier* b, uint32_t parity) {
  uint32_t over;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(over)
               : "r"(shared_address(b)), "r"(parity)
               : "memory");
  return over != 0;
}

__device__ __noinline__ void wait_long(Barrier* b, uint32_t parity) {
  const uint64_t start = nanoseconds();
  while (!is_over(b, parity)) {
    if (nanoseconds() - start > kDeadlineNs) asm volatile("trap;");
  }
}

// Waits for the end of the phase of that parity; stops the program at the deadline.
__device__ __forceinline__ void wait(Barrier* b, uint32_t parity) {
  if (!is_over(b, parity) && !is_over(b, parity)) wait_long(b, parity);
}

__device__ __forceinline__ void load_bulk(void* into, const void* from, uint32_t bytes, Barrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(into)), "l"(from), "r"(bytes),
               "r"(shared_address(b))
               : "memory");
}

// Sixteen bytes that are read once, and that nobody writes while the kernel runs.
__device__ __forceinline__ float4 load_once(const float* p) {
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

}  // namespace tidec::cuda
