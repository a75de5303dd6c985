// One rank of a plan of one node: memory that its peers map, counters in it, and walks enqueued on streams of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/words.hpp"
#include "nccl/target.hpp"
#include "tidec/calls.hpp"
#include "tidec/node.h"

namespace tidec::nccl {

using cuda::CounterName;
using cuda::Failure;

// The counters of every rank of a node, numbered alike by all of its ranks: those that the walks of two calls name, in order.
class Census {
 public:
  explicit Census(int64_t program);
  // Which word of its owner a counter is. Throws Failure.
  int64_t number(const CounterName& name) const;
  int64_t most() const { return most_; }
  const std::map<CounterName, int64_t>& of(int64_t owner) const { return numbers_[static_cast<size_t>(owner)]; }
  // Of both walks together.
  const Names& names() const { return names_; }

 private:
  std::vector<std::map<CounterName, int64_t>> numbers_;
  int64_t most_ = 0;
  Names names_;
};

class Node : public cuda::World {
 public:
  Node(int64_t program, int64_t lane, int sum_ctas);
  ~Node() override;

  void handle(void* bytes) const;
  void connect(const void* handles);
  void gather(int64_t call, const void* shard, cudaStream_t caller);
  void part(Part part, int64_t call, cudaStream_t caller);
  const char* landing() const { return landing_; }
  char* arena() const { return own_.base() + arena_at_; }
  const tidec_program& program() const { return program_; }
  void reduce(int64_t call, const void* const* gradients, void* out, float alpha, bool accumulates, cudaStream_t caller);
  void wait(int64_t deadline_ms);
  // As before the first call. Nobody may use the node's memory meanwhile.
  void reset(const std::vector<char>& arena);

  char* at(const Place& place, int64_t lane, int64_t bytes) override;
  void* counter(const Counter& counter, int64_t owner, int64_t raiser) override;
  cudaStream_t stream(const Stream& s) override;
  void put(const Stream&, const cuda::Copy&, int64_t, const Level&, const Level&, int64_t) override { throw Failure{"a plan of one node puts nothing"}; }
  void read(const Stream& s, const Extent& extent) override;
  // What the walk holds by now on this stream has ended before the caller goes on: the end of reduce() and gather() sees to it.
  void free(const Stream&, const Extent&) override {}
  void waits(const Stream& s, const Level& level, int line) override;

 private:
  void prepare();
  // Streams that read or write memory of the caller's begin after what its stream holds, and end before it goes on; others keep to counters. One of
  // them is the caller's stream itself, which spares a change of streams.
  void begin_after(cudaStream_t caller);
  void end_before(cudaStream_t caller);
  bool meets_caller(int stream) const { return !(is_main_callers_ && stream == main_) && census_.names().on_callers.count(stream) != 0; }
  // Where the stream of the walk that the caller's may stand for is, in this call.
  cudaStream_t main_stream();
  cudaStream_t own_stream(int index);
  // Issues one part of a call's walk.
  void issue(Part part, int64_t call);

  const int64_t number_;
  const tidec_program& program_;
  const Layout& layout_;
  const int64_t lane_;
  const Census census_;
  const int64_t arena_at_;
  cuda::OwnMemory own_;
  std::vector<char*> bases_;
  // main: the stream of the walk that is the caller's, -1 = none. The legacy default stream is none, since it takes no batches of copies.
  const int main_;
  bool is_main_callers_ = false;
  cuda::OwnEvent begun_, ended_, main_ended_;
  std::map<int, cuda::OwnStream> streams_;
  cudaStream_t caller_ = nullptr;
  cuda::Issuer issuer_;
  Runner runner_;
  const char* shard_ = nullptr;
  const void* const* gradients_ = nullptr;
  char* out_ = nullptr;
  const char* landing_ = nullptr;
  int64_t call_ = 0;
  std::vector<cuda::Awaited> awaited_;
};

}  // namespace tidec::nccl

struct tidec_node {
  tidec::nccl::Node node;
  tidec::Calls calls;
  // Why no call can be made any more; empty where they can.
  std::string failure;
};
