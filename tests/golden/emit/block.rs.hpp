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

inline constexpr Stream kPush{0, "push"};
inline constexpr Stream kSum{1, "sum"};
inline constexpr Stream kNet{2, "net"};

inline constexpr Flag kStaged{0, "staged", Scope::kLanes};
inline constexpr Flag kFreed{1, "freed", Scope::kLanes};
inline constexpr Flag kPushed{2, "pushed", Scope::kSelf};
inline constexpr Flag kSummed{3, "summed", Scope::kSelf};
inline constexpr Flag kSent{4, "sent", Scope::kSelf};
inline constexpr Flag kOwned{5, "owned", Scope::kSelf};
inline constexpr Flag kPlaced{6, "placed", Scope::kSelf};
inline constexpr Flag kArrived{7, "arrived", Scope::kRail};
inline constexpr Flag kCredit{8, "credit", Scope::kRail};
inline constexpr Flag kReady{9, "ready", Scope::kNode};
inline constexpr Flag kLanded{10, "landed", Scope::kNode};

template <class Runner>
void issue(Runner& runner, const Rank& rank, Call call) {
  [[maybe_unused]] const int64_t n = rank.node, j = rank.lane, e = call.number;
  Ops<Runner> ops(runner, kLayout);
  const int64_t bank = e % 2;                                                                                        // schedules/tide_rs.py:103
  for (int64_t J = 0; J < 3; ++J) {                                                                                  // schedules/tide_rs.py:103
    const int64_t sent_J = 2 * M - (2 * M - J - 3) % 3 - 3;                                                          // schedules/tide_rs.py:85 from 104
    ops.wait(kSum, kSent(sent_J).by(n, j), e - 1);                                                                   // schedules/tide_rs.py:85 from 104
    const int64_t freed_call = J >= 2 ? e : e - 1;                                                                   // schedules/tide_rs.py:74 from 105, 83
    const int64_t freed_U = J >= 2 ? J - 2 : 2 * M - (3 - J) % 2 - 1;                                                // schedules/tide_rs.py:74 from 105, 83
    const int64_t level = freed_call * (2 * M) + freed_U + 1;                                                        // schedules/tide_rs.py:74 from 105, 83
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kPush, kFreed().by(n, o), level);                           // schedules/tide_rs.py:74 from 105, 83
    const int64_t node = wrap(n + J + 1, M);                                                                         // schedules/tide_rs.py:75 from 105, 83
    const int64_t slot = J % 2;                                                                                      // schedules/tide_rs.py:75 from 105, 83
    ops.begin_set(kPush);                                                                                            // schedules/tide_rs.py:75 from 105, 83
    for (int64_t o = 0; o < L; ++o) {                                                                                // schedules/tide_rs.py:75 from 105, 83
      if (o != j) ops.copy(kPush, kGrad(0, node, (o + J + 1) % 4).at(n, j), kStage(slot, j).at(n, o));               // schedules/tide_rs.py:75 from 105, 83
    }
    ops.end_set(kPush);                                                                                              // schedules/tide_rs.py:75 from 105, 83
    ops.join(kPush);                                                                                                 // schedules/tide_rs.py:76 from 105, 83
    const int64_t staged_level = e * (2 * M) + J + 1;                                                                // schedules/tide_rs.py:77 from 105, 83
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kPush, kStaged().at(n, o), staged_level);                 // schedules/tide_rs.py:77 from 105, 83
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kSum, kStaged().by(n, i), staged_level);                    // schedules/tide_rs.py:79 from 105, 83
    ops.sum(kSum, kStage(slot, kOthers).at(n, j), kGrad(0, node, (j + J + 1) % 4).at(n, j),                          // schedules/tide_rs.py:80 from 105, 83
            kOutbox(bank, J).at(n, j), false);                                                                       // schedules/tide_rs.py:80 from 105, 83
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kSum, kFreed().at(n, i), staged_level);                   // schedules/tide_rs.py:81 from 105, 83
    ops.signal(kSum, kSummed().at(n, j), e * (2 * M - 2) + J + 1);                                                   // schedules/tide_rs.py:106
  }
  for (int64_t p = 0; p < 2; ++p) {                                                                                  // schedules/tide_rs.py:107
    ops.wait(kSum, kPlaced().by(n, j), 2 * e + p - 3);                                                               // schedules/tide_rs.py:108
    const int64_t level = e * (2 * M) + p + 2;                                                                       // schedules/tide_rs.py:74 from 109, 83
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kPush, kFreed().by(n, o), level);                           // schedules/tide_rs.py:74 from 109, 83
    const int64_t slot = (p + 1) % 2;                                                                                // schedules/tide_rs.py:75 from 109, 83
    ops.begin_set(kPush);                                                                                            // schedules/tide_rs.py:75 from 109, 83
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.copy(kPush, kGrad(p, n, o).at(n, j), kStage(slot, j).at(n, o));  // schedules/tide_rs.py:75 from 109, 83
    ops.end_set(kPush);                                                                                              // schedules/tide_rs.py:75 from 109, 83
    ops.join(kPush);                                                                                                 // schedules/tide_rs.py:76 from 109, 83
    const int64_t staged_level = e * (2 * M) + p + 4;                                                                // schedules/tide_rs.py:77 from 109, 83
    for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kPush, kStaged().at(n, o), staged_level);                 // schedules/tide_rs.py:77 from 109, 83
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kSum, kStaged().by(n, i), staged_level);                    // schedules/tide_rs.py:79 from 109, 83
    ops.sum(kSum, kStage(slot, kOthers).at(n, j), kGrad(p, n, j).at(n, j), kSpare(bank, p).at(n, j), false);         // schedules/tide_rs.py:80 from 109, 83
    for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kSum, kFreed().at(n, i), staged_level);                   // schedules/tide_rs.py:81 from 109, 83
    ops.signal(kSum, kOwned().at(n, j), 2 * e + p + 1);                                                              // schedules/tide_rs.py:110
  }
  for (int64_t p = 0; p < 2; ++p) {                                                                                  // schedules/tide_rs.py:113
    const int64_t p_1 = p == 1 ? M - 1 : 0;                                                                          // schedules/tide_rs.py:114
    const int64_t level = 2 * e + p + 1;                                                                             // schedules/tide_rs.py:114
    for (int64_t w = 0; w < 5; ++w) {                                                                                // schedules/tide_rs.py:114
      const int64_t w_1 = least(2 * w + 2, M - 1);                                                                   // schedules/tide_rs.py:117
      const int64_t credit_call = w >= 2 ? e : p > 0 ? e : e - 1;                                                    // schedules/tide_rs.py:117
      const int64_t credit_p = w >= 2 ? p : p > 0 ? p - 1 : 1;                                                       // schedules/tide_rs.py:117
      const int64_t credit_level = 2 * credit_call + credit_p + 1;                                                   // schedules/tide_rs.py:117
      const int64_t gen = w % 2;                                                                                     // schedules/tide_rs.py:117
      for (int64_t r = 0; r < w_1 - 2 * w; ++r) {                                                                    // schedules/tide_rs.py:117
        const int64_t c_begin = 2 * w + r + 1;                                                                       // schedules/tide_rs.py:120
        const int64_t c_end = least(2 * w + r + 2, w_1 + 1);                                                         // schedules/tide_rs.py:120
        for (int64_t c = c_begin; c < c_end; ++c) {                                                                  // schedules/tide_rs.py:120
          ops.wait(kNet, kSummed().by(n, j), e * (2 * M - 2) + p_1 + c);                                             // schedules/tide_rs.py:121
          ops.wait(kNet, kCredit(c).by(wrap(n + c, M), j), credit_level);                                            // schedules/tide_rs.py:122
        }
        for (int64_t c = c_begin; c < c_end; ++c) {                                                                  // schedules/tide_rs.py:123
          const int64_t sent_J = p_1 + c - 1;                                                                        // schedules/tide_rs.py:127
          const int64_t peer = wrap(n + c, M);                                                                       // schedules/tide_rs.py:127
          ops.put(kNet, kOutbox(bank, sent_J % 3).at(n, j), kInbox(gen, (j + c) % 4).at(peer, j),                    // schedules/tide_rs.py:127
                  kArrived(c).at(peer, j), level, kSent(sent_J).at(n, j), e + 1);                                    // schedules/tide_rs.py:127
        }
        for (int64_t c = c_begin; c < c_end; ++c) ops.wait(kNet, kArrived(c).by(back(n - c, M), j), level);          // schedules/tide_rs.py:130
        for (int64_t J = p_1 + 2 * w + r + 3; J < least(p_1 + c_end + 2, 2 * M - 2); ++J) {                          // schedules/tide_rs.py:133
          ops.wait(kSum, kSent(J - 3).by(n, j), e + 1);                                                              // schedules/tide_rs.py:85 from 134
          const int64_t freed_level = e * (2 * M) + J + 1;                                                           // schedules/tide_rs.py:74 from 135, 83
          for (int64_t o = 0; o < L; ++o) if (o != j) ops.wait(kPush, kFreed().by(n, o), freed_level);               // schedules/tide_rs.py:74 from 135, 83
          const int64_t part = J >= M - 1 ? 1 : 0;                                                                   // schedules/tide_rs.py:75 from 135, 83
          const int64_t J_1 = J >= M - 1 ? M - 1 : 0;                                                                // schedules/tide_rs.py:75 from 135, 83
          const int64_t node = wrap(n + J - J_1 + 1, M);                                                             // schedules/tide_rs.py:75 from 135, 83
          const int64_t slot = J % 2;                                                                                // schedules/tide_rs.py:75 from 135, 83
          ops.begin_set(kPush);                                                                                      // schedules/tide_rs.py:75 from 135, 83
          for (int64_t o = 0; o < L; ++o) {                                                                          // schedules/tide_rs.py:75 from 135, 83
            if (o != j) {                                                                                            // schedules/tide_rs.py:75 from 135, 83
              ops.copy(kPush, kGrad(part, node, (o + J - J_1 + 1) % 4).at(n, j), kStage(slot, j).at(n, o));          // schedules/tide_rs.py:75 from 135, 83
            }
          }
          ops.end_set(kPush);                                                                                        // schedules/tide_rs.py:75 from 135, 83
          ops.join(kPush);                                                                                           // schedules/tide_rs.py:76 from 135, 83
          const int64_t staged_level = e * (2 * M) + J + 3;                                                          // schedules/tide_rs.py:77 from 135, 83
          for (int64_t o = 0; o < L; ++o) if (o != j) ops.signal(kPush, kStaged().at(n, o), staged_level);           // schedules/tide_rs.py:77 from 135, 83
          for (int64_t i = 0; i < L; ++i) if (i != j) ops.wait(kSum, kStaged().by(n, i), staged_level);              // schedules/tide_rs.py:79 from 135, 83
          ops.sum(kSum, kStage(slot, kOthers).at(n, j), kGrad(part, node, (j + J - J_1 + 1) % 4).at(n, j),           // schedules/tide_rs.py:80 from 135, 83
                  kOutbox(bank, J % 3).at(n, j), false);                                                             // schedules/tide_rs.py:80 from 135, 83
          for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kSum, kFreed().at(n, i), staged_level);             // schedules/tide_rs.py:81 from 135, 83
          ops.signal(kSum, kSummed().at(n, j), e * (2 * M - 2) + J + 1);                                             // schedules/tide_rs.py:136
        }
      }
      if (w == 4) {                                                                                                  // schedules/tide_rs.py:138
        ops.wait(kNet, kOwned().by(n, j), level);                                                                    // schedules/tide_rs.py:139
        ops.copy(kNet, kSpare(bank, p).at(n, j), kInbox(gen, j).at(n, j));                                           // schedules/tide_rs.py:140
        ops.signal(kNet, kPlaced().at(n, j), level);                                                                 // schedules/tide_rs.py:141
      }
      const int64_t w_2 = w >= 2 ? w - 2 : (4 - w) % 2 == 0 ? 4 : 3;                                                 // schedules/tide_rs.py:143
      ops.begin_set(kNet);                                                                                           // schedules/tide_rs.py:143
      for (int64_t d = 0; d < L; ++d) {                                                                              // schedules/tide_rs.py:143
        const int64_t w_4 = 2 * w_2 + (d - 2 * w_2 + 11) % 4 + 1;                                                    // schedules/tide_rs.py:144
        const int64_t w_5 = 2 * w + (d - 2 * w + 11) % 4 + 1;                                                        // schedules/tide_rs.py:144
        if (((w_2 == 4 && d == 0) || (w_4 < 2 * w_2 + 3 && w_4 < M)) && !((w == 4 && d == 0) || (w_5 < 2 * w + 3 && w_5 < M))) { // schedules/tide_rs.py:144
          ops.zero(kNet, kInbox(gen, (j + d) % 4).at(n, j));                                                         // schedules/tide_rs.py:144
        }
      }
      ops.end_set(kNet);                                                                                             // schedules/tide_rs.py:143
      ops.join(kNet);                                                                                                // schedules/tide_rs.py:145
      const int64_t ready_level = 10 * e + 5 * p + w + 1;                                                            // schedules/tide_rs.py:146
      for (int64_t i = 0; i < L; ++i) ops.signal(kNet, kReady().at(n, i), ready_level);                              // schedules/tide_rs.py:146
      for (int64_t i = 0; i < L; ++i) ops.wait(kNet, kReady().by(n, i), ready_level);                                // schedules/tide_rs.py:146
      ops.land(kNet, kInbox(gen, kAll).at(n, kAll), kOut(p, kAll).at(n, j), w == 0);                                 // schedules/tide_rs.py:147
      for (int64_t i = 0; i < L; ++i) ops.signal(kNet, kLanded().at(n, i), ready_level);                             // schedules/tide_rs.py:148
      for (int64_t i = 0; i < L; ++i) ops.wait(kNet, kLanded().by(n, i), ready_level);                               // schedules/tide_rs.py:148
      const int64_t w_3 = w + 2 < 5 ? w + 2 : gen;                                                                   // schedules/tide_rs.py:150
      for (int64_t c = 2 * w_3 + 1; c < least(2 * w_3 + 2, M - 1) + 1; ++c) {                                        // schedules/tide_rs.py:150
        ops.signal(kNet, kCredit(c).at(back(n - c, M), j), level);                                                   // schedules/tide_rs.py:150
      }
    }
  }
  ops.signal(kPush, kPushed().at(n, j), e + 1);                                                                      // schedules/tide_rs.py:88 from 151
  ops.wait(kSum, kPushed().by(n, j), e + 1);                                                                         // schedules/tide_rs.py:90 from 151
  ops.free(kSum, kGrad(kAll, kAll, kAll).at(n, j));                                                                  // schedules/tide_rs.py:91 from 151
}

}  // namespace tidec::plans::block_rs
