// One rank of a plan: memory that its node's other ranks map, counters in it, its rail, and walks enqueued on streams of its own.
//
// With one node the memory is cudaMalloc's, mapped by cudaIpc, and nothing is asked of NCCL. With several it is a Window.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/words.hpp"
#include "nccl/census.hpp"
#include "nccl/target.hpp"
#include "nccl/window.hpp"
#include "tidec/calls.hpp"
#include "tidec/guard.hpp"
#include "tidec/node.h"

namespace tidec::nccl {

using cuda::Failure;

class Node : public cuda::World {
 public:
  Node(int64_t program, int64_t rank, int sum_ctas, int64_t deadline_ms);
  ~Node() override;

  void handle(void* bytes) const;
  void connect(const void* handles);
  void gather(int64_t call, const void* shard, cudaStream_t caller);
  void part(Part part, int64_t call, cudaStream_t caller);
  const char* landing() const { return landing_; }
  char* arena() const { return base_ + kArenaAt; }
  const tidec_program& program() const { return program_; }
  // Of one of the last kTallied calls.
  const Tally& tally(int64_t call) const { return tallies_.of(call); }
  void reduce(int64_t call, const void* const* gradients, void* out, float alpha, bool accumulates, cudaStream_t caller);
  void wait(int64_t deadline_ms);
  // As before the first call, once all ranks' calls are over. Nobody may use the node's memory meanwhile.
  void reset(const std::vector<char>& arena);

  char* at(const Place& place, int64_t lane, int64_t bytes) override;
  void* counter(const Counter& counter, int64_t owner, int64_t raiser) override;
  cudaStream_t stream(const Stream& s) override;
  void put(const Stream&, const cuda::Copy&, int64_t, const Level&, const Level&, int64_t) override { throw Failure{"puts are the rail's"}; }
  void read(const Stream& s, const Extent& extent) override;
  // What the walk holds by now on this stream has ended before the caller goes on: the end of reduce() sees to it, or that this stream is the caller's.
  void free(const Stream&, const Extent&) override {}
  void waits(const Stream& s, const Level& level, int line) override;
  uint32_t* counts() override { return reinterpret_cast<uint32_t*>(base_ + counts_at_); }

 private:
  // The arena comes first, so that it lies alike on all ranks whatever counters they have.
  static constexpr int64_t kArenaAt = 0;

  void prepare();
  // Issues one part of a call's walk. counted: to which call, below 0 = to none.
  void issue(Part part, int64_t call, int64_t counted);
  // Streams that read or write memory of the caller's begin after what its stream holds, and end before it goes on; others keep to counters. One of
  // them is the caller's stream itself, which spares a change of streams.
  void begin_after(cudaStream_t caller);
  void end_before(cudaStream_t caller);
  bool meets_caller(int stream) const { return !(is_main_callers_ && stream == main_) && census_.names().on_callers.count(stream) != 0; }
  // Where the stream of the walk that the caller's may stand for is, in this call.
  cudaStream_t main_stream();
  cudaStream_t own_stream(int index);
  [[noreturn]] void stuck(int64_t deadline_ms);
  char* words() const { return base_ + words_at_; }
  int64_t words_bytes() const;

  const int64_t program_number_;
  const tidec_program& program_;
  const Layout& layout_;
  const Rank rank_;
  const int64_t number_;
  const int64_t deadline_ms_;
  const Census census_;
  const int64_t words_at_;
  const int64_t counts_at_;
  const int64_t spare_at_;
  std::unique_ptr<cuda::OwnMemory> own_;
  std::shared_ptr<Window> window_;
  char* base_ = nullptr;
  std::vector<char*> bases_;
  // main: the stream of the walk that is the caller's, -1 = none. The legacy default stream is none, since it takes no batches of copies.
  const int main_;
  bool is_main_callers_ = false;
  cuda::OwnEvent begun_, ended_, main_ended_;
  std::map<int, cuda::OwnStream> streams_;
  cudaStream_t caller_ = nullptr;
  cuda::Issuer issuer_;
  std::unique_ptr<Rails> rails_;
  Tallies tallies_;
  std::unique_ptr<Runner> runner_;
  const char* shard_ = nullptr;
  const void* const* gradients_ = nullptr;
  char* out_ = nullptr;
  const char* landing_ = nullptr;
  int64_t call_ = 0;
  int64_t num_calls_ = 0;
  std::vector<cuda::Awaited> awaited_;
};

}  // namespace tidec::nccl

struct tidec_node {
  tidec::nccl::Node node;
  tidec::Calls calls;
  // Why no call can be made any more; empty where they can.
  char failure[tidec::kReasonBytes] = "";
};
