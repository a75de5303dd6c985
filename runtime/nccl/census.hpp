// Which words the counters of a node are: those that two calls of its ranks name, numbered alike by all of them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/words.hpp"
#include "nccl/names.hpp"

namespace tidec::nccl {

using cuda::CounterName;

// A counter that another node raises has a word with its owner too, which tells what was taken off its signals.
class Census {
 public:
  Census(int64_t program, int64_t node);
  // Which word of its owner a counter is. Throws Failure.
  int64_t number(const CounterName& name) const;
  int64_t most() const { return most_; }
  // owner: a rank of the node.
  const std::map<CounterName, int64_t>& of(int64_t owner) const { return numbers_[static_cast<size_t>(owner - first_)]; }
  // Of the walks of all of its ranks together; the levels are those of the last one.
  const Names& names() const { return names_; }

 private:
  const int64_t first_;
  std::vector<std::map<CounterName, int64_t>> numbers_;
  int64_t most_ = 0;
  Names names_;
};

}  // namespace tidec::nccl
