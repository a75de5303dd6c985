// The reduce-scatter of "alone" on 1x4, p2p.
// Schedule tide_rs(W=4, chunks=1, k=4, multicast=False, n_out=full, n_part=1, n_stg=2, stripes=1); plan <digest>.
//
// One walk over all streams in position order, the order in which the host issues. The comment behind a line names the line of the schedule
// that it comes from, then the lines that called it. M nodes, L lanes, n node, j lane, e call.
#pragma once

#include <cstdint>

#include "tables.hpp"
#include "tidec/index.hpp"
#include "tidec/ops.hpp"

namespace tidec::plans::alone_rs {

inline constexpr int64_t M = 1;
inline constexpr int64_t L = 4;

inline constexpr Stream kPush{0, "push"};
inline constexpr Stream kSum{1, "sum"};
inline constexpr Stream kNet{2, "net"};

inline constexpr Flag kStaged{0, "staged", Scope::kLanes};
inline constexpr Flag kFreed{1, "freed", Scope::kLanes};
inline constexpr Flag kPushed{2, "pushed", Scope::kSelf};

template <class Runner>
void issue(Runner& runner, const Rank& rank, Call call) {
  [[maybe_unused]] const int64_t n = rank.node, j = rank.lane, e = call.number;
  Ops<Runner> ops(runner, kLayout);
  // p = 0                                                                                                           // schedules/tide_rs.py:98
  for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kPush, kFreed().by(n, o), e);                                 // schedules/tide_rs.py:74 from 98
  ops.begin_set(kPush);                                                                                              // schedules/tide_rs.py:75 from 98
  for (int64_t o = 0; o < L; ++o) if (o != j) ops.copy(kPush, kRows(0, o).at(n, j), kRowStage(0, j).at(n, o));       // schedules/tide_rs.py:75 from 98
  ops.end_set(kPush);                                                                                                // schedules/tide_rs.py:75 from 98
  ops.join(kPush);                                                                                                   // schedules/tide_rs.py:76 from 98
  for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kPush, kStaged().at(n, o), e + 1);                          // schedules/tide_rs.py:77 from 98
  for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kSum, kStaged().by(n, i), e + 1);                             // schedules/tide_rs.py:79 from 98
  ops.sum(kSum, kRowStage(0, kOthers).at(n, j), kRows(0, j).at(n, j), kResult(0).at(n, j), true);                    // schedules/tide_rs.py:80 from 98
  for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kSum, kFreed().at(n, i), e + 1);                            // schedules/tide_rs.py:81 from 98
  ops.signal(kPush, kPushed().at(n, j), e + 1);                                                                      // schedules/tide_rs.py:88 from 99
  ops.wait(kSum, kPushed().by(n, j), e + 1);                                                                         // schedules/tide_rs.py:90 from 99
  ops.free(kSum, kRows(kAll, kAll).at(n, j));                                                                        // schedules/tide_rs.py:91 from 99
}

}  // namespace tidec::plans::alone_rs
