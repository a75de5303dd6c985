// A rank of the host target under a live job: one thread, the caller's, carries out its walks while it is in a call, and nothing runs between calls.
//
// The caller reads a landing between two parts of the walk of the call after: acquire(e) takes over what walk e + 1 has on the reading stream up to
// its read, release(e) what follows. The rest of walk e + 1 is of gather(e + 1).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/drive.hpp"
#include "host/memory.hpp"
#include "tidec/calls.hpp"
#include "tidec/node.h"

namespace tidec::host {

class Node {
 public:
  // Throws Stopped, as all of them do.
  Node(int64_t program, int64_t rank, int64_t deadline_ms);
  ~Node();

  void handle(void* bytes) const;
  void connect(const void* handles);
  char* arena() const { return job_.objects[static_cast<size_t>(rank_.number())].arena(); }
  int64_t arena_bytes() const { return job_.sizes.arena_bytes; }
  void gather(int64_t call, const char* shard);
  const char* acquire(int64_t call);
  void release(int64_t call);
  void reduce(int64_t call, const void* const* gradients, char* out, float alpha, bool accumulates);
  void wait(int64_t deadline_ms);
  void counts(int64_t call, int64_t* counts) const;
  void ask(std::function<bool()> goes_on) { driver_.ask(std::move(goes_on)); }

  // Before every call: throws where the node cannot be used (any more).
  void check_use(const void* stream);
  // Stops all ranks; every later call fails with this reason.
  void fail(const std::string& why) { driver_.stop(why, rank_.number()); }
  const std::string& why() const { return driver_.why(); }
  Calls& calls() { return calls_; }

 private:
  const Recorder& walk(int64_t call);
  void check(bool goes_on) const;

  tidec_host_job told_{};
  Job job_;
  std::vector<Memory> memories_;
  Rank rank_;
  Driver driver_;
  Calls calls_;
  // Those of two calls, by their parity; walks_of_: of which.
  Recorder walks_[2];
  int64_t walks_of_[2] = {-1, -1};
  bool is_connected_ = false;
  bool is_shut_ = false;
};

}  // namespace tidec::host

struct tidec_node {
  tidec::host::Node node;
};
