// NCCL as this process has it: found at run time, so that nothing here is compiled or linked against it.
//
// What libnccl.so.2 the process has loaded is used (LD_PRELOAD, or torch's own); else the first one that the loader finds. Host RMA over several
// contexts and signal indices came with 2.31. The types below are those of its headers.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>
#include <cstdint>

namespace tidec::nccl {

inline constexpr int kMinVersion = 23100, kIdBytes = 128;
inline constexpr int kSuccess = 0, kUint8 = 1, kSymmetric = 1;
inline constexpr unsigned kMagic = 0xcafebeef;

struct UniqueId {
  char bytes[kIdBytes];
};

// ncclConfig_t of 2.31. A newer library takes what follows from its own defaults.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kMagic;
  unsigned version = kMinVersion;
  int blocking = 1;
  int cga_cluster_size = INT_MIN;
  int min_ctas = 1;
  int max_ctas = 1;
  const char* net_name = nullptr;
  int split_share = 0;
  int traffic_class = INT_MIN;
  const char* name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int channels_per_net_peer = INT_MIN;
  int nvlink_centric_sched = INT_MIN;
  int graph_usage_mode = INT_MIN;
  int num_rma_contexts = 0;
  int max_p2p_peers = INT_MIN;
  int graph_stream_ordering = INT_MIN;
  int launch_order_implicit = INT_MIN;
  int num_rma_signals = INT_MIN;
  int rma_eager_init = INT_MIN;
  int host_cft_mode = INT_MIN;
};
static_assert(sizeof(Config) == 112);

// ncclCommProperties_t of 2.31, and room behind it.
struct Properties {
  size_t size = sizeof(Properties);
  unsigned magic = kMagic;
  unsigned version = kMinVersion;
  int rank = 0;
  int ranks = 0;
  int cuda_device = 0;
  int nvml_device = 0;
  bool device_api = false;
  bool multimem = false;
  int gin_type = 0;
  int lsa_teams = 0;
  bool host_rma = false;
  int railed_gin_type = 0;
  char rest[256] = {};
};
static_assert(offsetof(Properties, host_rma) == 44);

struct Expected {
  int count;
  int peer;
  int index;
  int context;
};

using Communicator = void*;
using WindowHandle = void*;

// The functions, by the names that nccl.h gives them.
struct Library {
  int (*get_version)(int*);
  const char* (*get_error_string)(int);
  const char* (*get_last_error)(Communicator);
  int (*get_unique_id)(UniqueId*);
  int (*comm_init)(Communicator*, int ranks, UniqueId, int rank, Config*);
  int (*comm_destroy)(Communicator);
  int (*comm_properties)(Communicator, Properties*);
  int (*mem_alloc)(void**, size_t);
  int (*mem_free)(void*);
  int (*window_register)(Communicator, void*, size_t, WindowHandle*, int flags);
  int (*window_deregister)(Communicator, WindowHandle);
  int (*peer_pointer)(WindowHandle, size_t offset, int peer, void**);
  int (*put_signal)(const void*, size_t, int type, int peer, WindowHandle, size_t offset, int index, int context, unsigned flags, Communicator, cudaStream_t);
  int (*signal)(int peer, int index, int context, unsigned flags, Communicator, cudaStream_t);
  int (*wait_signal)(int num, Expected*, Communicator, cudaStream_t);
  int (*group_start)();
  int (*group_end)();
};

// Loads it once in a process. Throws Failure where there is none, or where it is too old.
const Library& library();

// Throws Failure with what NCCL says of an error.
void check(int result, const char* what);

}  // namespace tidec::nccl
