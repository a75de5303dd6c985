#include "host/node.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

namespace tidec::host {

namespace {

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

Job job_of(const tidec_host_job& told, int64_t rank) {
  Job job{};
  job.told = &told;
  const int32_t sized = tidec_host_size(told.program, 1, &job.sizes);
  if (sized == TIDEC_HOST_STOPPED) throw std::bad_alloc();
  if (sized != TIDEC_HOST_OK) throw Stopped{"there is no program " + std::to_string(told.program)};
  job.program = tidec_program_at(told.program);
  job.layout = static_cast<const Layout*>(job.program->layout);
  if (rank < 0 || rank >= job.ranks()) throw Stopped{"there is no rank " + std::to_string(rank) + ": the plan has " + std::to_string(job.ranks())};
  if (told.deadline_ms < 1) throw Stopped{"the deadline is not positive"};
  job.objects.resize(static_cast<size_t>(job.ranks()));
  return job;
}

tidec_host_job told_of(int64_t program, int64_t deadline_ms) {
  tidec_host_job told{};
  told.program = program;
  told.calls = 1;
  told.deadline_ms = deadline_ms;
  return told;
}

}  // namespace

Node::Node(int64_t program, int64_t rank, int64_t deadline_ms)
    : told_(told_of(program, deadline_ms)), job_(job_of(told_, rank)), memories_(job_.objects.size()), rank_(job_, rank), driver_(job_, {&rank_}), calls_(*job_.program) {
  // What follows the arena in an object is of jobs.
  Memory own = Memory::make(rank, job_.sizes.inputs_at, job_.program->plan_digest);
  job_.objects[static_cast<size_t>(rank)] = Object(own.base(), job_.sizes);
  memories_[static_cast<size_t>(rank)] = std::move(own);
}

Node::~Node() {
  const Memory& own = memories_[static_cast<size_t>(rank_.number())];
  // A process that was forked off must not close what is its parent's.
  if (own.handle().process == getpid()) rank_.object().header().stage.store(Stage::kClosed, std::memory_order_release);
}

void Node::handle(void* bytes) const {
  std::memset(bytes, 0, TIDEC_NODE_HANDLE_BYTES);
  std::memcpy(bytes, &memories_[static_cast<size_t>(rank_.number())].handle(), sizeof(Handle));
}

void Node::connect(const void* handles) {
  if (is_connected_) throw Stopped{"rank " + job_.name(rank_.number()) + " is connected already"};
  for (int64_t r = 0; r < job_.ranks(); ++r) {
    if (r == rank_.number()) continue;
    Handle handle;
    std::memcpy(&handle, static_cast<const char*>(handles) + r * TIDEC_NODE_HANDLE_BYTES, sizeof handle);
    Memory memory = Memory::reach(handle, r, job_.name(r), job_.sizes.inputs_at, job_.program->plan_digest);
    job_.objects[static_cast<size_t>(r)] = Object(memory.base(), job_.sizes);
    memories_[static_cast<size_t>(r)] = std::move(memory);
  }
  is_connected_ = true;
  rank_.object().header().stage.store(Stage::kConnected, std::memory_order_release);
}

void Node::check_use(const void* stream) {
  if (memories_[static_cast<size_t>(rank_.number())].handle().process != getpid()) throw Stopped{"the node is of the process that this one was forked from"};
  check(why().empty());
  if (stream != nullptr) throw Stopped{"the host target has no streams: the stream has to be null"};
  if (!is_connected_) throw Stopped{"rank " + job_.name(rank_.number()) + " is not connected"};
  if (is_shut_) return;
  is_shut_ = std::all_of(job_.objects.begin(), job_.objects.end(), [](const Object& o) { return o.header().stage.load(std::memory_order_acquire) != Stage::kOpened; });
  if (is_shut_) memories_[static_cast<size_t>(rank_.number())].shut();
}

// ---- calls

const Recorder& Node::walk(int64_t call) {
  Recorder& recorder = walks_[call % 2];
  if (walks_of_[call % 2] != call) {
    recorder.clear();
    tidec_issue(&recorder, told_.program, rank_.number() / job_.lanes(), rank_.number() % job_.lanes(), call);
    walks_of_[call % 2] = call;
  }
  return recorder;
}

void Node::check(bool goes_on) const {
  if (!goes_on) throw Stopped{why()};
}

void Node::gather(int64_t call, const char* shard) {
  const Recorder& recorder = walk(call);
  Given given;
  given.shard = shard;
  given.shard_bytes = shard_bytes(*job_.layout);
  rank_.drop_done();
  if (call == 0) {
    // Nobody reads before the first call, and its walk says that all of that is read.
    rank_.load(recorder, -1, given, Part::kAcquire);
    rank_.load(recorder, -1, given, Part::kRelease);
  }
  rank_.load(recorder, call, given, Part::kMoves);
  check(driver_.run_ready());
}

const char* Node::acquire(int64_t call) {
  const Recorder& recorder = walk(call + 1);
  rank_.load(recorder, call, Given(), Part::kAcquire);
  check(driver_.run_through(call, told_.deadline_ms));
  return rank_.landing(recorder, call);
}

void Node::release(int64_t call) {
  rank_.load(walk(call + 1), call, Given(), Part::kRelease);
  check(driver_.run_through(call, told_.deadline_ms));
}

void Node::reduce(int64_t call, const void* const* gradients, char* out, float alpha, bool accumulates) {
  Given given;
  given.gradients = gradients;
  given.out = out;
  given.out_bytes = 4 * job_.layout->packed_elems;
  given.alpha = alpha;
  given.accumulates = accumulates;
  rank_.drop_done();
  rank_.load(walk(call), call, given, Part::kAll);
  check(driver_.run_through(call, told_.deadline_ms));
}

void Node::wait(int64_t deadline_ms) { check(driver_.run_through(kLast, deadline_ms)); }

void Node::counts(int64_t call, int64_t* counts) const {
  const Tally tally = rank_.tally(call);
  std::copy(tally.ops, tally.ops + TIDEC_NODE_KINDS, counts);
  std::copy(tally.bytes, tally.bytes + TIDEC_NODE_KINDS, counts + TIDEC_NODE_KINDS);
}

}  // namespace tidec::host
