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
  ops.wait(kEntry, kReleased().by(n, j), e);                                                                         // schedules/tide_ag.py:45
  for (int64_t i = 0; i < L; ++i) ops.signal(kEntry, kRoom().at(n, i), e + 1);                                       // schedules/tide_ag.py:46
  ops.wait(kRail, kScattered().by(n, j), e);                                                                         // schedules/tide_ag.py:49
  for (int64_t q = 1; q < M; ++q) ops.wait(kRail, kSent(q).by(n, j), e);                                             // schedules/tide_ag.py:51
  for (int64_t h = 1; h < M; h *= 2) ops.signal(kRail, kCredit(h).at(wrap(n + h, M), j), e + 1);                     // schedules/tide_ag.py:52
  ops.cast(kRail, kShard(0).at(n, j), kStage(0).at(n, j));                                                           // schedules/tide_ag.py:54
  ops.signal(kRail, kReady().at(n, j), e + 1);                                                                       // schedules/tide_ag.py:55
  for (int64_t h = 1; h < M; h *= 2) {                                                                               // schedules/tide_ag.py:57
    const int64_t peer = back(n - h, M);                                                                             // schedules/tide_ag.py:59
    ops.wait(kRail, kCredit(h).by(peer, j), e + 1);                                                                  // schedules/tide_ag.py:59
    const int64_t k_end = least(h, M - h);                                                                           // schedules/tide_ag.py:60
    ops.put(kRail, kStage(0).at(n, j), kStage(h).at(peer, j),                                                        // schedules/tide_ag.py:60
            kHave(h).at(peer, j), e * k_end + 1, kSent(h).at(n, j), e + 1);                                          // schedules/tide_ag.py:60
    for (int64_t k = 1; k < k_end; ++k) {                                                                            // schedules/tide_ag.py:61
      ops.put(kRail, kStage(k).at(n, j), kStage(h + k).at(peer, j),                                                  // schedules/tide_ag.py:62
              kHave(h).at(peer, j), e * k_end + k + 1, kSent(h + k).at(n, j), e + 1);                                // schedules/tide_ag.py:62
    }
    const int64_t peer_1 = wrap(n + h, M);                                                                           // schedules/tide_ag.py:63
    for (int64_t k = 0; k < k_end; ++k) ops.wait(kRail, kHave(h).by(peer_1, j), e * k_end + k + 1);                  // schedules/tide_ag.py:63
  }
  for (int64_t i = 0; i < L; ++i) ops.wait(kScatter, kRoom().by(n, i), e + 1);                                       // schedules/tide_ag.py:72
  ops.wait(kScatter, kReady().by(n, j), e + 1);                                                                      // schedules/tide_ag.py:73
  const int64_t bank = e % 2;                                                                                        // schedules/tide_ag.py:69 from 74
  ops.begin_set(kScatter);                                                                                           // schedules/tide_ag.py:69 from 74
  for (int64_t o = 0; o < L; ++o) ops.copy(kScatter, kStage(0).at(n, j), kLand(bank, n, j).at(n, o));                // schedules/tide_ag.py:66 from 74
  ops.end_set(kScatter);                                                                                             // schedules/tide_ag.py:69 from 74
  ops.join(kScatter);                                                                                                // schedules/tide_ag.py:75
  for (int64_t h = 1; h < M; h *= 2) {                                                                               // schedules/tide_ag.py:77
    const int64_t x_end = 2 * h >= M ? 4 : 1;                                                                        // schedules/tide_ag.py:79
    const int64_t h_1 = least(h, M - h);                                                                             // schedules/tide_ag.py:79
    const int64_t peer = wrap(n + h, M);                                                                             // schedules/tide_ag.py:79
    const int64_t h_2 = M - n - h;                                                                                   // schedules/tide_ag.py:79
    for (int64_t x = 0; x < x_end; ++x) {                                                                            // schedules/tide_ag.py:79
      const int64_t x_1 = x == 3 ? 3 * h_1 : x == 2 ? 2 * h_1 : x == 1 ? h_1 : 0;                                    // schedules/tide_ag.py:81
      const int64_t k_begin = 2 * h >= M ? x_1 / 4 : x == 0 ? 0 : h_1;                                               // schedules/tide_ag.py:81
      const int64_t x_2 = x + 1 == 4 ? 4 * h_1 : x + 1 == 3 ? 3 * h_1 : x + 1 == 2 ? 2 * h_1 : x + 1 == 1 ? h_1 : 0; // schedules/tide_ag.py:81
      const int64_t k_end = 2 * h >= M ? x_2 / 4 : h_1;                                                              // schedules/tide_ag.py:81
      const int64_t node = n + h + k_begin;                                                                          // schedules/tide_ag.py:81
      const int64_t num_k = least(k_end, h_2) - k_begin;                                                             // schedules/tide_ag.py:81
      const int64_t x_3 = most(k_begin, h_2);                                                                        // schedules/tide_ag.py:81
      const int64_t land_node = n + h + x_3 - M;                                                                     // schedules/tide_ag.py:81
      if (k_begin < k_end) {                                                                                         // schedules/tide_ag.py:81
        for (int64_t k = k_begin; k < k_end; ++k) ops.wait(kScatter, kHave(h).by(peer, j), e * h_1 + k + 1);         // schedules/tide_ag.py:82
        ops.begin_set(kScatter);                                                                                     // schedules/tide_ag.py:69 from 83
        for (int64_t o = 0; o < L; ++o) {                                                                            // schedules/tide_ag.py:69 from 83
          ops.copy_run(kScatter, kStage(h + k_begin).at(n, j), kLand(bank, node, j).at(n, o), num_k);                // schedules/tide_ag.py:66 from 84
        }
        ops.end_set(kScatter);                                                                                       // schedules/tide_ag.py:69 from 83
        ops.begin_set(kScatter);                                                                                     // schedules/tide_ag.py:69 from 85
        for (int64_t o = 0; o < L; ++o) {                                                                            // schedules/tide_ag.py:69 from 85
          ops.copy_run(kScatter, kStage(h + x_3).at(n, j), kLand(bank, land_node, j).at(n, o), k_end - x_3);         // schedules/tide_ag.py:66 from 86
        }
        ops.end_set(kScatter);                                                                                       // schedules/tide_ag.py:69 from 85
        ops.join(kScatter);                                                                                          // schedules/tide_ag.py:87
      }
    }
  }
  ops.signal(kScatter, kScattered().at(n, j), e + 1);                                                                // schedules/tide_ag.py:88
  for (int64_t i = 0; i < L; ++i) ops.signal(kScatter, kDone().at(n, i), e + 1);                                     // schedules/tide_ag.py:89
  ops.wait(kUpdate, kReady().by(n, j), e + 1);                                                                       // schedules/tide_ag.py:92
  ops.free(kUpdate, kShard(0).at(n, j));                                                                             // schedules/tide_ag.py:97
  for (int64_t i = 0; i < L; ++i) ops.wait(kCompute, kDone().by(n, i), e);                                           // schedules/tide_ag.py:39 from 98
  ops.read(kCompute, kLand((e + 1) % 2, kAll, kAll).at(n, j));                                                       // schedules/tide_ag.py:40 from 98
  ops.signal(kCompute, kReleased().at(n, j), e + 1);                                                                 // schedules/tide_ag.py:41 from 98
}

}  // namespace tidec::plans::block_ag
