// Who goes on next: the drivers of a job in one process, and the meetings of all its ranks.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/rank.hpp"

namespace tidec::host {

class Driver {
 public:
  // ranks: those of this process.
  Driver(const Job& job, std::vector<Rank*> ranks) : job_(job), ranks_(std::move(ranks)) {}

  // Carries out all tasks of the ranks, in an order that the seed draws; seed 0 is the plain one. Returns false where the job stops.
  bool run(uint64_t seed);

  // Carries out what can be done without waiting, in the plain order. Returns false where the job stops, or had stopped.
  bool run_ready();
  // Carries out the tasks of a call and of those before; what else can be done meanwhile is done. It stops the job where for that long no task
  // could be done, or where it waits for a rank that is closed or whose process has ended.
  bool run_through(int64_t call, int64_t deadline_ms);

  // Who is asked, now and then, whether run_through shall go on waiting; where it gives false the job stops.
  void ask(std::function<bool()> goes_on) { goes_on_ = std::move(goes_on); }

  // Waits until every rank of the job has come here as often as these have.
  bool meet();

  // Why it stopped; empty where another rank stopped first and nothing more is known.
  const std::string& why() const { return why_; }
  void stop(const std::string& why, int64_t rank);

 private:
  bool is_alone() const { return static_cast<int64_t>(ranks_.size()) == job_.ranks(); }
  bool run_drawn(uint64_t seed);
  bool run_threads(uint64_t seed);
  void run_worker(Rank& rank, Worker& worker, uint64_t state);
  // Notes that a worker does not move. Returns false where it has not for too long, or where the job has stopped.
  bool may_wait(Rank& rank, Worker& worker);
  bool is_stopped();
  void stop_at_circle();
  std::string silent(int64_t but) const;
  // One pass over all workers of the only rank. Returns whether one has moved; throws Stopped.
  bool pass();
  // The worker whose wait is told of where the rank does not move: before others one that waits for another rank, in a call up to that one.
  const Worker* waiting(int64_t call) const;
  // Why nobody will end a wait, as far as that can be seen: its raiser is gone. Empty where it is not.
  std::string gone(const Task& task) const;

  const Job& job_;
  std::vector<Rank*> ranks_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::string why_;
  std::function<bool()> goes_on_;
  uint64_t epoch_ = 0;
};

}  // namespace tidec::host
