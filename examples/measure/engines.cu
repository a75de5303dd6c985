// What a copy goes by, on one GPU: does it end while all multiprocessors are full, and how fast is it when they are not?
//
//     nvcc -std=c++17 -arch=sm_90 examples/measure/engines.cu -o engines && ./engines
//
// A copy engine needs no multiprocessor; a kernel, which is tried too, does. Copies to and from host memory show that what waits is not the context: but
// the threads that keep multiprocessors full read host memory without end, so that large ones may be slow then.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#define CHECKED(x)                                                        \
  do {                                                                    \
    if (const cudaError_t e = (x)) {                                      \
      std::fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e));        \
      return 1;                                                           \
    }                                                                     \
  } while (0)

namespace {

constexpr size_t kRoom = size_t{300} << 20;
char *into, *from, *host;
int* word;

// Two CTAs fill a multiprocessor until `go` is set, or some seconds are over.
__global__ void __launch_bounds__(1024, 2) hold(volatile int* arrived, volatile int* go) {
  if (threadIdx.x == 0) atomicAdd_system(const_cast<int*>(arrived), 1);
  const long long start = clock64();
  while (*go == 0 && clock64() - start < 8'000'000'000ll) {
  }
}

__global__ void set(int* p) { *p = 1; }

cudaError_t batch(size_t bytes, size_t num, unsigned flags, cudaStream_t s) {
  std::vector<void*> to;
  std::vector<const void*> of;
  const size_t each = bytes / num < 4 ? 4 : bytes / num;
  const std::vector<size_t> sizes(num, each);
  for (size_t i = 0; i < num; ++i) to.push_back(into + i * (bytes / num + 256)), of.push_back(from + i * (bytes / num + 512));
  cudaMemcpyAttributes how;
  std::memset(&how, 0, sizeof how);
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  how.flags = flags;
  size_t first = 0;
  return cudaMemcpyBatchAsync(to.data(), of.data(), sizes.data(), num, &how, &first, 1, s);
}

cudaError_t batch_3d(size_t bytes, size_t num, unsigned flags, cudaStream_t s) {
  std::vector<cudaMemcpy3DBatchOp> ops(num);
  for (size_t i = 0; i < num; ++i) {
    cudaMemcpy3DBatchOp& o = ops[i];
    std::memset(&o, 0, sizeof o);
    const size_t rows = bytes >= 4096 ? 16 : 1, width = bytes / num / rows < 4 ? 4 : bytes / num / rows;
    o.src.type = o.dst.type = cudaMemcpyOperandTypePointer;
    o.src.op.ptr.ptr = from + i * (bytes / num + 16384), o.src.op.ptr.rowLength = width + 512, o.src.op.ptr.layerHeight = rows;
    o.dst.op.ptr.ptr = into + i * (bytes / num + 32768), o.dst.op.ptr.rowLength = width + 1024, o.dst.op.ptr.layerHeight = rows;
    o.src.op.ptr.locHint = o.dst.op.ptr.locHint = {cudaMemLocationTypeDevice, 0};
    o.extent = {width, rows, 1};
    o.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    o.flags = flags;
  }
  return cudaMemcpy3DBatchAsync(num, ops.data(), 0, s);
}

constexpr unsigned kOverlap = cudaMemcpyFlagPreferOverlapWithCompute;

cudaError_t rows_2d(size_t b, cudaStream_t s) { return cudaMemcpy2DAsync(into, b / 16 + 1024, from, b / 16 + 512, b / 16 < 4 ? 4 : b / 16, 16, cudaMemcpyDeviceToDevice, s); }

struct Way {
  const char* name;
  cudaError_t (*issue)(size_t bytes, cudaStream_t s);
};

const Way kWays[] = {
    {"memcpyAsync", [](size_t b, cudaStream_t s) { return cudaMemcpyAsync(into, from, b, cudaMemcpyDeviceToDevice, s); }},
    {"memcpy2D", rows_2d},
    {"batch1", [](size_t b, cudaStream_t s) { return batch(b, 1, 0, s); }},
    {"batch1+flag", [](size_t b, cudaStream_t s) { return batch(b, 1, kOverlap, s); }},
    {"batch30", [](size_t b, cudaStream_t s) { return batch(b, 30, 0, s); }},
    {"batch30+flag", [](size_t b, cudaStream_t s) { return batch(b, 30, kOverlap, s); }},
    {"3Dbatch1", [](size_t b, cudaStream_t s) { return batch_3d(b, 1, 0, s); }},
    {"3Dbatch1+flag", [](size_t b, cudaStream_t s) { return batch_3d(b, 1, kOverlap, s); }},
    {"3Dbatch8+flag", [](size_t b, cudaStream_t s) { return batch_3d(b, 8, kOverlap, s); }},
    {"peer same", [](size_t b, cudaStream_t s) { return cudaMemcpyPeerAsync(into, 0, from, 0, b, s); }},
    {"HtoD", [](size_t b, cudaStream_t s) { return cudaMemcpyAsync(into, host, b, cudaMemcpyHostToDevice, s); }},
    {"DtoH", [](size_t b, cudaStream_t s) { return cudaMemcpyAsync(host, from, b, cudaMemcpyDeviceToHost, s); }},
    {"KERNEL", [](size_t, cudaStream_t s) { return set<<<1, 1, 0, s>>>(word), cudaGetLastError(); }},
    {"default", [](size_t b, cudaStream_t s) { return cudaMemcpyAsync(into, from, b, cudaMemcpyDefault, s); }},
};

template <class Question>
bool becomes(Question is_so, int ms) {
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < std::chrono::milliseconds(ms);) {
    if (is_so()) return true;
  }
  return false;
}

}  // namespace

int main() {
  int sms = 0, least = 0, most = 0, *shared = nullptr;
  CHECKED(cudaSetDevice(0));
  CHECKED(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CHECKED(cudaDeviceGetStreamPriorityRange(&least, &most));
  CHECKED(cudaMalloc(&into, kRoom));
  CHECKED(cudaMalloc(&from, kRoom));
  CHECKED(cudaMalloc(&word, sizeof(int)));
  CHECKED(cudaMallocHost(&host, kRoom));
  CHECKED(cudaHostAlloc(&shared, 128, cudaHostAllocMapped));
  volatile int *const arrived = shared, *const go = shared + 16;
  cudaStream_t holder, copier;
  cudaEvent_t end, start, stop;
  CHECKED(cudaStreamCreateWithPriority(&holder, cudaStreamNonBlocking, least));
  CHECKED(cudaStreamCreateWithPriority(&copier, cudaStreamNonBlocking, most));
  CHECKED(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
  CHECKED(cudaEventCreate(&start));
  CHECKED(cudaEventCreate(&stop));
  *go = 1;
  hold<<<1, 1024, 0, holder>>>(arrived, go);
  CHECKED(cudaDeviceSynchronize());
  for (const Way& way : kWays) {
    for (const size_t bytes : {size_t{4}, size_t{65536}, size_t{1} << 20, size_t{64} << 20, size_t{256} << 20}) {
      CHECKED(way.issue(bytes, copier));
      CHECKED(cudaStreamSynchronize(copier));
      CHECKED(cudaEventRecord(start, copier));
      for (int i = 0; i < 10; ++i) CHECKED(way.issue(bytes, copier));
      CHECKED(cudaEventRecord(stop, copier));
      CHECKED(cudaStreamSynchronize(copier));
      float ms = 0;
      CHECKED(cudaEventElapsedTime(&ms, start, stop));
      *go = 0, *arrived = 0;
      hold<<<2 * sms, 1024, 0, holder>>>(arrived, go);
      CHECKED(cudaGetLastError());
      const bool is_full = becomes([&] { return *arrived == 2 * sms; }, 2000);
      CHECKED(way.issue(bytes, copier));
      CHECKED(cudaEventRecord(end, copier));
      const bool has_ended = becomes([&] { return cudaEventQuery(end) == cudaSuccess; }, 60);
      *go = 1;
      CHECKED(cudaDeviceSynchronize());
      std::printf("%-14s %9zu full %d ended %d  %8.1f us %7.1f GB/s\n", way.name, bytes, is_full, has_ended, ms * 100, static_cast<double>(bytes) / (ms * 1e5));
    }
  }
  return 0;
}
