// Every program of the bundle behind a C interface, for the Runner that the compiler is told:
// -DTIDEC_RUNNER='"tidec/echo.hpp"' names a header that gives tidec::Target.
#ifndef TIDEC_RUNNER
#error "say which runner: -DTIDEC_RUNNER='\"tidec/echo.hpp\"'"
#endif
#include TIDEC_RUNNER

#include "tidec/module.hpp"

#include "block.ag.hpp"

namespace {

// Lines of block.ag.hpp and the lines of the schedule that they come from. The last row ends the table.
constexpr tidec_spot kSpots_block_ag[] = {
    {38, "schedules/tide_ag.py:37"},
    {39, "schedules/tide_ag.py:38"},
    {40, "schedules/tide_ag.py:41"},
    {41, "schedules/tide_ag.py:43"},
    {42, "schedules/tide_ag.py:44"},
    {43, "schedules/tide_ag.py:46"},
    {44, "schedules/tide_ag.py:47"},
    {47, "schedules/tide_ag.py:51"},
    {49, "schedules/tide_ag.py:52"},
    {52, "schedules/tide_ag.py:54"},
    {56, "schedules/tide_ag.py:55"},
    {58, "schedules/tide_ag.py:64"},
    {59, "schedules/tide_ag.py:65"},
    {61, "schedules/tide_ag.py:61 from 66"},
    {62, "schedules/tide_ag.py:58 from 66"},
    {63, "schedules/tide_ag.py:61 from 66"},
    {64, "schedules/tide_ag.py:67"},
    {80, "schedules/tide_ag.py:74"},
    {81, "schedules/tide_ag.py:61 from 75"},
    {83, "schedules/tide_ag.py:58 from 76"},
    {85, "schedules/tide_ag.py:61 from 75"},
    {86, "schedules/tide_ag.py:61 from 77"},
    {88, "schedules/tide_ag.py:58 from 78"},
    {90, "schedules/tide_ag.py:61 from 77"},
    {91, "schedules/tide_ag.py:79"},
    {95, "schedules/tide_ag.py:80"},
    {96, "schedules/tide_ag.py:81"},
    {97, "schedules/tide_ag.py:84"},
    {98, "schedules/tide_ag.py:89"},
    {99, "schedules/tide_ag.py:92"},
    {100, "schedules/tide_ag.py:93"},
    {101, "schedules/tide_ag.py:94"},
    {0, nullptr},
};

// The last row ends the table, and is no program.
constexpr tidec_program kPrograms[] = {
    {"block.ag", "<digest>", 3, 2, "block.ag.hpp", 0,
     tidec::plans::block_ag::kArenaBytes, &tidec::plans::block_ag::kLayout, 32, kSpots_block_ag},
    {nullptr, nullptr, 0, 0, nullptr, 0, 0, nullptr, 0, nullptr},
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
