// The C interface of a bundle that is built for the nccl target, where a plan has one node: each rank is a process with a GPU of its own, and
// reaches the memory of the others by CUDA's handles.
//
// L lanes, j lane, e call. Every function gives TIDEC_NODE_OK, or says why not in `message`, after which the node must not be used any more but
// to close it. Calls of one node come from one thread. `stream`: a cudaStream_t of the caller.
//
//     all-gather        gather(e) enqueues all moves, after what `stream` holds; acquire(e) makes `stream` wait for the landing, after which the
//                       shard may be written again; release(e) says that what `stream` holds by then has read the landing. gather(e + 1) may come
//                       before acquire(e), gather(e + 2) only after release(e).
//     reduce-scatter    reduce(e) enqueues everything: it begins after what `stream` holds, which afterwards waits for the sums.
#pragma once

#include "tidec/host.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tidec_node tidec_node;

enum { TIDEC_NODE_OK = 0, TIDEC_NODE_FAILED = 1, TIDEC_NODE_HANDLE_BYTES = 64 };

// Opens a program of one node on the current device, as lane j. Null where it cannot.
TIDEC_API tidec_node* tidec_node_open(int64_t program, int64_t lane, int32_t sum_ctas, char* message, int64_t message_bytes);

// What the other ranks reach this one's memory by: TIDEC_NODE_HANDLE_BYTES.
TIDEC_API int32_t tidec_node_handle(tidec_node* node, void* handle, char* message, int64_t message_bytes);

// handles: of all L lanes, in order.
TIDEC_API int32_t tidec_node_connect(tidec_node* node, const void* handles, char* message, int64_t message_bytes);

TIDEC_API int32_t tidec_node_gather(tidec_node* node, int64_t call, const void* shard, void* stream, char* message, int64_t message_bytes);
TIDEC_API int32_t tidec_node_acquire(tidec_node* node, int64_t call, void* stream, const void** landing, char* message, int64_t message_bytes);
TIDEC_API int32_t tidec_node_release(tidec_node* node, int64_t call, void* stream, char* message, int64_t message_bytes);

// gradients: one a parameter of the group, null where it has none.  out: the packed fp32 row.
TIDEC_API int32_t tidec_node_reduce(tidec_node* node, int64_t call, const void* const* gradients, void* out, float alpha, int32_t accumulate, void* stream,
                                    char* message, int64_t message_bytes);

// Waits on the host until all that was enqueued is over; at the deadline says which wait is not.
TIDEC_API int32_t tidec_node_wait(tidec_node* node, int64_t deadline_ms, char* message, int64_t message_bytes);

// Nobody may use the node's memory any more. Null is fine.
TIDEC_API void tidec_node_close(tidec_node* node);

// Runs one rank of a job as tidec_host_run does, on the GPU of its number: all calls, for every seed once. `threads` and `scalar` mean nothing.
TIDEC_API int32_t tidec_node_run(const tidec_host_job* job, int64_t first_rank, int64_t num_ranks, const int32_t* objects, uint64_t* digests,
                                 int64_t* nanoseconds, char* message, int64_t message_bytes);

#ifdef __cplusplus
}
#endif
