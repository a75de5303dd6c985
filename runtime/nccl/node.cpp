#include "nccl/node.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace tidec::nccl {

namespace {

constexpr int64_t kStride = 64, kAlignment = 4096;
// Kernels read whole granules around a row.
constexpr int64_t kMargin = 256;
constexpr uint64_t kReleased = uint64_t{1} << 62;
constexpr long kNapNs = 20000;
// Where the host ends nothing, a kernel that waits ends the program, after twice the time.
constexpr int64_t kMostDeadlineMs = int64_t{1} << 40;

uint64_t kernel_deadline_ns(int64_t deadline_ms) { return static_cast<uint64_t>(std::min(deadline_ms, kMostDeadlineMs)) * 2'000'000; }

static_assert(TIDEC_NODE_HANDLE_BYTES >= 2 * kIdBytes && TIDEC_NODE_HANDLE_BYTES >= sizeof(cudaIpcMemHandle_t));

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

// Which stream of a walk goes by the caller's: the one that reads or writes its memory, of several the one that writes its output.
int find_main(const Names& names) {
  const std::set<int>& found = names.on_callers.size() == 1 ? names.on_callers : names.on_outputs;
  return found.size() == 1 ? *found.begin() : -1;
}

int64_t behind(int64_t at, int64_t bytes) { return (at + bytes + kMargin + kAlignment - 1) / kAlignment * kAlignment; }

const tidec_program& program_of(int64_t program, int64_t rank) {
  if (program < 0 || program >= tidec_num_programs()) throw Failure{"there is no such program"};
  const tidec_program& p = *tidec_program_at(program);
  if (rank < 0 || rank >= p.nodes * p.lanes) throw Failure{"there is no such rank"};
  return p;
}

// What a put may read of the caller's memory: the shard, where it is not cast into the arena first.
int64_t spare_bytes(const tidec_program& program, const Layout& layout) {
  return program.nodes == 1 || program.is_reduction || layout.casts.count > 0 ? 0 : layout.shard_bytes;
}

}  // namespace

Node::Node(int64_t program, int64_t rank, int sum_ctas, int64_t deadline_ms)
    : program_number_(program),
      program_(program_of(program, rank)),
      layout_(*static_cast<const Layout*>(program_.layout)),
      rank_{rank / program_.lanes, rank % program_.lanes},
      number_(rank),
      deadline_ms_(deadline_ms),
      census_(program, rank_.node),
      words_at_(behind(kArenaAt, program_.arena_bytes)),
      counts_at_(behind(words_at_, words_bytes())),
      spare_at_(behind(counts_at_, cuda::kCountBytes)),
      bases_(static_cast<size_t>(program_.lanes), nullptr),
      main_(find_main(census_.names())),
      issuer_(*this, program_, rank_, cuda::Budget{sum_ctas, sum_ctas, sum_ctas}, true, kernel_deadline_ns(deadline_ms)),
      tallies_(program_.lanes) {
  const int64_t spare = spare_bytes(program_, layout_), all = behind(spare_at_, spare);
  if (program_.nodes == 1) {
    own_ = std::make_unique<cuda::OwnMemory>(all);
    base_ = own_->base();
  } else {
    window_ = std::make_shared<Window>(program_, rank_, all);
    base_ = window_->base();
    rails_ = std::make_unique<Rails>(*this, issuer_, program, rank_, window_, kArenaAt, base_ + spare_at_, spare);
  }
  bases_[static_cast<size_t>(rank_.lane)] = base_;
  runner_ = std::make_unique<Runner>(issuer_, rails_.get(), census_.names(), tallies_);
  cuda::prepare_kernels();
}

Node::~Node() {
  for (size_t i = 0; i < bases_.size(); ++i) {
    if (window_ == nullptr && static_cast<int64_t>(i) != rank_.lane && bases_[i] != nullptr) cudaIpcCloseMemHandle(bases_[i]);
  }
}

void Node::handle(void* bytes) const {
  std::memset(bytes, 0, TIDEC_NODE_HANDLE_BYTES);
  if (window_ != nullptr) {
    window_->handle(bytes);
    return;
  }
  cudaIpcMemHandle_t handle;
  cuda::check(cudaIpcGetMemHandle(&handle, base_), "cudaIpcGetMemHandle");
  std::memcpy(bytes, &handle, sizeof handle);
}

void Node::connect(const void* handles) {
  if (window_ != nullptr) {
    Window::connect(window_, handles, TIDEC_NODE_HANDLE_BYTES, rails_->signals().contexts(), rails_->signals().indices(), deadline_ms_);
    for (int64_t i = 0; i < program_.lanes; ++i) bases_[static_cast<size_t>(i)] = window_->lane(i);
  }
  for (int64_t i = 0; i < program_.lanes && window_ == nullptr; ++i) {
    if (i == rank_.lane) continue;
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
  for (int64_t call : {0, 1}) issue(Part::kPrepare, call, -1);
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

void Node::issue(Part part, int64_t call, int64_t counted) {
  tallies_.begin(counted);
  runner_->begin(part);
  tidec_issue(runner_.get(), program_number_, rank_.node, rank_.lane, call);
  runner_->end();
}

void Node::gather(int64_t call, const void* shard, cudaStream_t caller) {
  shard_ = static_cast<const char*>(shard);
  caller_ = caller;
  call_ = call;
  num_calls_ = call + 1;
  // Nobody reads before the first call, and its walk says that all of that is read: without it the second call would wait for the first release.
  if (call == 0) issue(Part::kRelease, call, -1);
  begin_after(caller);
  if (rails_ != nullptr) rails_->bring(shard, begun_);
  issue(Part::kMoves, call, call);
  if (main_ >= 0) cuda::check(cudaEventRecord(main_ended_, main_stream()), "cudaEventRecord");
}

// The walk of a call reads the landing of the call before.
void Node::part(Part part, int64_t call, cudaStream_t caller) {
  caller_ = caller;
  call_ = call;
  if (part == Part::kAcquire) issue(Part::kFrees, call, call);
  call_ = call + 1;
  issue(part, call + 1, call);
}

void Node::reduce(int64_t call, const void* const* gradients, void* out, float alpha, bool accumulates, cudaStream_t caller) {
  gradients_ = gradients;
  out_ = static_cast<char*>(out);
  call_ = call;
  caller_ = caller;
  num_calls_ = call + 1;
  issuer_.begin_calls(alpha, accumulates);
  begin_after(caller);
  issue(Part::kMoves, call, call);
  if (main_ >= 0) cuda::check(cudaEventRecord(main_ended_, main_stream()), "cudaEventRecord");
  end_before(caller);
}

void Node::wait(int64_t deadline_ms) {
  cuda::OwnStream all;
  for (const auto& [index, stream] : streams_) cuda::order(stream, all, ended_);
  issuer_.end_before(all, ended_);
  cuda::check(cudaStreamWaitEvent(all, main_ended_, 0), "cudaStreamWaitEvent");
  if (rails_ != nullptr) cuda::order(rails_->stream(), all, ended_);
  cuda::check(cudaEventRecord(begun_, all), "cudaEventRecord");
  const int64_t start = now_ns();
  for (;;) {
    const cudaError_t state = cudaEventQuery(begun_);
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) cuda::check(state, "a kernel or copy of the plan");
    if (now_ns() - start > deadline_ms * 1000000) stuck(deadline_ms);
    const timespec nap = {0, kNapNs};
    nanosleep(&nap, nullptr);
  }
  awaited_.clear();
}

void Node::stuck(int64_t deadline_ms) {
  // NOTE: what NCCL waits for can be ended by nobody here, so nothing that it may use is given back.
  if (window_ != nullptr) window_->abandon();
  std::vector<char> bytes(static_cast<size_t>(words_bytes()));
  cuda::OwnStream spare;
  cuda::check(cudaMemcpyAsync(bytes.data(), words(), bytes.size(), cudaMemcpyDeviceToHost, spare), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(spare), "cudaStreamSynchronize");
  std::map<CounterName, uint64_t> values;
  for (const auto& [name, number] : census_.of(number_)) std::memcpy(&values[name], &bytes[static_cast<size_t>(number * kStride)], sizeof(uint64_t));
  const std::string why = cuda::stuck_text(program_, awaited_, values);
  // Lets the own streams end, so that the process can; what they then do is of no use to anybody.
  for (size_t i = 0; i + kStride <= bytes.size(); i += kStride) std::memcpy(&bytes[i], &kReleased, sizeof kReleased);
  cuda::check(cudaMemcpyAsync(words(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, spare), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(spare), "cudaStreamSynchronize");
  throw Failure{(why.empty() ? std::string("a copy or kernel does not end") : why) + "\n  waited " + std::to_string(deadline_ms) + " ms"};
}

void Node::reset(const std::vector<char>& arena) {
  cuda::check(cudaMemset(words(), 0, static_cast<size_t>(words_bytes())), "cudaMemset");
  cuda::check(cudaMemset(counts(), 0, static_cast<size_t>(cuda::kCountBytes)), "cudaMemset");
  cuda::check(cudaMemcpy(base_ + kArenaAt, arena.data(), arena.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (rails_ != nullptr) rails_->restart(num_calls_);
  num_calls_ = 0;
}

// ---- what the World is asked

char* Node::at(const Place& place, int64_t lane, int64_t bytes) {
  char* base = nullptr;
  int64_t size = 0;
  if (place.rank.node == rank_.node && lane >= 0 && lane < program_.lanes) {
    switch (place.space) {
      case Space::kArena:
        base = bases_[static_cast<size_t>(lane)];
        size = base != nullptr ? program_.arena_bytes : 0;
        base += base != nullptr ? kArenaAt : 0;
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
    if (place.space != Space::kArena && lane != rank_.lane) size = 0;
  }
  if (place.offset < 0 || bytes < 0 || place.offset > size - bytes) {
    throw Failure{"an op of rank " + cuda::rank_text(program_, number_) + " names " + std::to_string(bytes) + " bytes at " + std::to_string(place.offset) + " of " +
                  std::to_string(size) + " on lane " + std::to_string(lane) + " of node " + std::to_string(place.rank.node)};
  }
  return base + place.offset;
}

int64_t Node::words_bytes() const { return census_.most() * kStride; }

void* Node::counter(const Counter& c, int64_t owner, int64_t raiser) {
  const int64_t lane = owner - rank_.node * program_.lanes;
  if (lane < 0 || lane >= program_.lanes) throw Failure{"a counter of another node is raised past its rail"};
  char* const base = bases_[static_cast<size_t>(lane)];
  if (base == nullptr) throw Failure{"the node is not connected"};
  return base + words_at_ + census_.number(cuda::name_of(c, owner, raiser)) * kStride;
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
  const int64_t raiser = level.rank.node * program_.lanes + level.rank.lane;
  awaited_.push_back({cuda::name_of(level.counter, number_, raiser), static_cast<uint64_t>(level.value), line, call_, s.name, level.counter.flag->name});
}

}  // namespace tidec::nccl
