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
    {38, "schedules/tide_ag.py:45"},
    {39, "schedules/tide_ag.py:46"},
    {40, "schedules/tide_ag.py:49"},
    {41, "schedules/tide_ag.py:51"},
    {42, "schedules/tide_ag.py:52"},
    {43, "schedules/tide_ag.py:54"},
    {44, "schedules/tide_ag.py:55"},
    {47, "schedules/tide_ag.py:59"},
    {49, "schedules/tide_ag.py:60"},
    {52, "schedules/tide_ag.py:62"},
    {56, "schedules/tide_ag.py:63"},
    {58, "schedules/tide_ag.py:72"},
    {59, "schedules/tide_ag.py:73"},
    {61, "schedules/tide_ag.py:69 from 74"},
    {62, "schedules/tide_ag.py:66 from 74"},
    {63, "schedules/tide_ag.py:69 from 74"},
    {64, "schedules/tide_ag.py:75"},
    {80, "schedules/tide_ag.py:82"},
    {81, "schedules/tide_ag.py:69 from 83"},
    {83, "schedules/tide_ag.py:66 from 84"},
    {85, "schedules/tide_ag.py:69 from 83"},
    {86, "schedules/tide_ag.py:69 from 85"},
    {88, "schedules/tide_ag.py:66 from 86"},
    {90, "schedules/tide_ag.py:69 from 85"},
    {91, "schedules/tide_ag.py:87"},
    {95, "schedules/tide_ag.py:88"},
    {96, "schedules/tide_ag.py:89"},
    {97, "schedules/tide_ag.py:92"},
    {98, "schedules/tide_ag.py:97"},
    {99, "schedules/tide_ag.py:39 from 98"},
    {100, "schedules/tide_ag.py:40 from 98"},
    {101, "schedules/tide_ag.py:41 from 98"},
    {0, nullptr},
};

// The last row ends the table, and is no program.
constexpr tidec_program kPrograms[] = {
    {"block.ag", "<digest>", 3, 2, "block.ag.hpp", 0, 2,
     tidec::plans::block_ag::kArenaBytes, &tidec::plans::block_ag::kLayout, 32, kSpots_block_ag},
    {nullptr, nullptr, 0, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr},
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
