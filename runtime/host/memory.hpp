// A rank's shared memory under a live job: it has no name, so that nothing is left of it, and peers reach it through /proc by a handle.
#pragma once

#include <cstdint>
#include <string>

#include "host/object.hpp"
#include "tidec/node.h"

namespace tidec::host {

// What a peer is told. program: the plan's digest, its first eight bytes; the rest is checked against the header, or by mapping.
struct Handle {
  char magic[8];
  uint64_t program;
  int64_t rank;
  int64_t process;
  int64_t file;
  int64_t bytes;
  uint64_t token;
  uint64_t spare;
};
static_assert(sizeof(Handle) <= TIDEC_NODE_HANDLE_BYTES);

// A mapping, of this rank's own memory or of a peer's; unmapped at the end.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory();

  // Zeros of a rank's own, all of it there from the start. Throws Stopped.
  static Memory make(int64_t rank, int64_t bytes, const std::string& plan_digest);
  // The memory of rank r, who is called `name`, as its handle says. Throws Stopped with the reason where it cannot be reached or is another one.
  static Memory reach(const Handle& handle, int64_t rank, const std::string& name, int64_t bytes, const std::string& plan_digest);

  char* base() const { return base_; }
  const Handle& handle() const { return handle_; }
  // Nobody can come by it from here on but who has it.
  void shut();

 private:
  void swap(Memory& other) noexcept;

  Handle handle_{};
  char* base_ = nullptr;
  int file_ = -1;
};

}  // namespace tidec::host
