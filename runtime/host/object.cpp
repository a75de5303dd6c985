#include "host/object.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace tidec::host {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

int64_t process_began(int64_t process) {
  char text[1024];
  std::snprintf(text, sizeof text, "/proc/%lld/stat", static_cast<long long>(process));
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? -1 : 0;
  const ssize_t size = read(file, text, sizeof text - 1);
  const bool is_gone = size < 0 && errno == ESRCH;
  close(file);
  if (size <= 0) return is_gone ? -1 : 0;
  text[size] = '\0';
  // The program's name may hold anything, but nothing behind it holds a bracket. Fields 3 and 22: the state, and when it began.
  const char* at = std::strrchr(text, ')');
  char state = 0;
  long long began = 0;
  const char* const form = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld";
  if (at == nullptr || std::sscanf(at + 1, form, &state, &began) != 2) return 0;
  return state == 'Z' || state == 'X' ? -1 : began;
}

bool Key::operator==(const Key& other) const {
  if (raiser != other.raiser || flag != other.flag || num_keys != other.num_keys) return false;
  for (int i = 0; i < num_keys; ++i) {
    if (keys[i] != other.keys[i]) return false;
  }
  return true;
}

namespace {

constexpr int64_t kClaimNs = 5000000000;

uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

uint64_t hashed(const Key& key) {
  uint64_t h = mixed(static_cast<uint64_t>(key.raiser) * 64 + static_cast<uint64_t>(key.flag));
  for (int i = 0; i < key.num_keys; ++i) h = mixed(h + static_cast<uint64_t>(key.keys[i]) + 1);
  return h;
}

// Waits until whoever claimed the cell has written its key; it may have died meanwhile.
bool is_named(const Cell& cell) {
  const int64_t start = now_ns();
  while (cell.state.load(std::memory_order_acquire) != kNamed) {
    if (now_ns() - start > kClaimNs) return false;
    sched_yield();
  }
  return true;
}

}  // namespace

Cell* Object::find(const Key& key) const {
  const uint64_t num = static_cast<uint64_t>(sizes_->num_cells);
  for (uint64_t i = 0, at = hashed(key) % num; i < num; ++i, at = at + 1 == num ? 0 : at + 1) {
    Cell& cell = cells()[at];
    uint32_t state = kFree;
    if (cell.state.compare_exchange_strong(state, kClaimed, std::memory_order_acq_rel, std::memory_order_acquire)) {
      cell.key = key;
      cell.state.store(kNamed, std::memory_order_release);
      return &cell;
    }
    if (!is_named(cell)) return nullptr;
    if (cell.key == key) return &cell;
  }
  return nullptr;
}

void Object::reset_counters() const {
  for (int64_t i = 0; i < sizes_->num_cells; ++i) cells()[i].value.store(0, std::memory_order_relaxed);
}

}  // namespace tidec::host
