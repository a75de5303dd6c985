// A job on the nccl target, as tidec/host.h has it: a process a rank, each with a GPU of its own. tidec/node.h is the same under a live job.
#pragma once

#include "tidec/host.h"

#ifdef __cplusplus
extern "C" {
#endif

// Runs one rank of a job as tidec_host_run does, on the GPU of its number: all calls, for every seed once. `threads` and `scalar` mean nothing.
TIDEC_API int32_t tidec_node_run(const tidec_host_job* job, int64_t first_rank, int64_t num_ranks, const int32_t* objects, uint64_t* digests,
                                 int64_t* nanoseconds, char* message, int64_t message_bytes);

#ifdef __cplusplus
}
#endif
