// One rank of a plan of one node: memory that its peers map, counters in it, and walks enqueued on streams of its own.
#include "nccl/node.hpp"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace tidec::nccl {

namespace {

constexpr int64_t kStride = 64, kAlignment = int64_t{2} << 20;
constexpr uint64_t kReleased = uint64_t{1} << 62;
constexpr long kNapNs = 20000;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace

namespace {

const tidec_program& one_node(int64_t program, int64_t lane) {
  if (program < 0 || program >= tidec_num_programs()) throw Failure{"there is no such program"};
  const tidec_program& p = *tidec_program_at(program);
  if (p.nodes != 1) throw Failure{"the plan has several nodes, and this interface serves one"};
  if (lane < 0 || lane >= p.lanes) throw Failure{"there is no such lane"};
  return p;
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

// Which stream of a walk goes by the caller's: the one that reads or writes its memory, of several the one that writes its output.
int find_main(const Names& names) {
  const std::set<int>& found = names.on_callers.size() == 1 ? names.on_callers : names.on_outputs;
  return found.size() == 1 ? *found.begin() : -1;
}

}  // namespace

Census::Census(int64_t program) {
  const tidec_program& p = *tidec_program_at(program);
  numbers_.resize(static_cast<size_t>(p.lanes));
  for (int64_t lane = 0; lane < p.lanes; ++lane) {
    for (int64_t call : {0, 1}) {
      names_.levels.clear();
      Runner runner(names_);
      tidec_issue(&runner, program, 0, lane, call);
      for (const Named& n : names_.levels) {
        const int64_t far = n.level.rank.lane, owner = n.is_wait ? lane : far;
        numbers_[static_cast<size_t>(owner)].emplace(cuda::name_of(n.level.counter, owner, n.is_wait ? far : lane), 0);
      }
    }
  }
  for (auto& counters : numbers_) {
    int64_t next = 0;
    for (auto& [name, number] : counters) number = next++;
    most_ = std::max(most_, next);
  }
}

int64_t Census::number(const CounterName& name) const {
  const auto& counters = of(std::get<0>(name));
  const auto found = counters.find(name);
  if (found == counters.end()) throw Failure{"a call names a counter that the first two did not"};
  return found->second;
}

Node::Node(int64_t program, int64_t lane, int sum_ctas)
    : number_(program),
      program_(one_node(program, lane)),
      layout_(*static_cast<const Layout*>(program_.layout)),
      lane_(lane),
      census_(program),
      arena_at_((census_.most() * kStride + kAlignment - 1) / kAlignment * kAlignment),
      own_(arena_at_ + program_.arena_bytes),
      bases_(static_cast<size_t>(program_.lanes), nullptr),
      main_(find_main(census_.names())),
      issuer_(*this, program_, {0, lane}, cuda::Budget{sum_ctas, sum_ctas, sum_ctas}, true),
      runner_(issuer_, census_.names()) {
  bases_[static_cast<size_t>(lane)] = own_.base();
  cuda::prepare_kernels();
}

Node::~Node() {
  for (size_t i = 0; i < bases_.size(); ++i) {
    if (static_cast<int64_t>(i) != lane_ && bases_[i] != nullptr) cudaIpcCloseMemHandle(bases_[i]);
  }
}

void Node::handle(void* bytes) const {
  cudaIpcMemHandle_t handle;
  static_assert(sizeof handle == TIDEC_NODE_HANDLE_BYTES);
  cuda::check(cudaIpcGetMemHandle(&handle, own_.base()), "cudaIpcGetMemHandle");
  std::memcpy(bytes, &handle, sizeof handle);
}

void Node::connect(const void* handles) {
  for (int64_t i = 0; i < program_.lanes; ++i) {
    if (i == lane_) continue;
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, static_cast<const char*>(handles) + i * TIDEC_NODE_HANDLE_BYTES, sizeof handle);
    void* base = nullptr;
    cuda::check(cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    bases_[static_cast<size_t>(i)] = static_cast<char*>(base);
  }
  prepare();
}

// The landings of two calls are all there are; from where shards come is not known yet.
void Node::prepare() {
  if (program_.is_reduction) return;
  shard_ = arena();
  issuer_.prepare(true);
  for (int64_t call : {0, 1}) issue(Part::kPrepare, call);
  issuer_.prepare(false);
}

// ---- calls

void Node::begin_after(cudaStream_t caller) {
  is_main_callers_ = main_ >= 0 && !is_legacy(caller);
  cuda::check(cudaEventRecord(begun_, caller), "cudaEventRecord");
  // The call before may have been given another stream.
  if (main_ >= 0) cuda::check(cudaStreamWaitEvent(main_stream(), main_ended_, 0), "cudaStreamWaitEvent");
  for (const auto& [index, stream] : streams_) {
    if (meets_caller(index)) cuda::check(cudaStreamWaitEvent(stream, begun_, 0), "cudaStreamWaitEvent");
  }
}

void Node::end_before(cudaStream_t caller) {
  for (const auto& [index, stream] : streams_) {
    if (meets_caller(index)) cuda::order(stream, caller, ended_);
  }
}

cudaStream_t Node::main_stream() { return is_main_callers_ ? caller_ : own_stream(main_); }

void Node::issue(Part part, int64_t call) {
  runner_.begin(part);
  tidec_issue(&runner_, number_, 0, lane_, call);
  issuer_.finish();
}

void Node::gather(int64_t call, const void* shard, cudaStream_t caller) {
  shard_ = static_cast<const char*>(shard);
  caller_ = caller;
  call_ = call;
  if (call == 0) {
    // Nobody reads before the first call, and its walk says that all of that is read: without it the second call would wait for the first release.
    issue(Part::kRelease, call);
  }
  begin_after(caller);
  issue(Part::kMoves, call);
  if (main_ >= 0) cuda::check(cudaEventRecord(main_ended_, main_stream()), "cudaEventRecord");
}

// The walk of a call reads the landing of the call before.
void Node::part(Part part, int64_t call, cudaStream_t caller) {
  caller_ = caller;
  call_ = call;
  if (part == Part::kAcquire) issue(Part::kFrees, call);
  call_ = call + 1;
  issue(part, call + 1);
}

void Node::reduce(int64_t call, const void* const* gradients, void* out, float alpha, bool accumulates, cudaStream_t caller) {
  gradients_ = gradients;
  out_ = static_cast<char*>(out);
  call_ = call;
  caller_ = caller;
  issuer_.begin_calls(alpha, accumulates);
  begin_after(caller);
  issue(Part::kMoves, call);
  if (main_ >= 0) cuda::check(cudaEventRecord(main_ended_, main_stream()), "cudaEventRecord");
  end_before(caller);
}

void Node::wait(int64_t deadline_ms) {
  cuda::OwnStream all;
  for (const auto& [index, stream] : streams_) cuda::order(stream, all, ended_);
  issuer_.end_before(all, ended_);
  cuda::check(cudaStreamWaitEvent(all, main_ended_, 0), "cudaStreamWaitEvent");
  cuda::check(cudaEventRecord(begun_, all), "cudaEventRecord");
  const int64_t start = now_ns();
  for (;;) {
    const cudaError_t state = cudaEventQuery(begun_);
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) cuda::check(state, "a kernel or copy of the plan");
    if (now_ns() - start > deadline_ms * 1000000) {
      std::vector<char> words(static_cast<size_t>(census_.most() * kStride));
      cuda::OwnStream spare;
      cuda::check(cudaMemcpyAsync(words.data(), own_.base(), words.size(), cudaMemcpyDeviceToHost, spare), "cudaMemcpyAsync");
      cuda::check(cudaStreamSynchronize(spare), "cudaStreamSynchronize");
      std::map<CounterName, uint64_t> values;
      for (const auto& [name, number] : census_.of(lane_)) std::memcpy(&values[name], &words[static_cast<size_t>(number * kStride)], sizeof(uint64_t));
      const std::string why = cuda::stuck_text(program_, awaited_, values);
      // Lets the own streams end, so that the process can; what they then do is of no use to anybody.
      for (size_t i = 0; i + kStride <= words.size(); i += kStride) std::memcpy(&words[i], &kReleased, sizeof kReleased);
      cuda::check(cudaMemcpyAsync(own_.base(), words.data(), words.size(), cudaMemcpyHostToDevice, spare), "cudaMemcpyAsync");
      cuda::check(cudaStreamSynchronize(spare), "cudaStreamSynchronize");
      throw Failure{(why.empty() ? std::string("a copy or kernel does not end") : why) + "\n  waited " + std::to_string(deadline_ms) + " ms"};
    }
    const timespec nap = {0, kNapNs};
    nanosleep(&nap, nullptr);
  }
  awaited_.clear();
}

void Node::reset(const std::vector<char>& arena) {
  cuda::check(cudaMemset(own_.base(), 0, static_cast<size_t>(arena_at_)), "cudaMemset");
  cuda::check(cudaMemcpy(own_.base() + arena_at_, arena.data(), arena.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// ---- what the World is asked

char* Node::at(const Place& place, int64_t lane, int64_t bytes) {
  char* base = nullptr;
  int64_t size = 0;
  if (place.rank.node == 0 && lane >= 0 && lane < program_.lanes) {
    switch (place.space) {
      case Space::kArena:
        base = bases_[static_cast<size_t>(lane)] + arena_at_;
        size = bases_[static_cast<size_t>(lane)] != nullptr ? program_.arena_bytes : 0;
        break;
      case Space::kShard:
        base = const_cast<char*>(shard_);
        size = INT64_MAX;
        break;
      case Space::kGrad:
        base = static_cast<char*>(const_cast<void*>(gradients_[place.param]));
        size = base != nullptr ? layout_.params[place.param].real_elems * item_bytes(layout_.moved) : 0;
        break;
      case Space::kOut:
        base = out_;
        size = layout_.packed_elems * 4;
        break;
    }
    if (place.space != Space::kArena && lane != lane_) size = 0;
  }
  if (place.offset < 0 || bytes < 0 || place.offset > size - bytes) {
    throw Failure{"an op of lane " + std::to_string(lane_) + " names " + std::to_string(bytes) + " bytes at " + std::to_string(place.offset) + " of " +
                  std::to_string(size) + " on lane " + std::to_string(lane)};
  }
  return base + place.offset;
}

void* Node::counter(const Counter& c, int64_t owner, int64_t raiser) {
  char* base = bases_[static_cast<size_t>(owner)];
  if (base == nullptr) throw Failure{"the node is not connected"};
  return base + census_.number(cuda::name_of(c, owner, raiser)) * kStride;
}

cudaStream_t Node::stream(const Stream& s) {
  if (s.index == main_) return main_stream();
  if (s.index == census_.names().compute || census_.names().acting.count(s.index) == 0) return caller_;
  return own_stream(s.index);
}

cudaStream_t Node::own_stream(int index) {
  const auto found = streams_.find(index);
  if (found != streams_.end()) return found->second;
  const cudaStream_t made = streams_.try_emplace(index).first->second;
  if (meets_caller(index)) cuda::check(cudaStreamWaitEvent(made, begun_, 0), "cudaStreamWaitEvent");
  return made;
}

void Node::read(const Stream&, const Extent& extent) { landing_ = at(extent.place, extent.place.rank.lane, extent.bytes); }

void Node::waits(const Stream& s, const Level& level, int line) {
  constexpr size_t kKept = 4096;
  if (awaited_.size() >= kKept) awaited_.erase(awaited_.begin(), awaited_.begin() + kKept / 2);
  awaited_.push_back({cuda::name_of(level.counter, lane_, level.rank.lane), static_cast<uint64_t>(level.value), line, call_, s.name, level.counter.flag->name});
}

}  // namespace tidec::nccl

namespace {

int32_t tell(char* message, int64_t room, const std::string& why) {
  if (room > 0) std::snprintf(message, static_cast<size_t>(room), "%s", why.c_str());
  return TIDEC_NODE_FAILED;
}

template <class Do>
int32_t guarded(char* message, int64_t room, Do what) {
  try {
    what();
    return TIDEC_NODE_OK;
  } catch (const tidec::cuda::Failure& problem) {
    return tell(message, room, problem.why);
  }
}

// A call: `refused` says why it is none, `what` makes it. Whatever fails in it is the end of the node.
template <class Refused, class Do>
int32_t called(tidec_node* node, char* message, int64_t room, Refused refused, Do what) {
  if (!node->failure.empty()) return tell(message, room, node->failure);
  const std::string why = refused(node->calls);
  if (!why.empty()) return tell(message, room, why);
  try {
    what(node->node);
    return TIDEC_NODE_OK;
  } catch (const tidec::cuda::Failure& problem) {
    node->failure = problem.why;
    return tell(message, room, problem.why);
  }
}

}  // namespace

using tidec::nccl::Node;
using tidec::nccl::Part;

extern "C" {

tidec_node* tidec_node_open(int64_t program, int64_t rank, int32_t sum_ctas, int64_t, char* message, int64_t message_bytes) {
  tidec_node* made = nullptr;
  guarded(message, message_bytes, [&] {
    made = new tidec_node{Node(program, rank, sum_ctas), tidec::Calls(*tidec_program_at(program)), ""};
  });
  return made;
}

int32_t tidec_node_handle(tidec_node* node, void* handle, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.handle(handle); });
}

int32_t tidec_node_connect(tidec_node* node, const void* handles, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.connect(handles); });
}

int32_t tidec_node_arena(tidec_node* node, void** arena, int64_t* bytes, char*, int64_t) {
  *arena = node->node.arena();
  *bytes = node->node.program().arena_bytes;
  return TIDEC_NODE_OK;
}

int32_t tidec_node_gather(tidec_node* node, int64_t call, const void* shard, void* stream, char* message, int64_t message_bytes) {
  return called(node, message, message_bytes, [&](tidec::Calls& c) { return c.gather(call, shard); },
                [&](Node& n) { n.gather(call, shard, static_cast<cudaStream_t>(stream)); });
}

int32_t tidec_node_acquire(tidec_node* node, int64_t call, void* stream, const void** landing, char* message, int64_t message_bytes) {
  return called(node, message, message_bytes, [&](tidec::Calls& c) { return c.acquire(call); }, [&](Node& n) {
    n.part(Part::kAcquire, call, static_cast<cudaStream_t>(stream));
    *landing = n.landing();
  });
}

int32_t tidec_node_release(tidec_node* node, int64_t call, void* stream, char* message, int64_t message_bytes) {
  return called(node, message, message_bytes, [&](tidec::Calls& c) { return c.release(call); },
                [&](Node& n) { n.part(Part::kRelease, call, static_cast<cudaStream_t>(stream)); });
}

int32_t tidec_node_reduce(tidec_node* node, int64_t call, const void* const* gradients, int64_t num_gradients, void* out, float alpha, int32_t accumulate,
                          void* stream, char* message, int64_t message_bytes) {
  return called(node, message, message_bytes, [&](tidec::Calls& c) { return c.reduce(call, gradients, num_gradients, out); },
                [&](Node& n) { n.reduce(call, gradients, out, alpha, accumulate != 0, static_cast<cudaStream_t>(stream)); });
}

int32_t tidec_node_wait(tidec_node* node, int64_t deadline_ms, char* message, int64_t message_bytes) {
  return called(node, message, message_bytes, [](tidec::Calls&) { return std::string(); }, [&](Node& n) { n.wait(deadline_ms); });
}

void tidec_node_close(tidec_node* node) { delete node; }

}  // extern "C"
