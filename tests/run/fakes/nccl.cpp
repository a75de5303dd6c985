// An NCCL that is none, between threads of one process: communicators, windows, and host RMA as its documentation has it.
//
// All operations of a communicator are carried out in the order in which the host issues them, whatever their streams; a put is over for its stream
// before it has arrived, and what goes over two contexts or to two peers arrives in any order; waits take signals off in the order of the calls.
// What the documentation forbids ends the process with a word.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gpu.hpp"
#include "nccl/library.hpp"

using namespace tidec::nccl;

namespace {

struct Rail;

struct Registered {
  Rail* rail;
  char* base;
  size_t bytes;
  bool is_source;
};

// One rank of a communicator.
struct Rail {
  struct Team* team;
  int rank;
  Config config;
  std::vector<Registered*> windows;
  // What this rank expects of (source, context, index), and how many operations it has issued and carried out.
  std::map<std::tuple<int, int, int>, uint64_t> expected, arrived;
  uint64_t issued = 0, carried_out = 0;
  std::map<std::tuple<int, int>, fake::Queue*> wires;
};

struct Team {
  std::condition_variable_any all;
  std::vector<Rail*> rails;
  int num = 0;
  int entered = 0;
};

std::map<std::string, Team*> teams;
thread_local int depth = 0;
thread_local bool group_waits = false, group_sends = false;
// Puts of the group that is open, and the most that one had.
thread_local int group_puts = 0;
int most_puts = 0;

[[noreturn]] void wrong(const char* what) {
  std::fprintf(stderr, "NCCL is used wrongly: %s\n", what);
  std::fflush(stderr);
  _exit(70);
}

// Until all ranks of the team have come here.
void meet(Team& team, std::unique_lock<std::recursive_mutex>& lock) {
  const int round = team.entered++ / team.num;
  team.all.notify_all();
  team.all.wait(lock, [&] { return team.entered >= (round + 1) * team.num; });
}

void check_wire(const Rail& r, int peer, int index, int context, const char* what) {
  if (peer < 0 || peer >= r.team->num || peer == r.rank) wrong(what);
  if (context < 0 || context >= r.config.num_rma_contexts || index < 0 || index >= r.config.num_rma_signals) wrong(what);
}

// One operation of a communicator, in its order.
void enqueue(Rail& r, cudaStream_t stream, std::function<void()> run, std::function<bool()> can = {}) {
  const uint64_t turn = r.issued++;
  fake::push(stream, [&r, run] { run(), ++r.carried_out; }, [&r, turn, can] { return r.carried_out == turn && (!can || can()); });
}

void send(Rail& r, cudaStream_t stream, const void* from, size_t bytes, char* into, int peer, int index, int context) {
  fake::Queue*& wire = r.wires[{peer, context}];
  if (wire == nullptr) wire = fake::new_queue();
  Rail* const far = r.team->rails[static_cast<size_t>(peer)];
  enqueue(r, stream, [&r, from, bytes, into, far, index, context, wire] {
    const auto data = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    const int source = r.rank;
    wire->steps.push_back({{}, [data, into, far, source, index, context] {
      if (!data->empty()) std::memcpy(into, data->data(), data->size());
      ++far->arrived[{source, context, index}];
    }});
  });
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  const char* const told = std::getenv("FAKE_NCCL_VERSION");
  return *version = told != nullptr ? std::atoi(told) : kMinVersion, kSuccess;
}

const char* ncclGetErrorString(int) { return "invalid usage"; }
const char* ncclGetLastError(Communicator) { return ""; }

int ncclGetUniqueId(UniqueId* id) {
  static int next = 0;
  const std::lock_guard<std::recursive_mutex> lock(fake::mutex());
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, sizeof id->bytes, "team %d", next++);
  return kSuccess;
}

int ncclCommInitRankConfig(Communicator* made, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != kMagic || config->size != sizeof(Config)) wrong("a configuration of another size");
  if (config->blocking != 1 || config->split_share != 0 || config->min_ctas != 1 || config->max_ctas != 1) wrong("a configuration that tidec does not make");
  std::unique_lock<std::recursive_mutex> lock(fake::mutex());
  Team*& team = teams[id.bytes];
  if (id.bytes[0] == 0) wrong("an id that nobody made");
  if (team == nullptr) team = new Team, team->num = ranks, team->rails.resize(static_cast<size_t>(ranks), nullptr);
  if (team->num != ranks || team->rails[static_cast<size_t>(rank)] != nullptr) wrong("ranks of a communicator");
  Rail* const rail = new Rail{team, rank, *config, {}, {}, {}, 0, 0, {}};
  team->rails[static_cast<size_t>(rank)] = rail;
  meet(*team, lock);
  for (const Rail* other : team->rails) {
    if (other->config.num_rma_contexts != config->num_rma_contexts || other->config.num_rma_signals != config->num_rma_signals) wrong("ranks with different configurations");
  }
  *made = rail;
  return kSuccess;
}

int ncclCommDestroy(Communicator) { return kSuccess; }

int ncclCommQueryProperties(Communicator comm, Properties* properties) {
  if (properties->magic != kMagic || properties->version > static_cast<unsigned>(kMinVersion)) wrong("properties of another version");
  properties->host_rma = static_cast<Rail*>(comm)->config.num_rma_contexts > 0 && std::getenv("FAKE_NO_RMA") == nullptr;
  return kSuccess;
}

int ncclMemAlloc(void** into, size_t bytes) { return *into = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), kSuccess; }
int ncclMemFree(void* at) { return std::free(at), kSuccess; }

int ncclCommWindowRegister(Communicator comm, void* base, size_t bytes, WindowHandle* window, int flags) {
  std::unique_lock<std::recursive_mutex> lock(fake::mutex());
  Rail& r = *static_cast<Rail*>(comm);
  if (reinterpret_cast<uintptr_t>(base) % 4096 != 0) wrong("a window that is not aligned");
  r.windows.push_back(new Registered{&r, static_cast<char*>(base), bytes, flags == kSymmetric});
  *window = r.windows.back();
  meet(*r.team, lock);
  return kSuccess;
}

int ncclCommWindowDeregister(Communicator, WindowHandle) { return kSuccess; }

int ncclGetPeerDevicePointer(WindowHandle window, size_t offset, int peer, void** found) {
  return *found = static_cast<Registered*>(window)->rail->team->rails[static_cast<size_t>(peer)]->windows[0]->base + offset, kSuccess;
}

int ncclPutSignal(const void* from, size_t bytes, int type, int peer, WindowHandle window, size_t offset, int index, int context, unsigned flags, Communicator comm, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(fake::mutex());
  Rail& r = *static_cast<Rail*>(comm);
  check_wire(r, peer, index, context, "a put to no such peer, context or index");
  if (type != kUint8 || flags != 0 || bytes == 0 || static_cast<Registered*>(window)->rail != &r) wrong("a put's arguments");
  const Registered& own = *r.windows[0];
  const Registered& far = *r.team->rails[static_cast<size_t>(peer)]->windows[0];
  const char* const source = static_cast<const char*>(from);
  if (!own.is_source || source < own.base || source + bytes > own.base + own.bytes) wrong("a put from memory that is not registered");
  if (offset + bytes > far.bytes) wrong("a put past the end of the peer's window");
  group_sends = depth > 0;
  most_puts = std::max(most_puts, ++group_puts);
  if (depth == 0) group_puts = 0;
  send(r, stream, from, bytes, far.base + offset, peer, index, context);
  return kSuccess;
}

int ncclSignal(int peer, int index, int context, unsigned flags, Communicator comm, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(fake::mutex());
  Rail& r = *static_cast<Rail*>(comm);
  check_wire(r, peer, index, context, "a signal to no such peer, context or index");
  if (flags != 0) wrong("a signal's flags");
  group_sends = depth > 0;
  send(r, stream, nullptr, 0, nullptr, peer, index, context);
  return kSuccess;
}

int ncclWaitSignal(int num, Expected* told, Communicator comm, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(fake::mutex());
  Rail& r = *static_cast<Rail*>(comm);
  if (num < 1) wrong("a wait for nothing");
  group_waits = depth > 0;
  for (int i = 0; i < num; ++i) {
    check_wire(r, told[i].peer, told[i].index, told[i].context, "a wait for no such peer, context or index");
    if (told[i].count < 1) wrong("a wait for no signal");
    const std::tuple<int, int, int> wire{told[i].peer, told[i].context, told[i].index};
    const uint64_t until = r.expected[wire] += static_cast<uint64_t>(told[i].count);
    enqueue(r, stream, [] {}, [&r, wire, until] { return r.arrived[wire] >= until; });
  }
  return kSuccess;
}

int ncclGroupStart() { return ++depth, kSuccess; }

int ncclGroupEnd() {
  if (--depth < 0) wrong("a group that did not begin");
  if (group_waits && group_sends) wrong("a group of waits and puts");
  if (depth == 0) group_waits = group_sends = false, group_puts = 0;
  return kSuccess;
}

int fake_most_puts() {
  const std::lock_guard<std::recursive_mutex> lock(fake::mutex());
  return most_puts;
}

}  // extern "C"
