#include "cuda/streams.hpp"

#include <cstring>

namespace tidec::cuda {

namespace {

// Memory operations that the driver takes at once.
constexpr size_t kMaxBatch = 256;

// What a pitch of a 2D copy may be.
constexpr int64_t kMaxPitch = (int64_t{1} << 31) - 1;

template <class Function>
Function entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  check(cudaGetDriverEntryPointByVersion(name, &found, 12080, cudaEnableDefault, &result), name);
  if (result != cudaDriverEntryPointSuccess || found == nullptr) throw Failure{std::string(name) + ": the driver does not have it"};
  return reinterpret_cast<Function>(found);
}

}  // namespace

OwnStream::OwnStream(bool is_urgent) {
  int least = 0, most = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, is_urgent ? most : least), "cudaStreamCreateWithPriority");
}

OwnStream::~OwnStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

OwnEvent::OwnEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }

OwnEvent::~OwnEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

OwnMemory::OwnMemory(int64_t bytes) {
  // NOTE: kernels read whole granules of 16 bytes around a row, so every allocation ends with a few more.
  constexpr size_t kPage = size_t{2} << 20;
  void* base = nullptr;
  const size_t size = (static_cast<size_t>(bytes) + 256 + kPage - 1) / kPage * kPage;
  check(cudaMalloc(&base, size), "cudaMalloc");
  base_ = static_cast<char*>(base);
  check(cudaMemset(base_, 0, size), "cudaMemset");
}

OwnMemory::~OwnMemory() {
  if (base_ != nullptr) cudaFree(base_);
}

void write_counter(cudaStream_t stream, void* counter, uint64_t value) {
  static const auto call = entry<decltype(&cuStreamWriteValue64)>("cuStreamWriteValue64");
  check(call(stream, reinterpret_cast<CUdeviceptr>(counter), value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue64");
}

void CounterOps::wait(cudaStream_t stream, const void* counter, uint64_t value) {
  CUstreamBatchMemOpParams op;
  std::memset(&op, 0, sizeof op);
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  op.waitValue.address = reinterpret_cast<CUdeviceptr>(counter);
  op.waitValue.value64 = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  add(stream, op, 0);
  num_near_ = 0;
}

void CounterOps::write(cudaStream_t stream, void* counter, uint64_t value, bool is_far) {
  CUstreamBatchMemOpParams op;
  std::memset(&op, 0, sizeof op);
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  op.writeValue.address = reinterpret_cast<CUdeviceptr>(counter);
  op.writeValue.value64 = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  add(stream, op, is_far ? num_near_ : 0);
  if (!is_far) ++num_near_;
}

// before: of how many of the last ones.
void CounterOps::add(cudaStream_t stream, const CUstreamBatchMemOpParams& op, size_t before) {
  if (stream != stream_ || ops_.size() == kMaxBatch) {
    flush();
    before = 0;
  }
  stream_ = stream;
  ops_.insert(ops_.end() - static_cast<std::ptrdiff_t>(before), op);
}

void CounterOps::flush() {
  static const auto call = entry<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  num_near_ = 0;
  if (ops_.empty()) return;
  check(call(stream_, static_cast<unsigned>(ops_.size()), ops_.data(), 0), "cuStreamBatchMemOp");
  ops_.clear();
}

void order(cudaStream_t before, cudaStream_t after, cudaEvent_t event) {
  check(cudaEventRecord(event, before), "cudaEventRecord");
  check(cudaStreamWaitEvent(after, event, 0), "cudaStreamWaitEvent");
}

void fold(std::vector<Copy>& copies) {
  size_t kept = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy c = copies[i];
    if (kept > 0 && c.rows == 1 && copies[kept - 1].width == c.width && copies[kept - 1].from_memory == c.from_memory &&
        copies[kept - 1].into_memory == c.into_memory) {
      Copy& last = copies[kept - 1];
      const int64_t into = c.into - last.into, from = c.from - last.from;
      const bool is_second = last.rows == 1 && into >= c.width && from >= c.width && into <= kMaxPitch && from <= kMaxPitch;
      const bool is_next = last.rows > 1 && into == last.rows * last.into_pitch && from == last.rows * last.from_pitch;
      if (is_second) last.into_pitch = into, last.from_pitch = from;
      if (is_second || is_next) {
        ++last.rows;
        continue;
      }
    }
    copies[kept++] = c;
  }
  copies.resize(kept);
}

void copy_all(cudaStream_t stream, std::vector<Copy>& copies) {
  fold(copies);
  std::vector<void*> into;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
  for (const Copy& c : copies) {
    if (c.rows > 1) {
      check(cudaMemcpy2DAsync(c.into, static_cast<size_t>(c.into_pitch), c.from, static_cast<size_t>(c.from_pitch), static_cast<size_t>(c.width),
                              static_cast<size_t>(c.rows), cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpy2DAsync");
    } else if (c.rows == 1 && c.width > 0) {
      into.push_back(c.into);
      from.push_back(c.from);
      bytes.push_back(static_cast<size_t>(c.width));
    }
  }
  if (into.size() == 1) {
    check(cudaMemcpyAsync(into[0], from[0], bytes[0], cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  } else if (!into.empty()) {
    cudaMemcpyAttributes how;
    std::memset(&how, 0, sizeof how);
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
#if CUDART_VERSION >= 13000
    check(cudaMemcpyBatchAsync(into.data(), from.data(), bytes.data(), into.size(), &how, &first, 1, stream), "cudaMemcpyBatchAsync");
#else
    size_t failed = 0;
    check(cudaMemcpyBatchAsync(into.data(), const_cast<void**>(from.data()), bytes.data(), into.size(), &how, &first, 1, &failed, stream), "cudaMemcpyBatchAsync");
#endif
  }
  copies.clear();
}

}  // namespace tidec::cuda
