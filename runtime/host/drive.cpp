#include "host/drive.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "tidec/guard.hpp"

namespace tidec::host {

namespace {

constexpr int kSpins = 400;
constexpr long kNapNs = 50000;

// Waits a little: first by giving the core to somebody else, then by sleeping.
void pause(int64_t times) {
  if (times < kSpins) {
    sched_yield();
    return;
  }
  const timespec nap = {0, kNapNs};
  nanosleep(&nap, nullptr);
}

// The same where a rank lives long and others need the cores: the sleeps grow.
void pause_longer(int64_t times) {
  constexpr int64_t kQuick = 40, kYields = 100;
  if (times < kQuick) return;
  if (times < kYields) {
    sched_yield();
    return;
  }
  const timespec nap = {0, std::min<long>(10000 + 2000 * (times - kYields), 200000)};
  nanosleep(&nap, nullptr);
}

uint64_t state_of(uint64_t seed, uint64_t what) { return seed == 0 ? 0 : (seed * 0x9e3779b97f4a7c15u ^ (what + 1) * 0xd6e8feb86659fd93u) | 1; }

// Which workers move only if no other can: none, all wires, all of one rank, or one stream of every rank.
struct Slowed {
  enum { kNone, kWires, kRank, kStream } kind;
  int64_t which;

  bool operator()(const Rank& rank, const Worker& w) const {
    return kind == kWires ? w.is_wire : kind == kRank ? rank.number() == which : kind == kStream && !w.is_wire && w.stream == which;
  }
};

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

void Driver::stop(const std::string& why, int64_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_.load()) return;
  Header& own = job_.objects[static_cast<size_t>(rank)].header();
  if (!why.empty()) std::snprintf(own.why, sizeof own.why, "%s", why.c_str());
  uint64_t stopper = 0;
  const bool is_first = job_.objects[0].header().stop.compare_exchange_strong(stopper, static_cast<uint64_t>(rank) + 1);
  if (is_first) {
    why_ = why;
  } else {
    const int64_t other = static_cast<int64_t>(stopper) - 1;
    const char* const first = other >= 0 && other < job_.ranks() ? job_.objects[static_cast<size_t>(other)].header().why : "";
    why_ = "rank " + job_.name(rank) + " stops because rank " + job_.name(other) + " has stopped: " + std::string(first, strnlen(first, kWhyBytes));
  }
  stopped_.store(true);
}

bool Driver::is_stopped() {
  if (stopped_.load(std::memory_order_relaxed)) return true;
  if (job_.objects[0].header().stop.load(std::memory_order_relaxed) == 0) return false;
  stop("", ranks_[0]->number());
  return true;
}

bool Driver::run(uint64_t seed) { return job_.told->threads ? run_threads(seed) : run_drawn(seed); }

bool Driver::run_drawn(uint64_t seed) {
  std::vector<std::pair<Rank*, Worker*>> all;
  for (Rank* rank : ranks_) {
    for (Worker& w : rank->workers()) {
      if (!rank->is_through(w)) all.emplace_back(rank, &w);
    }
  }
  if (all.empty()) return true;
  Draw draw(state_of(seed, static_cast<uint64_t>(ranks_[0]->number())));
  constexpr int kBursts[] = {40, 1, 1, 4};
  const auto kind = static_cast<decltype(Slowed::kind)>(draw.below(4));
  const auto [some_rank, some_worker] = all[draw.below(all.size())];
  const Slowed slowed{kind, kind == Slowed::kRank ? some_rank->number() : some_worker->stream};
  int64_t idle = 0;
  while (!all.empty()) {
    bool has_moved = false;
    const size_t start = draw.below(all.size());
    for (size_t k = 0; k < 2 * all.size() && !has_moved; ++k) {
      const size_t i = (start + k) % all.size();
      auto [rank, worker] = all[i];
      if (slowed(*rank, *worker) != (k >= all.size())) continue;
      try {
        for (int burst = kBursts[draw.below(4)]; burst > 0 && rank->step(*worker, draw); --burst) has_moved = true;
      } catch (const Stopped& problem) {
        stop(problem.why, rank->number());
        return false;
      }
      if (has_moved) {
        worker->blocked_ns = 0;
        rank->object().header().alive_ns.store(now_ns(), std::memory_order_relaxed);
        if (rank->is_through(*worker)) {
          all[i] = all.back();
          all.pop_back();
        }
      }
    }
    if (has_moved) {
      idle = 0;
      continue;
    }
    if (is_alone()) {
      stop_at_circle();
      return false;
    }
    for (auto [rank, worker] : all) {
      if (!may_wait(*rank, *worker)) return false;
    }
    pause(idle++);
  }
  return true;
}

bool Driver::run_threads(uint64_t seed) {
  size_t num = 0;
  for (Rank* rank : ranks_) num += rank->workers().size();
  std::vector<std::thread> threads;
  threads.reserve(num);
  for (Rank* rank : ranks_) {
    for (Worker& w : rank->workers()) {
      try {
        threads.emplace_back([this, rank, &w, state = state_of(seed, threads.size() * 1000003)] { run_worker(*rank, w, state); });
      } catch (const std::exception& problem) {
        // Those that run are joined below: one that is not would end the process.
        stop("rank " + job_.name(rank->number()) + " cannot have a thread a stream: " + problem.what(), rank->number());
      }
    }
  }
  for (std::thread& t : threads) t.join();
  return !stopped_.load();
}

void Driver::run_worker(Rank& rank, Worker& worker, uint64_t state) {
  Draw draw(state);
  int64_t idle = 0;
  while (!rank.is_through(worker)) {
    bool has_moved = false;
    char why[kReasonBytes];
    if (!guarded<Stopped>(why, kReasonBytes, [&] { has_moved = rank.step(worker, draw); })) stop(why, rank.number());
    if (has_moved) {
      idle = 0;
      worker.blocked_ns = 0;
      if (draw.below(8) == 1) sched_yield();
      continue;
    }
    if (!may_wait(rank, worker)) return;
    pause(idle++);
  }
}

bool Driver::pass() {
  Rank& rank = *ranks_[0];
  Draw plain(0);
  bool has_moved = false;
  for (Worker& w : rank.workers()) {
    while (rank.step(w, plain)) {
      has_moved = true;
      rank.object().header().alive_ns.store(now_ns(), std::memory_order_relaxed);
    }
  }
  return has_moved;
}

bool Driver::run_ready() {
  if (is_stopped()) return false;
  try {
    while (pass()) {
    }
  } catch (const Stopped& problem) {
    stop(problem.why, ranks_[0]->number());
    return false;
  }
  return true;
}

bool Driver::run_through(int64_t call, int64_t deadline_ms) {
  constexpr int64_t kLookNs = 20000000;
  Rank& rank = *ranks_[0];
  int64_t idle = 0, idle_since = 0, looked = 0;
  const auto is_through = [&] {
    return std::all_of(rank.workers().begin(), rank.workers().end(), [&](const Worker& w) { return rank.is_through(w, call); });
  };
  try {
    for (;;) {
      const bool has_moved = pass();
      if (is_through()) return !is_stopped();
      if (has_moved) {
        idle = idle_since = 0;
        continue;
      }
      const int64_t now = now_ns();
      rank.object().header().alive_ns.store(now, std::memory_order_relaxed);
      if (is_stopped()) return false;
      if (idle_since == 0) idle_since = looked = now;
      const bool is_over = now - idle_since > deadline_ms * 1000000;
      if (is_over || now - looked > kLookNs) {
        looked = now;
        const Worker* worker = waiting(call);
        const Task* task = worker == nullptr ? nullptr : rank.waiting(*worker);
        const std::string why = task == nullptr ? "" : gone(*task);
        const bool is_called_off = goes_on_ && !goes_on_();
        if (is_called_off || is_over || !why.empty()) {
          const std::string own = "rank " + job_.name(rank.number());
          stop((is_called_off ? own + " was called off while it waited\n  " : "") + (task == nullptr ? own + " does not move" : rank.waits_for(*worker, *task)) + why +
                   "\n  waited " + seconds(now - idle_since) + silent(rank.number()),
               rank.number());
          return false;
        }
      }
      pause_longer(idle++);
    }
  } catch (const Stopped& problem) {
    stop(problem.why, rank.number());
    return false;
  }
}

const Worker* Driver::waiting(int64_t call) const {
  const Rank& rank = *ranks_[0];
  const Worker* found = nullptr;
  int best = -1;
  for (const Worker& w : ranks_[0]->workers()) {
    const Task* task = rank.waiting(w);
    if (task == nullptr) continue;
    const int value = (task->call <= call ? 2 : 0) + (task->first.cell->key.raiser != rank.number() ? 1 : 0);
    if (value > best) best = value, found = &w;
  }
  return found;
}

std::string Driver::gone(const Task& task) const {
  const int64_t raiser = task.first.cell->key.raiser;
  const Header& header = job_.objects[static_cast<size_t>(raiser)].header();
  std::string why;
  if (header.stage.load(std::memory_order_acquire) == Stage::kClosed) {
    why = "\n  rank " + job_.name(raiser) + " is closed";
  } else if (header.process != 0 && raiser != ranks_[0]->number()) {
    const int64_t began = process_began(header.process);
    if (began == -1 || (began > 0 && began != header.process_began)) {
      why = "\n  the process of rank " + job_.name(raiser) + " (" + std::to_string(header.process) + ") has ended";
    }
  }
  // It may have raised the counter last of all.
  return task.first.cell->value.load(std::memory_order_acquire) >= task.first.value ? "" : why;
}

bool Driver::may_wait(Rank& rank, Worker& worker) {
  const int64_t now = now_ns();
  rank.object().header().alive_ns.store(now, std::memory_order_relaxed);
  if (is_stopped()) return false;
  const Task* task = rank.waiting(worker);
  if (task == nullptr || worker.blocked_ns == 0) {
    worker.blocked_ns = task == nullptr ? 0 : now;
    return true;
  }
  const int64_t waited = now - worker.blocked_ns;
  if (waited < job_.told->deadline_ms * 1000000) return true;
  stop(rank.waits_for(worker, *task) + "\n  waited " + seconds(waited) + silent(rank.number()), rank.number());
  return false;
}

// All ranks are here and none can go on: the wait that nobody will end, or if there is none the first of a circle.
void Driver::stop_at_circle() {
  std::string why, first;
  int64_t number = 0;
  for (Rank* rank : ranks_) {
    for (Worker& w : rank->workers()) {
      const Task* task = rank->waiting(w);
      if (task == nullptr) continue;
      bool is_coming = false;
      for (const Rank* other : ranks_) is_coming = is_coming || other->will_raise(task->first);
      if (why.empty() && !is_coming) {
        why = rank->waits_for(w, *task) + "\n  no rank can go on, and no op that is left raises it";
        number = rank->number();
      }
      if (first.empty()) first = rank->waits_for(w, *task) + "\n  no rank can go on: they wait for each other";
    }
  }
  stop(why.empty() ? first.empty() ? "no rank can go on" : first : why, number);
}

// The ranks that have neither moved nor looked for half of the deadline.
std::string Driver::silent(int64_t but) const {
  std::string text;
  const int64_t now = now_ns();
  for (int64_t r = 0; r < job_.ranks(); ++r) {
    const int64_t alive = job_.objects[static_cast<size_t>(r)].header().alive_ns.load(std::memory_order_relaxed);
    if (r == but || now - alive < job_.told->deadline_ms * 500000) continue;
    text += "\n  silent: rank " + job_.name(r) + (alive == 0 ? " has never come" : " for " + seconds(now - alive));
  }
  return text;
}

bool Driver::meet() {
  if (is_stopped()) return false;
  ++epoch_;
  for (const Rank* rank : ranks_) rank->object().header().epoch.store(epoch_, std::memory_order_release);
  const int64_t start = now_ns();
  for (int64_t r = 0, idle = 0; r < job_.ranks(); idle = 0, ++r) {
    while (job_.objects[static_cast<size_t>(r)].header().epoch.load(std::memory_order_acquire) < epoch_) {
      const int64_t now = now_ns();
      for (const Rank* rank : ranks_) rank->object().header().alive_ns.store(now, std::memory_order_relaxed);
      if (is_stopped()) return false;
      if (now - start > job_.told->deadline_ms * 1000000) {
        stop("rank " + job_.name(ranks_[0]->number()) + " waits for rank " + job_.name(r) + " between two runs\n  waited " + seconds(now - start) +
                 silent(ranks_[0]->number()),
             ranks_[0]->number());
        return false;
      }
      pause(idle++);
    }
  }
  return true;
}

}  // namespace tidec::host
