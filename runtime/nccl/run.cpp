// A rank of a job on its own GPU: what the calls are given and gave lies in the objects of the host target, through which the ranks also meet.
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "nccl/node.hpp"
#include "nccl/run.h"
#include "tidec/digest.hpp"
#include "tidec/guard.hpp"
#include "tidec/index.hpp"

namespace tidec::nccl {

namespace {

constexpr uint16_t kPoison = 0x7fc0;
// In the page of an object's header, behind the header.
constexpr int64_t kHandleAt = 1024;

// How far a rank is; it begins its object. epoch: passes through meetings.  alive_ns: when it last moved or looked.  stop: 1 + the rank that
// stopped the job, in rank 0's only.
struct Header {
  std::atomic<uint64_t> epoch;
  std::atomic<int64_t> alive_ns;
  std::atomic<uint64_t> stop;
};

constexpr int64_t kPage = 4096, kMaxCalls = 1 << 20;

int64_t rounded(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

int64_t gradient_bytes(const Layout& layout, int64_t param) {
  return layout.params[param].is_trainable ? layout.params[param].real_elems * item_bytes(layout.moved) : 0;
}

// Bytes of what a call is given. Gradients begin at multiples of 64 bytes.
int64_t input_bytes(const tidec_program& p, const Layout& layout) {
  int64_t bytes = 0;
  if (p.is_reduction) {
    for (int64_t i = 0; i < layout.params.count; ++i) bytes += rounded(gradient_bytes(layout, i), 64);
    return bytes;
  }
  bytes = layout.casts.count == 0 ? layout.shard_bytes : 0;
  for (const CastRun& run : layout.casts) bytes = most(bytes, run.src + run.elems * item_bytes(run.from));
  return bytes;
}

// The objects of all ranks, mapped; and this rank among them. Where it ends before over() the job stops.
class Meeting {
 public:
  Meeting(const tidec_host_job& told, const tidec_host_sizes& sizes, const tidec_program& program, const int32_t* files, int64_t own)
      : told_(told), sizes_(sizes), program_(program), own_(own) {
    for (int64_t r = 0; r < program.nodes * program.lanes; ++r) {
      struct stat about;
      void* base = MAP_FAILED;
      if (fstat(files[r], &about) == 0 && about.st_size >= sizes.object_bytes) {
        base = mmap(nullptr, static_cast<size_t>(sizes.object_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, files[r], 0);
        if (base == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();
      }
      if (base == MAP_FAILED) throw Failure{"the object of a rank cannot be mapped, or is too small"};
      bases_.push_back(static_cast<char*>(base));
    }
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    if (!is_over_) stop();
    for (char* base : bases_) munmap(base, static_cast<size_t>(sizes_.object_bytes));
  }

  char* base(int64_t rank) const { return bases_[static_cast<size_t>(rank)]; }
  Header& header(int64_t rank) const { return *reinterpret_cast<Header*>(base(rank)); }

  // Until every rank has come here as often as this one. Throws Failure at the deadline, or where another one has stopped.
  void meet() {
    header(own_).epoch.store(++epoch_, std::memory_order_release);
    const int64_t start = now_ns();
    for (size_t r = 0; r < bases_.size(); ++r) {
      while (header(static_cast<int64_t>(r)).epoch.load(std::memory_order_acquire) < epoch_) {
        const int64_t now = now_ns();
        header(own_).alive_ns.store(now, std::memory_order_relaxed);
        const uint64_t stopped = header(0).stop.load(std::memory_order_relaxed);
        if (stopped != 0) throw Failure{name(own_) + " stops because " + name(static_cast<int64_t>(stopped) - 1) + " has stopped"};
        if (now - start > told_.deadline_ms * 1000000) throw Failure{name(own_) + " waits for " + name(static_cast<int64_t>(r)) + " between two runs"};
        const timespec nap = {0, 20000};
        nanosleep(&nap, nullptr);
      }
    }
  }

  // This rank has done its part: its end stops nobody.
  void over() { is_over_ = true; }

 private:
  void stop() {
    uint64_t nobody = 0;
    header(0).stop.compare_exchange_strong(nobody, static_cast<uint64_t>(own_) + 1);
  }
  std::string name(int64_t rank) const { return "rank " + cuda::rank_text(program_, rank); }

  const tidec_host_job& told_;
  const tidec_host_sizes& sizes_;
  const tidec_program& program_;
  const int64_t own_;
  std::vector<char*> bases_;
  uint64_t epoch_ = 0;
  bool is_over_ = false;
};

std::vector<char> start_of(const tidec_host_job& told, int64_t bytes) {
  std::vector<char> arena(static_cast<size_t>(bytes), 0);
  if (!told.poison) return arena;
  for (size_t i = 0; i + 1 < arena.size(); i += 2) std::memcpy(&arena[i], &kPoison, 2);
  for (int64_t i = 0; i < told.num_zero; ++i) std::memset(arena.data() + told.zero[i].offset, 0, static_cast<size_t>(told.zero[i].bytes));
  return arena;
}

void run_calls(Node& node, const tidec_host_job& told, const tidec_host_sizes& sizes, char* inputs, char* outputs, cudaStream_t stream) {
  const tidec_program& p = *tidec_program_at(told.program);
  const Layout& layout = *static_cast<const Layout*>(p.layout);
  for (int64_t e = 0; e < told.calls; ++e) {
    char* const input = inputs + e * sizes.input_bytes;
    char* const output = outputs + e * sizes.output_bytes;
    if (p.is_reduction) {
      std::vector<const void*> gradients;
      for (int64_t i = 0; i < layout.params.count; ++i) {
        const int64_t at = tidec_host_input_at(told.program, i);
        gradients.push_back(at < 0 ? nullptr : input + at);
      }
      node.reduce(e, gradients.data(), output, told.alpha, told.accumulate != 0, stream);
    } else {
      node.gather(e, input, stream);
      node.part(Part::kAcquire, e, stream);
      const size_t bytes = static_cast<size_t>(p.nodes * p.lanes * layout.shard_bytes);
      cuda::check(cudaMemcpyAsync(output, node.landing(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
      node.part(Part::kRelease, e, stream);
    }
  }
}

// What a rank's calls are given and give, on its GPU.
struct Buffers {
  Buffers(const tidec_host_job& told, const tidec_host_sizes& sizes) : inputs(told.calls * sizes.input_bytes), outputs(told.calls * sizes.output_bytes) {}
  cuda::OwnMemory inputs, outputs;
  cuda::OwnStream stream;
};

void run_seeds(Node& node, Buffers& buffers, const tidec_host_job& told, const tidec_host_sizes& sizes, int64_t rank, Meeting& meeting, uint64_t* digests, int64_t* nanoseconds) {
  char* const object = meeting.base(rank);
  const size_t input_bytes = static_cast<size_t>(told.calls * sizes.input_bytes), output_bytes = static_cast<size_t>(told.calls * sizes.output_bytes);
  for (int64_t i = 0; i < told.num_seeds; ++i) {
    node.reset(start_of(told, node.program().arena_bytes));
    cuda::check(cudaMemcpy(buffers.inputs.base(), object + sizes.inputs_at, input_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda::check(cudaMemcpy(buffers.outputs.base(), object + sizes.before_at, output_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    meeting.meet();
    const int64_t start = now_ns();
    run_calls(node, told, sizes, buffers.inputs.base(), buffers.outputs.base(), buffers.stream);
    node.wait(told.deadline_ms);
    cuda::check(cudaStreamSynchronize(buffers.stream), "cudaStreamSynchronize");
    nanoseconds[i] = now_ns() - start;
    meeting.meet();
    cuda::check(cudaMemcpy(object + sizes.outputs_at, buffers.outputs.base(), output_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    digests[i] = digest_outputs(object + sizes.outputs_at, told.calls, sizes.output_bytes, rank);
  }
  meeting.meet();
}

void run_rank(const tidec_host_job& told, const tidec_host_sizes& sizes, int64_t rank, Meeting& meeting, uint64_t* digests, int64_t* nanoseconds) {
  const tidec_program& p = *tidec_program_at(told.program);
  const int64_t ranks = p.nodes * p.lanes;
  int num_devices = 0;
  cuda::check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  if (num_devices < ranks) throw Failure{"the plan has " + std::to_string(ranks) + " ranks, and this machine " + std::to_string(num_devices) + " GPUs"};
  cuda::check(cudaSetDevice(static_cast<int>(rank)), "cudaSetDevice");
  Node node(told.program, rank, told.sum_ctas, told.deadline_ms);
  node.handle(meeting.base(rank) + kHandleAt);
  meeting.meet();
  std::vector<char> handles;
  for (int64_t r = 0; r < ranks; ++r) handles.insert(handles.end(), meeting.base(r) + kHandleAt, meeting.base(r) + kHandleAt + TIDEC_NODE_HANDLE_BYTES);
  node.connect(handles.data());
  auto buffers = std::make_unique<Buffers>(told, sizes);
  try {
    run_seeds(node, *buffers, told, sizes, rank, meeting, digests, nanoseconds);
  } catch (...) {
    // NOTE: freeing memory waits for all streams of the device, and a wait of NCCL's may never end.
    if (p.nodes > 1) buffers.release();
    throw;
  }
}

}  // namespace

}  // namespace tidec::nccl

using namespace tidec::nccl;

extern "C" {

// NOTE: an object of this target has no cells and no arena: counters and arenas are device memory.
int32_t tidec_host_size(int64_t program, int64_t calls, tidec_host_sizes* sizes) {
  if (program < 0 || program >= tidec_num_programs() || calls < 1 || calls > kMaxCalls) return TIDEC_HOST_USAGE;
  const tidec_program& p = *tidec_program_at(program);
  const tidec::Layout& layout = *static_cast<const tidec::Layout*>(p.layout);
  tidec_host_sizes s{};
  s.cells_at = s.arena_at = s.inputs_at = kPage;
  s.input_bytes = rounded(input_bytes(p, layout), 64);
  s.output_bytes = rounded(p.is_reduction ? 4 * layout.packed_elems : p.nodes * p.lanes * layout.shard_bytes, 64);
  s.before_at = rounded(s.inputs_at + calls * s.input_bytes, kPage);
  s.outputs_at = rounded(s.before_at + calls * s.output_bytes, kPage);
  s.object_bytes = rounded(s.outputs_at + calls * s.output_bytes, kPage);
  *sizes = s;
  return TIDEC_HOST_OK;
}

int64_t tidec_host_input_at(int64_t program, int64_t param) {
  if (program < 0 || program >= tidec_num_programs()) return -1;
  const tidec_program& p = *tidec_program_at(program);
  const tidec::Layout& layout = *static_cast<const tidec::Layout*>(p.layout);
  if (!p.is_reduction) return 0;
  if (param < 0 || param >= layout.params.count || !layout.params[param].is_trainable) return -1;
  int64_t at = 0;
  for (int64_t i = 0; i < param; ++i) at += rounded(gradient_bytes(layout, i), 64);
  return at;
}

int32_t tidec_node_run(const tidec_host_job* told, int64_t first_rank, int64_t num_ranks, const int32_t* objects, uint64_t* digests,
                                  int64_t* nanoseconds, char* message, int64_t message_bytes) {
  tidec_host_sizes sizes;
  if (tidec_host_size(told->program, told->calls, &sizes) != TIDEC_HOST_OK || told->deadline_ms < 1 || told->num_seeds < 1 || told->sum_ctas < 1 || num_ranks != 1) {
    tidec::tell(message, message_bytes, "there is no such program, a number is out of range, or a process has several ranks");
    return TIDEC_HOST_USAGE;
  }
  const tidec_program& p = *tidec_program_at(told->program);
  // With the default of eight, waits of one stream hold up others that share its hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const bool is_done = tidec::guarded<Failure>(message, message_bytes, [&] {
    if (first_rank < 0 || first_rank >= p.nodes * p.lanes) throw Failure{"there is no such rank"};
    Meeting meeting(*told, sizes, p, objects, first_rank);
    run_rank(*told, sizes, first_rank, meeting, digests, nanoseconds);
    meeting.over();
  });
  return is_done ? TIDEC_HOST_OK : TIDEC_HOST_STOPPED;
}

}  // extern "C"
