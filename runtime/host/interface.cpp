// The C interface of the host target under a live job, tidec/node.h: every failure becomes text.
#include "host/node.hpp"
#include "tidec/guard.hpp"

namespace {

using tidec::host::Node;
using tidec::host::Stopped;

template <class Do>
int32_t guarded(char* message, int64_t room, Do what) {
  return tidec::guarded<Stopped>(message, room, what) ? TIDEC_NODE_OK : TIDEC_NODE_FAILED;
}

// Whatever fails in a call stops all ranks.
template <class Refused, class Do>
int32_t called(tidec_node* node, const void* stream, char* message, int64_t room, Refused refused, Do what) {
  const auto refuse = [&] {
    node->node.check_use(stream);
    return refused(node->node.calls());
  };
  const auto fail = [&](const char* why) {
    node->node.fail(why);
    return node->node.why().c_str();
  };
  return tidec::called<Stopped>(message, room, refuse, [&] { what(node->node); }, fail) ? TIDEC_NODE_OK : TIDEC_NODE_FAILED;
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

int32_t tidec_node_ask(tidec_node* node, tidec_node_goes_on goes_on, void* context, char* message, int64_t message_bytes) {
  return guarded(message, message_bytes, [&] {
    node->node.ask(goes_on == nullptr ? std::function<bool()>() : [goes_on, context] { return goes_on(context) != 0; });
  });
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
