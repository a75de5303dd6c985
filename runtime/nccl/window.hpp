// The memory of a rank of a plan of several nodes, and the communicators that it is registered with: that of its node, and that of its rail.
//
// Both are made when ranks connect. The node's (L ranks, no RMA contexts, not there where L = 1) gives the addresses of the other lanes; it lies
// within one machine, so that no network has to support it. The rail's (M ranks) carries puts and signals. Communicators are blocking, for with
// others every later op would be issued by a thread of NCCL's; making them has a deadline all the same: a thread makes them, and whoever waits too
// long for it leaves it what it uses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nccl/library.hpp"
#include "tidec/module.hpp"
#include "tidec/rank.hpp"

namespace tidec::nccl {

class Window {
 public:
  // Zeroed memory of the current device. Throws Failure, as all of them do.
  Window(const tidec_program& program, const Rank& rank, int64_t bytes);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

  // What the other ranks have to know to connect: 2 * kIdBytes.
  void handle(void* bytes) const;
  // Waits for the ranks of the node and of the rail, up to the deadline. handles: of all ranks, `stride` apart.
  // contexts, indices: of the rail, the same on all of its ranks.
  static void connect(const std::shared_ptr<Window>& window, const void* handles, int64_t stride, int contexts, int indices, int64_t deadline_ms);

  char* base() const { return base_; }
  // Null before ranks are connected.
  char* lane(int64_t lane) const { return lanes_[static_cast<size_t>(lane)]; }
  Communicator rail() const { return rail_; }
  WindowHandle on_rail() const { return on_rail_; }
  // Nothing is given back: streams that never end may use it.
  void abandon() { is_abandoned_ = true; }

 private:
  void make(const UniqueId& node, const UniqueId& rail, int contexts, int indices);

  const tidec_program& program_;
  const Rank rank_;
  const int64_t bytes_;
  int device_ = 0;
  char* base_ = nullptr;
  std::vector<char*> lanes_;
  Communicator node_ = nullptr, rail_ = nullptr;
  WindowHandle on_node_ = nullptr, on_rail_ = nullptr;
  const char* volatile step_ = "";
  bool is_abandoned_ = false;
};

}  // namespace tidec::nccl
