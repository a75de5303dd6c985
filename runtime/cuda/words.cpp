#include "cuda/words.hpp"

#include <algorithm>

namespace tidec::cuda {

CounterName name_of(const Counter& c, int64_t owner, int64_t raiser) {
  Keys keys{c.num_keys, {}};
  std::copy_n(c.keys, c.num_keys, keys.of.begin());
  return {owner, raiser, c.flag->index, keys};
}

std::string rank_text(const tidec_program& program, int64_t rank) { return std::to_string(rank / program.lanes) + "." + std::to_string(rank % program.lanes); }

std::string spot_text(const tidec_program& program, int line) {
  const std::string here = std::string(program.header) + ":" + std::to_string(line);
  for (int64_t i = 0; i < program.num_spots; ++i) {
    if (program.spots[i].line == line) return std::string(program.spots[i].schedule) + " (" + here + ")";
  }
  return here;
}

std::string stuck_text(const tidec_program& program, const std::vector<Awaited>& awaited, const std::map<CounterName, uint64_t>& values) {
  for (const Awaited& a : awaited) {
    const auto found = values.find(a.counter);
    const uint64_t is = found == values.end() ? 0 : found->second;
    if (is >= a.value) continue;
    const auto& [owner, raiser, flag, keys] = a.counter;
    std::string text = a.flag;
    for (int i = 0; i < keys.num; ++i) text += (i == 0 ? "[" : ", ") + std::to_string(keys.of[static_cast<size_t>(i)]);
    if (keys.num > 0) text += "]";
    if (a.line == 0) {
      return "rank " + rank_text(program, owner) + ", stream " + a.stream + ", call " + std::to_string(a.call) + ": a put does not end: " + text + " is " +
             std::to_string(is) + ", and " + std::to_string(a.value) + " is told at its end";
    }
    return "rank " + rank_text(program, owner) + ", stream " + a.stream + ", call " + std::to_string(a.call) + ": " + text + " by rank " + rank_text(program, raiser) +
           " is " + std::to_string(is) + ", and " + std::to_string(a.value) + " is awaited\n  at " + spot_text(program, a.line);
  }
  return "";
}

}  // namespace tidec::cuda
