// What stands in a message: ranks, lines, and a wait that is not over.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tidec/module.hpp"
#include "tidec/runner.hpp"

namespace tidec::cuda {

// The keys of a counter; those behind `num` are 0.
struct Keys {
  int num;
  std::array<int64_t, kMaxKeys> of;
  bool operator<(const Keys& other) const { return std::tie(num, of) < std::tie(other.num, other.of); }
};

// A counter: owner, raiser, flag and keys. Ranks are numbered n*L + j.
using CounterName = std::tuple<int64_t, int64_t, int, Keys>;

CounterName name_of(const Counter& counter, int64_t owner, int64_t raiser);

// A wait that was issued. stream, flag: their names; line: of the emitted walk, 0 of a put that tells the counter at its end.
struct Awaited {
  CounterName counter;
  uint64_t value;
  int line;
  int64_t call;
  const char* stream;
  const char* flag;
};

std::string rank_text(const tidec_program& program, int64_t rank);

// The line of the schedule and of the walk.
std::string spot_text(const tidec_program& program, int line);

// The first wait that these counters do not end, in words; empty where there is none.
std::string stuck_text(const tidec_program& program, const std::vector<Awaited>& awaited, const std::map<CounterName, uint64_t>& values);

}  // namespace tidec::cuda
