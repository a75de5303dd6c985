// The all-gather of "block" on 3x2, p2p.
// Schedule tide_ag(cast=True, multicast=False); plan <digest>.
//
// One walk over all streams in position order, the order in which the host issues. The comment behind a line names the line of the schedule
// that it comes from, then the lines that called it. M nodes, L lanes, n node, j lane, e call.
#pragma once

#include <cstdint>

#include "tables.hpp"
#include "tidec/index.hpp"
#include "tidec/ops.hpp"

namespace tidec::plans::block_ag {

inline constexpr int64_t M = 3;
inline constexpr int64_t L = 2;

inline constexpr Stream kEntry{0, "entry"};
inline constexpr Stream kRail{1, "rail"};
inline constexpr Stream kScatter{2, "scatter"};
inline constexpr Stream kUpdate{3, "update"};
inline constexpr Stream kCompute{4, "compute"};

inline constexpr Flag kRoom{0, "room", Scope::kNode};
inline constexpr Flag kCredit{1, "credit", Scope::kRail};
inline constexpr Flag kHave{2, "have", Scope::kRail};
inline constexpr Flag kSent{3, "sent", Scope::kSelf};
inline constexpr Flag kDone{4, "done", Scope::kNode};
inline constexpr Flag kReleased{5, "released", Scope::kSelf};
inline constexpr Flag kScattered{6, "scattered", Scope::kSelf};
inline constexpr Flag kReady{7, "ready", Scope::kSelf};

template <class Runner>
void issue(Runner& runner, const Rank& rank, Call call) {
  [[maybe_unused]] const int64_t n = rank.node, j = rank.lane, e = call.number;
  Ops<Runner> ops(runner, kLayout);
  ops.wait(kEntry, kReleased().by(n, j), e);                                                                         // schedules/tide_ag.py:30
  for (int64_t i = 0; i < L; ++i) ops.signal(kEntry, kRoom().at(n, i), e + 1);                                       // schedules/tide_ag.py:31
  ops.wait(kRail, kScattered().by(n, j), e);                                                                         // schedules/tide_ag.py:34
  for (int64_t q = 1; q < M; ++q) ops.wait(kRail, kSent(q).by(n, j), e);                                             // schedules/tide_ag.py:36
  for (int64_t h = 1; h < M; h *= 2) ops.signal(kRail, kCredit(h).at(wrap(n + h, M), j), e + 1);                     // schedules/tide_ag.py:37
  ops.cast(kRail, kShard(0).at(n, j), kStage(0).at(n, j));                                                           // schedules/tide_ag.py:39
  ops.signal(kRail, kReady().at(n, j), e + 1);                                                                       // schedules/tide_ag.py:40
  for (int64_t h = 1; h < M; h *= 2) {                                                                               // schedules/tide_ag.py:42
    const int64_t peer = back(n - h, M);                                                                             // schedules/tide_ag.py:44
    ops.wait(kRail, kCredit(h).by(peer, j), e + 1);                                                                  // schedules/tide_ag.py:44
    const int64_t k_end = least(h, M - h);                                                                           // schedules/tide_ag.py:45
    ops.put(kRail, kStage(0).at(n, j), kStage(h).at(peer, j),                                                        // schedules/tide_ag.py:45
            kHave(h).at(peer, j), e * k_end + 1, kSent(h).at(n, j), e + 1);                                          // schedules/tide_ag.py:45
    for (int64_t k = 1; k < k_end; ++k) {                                                                            // schedules/tide_ag.py:46
      ops.put(kRail, kStage(k).at(n, j), kStage(h + k).at(peer, j),                                                  // schedules/tide_ag.py:47
              kHave(h).at(peer, j), e * k_end + k + 1, kSent(h + k).at(n, j), e + 1);                                // schedules/tide_ag.py:47
    }
    const int64_t peer_1 = wrap(n + h, M);                                                                           // schedules/tide_ag.py:48
    for (int64_t k = 0; k < k_end; ++k) ops.wait(kRail, kHave(h).by(peer_1, j), e * k_end + k + 1);                  // schedules/tide_ag.py:48
  }
  for (int64_t i = 0; i < L; ++i) ops.wait(kScatter, kRoom().by(n, i), e + 1);                                       // schedules/tide_ag.py:57
  ops.wait(kScatter, kReady().by(n, j), e + 1);                                                                      // schedules/tide_ag.py:58
  const int64_t bank = e % 2;                                                                                        // schedules/tide_ag.py:54 from 59
  ops.begin_set(kScatter);                                                                                           // schedules/tide_ag.py:54 from 59
  for (int64_t o = 0; o < L; ++o) ops.copy(kScatter, kStage(0).at(n, j), kLand(bank, n, j).at(n, o));                // schedules/tide_ag.py:54 from 59
  ops.end_set(kScatter);                                                                                             // schedules/tide_ag.py:54 from 59
  ops.join(kScatter);                                                                                                // schedules/tide_ag.py:60
  for (int64_t h = 1; h < M; h *= 2) {                                                                               // schedules/tide_ag.py:62
    const int64_t k_end = least(h, M - h);                                                                           // schedules/tide_ag.py:63
    const int64_t peer = wrap(n + h, M);                                                                             // schedules/tide_ag.py:63
    for (int64_t k = 0; k < k_end; ++k) ops.wait(kScatter, kHave(h).by(peer, j), e * k_end + k + 1);                 // schedules/tide_ag.py:63
    const int64_t h_1 = M - n - h;                                                                                   // schedules/tide_ag.py:54 from 65
    const int64_t num_k = least(k_end, h_1);                                                                         // schedules/tide_ag.py:54 from 65
    ops.begin_set(kScatter);                                                                                         // schedules/tide_ag.py:54 from 65
    for (int64_t o = 0; o < L; ++o) {                                                                                // schedules/tide_ag.py:54 from 65
      ops.copy_run(kScatter, kStage(h).at(n, j), kLand(bank, n + h, j).at(n, o), num_k);                             // schedules/tide_ag.py:51 from 66
    }
    ops.end_set(kScatter);                                                                                           // schedules/tide_ag.py:54 from 65
    const int64_t h_2 = most(0, h_1);                                                                                // schedules/tide_ag.py:54 from 67
    const int64_t node = n + h + h_2 - M;                                                                            // schedules/tide_ag.py:54 from 67
    ops.begin_set(kScatter);                                                                                         // schedules/tide_ag.py:54 from 67
    for (int64_t o = 0; o < L; ++o) {                                                                                // schedules/tide_ag.py:54 from 67
      ops.copy_run(kScatter, kStage(h + h_2).at(n, j), kLand(bank, node, j).at(n, o), k_end - h_2);                  // schedules/tide_ag.py:51 from 68
    }
    ops.end_set(kScatter);                                                                                           // schedules/tide_ag.py:54 from 67
    ops.join(kScatter);                                                                                              // schedules/tide_ag.py:69
  }
  ops.signal(kScatter, kScattered().at(n, j), e + 1);                                                                // schedules/tide_ag.py:70
  for (int64_t i = 0; i < L; ++i) ops.signal(kScatter, kDone().at(n, i), e + 1);                                     // schedules/tide_ag.py:71
  ops.wait(kUpdate, kReady().by(n, j), e + 1);                                                                       // schedules/tide_ag.py:74
  ops.free(kUpdate, kShard(0).at(n, j));                                                                             // schedules/tide_ag.py:79
  for (int64_t i = 0; i < L; ++i) ops.wait(kCompute, kDone().by(n, i), e);                                           // schedules/tide_ag.py:82
  ops.read(kCompute, kLand((e + 1) % 2, kAll, kAll).at(n, j));                                                       // schedules/tide_ag.py:83
  ops.signal(kCompute, kReleased().at(n, j), e + 1);                                                                 // schedules/tide_ag.py:84
}

}  // namespace tidec::plans::block_ag
