// Waves that fill a GPU: on which multiprocessor each CTA begins, and when.
//
// A CTA takes all shared memory of a multiprocessor, so that it begins only where nothing else runs (on 9.0 every CTA takes a KiB of it at least). It holds the multiprocessor
// for as long as it is told, so that no other of its wave can come there meanwhile, and ends by itself.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

// More than a second at any clock: a bound where the GPU's timer stands still.
constexpr long long kMostCycles = 4'000'000'000;

// Nanoseconds of the GPU's timer.
struct Seen {
  int64_t multiprocessor, begin, end;
};

__device__ int64_t timer() {
  int64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// One CTA of one warp a record. pause: one CTA, no shared memory, anywhere. wave: as many CTAs as multiprocessors, all shared memory of one, alone on it.
__global__ void __launch_bounds__(32) hold(Seen* seen, int64_t ns) {
  const int64_t begin = timer();
  const long long start = clock64();
  uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  while (timer() - begin < ns && clock64() - start < kMostCycles) __nanosleep(100);
  if (threadIdx.x == 0) seen[blockIdx.x] = {multiprocessor, begin, timer()};
}

int multiprocessors, shared_bytes;

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// What is asked once, of the current GPU: told = {multiprocessors, bytes of shared memory that a CTA of a wave takes, bytes that a multiprocessor has}. Gives a cudaError_t.
EXPORTED int waves_prepare(int* told) {
  int device = 0, kept = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&kept, cudaDevAttrReservedSharedMemoryPerBlock, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&told[2], cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (e == cudaSuccess) e = cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  told[0] = multiprocessors, told[1] = shared_bytes + kept;
  return e;
}

// A pause and a wave behind it; `seen` takes the pause's record and one of every CTA. Gives a cudaError_t.
EXPORTED int waves_launch(Seen* seen, int64_t pause_ns, int64_t hold_ns, void* stream) {
  hold<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(seen, pause_ns);
  hold<<<multiprocessors, 32, shared_bytes, static_cast<cudaStream_t>(stream)>>>(seen + 1, hold_ns);
  return cudaGetLastError();
}
