// What the rails of a bundle give to NCCL, as text: of every rank, call and op the wire and count of each raise and wait. No CUDA, no NCCL.
//
// Arguments: the program, the calls of a run, how many runs, and a flag whose waits are left out ("-" = none). Lines: "raise|await RANK CALL OWNER RAISER CONTEXT INDEX VALUE COUNT".
#include "nccl/signals.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/failure.hpp"
#include "host/target.hpp"

namespace tidec::nccl {

const char* left_out = "-";

Names names_of(int64_t program, const Rank& rank, int64_t call) {
  host::Recorder recorder;
  tidec_issue(&recorder, program, rank.node, rank.lane, call);
  Names names;
  for (const host::Op& op : recorder.ops()) {
    if (op.kind == host::Kind::kWait && std::strcmp(op.first.counter.flag->name, left_out) == 0) continue;
    if (op.kind == host::Kind::kWait || op.kind == host::Kind::kSignal) names.levels.push_back({op.first, op.kind == host::Kind::kWait, 0});
    if (op.kind == host::Kind::kPut) names.levels.push_back({op.first, false, op.context}), names.levels.push_back({op.second, false, 0});
  }
  return names;
}

}  // namespace tidec::nccl

using namespace tidec;
using namespace tidec::nccl;

int main(int, char** given) {
  const int64_t program = std::atoll(given[1]), calls = std::atoll(given[2]), runs = std::atoll(given[3]);
  const tidec_program& p = *tidec_program_at(program);
  left_out = given[4];
  try {
    for (int64_t r = 0; r < p.nodes * p.lanes; ++r) {
      const Rank rank{r / p.lanes, r % p.lanes};
      Signals signals(program, rank);
      std::printf("rank %lld %d %d\n", static_cast<long long>(r), signals.contexts(), signals.indices());
      for (int64_t run = 0; run < runs; ++run) {
        for (int64_t call = 0; call < calls; ++call) {
          for (const Named& n : names_of(program, rank, call).levels) {
            if (!signals.is_rail(n.level) || (n.is_wait && n.level.value <= 0)) continue;
            const long long far = n.level.rank.node * p.lanes + n.level.rank.lane, own = r;
            const Await told = n.is_wait ? signals.await(n.level) : Await{signals.raise(n.level, n.context), 1};
            std::printf("%s %lld %lld %lld %lld %d %d %lld %d\n", n.is_wait ? "await" : "raise", own, static_cast<long long>(run * calls + call), n.is_wait ? own : far,
                        n.is_wait ? far : own, told.wire.context, told.wire.index, static_cast<long long>(n.level.value), told.count);
          }
        }
        signals.restart(calls);
      }
    }
  } catch (const cuda::Failure& problem) {
    std::printf("failure %s\n", problem.why.c_str());
  }
  return 0;
}
