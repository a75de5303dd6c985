// The C interface of the nccl target under a live job, tidec/node.h: every failure becomes text.
#include <algorithm>

#include "nccl/node.hpp"
#include "tidec/guard.hpp"

namespace {

using tidec::cuda::Failure;

template <class Do>
int32_t guarded(char* message, int64_t room, Do what) {
  return tidec::guarded<Failure>(message, room, what) ? TIDEC_NODE_OK : TIDEC_NODE_FAILED;
}

// Whatever fails in a call is the end of the node.
template <class Refused, class Do>
int32_t called(tidec_node* node, char* message, int64_t room, Refused refused, Do what) {
  const auto refuse = [&] {
    if (*node->failure != '\0') throw Failure{node->failure};
    return refused(node->calls);
  };
  const auto fail = [&](const char* why) {
    tidec::tell(node->failure, sizeof node->failure, why);
    return node->failure;
  };
  return tidec::called<Failure>(message, room, refuse, [&] { what(node->node); }, fail) ? TIDEC_NODE_OK : TIDEC_NODE_FAILED;
}

}  // namespace

using tidec::nccl::Node;
using tidec::nccl::Part;

extern "C" {

tidec_node* tidec_node_open(int64_t program, int64_t rank, int32_t sum_ctas, int64_t deadline_ms, char* message, int64_t message_bytes) {
  tidec_node* made = nullptr;
  guarded(message, message_bytes, [&] {
    made = new tidec_node{Node(program, rank, sum_ctas, deadline_ms), tidec::Calls(*tidec_program_at(program))};
  });
  return made;
}

int32_t tidec_node_handle(tidec_node* node, void* handle, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.handle(handle); });
}

int32_t tidec_node_connect(tidec_node* node, const void* handles, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { node->node.connect(handles); });
}

int32_t tidec_node_arena(tidec_node* node, void** arena, int64_t* bytes, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] { *arena = node->node.arena(), *bytes = node->node.program().arena_bytes; });
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

int32_t tidec_node_counts(tidec_node* node, int64_t call, int64_t* counts, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] {
    const std::string why = node->calls.counted(call, tidec::nccl::kTallied);
    if (!why.empty()) throw Failure{why};
    const tidec::nccl::Tally& tally = node->node.tally(call);
    std::copy(tally.ops, tally.ops + TIDEC_NODE_KINDS, counts);
    std::copy(tally.bytes, tally.bytes + TIDEC_NODE_KINDS, counts + TIDEC_NODE_KINDS);
  });
}

void tidec_node_close(tidec_node* node) { delete node; }

}  // extern "C"
