// The C interface of a bundle that is built for the host target: plans run between processes of one machine, or between threads of one.
//
// M nodes, L lanes, N = M*L ranks, r rank, e call. A job runs calls 0 .. calls-1 of one program, once a seed. Every rank has one object of
// shared memory (memfd_create, or shm_open and shm_unlink), which starts as zeros and which every process maps. Whoever starts the job
// writes what the calls are given into the objects, and reads there what they gave:
//
//     inputs    all-gather: the resident shard.  reduce-scatter: every gradient, parameter p's at tidec_host_input_at
//     before    what outputs start from: of a caller that accumulates; else any pattern
//     outputs   all-gather: the landing.  reduce-scatter: the packed fp32 row
#pragma once

#include "tidec/module.hpp"

#ifdef __cplusplus
extern "C" {
#endif

// Where everything lies in an object, in bytes. Call e's input, before and output begin e times their size after the first ones.
typedef struct {
  int64_t object_bytes;
  int64_t cells_at;
  int64_t num_cells;
  int64_t arena_at;
  int64_t arena_bytes;
  int64_t inputs_at;
  int64_t input_bytes;
  int64_t before_at;
  int64_t outputs_at;
  int64_t output_bytes;
} tidec_host_sizes;

typedef struct {
  int64_t offset;
  int64_t bytes;
} tidec_host_range;

// deadline_ms: of every wait.
// threads: 0 = one thread a process, which draws from the seed which stream of which of its ranks goes on; 1 = one thread a stream, and one a wire.
// scalar: sums and casts one value at a time.  poison: arena, outputs and freed inputs hold NaN, but for the zero ranges of the arena.
// unread: landings are not copied to the outputs of an all-gather.
// sum_ctas, land_ctas: CTAs of one launch on a GPU; they mean nothing on the host.
typedef struct {
  int64_t program;
  int64_t calls;
  int64_t first_seed;
  int64_t num_seeds;
  int64_t deadline_ms;
  float alpha;
  int32_t accumulate;
  int32_t threads;
  int32_t scalar;
  int32_t poison;
  int32_t unread;
  int32_t sum_ctas;
  int32_t land_ctas;
  int64_t num_zero;
  const tidec_host_range* zero;
} tidec_host_job;

enum { TIDEC_HOST_OK = 0, TIDEC_HOST_STOPPED = 1, TIDEC_HOST_USAGE = 2 };

// The sizes of an object; TIDEC_HOST_USAGE where there is no such program, or a number is out of range, TIDEC_HOST_STOPPED where memory is missing to tell.
TIDEC_API int32_t tidec_host_size(int64_t program, int64_t calls, tidec_host_sizes* sizes);

// Where parameter p's gradient begins in an input; -1 where it has none.
TIDEC_API int64_t tidec_host_input_at(int64_t program, int64_t param);

// Runs the ranks first_rank .. first_rank + num_ranks-1 of a job in this process; every rank of the job runs in exactly one process.
// objects: N file descriptors.  digests, nanoseconds: one a seed: of everything that these ranks gave, and from the common start to their end.
// message: where the job stops: why, as text.  Nothing that is waited for is waited for longer than the deadline.
TIDEC_API int32_t tidec_host_run(const tidec_host_job* job, int64_t first_rank, int64_t num_ranks, const int32_t* objects, uint64_t* digests,
                                 int64_t* nanoseconds, char* message, int64_t message_bytes);

#ifdef __cplusplus
}
#endif
