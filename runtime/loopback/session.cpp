// A job of virtual ranks: objects are mapped, walks are recorded and issued, and whoever does not end by the deadline is named.
#include "loopback/session.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "tidec/guard.hpp"

namespace tidec::loopback {

namespace {

constexpr long kNapNs = 20000;
constexpr uint64_t kReleased = uint64_t{1} << 62;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Until the event has happened, or that many milliseconds are over. Returns whether it has happened.
bool happens(cudaEvent_t event, int64_t deadline_ms) {
  const int64_t start = now_ns();
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) cuda::check(state, "a kernel or copy of the job");
    if (now_ns() - start > deadline_ms * 1000000) return false;
    const timespec nap = {0, kNapNs};
    nanosleep(&nap, nullptr);
  }
}

// An event with a time.
class Clock {
 public:
  Clock() { cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

// ---- counters

void* Counters::word(const CounterName& name) {
  const auto [found, is_new] = numbers_.try_emplace(name, static_cast<int64_t>(numbers_.size()));
  if (is_new && found->second >= capacity_) throw Failure{"there are more counters than words for them"};
  return words_.base() + found->second * kStride;
}

std::map<CounterName, uint64_t> Counters::values(cudaStream_t spare, int64_t deadline_ms) const {
  std::vector<char> bytes(numbers_.size() * kStride);
  cuda::OwnEvent end;
  cuda::check(cudaMemcpyAsync(bytes.data(), words_.base(), bytes.size(), cudaMemcpyDeviceToHost, spare), "cudaMemcpyAsync");
  cuda::check(cudaEventRecord(end, spare), "cudaEventRecord");
  if (!happens(end, deadline_ms)) throw Failure{"the counters cannot be read either"};
  std::map<CounterName, uint64_t> found;
  for (const auto& [name, number] : numbers_) found[name] = *reinterpret_cast<const uint64_t*>(&bytes[static_cast<size_t>(number * kStride)]);
  return found;
}

void Counters::release(cudaStream_t spare) const {
  std::vector<char> bytes(numbers_.size() * kStride);
  for (size_t i = 0; i < bytes.size(); i += kStride) *reinterpret_cast<uint64_t*>(&bytes[i]) = kReleased;
  cuda::check(cudaMemcpyAsync(words_.base(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, spare), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(spare), "cudaStreamSynchronize");
}

void Counters::reset() const { cuda::check(cudaMemset(words_.base(), 0, static_cast<size_t>(capacity_ * kStride)), "cudaMemset"); }

// ---- the job

Job::Job(const tidec_host_job& job, const tidec_host_sizes& of, const int32_t* files, cuda::Budget ctas)
    : told(job), program(*tidec_program_at(job.program)), layout(*static_cast<const Layout*>(program.layout)), sizes(of), budget(ctas) {
  const int64_t num = program.nodes * program.lanes;
  for (int64_t r = 0; r < num; ++r) {
    struct stat about;
    void* base = MAP_FAILED;
    if (fstat(files[r], &about) == 0 && about.st_size >= sizes.object_bytes) {
      base = mmap(nullptr, static_cast<size_t>(sizes.object_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, files[r], 0);
      if (base == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();
    }
    if (base == MAP_FAILED) throw Failure{"the object of a rank cannot be mapped, or is too small"};
    objects.push_back(static_cast<char*>(base));
  }
  cuda::prepare_kernels();
  counters = std::make_unique<Counters>(num * sizes.num_cells);
  if (told.poison) {
    poison = std::make_unique<cuda::OwnMemory>(sizes.input_bytes);
    std::vector<uint16_t> pattern(static_cast<size_t>(sizes.input_bytes / 2), uint16_t{0x7fc0});
    cuda::check(cudaMemcpy(poison->base(), pattern.data(), pattern.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  for (int64_t r = 0; r < num; ++r) ranks.push_back(std::make_unique<VirtualRank>(*this, r));
  for (const auto& rank : ranks) rank->record();
}

Job::~Job() {
  for (char* base : objects) munmap(base, static_cast<size_t>(sizes.object_bytes));
}

void Job::run(uint64_t* digest, int64_t* nanoseconds) {
  for (const auto& rank : ranks) rank->begin();
  counters->reset();
  issued.clear();
  cuda::OwnStream main, spare;
  const Clock start, end;
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cuda::check(cudaEventRecord(start, main), "cudaEventRecord");
  for (const auto& rank : ranks) rank->start_after(start);
  for (bool has_left = true; has_left;) {
    bool has_issued = false;
    has_left = false;
    for (const auto& rank : ranks) {
      has_issued = rank->issue_some() || has_issued;
      has_left = has_left || !rank->is_through();
    }
    if (has_left && !has_issued) {
      counters->release(spare);
      throw Failure{"no rank can go on: every wait that is left would be issued before the op that ends it"};
    }
  }
  for (const auto& rank : ranks) rank->meet(main);
  cuda::check(cudaEventRecord(end, main), "cudaEventRecord");
  if (!happens(end, told.deadline_ms)) {
    const std::map<CounterName, uint64_t> values = counters->values(spare, told.deadline_ms);
    std::string why;
    for (const auto& rank : ranks) {
      if (why.empty()) why = cuda::stuck_text(program, rank->awaited(), values);
    }
    counters->release(spare);
    happens(end, told.deadline_ms);
    throw Failure{(why.empty() ? std::string("a copy or kernel does not end") : why) + "\n  waited " + std::to_string(told.deadline_ms) + " ms"};
  }
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, start, end), "cudaEventElapsedTime");
  *nanoseconds = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  *digest = 0;
  for (const auto& rank : ranks) *digest ^= rank->take();
}

}  // namespace tidec::loopback

using namespace tidec::loopback;

extern "C" {

int32_t tidec_loopback_has_device(char* message, int64_t message_bytes) {
  int num = 0;
  const cudaError_t error = cudaGetDeviceCount(&num);
  const bool is_there = error == cudaSuccess && num > 0;
  if (!is_there) tidec::tell(message, message_bytes, error != cudaSuccess ? cudaGetErrorString(error) : "there is no GPU");
  return is_there;
}

int32_t tidec_loopback_run(const tidec_host_job* told, const int32_t* objects, uint64_t* digests, int64_t* nanoseconds, char* message,
                           int64_t message_bytes) {
  tidec_host_sizes sizes;
  const int32_t sized = tidec_host_size(told->program, told->calls, &sizes);
  if (sized == TIDEC_HOST_STOPPED) {
    tidec::tell(message, message_bytes, "there is no more memory");
    return sized;
  }
  if (sized != TIDEC_HOST_OK || told->deadline_ms < 1 || told->num_seeds < 1 || told->sum_ctas < 1 || told->land_ctas < 1) {
    tidec::tell(message, message_bytes, "there is no such program, or a number is out of range");
    return TIDEC_HOST_USAGE;
  }
  // With the default of eight, waits of one stream hold up others that share its hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const bool is_done = tidec::guarded<Failure>(message, message_bytes, [&] {
    Job job(*told, sizes, objects, tidec::cuda::Budget{told->sum_ctas, told->land_ctas, told->land_ctas});
    for (int64_t i = 0; i < told->num_seeds; ++i) job.run(&digests[i], &nanoseconds[i]);
  });
  return is_done ? TIDEC_HOST_OK : TIDEC_HOST_STOPPED;
}

}  // extern "C"
