#include "gpu.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace fake {

namespace {

std::vector<Queue*>& queues() {
  static std::vector<Queue*> all;
  return all;
}

uint64_t drawn() {
  static uint64_t state = std::getenv("FAKE_SEED") != nullptr ? std::strtoull(std::getenv("FAKE_SEED"), nullptr, 10) + 1 : 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

}  // namespace

std::recursive_mutex& mutex() {
  static std::recursive_mutex one;
  return one;
}

Queue& queue(cudaStream_t stream) { return *reinterpret_cast<Queue*>(stream); }

Queue* new_queue() {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  queues().push_back(new Queue);
  return queues().back();
}

void pump() {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  std::vector<Queue*>& all = queues();
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    const size_t first = drawn() % (all.empty() ? 1 : all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      Queue& q = *all[(first + i) % all.size()];
      for (uint64_t most = drawn() % 3 + 1; most > 0 && !q.steps.empty(); --most) {
        if (q.steps.front().can && !q.steps.front().can()) break;
        const Step step = std::move(q.steps.front());
        q.steps.pop_front();
        if (step.run) step.run();
        has_moved = true;
      }
    }
  }
}

void push(cudaStream_t stream, std::function<void()> run, std::function<bool()> can) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  queue(stream).steps.push_back({std::move(can), std::move(run)});
}

}  // namespace fake

using namespace fake;

namespace {

struct Event {
  std::shared_ptr<bool> over = std::make_shared<bool>(true);
};

thread_local int device = 0;
// Copies that were enqueued, a node of a graph each time that it is launched.
long num_copies = 0;
// Of any sum.
long most_steps = 0;

void counted(size_t num) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  num_copies += static_cast<long>(num);
}

CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned) {
  push(reinterpret_cast<cudaStream_t>(stream), {}, [=] { return *reinterpret_cast<uint64_t*>(at) >= value; });
  return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned) {
  push(reinterpret_cast<cudaStream_t>(stream), [=] { *reinterpret_cast<uint64_t*>(at) = value; });
  return CUDA_SUCCESS;
}

CUresult batch(CUstream stream, unsigned num, CUstreamBatchMemOpParams* ops, unsigned) {
  for (unsigned i = 0; i < num; ++i) {
    if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64) wait_value(stream, ops[i].waitValue.address, ops[i].waitValue.value64, 0);
    else write_value(stream, ops[i].writeValue.address, ops[i].writeValue.value64, 0);
  }
  return CUDA_SUCCESS;
}

struct Rectangle {
  char* into;
  const char* from;
  size_t width, rows, into_pitch, from_pitch;
};

struct Graph {
  std::vector<Rectangle> copies;
};

Rectangle rectangle(const cudaMemcpy3DParms& p) {
  return {static_cast<char*>(p.dstPtr.ptr), static_cast<const char*>(p.srcPtr.ptr), p.extent.width, p.extent.height, p.dstPtr.pitch, p.srcPtr.pitch};
}

Graph* graph_of(void* handle) { return static_cast<Graph*>(handle); }

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const Rectangle& copy) {
  graph_of(graph)->copies.push_back(copy);
  *node = reinterpret_cast<cudaGraphNode_t>(graph_of(graph)->copies.size());
  return cudaSuccess;
}

cudaError_t set(cudaGraphExec_t graph, cudaGraphNode_t node, const Rectangle& copy) {
  graph_of(graph)->copies[reinterpret_cast<size_t>(node) - 1] = copy;
  return cudaSuccess;
}

}  // namespace

void fake::note_steps(int64_t num) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  most_steps = std::max(most_steps, static_cast<long>(num));
}

extern "C" {

long fake_most_steps() {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  return std::exchange(most_steps, 0);
}

long fake_num_copies() {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  return num_copies;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return *graph = reinterpret_cast<cudaGraph_t>(new Graph), cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return *ready = reinterpret_cast<cudaGraphExec_t>(new Graph(*graph_of(graph))), cudaSuccess;
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, void* into, const void* from, size_t bytes, cudaMemcpyKind) {
  return add(node, graph, {static_cast<char*>(into), static_cast<const char*>(from), bytes, 1, bytes, bytes});
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, const cudaMemcpy3DParms* p) { return add(node, graph, rectangle(*p)); }

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t graph, cudaGraphNode_t node, void* into, const void* from, size_t bytes, cudaMemcpyKind) {
  if (std::getenv("FAKE_FIXED_NODES") != nullptr) return cudaErrorInvalidValue;
  return set(graph, node, {static_cast<char*>(into), static_cast<const char*>(from), bytes, 1, bytes, bytes});
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node, const cudaMemcpy3DParms* p) { return set(graph, node, rectangle(*p)); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  counted(graph_of(graph)->copies.size());
  push(stream, [copies = graph_of(graph)->copies] {
    for (const Rectangle& c : copies) {
      for (size_t i = 0; i < c.rows; ++i) std::memmove(c.into + i * c.into_pitch, c.from + i * c.from_pitch, c.width);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* num) { return *num = 64, cudaSuccess; }
cudaError_t cudaSetDevice(int number) { return device = number, cudaSuccess; }
cudaError_t cudaGetDevice(int* number) { return *number = device, cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the GPU that is none"; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) { return *least = *most = 0, cudaSuccess; }

cudaError_t cudaMalloc(void** into, size_t bytes) { return *into = std::calloc(bytes + 256, 1), cudaSuccess; }
cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
cudaError_t cudaMemset(void* into, int value, size_t bytes) { return std::memset(into, value, bytes), cudaSuccess; }
cudaError_t cudaMemcpy(void* into, const void* from, size_t bytes, cudaMemcpyKind) { return std::memcpy(into, from, bytes), cudaSuccess; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return *stream = reinterpret_cast<cudaStream_t>(new_queue()), cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return pump(), cudaSuccess; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  for (;;) {
    pump();
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (queue(stream).steps.empty()) return cudaSuccess;
  }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = reinterpret_cast<cudaEvent_t>(new Event), cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  const auto over = std::make_shared<bool>(false);
  reinterpret_cast<Event*>(event)->over = over;
  push(stream, [over] { *over = true; });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  push(stream, {}, [over = reinterpret_cast<Event*>(event)->over] { return *over; });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  pump();
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  return *reinterpret_cast<Event*>(event)->over ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMemcpyAsync(void* into, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  counted(1);
  return push(stream, [=] { std::memmove(into, from, bytes); }), cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* into, size_t into_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  counted(1);
  push(stream, [=] {
    for (size_t i = 0; i < rows; ++i) std::memmove(static_cast<char*>(into) + i * into_pitch, static_cast<const char*>(from) + i * from_pitch, width);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyBatchAsync(void* const* into, const void* const* from, const size_t* bytes, size_t num, cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
  for (size_t i = 0; i < num; ++i) cudaMemcpyAsync(into[i], from[i], bytes[i], cudaMemcpyDeviceToDevice, stream);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* at) { return std::memcpy(handle, &at, sizeof at), cudaSuccess; }
cudaError_t cudaIpcOpenMemHandle(void** at, cudaIpcMemHandle_t handle, unsigned) { return std::memcpy(at, &handle, sizeof *at), cudaSuccess; }
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *found = nullptr;
  if (std::strcmp(name, "cuStreamWaitValue64") == 0) *found = reinterpret_cast<void*>(&wait_value);
  if (std::strcmp(name, "cuStreamWriteValue64") == 0) *found = reinterpret_cast<void*>(&write_value);
  if (std::strcmp(name, "cuStreamBatchMemOp") == 0) *found = reinterpret_cast<void*>(&batch);
  *result = *found != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
