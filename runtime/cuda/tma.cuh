// Bulk copies between global and shared memory, the barriers that count their bytes, and words that tell when memory may be read. The only PTX beside
// multimem.cuh.
//
// A bulk copy moves a multiple of 16 bytes between addresses that are multiples of 16. A barrier has phases: a wait names the parity of the
// phase that it waits for, 0 first.
#pragma once

#include <cstdint>

namespace tidec::cuda {

using Barrier = uint64_t;

inline constexpr uint32_t kGranule = 16;
// Where a barrier waits for copies and warps of its own CTA only, no wait is long; one that is stops the program.
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

__device__ __noinline__ void wait_long(Barrier* b, uint32_t parity, uint64_t deadline_ns) {
  const uint64_t start = nanoseconds();
  while (!is_over(b, parity)) {
    if (nanoseconds() - start > deadline_ns) asm volatile("trap;");
  }
}

// ---- words of other GPUs, or that they write

__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release_system(uint64_t* p, uint64_t v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ uint32_t increment(uint32_t* p) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
  return before;
}
// What this thread has seen in global memory, its bulk copies see too.
__device__ __forceinline__ void seen_by_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Waits for the end of the phase of that parity; stops the program at the deadline.
__device__ __forceinline__ void wait(Barrier* b, uint32_t parity, uint64_t deadline_ns = kDeadlineNs) {
  if (!is_over(b, parity) && !is_over(b, parity)) wait_long(b, parity, deadline_ns);
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
