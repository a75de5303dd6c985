#include "host/node.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>

namespace tidec::host {

namespace {

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

Job job_of(const tidec_host_job& told, int64_t rank) {
  Job job{};
  job.told = &told;
  if (tidec_host_size(told.program, 1, &job.sizes) != TIDEC_HOST_OK) throw Stopped{"there is no program " + std::to_string(told.program)};
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

namespace {

using tidec::host::Node;
using tidec::host::Stopped;

int32_t tell(char* message, int64_t room, const std::string& why) {
  if (room > 0) std::snprintf(message, static_cast<size_t>(room), "%s", why.c_str());
  return TIDEC_NODE_FAILED;
}

template <class Do>
int32_t guarded(char* message, int64_t room, Do what) {
  try {
    what();
    return TIDEC_NODE_OK;
  } catch (const Stopped& problem) {
    return tell(message, room, problem.why);
  } catch (const std::bad_alloc&) {
    return tell(message, room, "there is no more memory");
  }
}

// A call: `refused` says why it is none, `what` makes it. Whatever fails in it stops the node.
template <class Refused, class Do>
int32_t called(tidec_node* node, const void* stream, char* message, int64_t room, Refused refused, Do what) {
  return guarded(message, room, [&] {
    node->node.check_use(stream);
    const std::string why = refused(node->node.calls());
    if (!why.empty()) throw Stopped{why};
    try {
      what(node->node);
    } catch (const Stopped& problem) {
      node->node.fail(problem.why);
      throw Stopped{node->node.why()};
    } catch (const std::bad_alloc&) {
      node->node.fail("there is no more memory");
      throw Stopped{node->node.why()};
    }
  });
}

}  // namespace

extern "C" {

tidec_node* tidec_node_open(int64_t program, int64_t rank, int32_t, int64_t deadline_ms, char* message, int64_t message_bytes) {
  tidec_node* made = nullptr;
  guarded(message, message_bytes, [&] { made = new tidec_node{Node(program, rank, deadline_ms)}; });
  return made;
}

int32_t tidec_node_handle(tidec_node* node, void* handle, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.handle(handle); });
}

int32_t tidec_node_connect(tidec_node* node, const void* handles, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.connect(handles); });
}

int32_t tidec_node_arena(tidec_node* node, void** arena, int64_t* bytes, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { *arena = node->node.arena(), *bytes = node->node.arena_bytes(); });
}

int32_t tidec_node_gather(tidec_node* node, int64_t call, const void* shard, void* stream, char* message, int64_t message_bytes) {
  return called(node, stream, message, message_bytes, [&](tidec::Calls& c) { return c.gather(call, shard); },
                [&](Node& n) { n.gather(call, static_cast<const char*>(shard)); });
}

int32_t tidec_node_acquire(tidec_node* node, int64_t call, void* stream, const void** landing, char* message, int64_t message_bytes) {
  return called(node, stream, message, message_bytes, [&](tidec::Calls& c) { return c.acquire(call); }, [&](Node& n) { *landing = n.acquire(call); });
}

int32_t tidec_node_release(tidec_node* node, int64_t call, void* stream, char* message, int64_t message_bytes) {
  return called(node, stream, message, message_bytes, [&](tidec::Calls& c) { return c.release(call); }, [&](Node& n) { n.release(call); });
}

int32_t tidec_node_reduce(tidec_node* node, int64_t call, const void* const* gradients, int64_t num_gradients, void* out, float alpha, int32_t accumulate,
                          void* stream, char* message, int64_t message_bytes) {
  return called(node, stream, message, message_bytes, [&](tidec::Calls& c) { return c.reduce(call, gradients, num_gradients, out); },
                [&](Node& n) { n.reduce(call, gradients, static_cast<char*>(out), alpha, accumulate != 0); });
}

int32_t tidec_node_wait(tidec_node* node, int64_t deadline_ms, char* message, int64_t message_bytes) {
  return called(node, nullptr, message, message_bytes, [&](tidec::Calls&) { return std::string(deadline_ms < 1 ? "the deadline is not positive" : ""); },
                [&](Node& n) { n.wait(deadline_ms); });
}

int32_t tidec_node_ask(tidec_node* node, tidec_node_goes_on goes_on, void* context, char*, int64_t) {
  node->node.ask(goes_on == nullptr ? std::function<bool()>() : [goes_on, context] { return goes_on(context) != 0; });
  return TIDEC_NODE_OK;
}

int32_t tidec_node_counts(tidec_node* node, int64_t call, int64_t* counts, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] {
    const std::string why = node->node.calls().counted(call, tidec::host::kTallied);
    if (!why.empty()) throw Stopped{why};
    node->node.counts(call, counts);
  });
}

void tidec_node_close(tidec_node* node) { delete node; }

}  // extern "C"
