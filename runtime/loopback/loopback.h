// The C interface of a bundle that is built for the loopback target: all ranks of a plan as virtual ranks of one GPU.
//
// A job, its objects and its results are those of the host target (tidec/host.h), so that one caller serves both. The objects lie in host memory:
// what the calls are given is copied to the GPU before the first call, and what they gave is copied back after the last one.
#pragma once

#include "tidec/host.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether this machine has a GPU that the library runs on: 1, or 0 and why not in `message`.
TIDEC_API int32_t tidec_loopback_has_device(char* message, int64_t message_bytes);

// Runs a whole job. Of it, `threads` and `scalar` mean nothing here. objects: N file descriptors.
// The rest as in tidec_host_run, for all ranks; nanoseconds: of the GPU, from the first call to the last.
TIDEC_API int32_t tidec_loopback_run(const tidec_host_job* job, const int32_t* objects, uint64_t* digests, int64_t* nanoseconds, char* message,
                                     int64_t message_bytes);

#ifdef __cplusplus
}
#endif
