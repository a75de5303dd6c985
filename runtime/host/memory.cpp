#include "host/memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "host/rank.hpp"

namespace tidec::host {

namespace {

constexpr char kMagic[8] = {'t', 'i', 'd', 'e', 'c', 'h', 'n', '1'};
constexpr char kName[] = "tidec-node";

uint64_t short_digest(const std::string& digest) {
  uint64_t value = 0;
  std::memcpy(&value, digest.data(), std::min(digest.size(), sizeof value));
  return value;
}

std::string failed(const std::string& what, int problem) { return what + ": " + std::strerror(problem) + " (errno " + std::to_string(problem) + ")"; }

}  // namespace

Memory::~Memory() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(handle_.bytes));
  shut();
}

void Memory::shut() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(base_, other.base_);
  std::swap(file_, other.file_);
}

Memory Memory::make(int64_t rank, int64_t bytes, const std::string& plan_digest) {
  Memory memory;
  Handle& h = memory.handle_;
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.program = short_digest(plan_digest);
  h.rank = rank;
  h.process = getpid();
  if (getrandom(&h.token, sizeof h.token, 0) != sizeof h.token) throw Stopped{failed("no random number for a handle", errno)};
  memory.file_ = memfd_create(kName, MFD_CLOEXEC);
  if (memory.file_ < 0) throw Stopped{failed("no shared memory", errno)};
  h.file = memory.file_;
  if (ftruncate(memory.file_, bytes) != 0) throw Stopped{failed("no " + std::to_string(bytes) + " bytes of shared memory", errno)};
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory.file_, 0);
  if (base == MAP_FAILED) throw Stopped{failed(std::to_string(bytes) + " bytes of shared memory cannot be mapped", errno)};
  memory.base_ = static_cast<char*>(base);
  h.bytes = bytes;
#ifdef MADV_POPULATE_WRITE
  // What is not there is found out here, and not by a signal in the middle of a call. A kernel that does not know this makes pages as they are touched.
  if (madvise(base, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    throw Stopped{failed(std::to_string(bytes) + " bytes of shared memory cannot be had", errno)};
  }
#endif
  Header& header = *reinterpret_cast<Header*>(base);
  header.token = h.token;
  header.process = h.process;
  header.process_began = process_began(h.process);
  header.alive_ns.store(now_ns(), std::memory_order_relaxed);
  return memory;
}

Memory Memory::reach(const Handle& h, int64_t rank, const std::string& name, int64_t bytes, const std::string& plan_digest) {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) throw Stopped{"the handle of rank " + name + " is none of this target"};
  if (h.rank != rank) throw Stopped{"in the place of rank " + name + " is the handle of rank number " + std::to_string(h.rank)};
  if (h.program != short_digest(plan_digest) || h.bytes != bytes) throw Stopped{"rank " + name + " has another plan: the handle is not of " + plan_digest.substr(0, 12)};
  const std::string where = "the memory of rank " + name + " (process " + std::to_string(h.process) + ", file " + std::to_string(h.file) + ")";
  const std::string path = "/proc/" + std::to_string(h.process) + "/fd/" + std::to_string(h.file);
  const std::string other = where + " is not there any more: that file is another one";
  Memory memory;
  memory.handle_ = h;
  // Files of others are not even opened.
  char name_of_file[64] = "";
  const bool is_named = readlink(path.c_str(), name_of_file, sizeof name_of_file - 1) >= 0;
  if (is_named && std::strncmp(name_of_file, "/memfd:", 7) != 0) throw Stopped{other};
  memory.file_ = is_named ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  if (memory.file_ < 0) {
    const int problem = errno;
    const char* const why = problem == ENOENT ? "\n  the process has ended, its rank is closed, or it is of another machine or container" : "\n  all ranks of a machine have to be one user's";
    throw Stopped{failed(where + " cannot be reached", problem) + why};
  }
  struct stat about;
  if (fstat(memory.file_, &about) != 0 || about.st_size != bytes) throw Stopped{other};
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory.file_, 0);
  if (base == MAP_FAILED) throw Stopped{failed(where + " cannot be mapped", errno)};
  memory.base_ = static_cast<char*>(base);
  if (reinterpret_cast<Header*>(base)->token != h.token) throw Stopped{other};
  memory.shut();
  return memory;
}

}  // namespace tidec::host
