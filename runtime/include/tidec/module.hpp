// The C interface of a built bundle: its programs, and one call to issue one of them.
#pragma once

#include <stdint.h>

// What a library shows; everything else in it is hidden.
#define TIDEC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// A line of an emitted walk and the line of the schedule that it comes from, as in "schedules/tide_ag.py:37".
typedef struct {
  int32_t line;
  const char* schedule;
} tidec_spot;

// header: the emitted file of its walk.  landings: calls of an all-gather whose parameters may be there at a time, 0 in a reduce-scatter.
// arena_bytes: of a rank's temporary memory.  layout: a tidec::Layout.  spots: by line.
typedef struct {
  const char* name;
  const char* plan_digest;
  int64_t nodes;
  int64_t lanes;
  const char* header;
  int64_t is_reduction;
  int64_t landings;
  int64_t arena_bytes;
  const void* layout;
  int64_t num_spots;
  const tidec_spot* spots;
} tidec_program;

TIDEC_API int64_t tidec_num_programs(void);

// 0 <= program < tidec_num_programs().
TIDEC_API const tidec_program* tidec_program_at(int64_t program);

// Issues a whole call of a program on rank (node, lane), in position order. runner: the tidec::Target that the module was compiled for.
TIDEC_API void tidec_issue(void* runner, int64_t program, int64_t node, int64_t lane, int64_t call);

#ifdef __cplusplus
}
#endif
