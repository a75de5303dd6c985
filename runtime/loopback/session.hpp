// Virtual ranks of one GPU: their memory, streams and counters, and the order in which their walks are issued.
//
// Every stream of every rank is a CUDA stream, every counter a word of device memory, and a put goes by a stream of its own to its peer. All
// ranks' ops are issued in one order in which the op that ends a wait comes before the wait, as it does in position order: so no wait can hold
// up what would end it, however few hardware queues there are.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/issue.hpp"
#include "cuda/words.hpp"
#include "host/target.hpp"
#include "loopback/loopback.h"

namespace tidec::loopback {

using cuda::Awaited;
using cuda::CounterName;
using cuda::Failure;

// Words of device memory, one a counter, given out as they are named.
class Counters {
 public:
  explicit Counters(int64_t capacity) : words_(capacity * kStride), capacity_(capacity) {}
  void* word(const CounterName& name);
  // What all of them hold, and their names. Throws Failure.
  std::map<CounterName, uint64_t> values(cudaStream_t spare, int64_t deadline_ms) const;
  // Lets every wait go on.
  void release(cudaStream_t spare) const;
  void reset() const;

 private:
  static constexpr int64_t kStride = 64;
  cuda::OwnMemory words_;
  int64_t capacity_;
  std::map<CounterName, int64_t> numbers_;
};

struct Job;

// One virtual rank.
class VirtualRank : public cuda::World {
 public:
  VirtualRank(Job& job, int64_t number);

  char* at(const Place& place, int64_t lane, int64_t bytes) override;
  void* counter(const Counter& counter, int64_t owner, int64_t raiser) override;
  cudaStream_t stream(const Stream& s) override;
  void put(const Stream& s, const cuda::Copy& copy, int64_t to, const Level& then, const Level& done, int64_t context) override;
  void read(const Stream& s, const Extent& extent) override;
  void free(const Stream& s, const Extent& extent) override;
  void waits(const Stream& s, const Level& level, int line) override;

  // Sets memory as it is before the first call.
  void begin();
  // Records what all calls issue.
  void record();
  // Issues ops up to a wait whose end is not issued yet, and at least one if it can. Returns whether it issued any.
  bool issue_some();
  bool is_through() const { return next_ == ops_.size(); }
  // Copies outputs, and the landing of the last call, to the object; gives their digest.
  uint64_t take();
  // The streams begin after `event`; `end` goes on after all of them.
  void start_after(cudaEvent_t event);
  void meet(cudaStream_t end);
  const std::vector<Awaited>& awaited() const { return awaited_; }

 private:
  struct Recorded {
    host::Op op;
    int64_t call;
  };
  void issue(size_t i);
  void close_set();

  Job& job_;
  const int64_t number_;
  const Rank rank_;
  cuda::OwnMemory arena_;
  cuda::OwnMemory inputs_;
  cuda::OwnMemory outputs_;
  std::deque<cuda::OwnStream> streams_;
  std::map<int, size_t> of_stream_;
  std::map<std::tuple<int64_t, int64_t>, size_t> of_wire_;
  std::map<int, const char*> names_;
  cuda::OwnEvent event_;
  cuda::Issuer issuer_;
  std::vector<Recorded> ops_;
  Extent last_read_{};
  bool has_read_ = false;
  bool is_open_ = false;
  int set_stream_ = 0;
  size_t next_ = 0;
  int64_t call_ = 0;
  std::vector<Awaited> awaited_;
};

// The whole job. issued: the value up to which each counter's raises are enqueued.
struct Job {
  Job(const tidec_host_job& job, const tidec_host_sizes& of, const int32_t* files, cuda::Budget ctas);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  // One run of all calls. Throws Failure.
  void run(uint64_t* digest, int64_t* nanoseconds);

  const tidec_host_job& told;
  const tidec_program& program;
  const Layout& layout;
  const tidec_host_sizes sizes;
  const cuda::Budget budget;
  std::vector<char*> objects;
  std::unique_ptr<cuda::OwnMemory> poison;
  std::unique_ptr<Counters> counters;
  std::map<CounterName, uint64_t> issued;
  std::vector<std::unique_ptr<VirtualRank>> ranks;
};

}  // namespace tidec::loopback
