// Every program of the bundle behind a C interface, for the Runner that the compiler is told:
// -DTIDEC_RUNNER='"tidec/echo.hpp"' names a header that gives tidec::Target.
#ifndef TIDEC_RUNNER
#error "say which runner: -DTIDEC_RUNNER='\"tidec/echo.hpp\"'"
#endif
#include TIDEC_RUNNER

#include "tidec/module.hpp"

#include "block.ag.hpp"

namespace {

// The last row ends the table, and is no program.
constexpr tidec_program kPrograms[] = {
    {"block.ag", "<digest>", 3, 2},
    {nullptr, nullptr, 0, 0},
};

}  // namespace

extern "C" {

int64_t tidec_num_programs(void) { return sizeof kPrograms / sizeof kPrograms[0] - 1; }

const tidec_program* tidec_program_at(int64_t program) { return &kPrograms[program]; }

void tidec_issue(void* runner, int64_t program, int64_t node, int64_t lane, int64_t call) {
  [[maybe_unused]] auto& target = *static_cast<tidec::Target*>(runner);
  [[maybe_unused]] const tidec::Rank rank{node, lane};
  [[maybe_unused]] const tidec::Call number{call};
  switch (program) {
    case 0: tidec::plans::block_ag::issue(target, rank, number); break;
    default: break;
  }
}

}  // extern "C"
