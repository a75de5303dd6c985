// The shared memory of one rank: its header, its counters, its arena, and what the calls are given and give back.
//
// Every process maps the objects of all ranks. A counter lies with the rank that waits for it and has one raising rank; a cell is claimed by
// whoever names it first. Nothing in an object is an address.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tidec/host.h"
#include "tidec/runner.hpp"

namespace tidec::host {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free, "counters are shared between processes");

// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
int64_t now_ns();

inline constexpr int64_t kHeaderBytes = 4096;
inline constexpr std::size_t kWhyBytes = 3072;

enum class Stage : uint32_t { kOpened, kConnected, kClosed };

// How far a rank is. epoch: passes through meetings.  alive_ns: when it last moved or looked.  stop: 1 + the rank that stopped the job, in rank
// 0's header only.  why: for what reason this rank did, written before that.
// Of a node also: token, which its handle repeats; and its process, 0 in a job: its number, and when it began (/proc/<pid>/stat).
struct Header {
  std::atomic<uint64_t> epoch;
  std::atomic<int64_t> alive_ns;
  std::atomic<uint64_t> stop;
  std::atomic<Stage> stage;
  uint64_t token;
  int64_t process;
  int64_t process_began;
  char why[kWhyBytes];
};
static_assert(sizeof(Header) <= kHeaderBytes);

// When a process began, in the kernel's ticks; -1 where there is none of that number, or only what is left of one; 0 where that cannot be told.
int64_t process_began(int64_t process);

// Which counter a cell is: the raiser, the flag and the keys that choose one of its counters.
struct Key {
  int64_t raiser;
  int32_t flag;
  int32_t num_keys;
  int64_t keys[kMaxKeys];

  bool operator==(const Key& other) const;
};

enum : uint32_t { kFree = 0, kClaimed = 1, kNamed = 2 };

// value: how often the counter was raised since the run began.
struct alignas(64) Cell {
  std::atomic<uint32_t> state;
  std::atomic<uint64_t> value;
  Key key;
};

// A mapped object. It does not own the mapping.
class Object {
 public:
  Object() = default;
  Object(char* base, const tidec_host_sizes& sizes) : base_(base), sizes_(&sizes) {}

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Cell* cells() const { return reinterpret_cast<Cell*>(base_ + sizes_->cells_at); }
  char* arena() const { return base_ + sizes_->arena_at; }
  char* input(int64_t call) const { return base_ + sizes_->inputs_at + call * sizes_->input_bytes; }
  char* before(int64_t call) const { return base_ + sizes_->before_at + call * sizes_->output_bytes; }
  char* output(int64_t call) const { return base_ + sizes_->outputs_at + call * sizes_->output_bytes; }

  // The cell of a counter; it is claimed where it is new. Null where there is no room, or where a claim is never finished.
  Cell* find(const Key& key) const;

  // Sets all counters to 0. Nobody may use them meanwhile.
  void reset_counters() const;

 private:
  char* base_ = nullptr;
  const tidec_host_sizes* sizes_ = nullptr;
};

}  // namespace tidec::host
