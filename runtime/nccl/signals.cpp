#include "nccl/signals.hpp"

#include <algorithm>
#include <string>
#include <tuple>

#include "cuda/failure.hpp"

namespace tidec::nccl {

namespace {

using cuda::Failure;

constexpr int kCalls = 2;

// What the first calls do with a counter: how far they raise it and wait for it, each a call; context: -1 before its first raise.
struct Use {
  const char* flag = "";
  int64_t context = -1;
  int64_t raised[kCalls] = {0, 0};
  int64_t awaited[kCalls] = {0, 0};
  bool is_awaited[kCalls] = {false, false};
};

std::string text(const tidec_program& program, const CounterName& name, const char* flag) {
  const auto& [owner, raiser, index, keys] = name;
  std::string spelt = flag;
  for (int i = 0; i < keys.num; ++i) spelt += (i == 0 ? "[" : ", ") + std::to_string(keys.of[static_cast<size_t>(i)]);
  return spelt + (keys.num == 0 ? "" : "]") + " of rank " + cuda::rank_text(program, owner) + " by rank " + cuda::rank_text(program, raiser);
}

void check_balance(const tidec_program& program, const CounterName& name, const Use& use) {
  const int64_t raised = use.raised[1] - use.raised[0];
  if (use.context >= 0 && use.is_awaited[0] && use.is_awaited[1] && raised > 0 && use.raised[0] == raised && use.awaited[1] - use.awaited[0] == raised) return;
  throw Failure{"the signals of " + text(program, name, use.flag) + " do not balance: two calls raise it to " + std::to_string(use.raised[0]) + " and " +
                std::to_string(use.raised[1]) + ", and wait for " + std::to_string(use.awaited[0]) + " and " + std::to_string(use.awaited[1])};
}

}  // namespace

Signals::Signals(int64_t program, const Rank& own) : number_(program), program_(*tidec_program_at(program)), own_(own) {
  std::map<CounterName, Use> uses;
  for (int64_t node = 0; node < program_.nodes; ++node) {
    const Rank rank{node, own.lane};
    for (int call = 0; call < kCalls; ++call) {
      for (const Named& n : names_of(program, rank, call).levels) {
        if (n.level.rank.node == node) continue;
        if (n.level.rank.lane != own.lane) throw Failure{std::string("flag ") + n.level.counter.flag->name + " leaves its rail: only ranks of one lane talk between nodes"};
        const int64_t here = number(rank), far = number(n.level.rank);
        const CounterName name = n.is_wait ? cuda::name_of(n.level.counter, here, far) : cuda::name_of(n.level.counter, far, here);
        Use& use = uses[name];
        use.flag = n.level.counter.flag->name;
        if (n.is_wait) {
          use.awaited[call] = use.is_awaited[call] ? std::max(use.awaited[call], n.level.value) : n.level.value;
          use.is_awaited[call] = true;
          continue;
        }
        if (use.context >= 0 && use.context != n.context) throw Failure{text(program_, name, use.flag) + " is raised over two contexts"};
        if (call == 1) use.raised[1] = std::max(use.raised[1], use.raised[0]);
        if (n.level.value != use.raised[call] + 1) throw Failure{text(program_, name, use.flag) + " rises by another number than one"};
        use.raised[call] = n.level.value;
        use.context = n.context;
      }
    }
  }
  // Of each pair and context, in order of flags and keys: the same on both of its ranks.
  std::map<std::tuple<int64_t, int64_t, int64_t>, int> next;
  for (const auto& [name, use] : uses) {
    check_balance(program_, name, use);
    const auto& [owner, raiser, flag, keys] = name;
    const Wire wire{static_cast<int>(use.context), next[{owner, raiser, use.context}]++};
    contexts_ = std::max(contexts_, wire.context + 1);
    indices_ = std::max(indices_, wire.index + 1);
    if (owner == number(own) || raiser == number(own)) wires_.emplace(name, wire);
  }
}

const Wire& Signals::wire(const CounterName& name, const Level& level) const {
  const auto found = wires_.find(name);
  if (found == wires_.end()) throw Failure{"a call names " + text(program_, name, level.counter.flag->name) + ", which the first two did not"};
  return found->second;
}

Wire Signals::raise(const Level& level, int64_t context) {
  const CounterName name = cuda::name_of(level.counter, number(level.rank), number(own_));
  const Wire& found = wire(name, level);
  Count& count = counts_[name];
  if (found.context != context || level.value != count.raised + 1) {
    throw Failure{text(program_, name, level.counter.flag->name) + " is raised to " + std::to_string(level.value) + " after " + std::to_string(count.raised) +
                  ", over context " + std::to_string(context)};
  }
  count.raised = level.value;
  return found;
}

Await Signals::await(const Level& level) {
  const CounterName name = cuda::name_of(level.counter, number(own_), number(level.rank));
  const Wire& found = wire(name, level);
  Count& count = counts_[name];
  if (level.value <= count.awaited) return {found, 0};
  const int64_t fresh = level.value - count.awaited + count.left;
  count.awaited = level.value;
  count.left = 0;
  return {found, static_cast<int>(fresh)};
}

void Signals::restart(int64_t calls) {
  std::map<CounterName, int64_t> told;
  for (int64_t node = 0; node < program_.nodes && calls > 0; ++node) {
    if (node == own_.node) continue;
    const Rank rank{node, own_.lane};
    for (const Named& n : names_of(number_, rank, calls - 1).levels) {
      if (n.is_wait || n.level.rank.node != own_.node) continue;
      int64_t& most = told[cuda::name_of(n.level.counter, number(own_), number(rank))];
      most = std::max(most, n.level.value);
    }
  }
  for (const auto& [name, wire] : wires_) {
    Count& count = counts_[name];
    const auto found = told.find(name);
    count.left += (found == told.end() ? 0 : found->second) - count.awaited;
    count.raised = count.awaited = 0;
  }
}

}  // namespace tidec::nccl
