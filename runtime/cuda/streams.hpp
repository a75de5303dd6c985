// Streams, events and stream memory operations, owned by objects; counters are 64-bit words of device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/check.hpp"

namespace tidec::cuda {

// A stream of its own, which no default stream waits for.
class OwnStream {
 public:
  explicit OwnStream(bool is_urgent = true);
  OwnStream(OwnStream&& other) noexcept : stream_(other.stream_) { other.stream_ = nullptr; }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// An event without a time.
class OwnEvent {
 public:
  OwnEvent();
  OwnEvent(OwnEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  ~OwnEvent();
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Device memory from cudaMalloc, zeroed, in whole large pages: else peers write it at three quarters of the rate.
class OwnMemory {
 public:
  explicit OwnMemory(int64_t bytes);
  OwnMemory(OwnMemory&& other) noexcept : base_(other.base_) { other.base_ = nullptr; }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory();
  char* base() const { return base_; }

 private:
  char* base_ = nullptr;
};

// All earlier work of the stream is visible to whoever sees the value.
void write_counter(cudaStream_t stream, void* counter, uint64_t value);

// Waits until a counter is at least `value`, and such writes: those that follow each other on one stream are enqueued together, in their order, by
// flush() or by the first of another stream. So the order over all streams stays that of the calls, if everything else that is enqueued comes after a
// flush().
class CounterOps {
 public:
  void wait(cudaStream_t stream, const void* counter, uint64_t value);
  // is_far: on another GPU, which then sees it before what else is written here at once.
  void write(cudaStream_t stream, void* counter, uint64_t value, bool is_far);
  void flush();

 private:
  void add(cudaStream_t stream, const CUstreamBatchMemOpParams& op, size_t before);

  cudaStream_t stream_ = nullptr;
  // How many of the last ones write to this GPU's counters.
  size_t num_near_ = 0;
  std::vector<CUstreamBatchMemOpParams> ops_;
};

// `after` goes on once what `before` holds at this time has ended. event: recorded for it.
void order(cudaStream_t before, cudaStream_t after, cudaEvent_t event);

// One rectangle to copy; pitches count where there are several rows.
// from_memory, into_memory: which memory of a rank, and whose, the rectangle lies in. One copy never spans two: the driver refuses it.
struct Copy {
  char* into;
  const char* from;
  int64_t width;
  int64_t rows;
  int64_t into_pitch;
  int64_t from_pitch;
  int64_t from_memory = 0;
  int64_t into_memory = 0;
};

// Copies that may run in any order: rectangles of one row that follow each other evenly become one of several rows, the rest of the single rows
// one batch. `copies` is changed.
// NOTE: a copy from a GPU to itself waits for a multiprocessor as a kernel does, whatever call asks for it (an H200, driver 580: tests/litmus).
void copy_all(cudaStream_t stream, std::vector<Copy>& copies);

// Joins neighbours that make one rectangle, in place: equal widths, and even steps of at least that, below 2 GiB, in
// both memories.
void fold(std::vector<Copy>& copies);

}  // namespace tidec::cuda
