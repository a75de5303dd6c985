#include "nccl/census.hpp"

#include <algorithm>

#include "nccl/target.hpp"
#include "tidec/module.hpp"

namespace tidec::nccl {

Names names_of(int64_t program, const Rank& rank, int64_t call) {
  Names names;
  Runner runner(names);
  tidec_issue(&runner, program, rank.node, rank.lane, call);
  return names;
}

Census::Census(int64_t program, int64_t node) : first_(node * tidec_program_at(program)->lanes) {
  const int64_t lanes = tidec_program_at(program)->lanes;
  numbers_.resize(static_cast<size_t>(lanes));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int64_t call : {0, 1}) {
      names_.levels.clear();
      Runner runner(names_);
      tidec_issue(&runner, program, node, lane, call);
      for (const Named& n : names_.levels) {
        const int64_t here = first_ + lane, far = n.level.rank.node * lanes + n.level.rank.lane, owner = n.is_wait ? here : far;
        if (owner < first_ || owner >= first_ + lanes) continue;
        numbers_[static_cast<size_t>(owner - first_)].emplace(cuda::name_of(n.level.counter, owner, n.is_wait ? far : here), 0);
      }
    }
  }
  for (auto& counters : numbers_) {
    int64_t next = 0;
    for (auto& [name, number] : counters) number = next++;
    most_ = std::max(most_, next);
  }
}

int64_t Census::number(const CounterName& name) const {
  const auto& counters = of(std::get<0>(name));
  const auto found = counters.find(name);
  if (found == counters.end()) throw cuda::Failure{"a call names a counter that the first two did not"};
  return found->second;
}

}  // namespace tidec::nccl
