#include "nccl/window.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/check.hpp"
#include "cuda/words.hpp"
#include "tidec/guard.hpp"

namespace tidec::nccl {

namespace {

using cuda::Failure;

// How long NCCL may take to give back what nobody uses any more.
constexpr int64_t kDestroyMs = 10000;

// Work on a thread of its own, which keeps what it uses. Returns whether it ended by the deadline; throws what it threw.
template <class Do>
bool ends(int64_t deadline_ms, Do work) {
  struct State {
    std::mutex mutex;
    std::condition_variable over;
    bool is_over = false, has_failed = false;
    char why[kReasonBytes] = "";
  };
  const auto state = std::make_shared<State>();
  std::thread([state, work] {
    const bool is_done = guarded<Failure>(state->why, kReasonBytes, work);
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->is_over = true;
    state->has_failed = !is_done;
    state->over.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(state->mutex);
  if (!state->over.wait_for(lock, std::chrono::milliseconds(deadline_ms), [&] { return state->is_over; })) return false;
  if (state->has_failed) throw Failure{state->why};
  return true;
}

}  // namespace

Window::Window(const tidec_program& program, const Rank& rank, int64_t bytes)
    : program_(program), rank_(rank), bytes_(bytes), lanes_(static_cast<size_t>(program.lanes), nullptr) {
  cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
  void* base = nullptr;
  check(library().mem_alloc(&base, static_cast<size_t>(bytes)), "ncclMemAlloc");
  base_ = static_cast<char*>(base);
  lanes_[static_cast<size_t>(rank.lane)] = base_;
  cuda::check(cudaMemset(base_, 0, static_cast<size_t>(bytes)), "cudaMemset");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Window::~Window() {
  if (is_abandoned_) return;
  const auto give_back = [device = device_, base = base_, node = node_, rail = rail_, on_node = on_node_, on_rail = on_rail_] {
    const Library& nccl = library();
    cudaSetDevice(device);
    if (on_rail != nullptr) nccl.window_deregister(rail, on_rail);
    if (on_node != nullptr) nccl.window_deregister(node, on_node);
    if (rail != nullptr) nccl.comm_destroy(rail);
    if (node != nullptr) nccl.comm_destroy(node);
    nccl.mem_free(base);
  };
  ends(kDestroyMs, give_back);
}

void Window::handle(void* bytes) const {
  // NOTE: an id has a thread that waits for its ranks: only the first rank of a communicator makes one.
  UniqueId ids[2];
  std::memset(ids, 0, sizeof ids);
  if (rank_.lane == 0 && program_.lanes > 1) check(library().get_unique_id(&ids[0]), "ncclGetUniqueId");
  if (rank_.node == 0) check(library().get_unique_id(&ids[1]), "ncclGetUniqueId");
  std::memcpy(bytes, ids, sizeof ids);
}

void Window::connect(const std::shared_ptr<Window>& window, const void* handles, int64_t stride, int contexts, int indices, int64_t deadline_ms) {
  const Rank& rank = window->rank_;
  const char* const all = static_cast<const char*>(handles);
  UniqueId node, rail;
  std::memcpy(&node, all + rank.node * window->program_.lanes * stride, sizeof node);
  std::memcpy(&rail, all + rank.lane * stride + kIdBytes, sizeof rail);
  if (ends(deadline_ms, [window, node, rail, contexts, indices] { window->make(node, rail, contexts, indices); })) return;
  window->abandon();
  throw Failure{"rank " + cuda::rank_text(window->program_, rank.node * window->program_.lanes + rank.lane) + " waits for other ranks in " +
                std::string(window->step_) + "\n  waited " + std::to_string(deadline_ms) + " ms"};
}

void Window::make(const UniqueId& node, const UniqueId& rail, int contexts, int indices) {
  const Library& nccl = library();
  cuda::check(cudaSetDevice(device_), "cudaSetDevice");
  if (program_.lanes > 1) {
    Config config;
    config.name = "tidec.node";
    step_ = "ncclCommInitRankConfig of its node";
    check(nccl.comm_init(&node_, static_cast<int>(program_.lanes), node, static_cast<int>(rank_.lane), &config), step_);
    step_ = "ncclCommWindowRegister of its node";
    check(nccl.window_register(node_, base_, static_cast<size_t>(bytes_), &on_node_, kSymmetric), step_);
    if (on_node_ == nullptr) throw Failure{"NCCL has no symmetric memory between the GPUs of this node"};
    for (int64_t i = 0; i < program_.lanes; ++i) {
      if (i == rank_.lane) continue;
      void* found = nullptr;
      check(nccl.peer_pointer(on_node_, 0, static_cast<int>(i), &found), "ncclGetPeerDevicePointer");
      if (found == nullptr) throw Failure{"NCCL gives no address for the memory of lane " + std::to_string(i)};
      lanes_[static_cast<size_t>(i)] = static_cast<char*>(found);
    }
  }
  Config config;
  config.name = "tidec.rail";
  config.num_rma_contexts = contexts;
  config.num_rma_signals = indices;
  step_ = "ncclCommInitRankConfig of its rail";
  check(nccl.comm_init(&rail_, static_cast<int>(program_.nodes), rail, static_cast<int>(rank_.node), &config), step_);
  Properties properties;
  check(nccl.comm_properties(rail_, &properties), "ncclCommQueryProperties");
  if (!properties.host_rma) {
    throw Failure{"NCCL has no host RMA on the rail of lane " + std::to_string(rank_.lane) +
                  ": its ranks need peer access to each other's GPUs, or a network with RMA; NCCL_RMA_DISABLE, NCCL_CUMEM_ENABLE and NCCL_WIN_ENABLE may forbid it"};
  }
  step_ = "ncclCommWindowRegister of its rail";
  check(nccl.window_register(rail_, base_, static_cast<size_t>(bytes_), &on_rail_, kSymmetric), step_);
  if (on_rail_ == nullptr) throw Failure{"NCCL has no symmetric memory on the rail of lane " + std::to_string(rank_.lane)};
}

}  // namespace tidec::nccl
