// The reduce-scatter of "block" on 9x4, p2p.
// Schedule tide_rs(W=2, chunks=1, k=1, multicast=False, n_out=3, n_part=2, n_stg=2, stripes=1); plan <digest>.
//
// One walk over all streams in position order, the order in which the host issues. The comment behind a line names the line of the schedule
// that it comes from, then the lines that called it. M nodes, L lanes, n node, j lane, e call.
#pragma once

#include <cstdint>

#include "tables.hpp"
#include "tidec/index.hpp"
#include "tidec/ops.hpp"

namespace tidec::plans::block_rs {

inline constexpr int64_t M = 9;
inline constexpr int64_t L = 4;

inline constexpr Stream kRead{0, "read"};
inline constexpr Stream kNet{1, "net"};

inline constexpr Flag kStaged{0, "staged", Scope::kLanes};
inline constexpr Flag kFreed{1, "freed", Scope::kLanes};
inline constexpr Flag kSummed{2, "summed", Scope::kSelf};
inline constexpr Flag kSent{3, "sent", Scope::kSelf};
inline constexpr Flag kOwned{4, "owned", Scope::kSelf};
inline constexpr Flag kPlaced{5, "placed", Scope::kSelf};
inline constexpr Flag kArrived{6, "arrived", Scope::kRail};
inline constexpr Flag kCredit{7, "credit", Scope::kRail};
inline constexpr Flag kReady{8, "ready", Scope::kNode};
inline constexpr Flag kLanded{9, "landed", Scope::kNode};

template <class Runner>
void issue(Runner& runner, const Rank& rank, Call call) {
  [[maybe_unused]] const int64_t n = rank.node, j = rank.lane, e = call.number;
  Ops<Runner> ops(runner, kLayout);
  const int64_t bank = e % 2;                                                                                        // schedules/tide_rs.py:95
  for (int64_t J = 0; J < 3; ++J) {                                                                                  // schedules/tide_rs.py:95
    const int64_t sent_J = 2 * M - (2 * M - J - 3) % 3 - 3;                                                          // schedules/tide_rs.py:82 from 96
    ops.wait(kRead, kSent(sent_J).by(n, j), e - 1);                                                                  // schedules/tide_rs.py:82 from 96
    const int64_t freed_call = J >= 2 ? e : e - 1;                                                                   // schedules/tide_rs.py:72 from 97, 80
    const int64_t freed_U = J >= 2 ? J - 2 : 2 * M - (3 - J) % 2 - 1;                                                // schedules/tide_rs.py:72 from 97, 80
    const int64_t level = freed_call * (2 * M) + freed_U + 1;                                                        // schedules/tide_rs.py:72 from 97, 80
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kRead, kFreed().by(n, o), level);                           // schedules/tide_rs.py:72 from 97, 80
    const int64_t node = wrap(n + J + 1, M);                                                                         // schedules/tide_rs.py:73 from 97, 80
    const int64_t slot = J % 2;                                                                                      // schedules/tide_rs.py:73 from 97, 80
    ops.begin_set(kRead);                                                                                            // schedules/tide_rs.py:73 from 97, 80
    for (int64_t o = 0; o < L; ++o) {                                                                                // schedules/tide_rs.py:73 from 97, 80
      if (o != j) ops.copy(kRead, kGrad(0, node, (o + J + 1) % 4).at(n, j), kStage(slot, j).at(n, o));               // schedules/tide_rs.py:73 from 97, 80
    }
    ops.end_set(kRead);                                                                                              // schedules/tide_rs.py:73 from 97, 80
    ops.join(kRead);                                                                                                 // schedules/tide_rs.py:74 from 97, 80
    const int64_t staged_level = e * (2 * M) + J + 1;                                                                // schedules/tide_rs.py:75 from 97, 80
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kRead, kStaged().at(n, o), staged_level);                 // schedules/tide_rs.py:75 from 97, 80
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kRead, kStaged().by(n, i), staged_level);                   // schedules/tide_rs.py:76 from 97, 80
    ops.sum(kRead, kStage(slot, kOthers).at(n, j), kGrad(0, node, (j + J + 1) % 4).at(n, j),                         // schedules/tide_rs.py:77 from 97, 80
            kOutbox(bank, J).at(n, j), false);                                                                       // schedules/tide_rs.py:77 from 97, 80
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kRead, kFreed().at(n, i), staged_level);                  // schedules/tide_rs.py:78 from 97, 80
    ops.signal(kRead, kSummed().at(n, j), e * (2 * M - 2) + J + 1);                                                  // schedules/tide_rs.py:98
  }
  for (int64_t p = 0; p < 2; ++p) {                                                                                  // schedules/tide_rs.py:99
    ops.wait(kRead, kPlaced().by(n, j), 2 * e + p - 3);                                                              // schedules/tide_rs.py:100
    const int64_t level = e * (2 * M) + p + 2;                                                                       // schedules/tide_rs.py:72 from 101, 80
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kRead, kFreed().by(n, o), level);                           // schedules/tide_rs.py:72 from 101, 80
    const int64_t slot = (p + 1) % 2;                                                                                // schedules/tide_rs.py:73 from 101, 80
    ops.begin_set(kRead);                                                                                            // schedules/tide_rs.py:73 from 101, 80
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.copy(kRead, kGrad(p, n, o).at(n, j), kStage(slot, j).at(n, o));  // schedules/tide_rs.py:73 from 101, 80
    ops.end_set(kRead);                                                                                              // schedules/tide_rs.py:73 from 101, 80
    ops.join(kRead);                                                                                                 // schedules/tide_rs.py:74 from 101, 80
    const int64_t staged_level = e * (2 * M) + p + 4;                                                                // schedules/tide_rs.py:75 from 101, 80
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kRead, kStaged().at(n, o), staged_level);                 // schedules/tide_rs.py:75 from 101, 80
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kRead, kStaged().by(n, i), staged_level);                   // schedules/tide_rs.py:76 from 101, 80
    ops.sum(kRead, kStage(slot, kOthers).at(n, j), kGrad(p, n, j).at(n, j), kSpare(bank, p).at(n, j), false);        // schedules/tide_rs.py:77 from 101, 80
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kRead, kFreed().at(n, i), staged_level);                  // schedules/tide_rs.py:78 from 101, 80
    ops.signal(kRead, kOwned().at(n, j), 2 * e + p + 1);                                                             // schedules/tide_rs.py:102
  }
  for (int64_t p = 0; p < 2; ++p) {                                                                                  // schedules/tide_rs.py:105
    const int64_t p_1 = p == 1 ? M - 1 : 0;                                                                          // schedules/tide_rs.py:106
    const int64_t level = 2 * e + p + 1;                                                                             // schedules/tide_rs.py:106
    for (int64_t w = 0; w < 5; ++w) {                                                                                // schedules/tide_rs.py:106
      const int64_t w_1 = least(2 * w + 2, M - 1);                                                                   // schedules/tide_rs.py:109
      const int64_t credit_call = w >= 2 ? e : p > 0 ? e : e - 1;                                                    // schedules/tide_rs.py:109
      const int64_t credit_p = w >= 2 ? p : p > 0 ? p - 1 : 1;                                                       // schedules/tide_rs.py:109
      const int64_t credit_level = 2 * credit_call + credit_p + 1;                                                   // schedules/tide_rs.py:109
      const int64_t gen = w % 2;                                                                                     // schedules/tide_rs.py:109
      for (int64_t r = 0; r < w_1 - 2 * w; ++r) {                                                                    // schedules/tide_rs.py:109
        const int64_t c_begin = 2 * w + r + 1;                                                                       // schedules/tide_rs.py:112
        const int64_t c_end = least(2 * w + r + 2, w_1 + 1);                                                         // schedules/tide_rs.py:112
        for (int64_t c = c_begin; c < c_end; ++c) {                                                                  // schedules/tide_rs.py:112
          ops.wait(kNet, kSummed().by(n, j), e * (2 * M - 2) + p_1 + c);                                             // schedules/tide_rs.py:114
          const int64_t peer = wrap(n + c, M);                                                                       // schedules/tide_rs.py:115
          ops.wait(kNet, kCredit(c).by(peer, j), credit_level);                                                      // schedules/tide_rs.py:115
          const int64_t summed_J = p_1 + c - 1;                                                                      // schedules/tide_rs.py:118
          ops.put(kNet, kOutbox(bank, summed_J % 3).at(n, j), kInbox(gen, (j + c) % 4).at(peer, j),                  // schedules/tide_rs.py:118
                  kArrived(c).at(peer, j), level, kSent(summed_J).at(n, j), e + 1);                                  // schedules/tide_rs.py:118
        }
        for (int64_t c = c_begin; c < c_end; ++c) ops.wait(kNet, kArrived(c).by(back(n - c, M), j), level);          // schedules/tide_rs.py:121
        for (int64_t J = p_1 + 2 * w + r + 3; J < least(p_1 + c_end + 2, 2 * M - 2); ++J) {                          // schedules/tide_rs.py:124
          ops.wait(kRead, kSent(J - 3).by(n, j), e + 1);                                                             // schedules/tide_rs.py:82 from 125
          const int64_t freed_level = e * (2 * M) + J + 1;                                                           // schedules/tide_rs.py:72 from 126, 80
          for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kRead, kFreed().by(n, o), freed_level);               // schedules/tide_rs.py:72 from 126, 80
          const int64_t part = J >= M - 1 ? 1 : 0;                                                                   // schedules/tide_rs.py:73 from 126, 80
          const int64_t J_1 = J >= M - 1 ? M - 1 : 0;                                                                // schedules/tide_rs.py:73 from 126, 80
          const int64_t node = wrap(n + J - J_1 + 1, M);                                                             // schedules/tide_rs.py:73 from 126, 80
          const int64_t slot = J % 2;                                                                                // schedules/tide_rs.py:73 from 126, 80
          ops.begin_set(kRead);                                                                                      // schedules/tide_rs.py:73 from 126, 80
          for (int64_t o = 0; o < L; ++o) {                                                                          // schedules/tide_rs.py:73 from 126, 80
            if (o != j) {                                                                                            // schedules/tide_rs.py:73 from 126, 80
              ops.copy(kRead, kGrad(part, node, (o + J - J_1 + 1) % 4).at(n, j), kStage(slot, j).at(n, o));          // schedules/tide_rs.py:73 from 126, 80
            }
          }
          ops.end_set(kRead);                                                                                        // schedules/tide_rs.py:73 from 126, 80
          ops.join(kRead);                                                                                           // schedules/tide_rs.py:74 from 126, 80
          const int64_t staged_level = e * (2 * M) + J + 3;                                                          // schedules/tide_rs.py:75 from 126, 80
          for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kRead, kStaged().at(n, o), staged_level);           // schedules/tide_rs.py:75 from 126, 80
          for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kRead, kStaged().by(n, i), staged_level);             // schedules/tide_rs.py:76 from 126, 80
          ops.sum(kRead, kStage(slot, kOthers).at(n, j), kGrad(part, node, (j + J - J_1 + 1) % 4).at(n, j),          // schedules/tide_rs.py:77 from 126, 80
                  kOutbox(bank, J % 3).at(n, j), false);                                                             // schedules/tide_rs.py:77 from 126, 80
          for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kRead, kFreed().at(n, i), staged_level);            // schedules/tide_rs.py:78 from 126, 80
          ops.signal(kRead, kSummed().at(n, j), e * (2 * M - 2) + J + 1);                                            // schedules/tide_rs.py:127
        }
      }
      if (w == 4) {                                                                                                  // schedules/tide_rs.py:129
        ops.wait(kNet, kOwned().by(n, j), level);                                                                    // schedules/tide_rs.py:130
        ops.copy(kNet, kSpare(bank, p).at(n, j), kInbox(gen, j).at(n, j));                                           // schedules/tide_rs.py:131
        ops.signal(kNet, kPlaced().at(n, j), level);                                                                 // schedules/tide_rs.py:132
      }
      const int64_t w_2 = w >= 2 ? w - 2 : (4 - w) % 2 == 0 ? 4 : 3;                                                 // schedules/tide_rs.py:134
      ops.begin_set(kNet);                                                                                           // schedules/tide_rs.py:134
      for (int64_t d = 0; d < L; ++d) {                                                                              // schedules/tide_rs.py:134
        const int64_t w_4 = 2 * w_2 + (d - 2 * w_2 + 11) % 4 + 1;                                                    // schedules/tide_rs.py:135
        const int64_t w_5 = 2 * w + (d - 2 * w + 11) % 4 + 1;                                                        // schedules/tide_rs.py:135
        if (((w_2 == 4 && d == 0) || (w_4 < 2 * w_2 + 3 && w_4 < M)) && !((w == 4 && d == 0) || (w_5 < 2 * w + 3 && w_5 < M))) { // schedules/tide_rs.py:135
          ops.zero(kNet, kInbox(gen, (j + d) % 4).at(n, j));                                                         // schedules/tide_rs.py:135
        }
      }
      ops.end_set(kNet);                                                                                             // schedules/tide_rs.py:134
      ops.join(kNet);                                                                                                // schedules/tide_rs.py:136
      const int64_t ready_level = 10 * e + 5 * p + w + 1;                                                            // schedules/tide_rs.py:137
      for (int64_t i = 0; i < L; ++i) ops.signal(kNet, kReady().at(n, i), ready_level);                              // schedules/tide_rs.py:137
      for (int64_t i = 0; i < L; ++i) ops.wait(kNet, kReady().by(n, i), ready_level);                                // schedules/tide_rs.py:137
      ops.land(kNet, kInbox(gen, kAll).at(n, kAll), kOut(p, kAll).at(n, j), w == 0);                                 // schedules/tide_rs.py:138
      for (int64_t i = 0; i < L; ++i) ops.signal(kNet, kLanded().at(n, i), ready_level);                             // schedules/tide_rs.py:139
      for (int64_t i = 0; i < L; ++i) ops.wait(kNet, kLanded().by(n, i), ready_level);                               // schedules/tide_rs.py:139
      const int64_t w_3 = w + 2 < 5 ? w + 2 : gen;                                                                   // schedules/tide_rs.py:141
      for (int64_t c = 2 * w_3 + 1; c < least(2 * w_3 + 2, M - 1) + 1; ++c) {                                        // schedules/tide_rs.py:141
        ops.signal(kNet, kCredit(c).at(back(n - c, M), j), level);                                                   // schedules/tide_rs.py:141
      }
    }
  }
  ops.free(kRead, kGrad(kAll, kAll, kAll).at(n, j));                                                                 // schedules/tide_rs.py:143
}

}  // namespace tidec::plans::block_rs
