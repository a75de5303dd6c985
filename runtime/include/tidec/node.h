// The C interface of a rank under a live job: one program, whose calls come one by one on memory of the caller's. The host and the nccl target have
// it alike; Python drives either by tidec_rt.
//
// M nodes, L lanes, N = M*L ranks, r rank, e call; r = n*L + j. Every function gives TIDEC_NODE_OK, or says why not in `message`. Calls of a node come
// one at a time and are numbered from 0 without gaps. One that is out of order, or names memory that it must not, is refused and changes nothing; after
// any other failure every call fails with the same reason, and there is only close.
//
//     all-gather        gather(e) begins to move. acquire(e): the landing is there, and the shard may be written again. release(e): the landing has
//                       been read. gather(e + 1) may come before acquire(e), acquire(e + 1) before release(e), gather(e + 2) only after release(e).
//     reduce-scatter    reduce(e): afterwards the sums are there, and gradients may be freed.
//
//            host                                                        nccl, where a rank has a GPU
//     stream  null                                                        a cudaStream_t: what "afterwards" and "may" are about
//     gather  does what needs no waiting                                  enqueues all moves, on `stream` or after what it holds
//     acquire carries out the rest of call e, but what follows its read   makes `stream` wait for the landing
//     release tells who waits for it                                      the same, once `stream` has carried out what it holds
//     reduce  carries out the call                                        enqueues it after what `stream` holds, which then waits for the sums
//     counts  what was carried out                                        what was enqueued
//     ask                                                                 is not there
//     connect waits for nobody                                            of a plan of several nodes: for the ranks of the node and of the rail
//     deadline_ms of open: how long a rank waits and does not move        how long connect waits; else only wait() waits
#pragma once

#include "tidec/module.hpp"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tidec_node tidec_node;

enum { TIDEC_NODE_OK = 0, TIDEC_NODE_FAILED = 1, TIDEC_NODE_HANDLE_BYTES = 256 };

// Opens a program as rank r; nccl: on the current device. sum_ctas: of every sum, means nothing on the host. Null where it cannot.
TIDEC_API tidec_node* tidec_node_open(int64_t program, int64_t rank, int32_t sum_ctas, int64_t deadline_ms, char* message, int64_t message_bytes);

// What the other ranks reach this one's memory by: TIDEC_NODE_HANDLE_BYTES.
TIDEC_API int32_t tidec_node_handle(tidec_node* node, void* handle, char* message, int64_t message_bytes);

// handles: of all N ranks, in order. Once, before the first call. A handle may be used until its rank is closed, or until all ranks are connected.
TIDEC_API int32_t tidec_node_connect(tidec_node* node, const void* handles, char* message, int64_t message_bytes);

// This rank's temporary memory, landings among it.
TIDEC_API int32_t tidec_node_arena(tidec_node* node, void** arena, int64_t* bytes, char* message, int64_t message_bytes);

TIDEC_API int32_t tidec_node_gather(tidec_node* node, int64_t call, const void* shard, void* stream, char* message, int64_t message_bytes);
TIDEC_API int32_t tidec_node_acquire(tidec_node* node, int64_t call, void* stream, const void** landing, char* message, int64_t message_bytes);
TIDEC_API int32_t tidec_node_release(tidec_node* node, int64_t call, void* stream, char* message, int64_t message_bytes);

// gradients: one a parameter of the group, null where the plan has none for it.  out: the packed fp32 row, which is added to where `accumulate` is set.
TIDEC_API int32_t tidec_node_reduce(tidec_node* node, int64_t call, const void* const* gradients, int64_t num_gradients, void* out, float alpha,
                                    int32_t accumulate, void* stream, char* message, int64_t message_bytes);

// Waits until all that was begun is over, but what follows a read; at the deadline says which wait is not.
TIDEC_API int32_t tidec_node_wait(tidec_node* node, int64_t deadline_ms, char* message, int64_t message_bytes);

// Who is asked, every 20 ms or so and on the thread that waits, whether a call shall go on waiting: where it gives 0 the node stops, and all ranks with it.
// Null = nobody.
typedef int32_t (*tidec_node_goes_on)(void* context);
TIDEC_API int32_t tidec_node_ask(tidec_node* node, tidec_node_goes_on goes_on, void* context, char* message, int64_t message_bytes);

// What this rank carried out (nccl: enqueued) of a call that is over (released, or reduced), of the last 8: how many ops of each kind, then how many bytes
// each kind read, or of zeros wrote. Of an all-gather a call has what its walk holds but the reading stream, and the reading stream of the walk after.
enum {
  TIDEC_NODE_WAITS, TIDEC_NODE_SIGNALS, TIDEC_NODE_COPIES, TIDEC_NODE_PUTS, TIDEC_NODE_CASTS, TIDEC_NODE_ZEROS, TIDEC_NODE_SUMS, TIDEC_NODE_LANDINGS,
  TIDEC_NODE_KINDS
};
TIDEC_API int32_t tidec_node_counts(tidec_node* node, int64_t call, int64_t* counts, char* message, int64_t message_bytes);

// Nobody may use the node's memory any more. Peers that still wait for this rank stop. Null is fine.
TIDEC_API void tidec_node_close(tidec_node* node);

#ifdef __cplusplus
}
#endif
