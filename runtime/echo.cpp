// The echo: prints what the programs of a module issue, rank by rank.
//
//   echo                                  the programs: number, nodes, lanes, digest of the plan, name
//   echo PROGRAM CALL RANK|FIRST-LAST ... for each rank a line `rank R N` and then N bytes of lines
//
// Exit 2 where an argument is not a number in range.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tidec/echo.hpp"
#include "tidec/module.hpp"

namespace {

int64_t parse(const char* text, const char** rest) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (end == text || value < 0) {
    std::fprintf(stderr, "echo: \"%s\" is not a number from 0 on\n", text);
    std::exit(2);
  }
  *rest = end;
  return value;
}

int64_t parse_whole(const char* text) {
  const char* rest = nullptr;
  const int64_t value = parse(text, &rest);
  if (*rest != '\0') {
    std::fprintf(stderr, "echo: \"%s\" is not a number\n", text);
    std::exit(2);
  }
  return value;
}

void list() {
  for (int64_t i = 0; i < tidec_num_programs(); ++i) {
    const tidec_program* p = tidec_program_at(i);
    std::printf("%lld %lld %lld %s %s\n", static_cast<long long>(i), static_cast<long long>(p->nodes), static_cast<long long>(p->lanes), p->plan_digest, p->name);
  }
}

void print(int64_t program, int64_t call, int64_t first, int64_t last) {
  const int64_t lanes = tidec_program_at(program)->lanes;
  tidec::Echo echo;
  for (int64_t rank = first; rank <= last; ++rank) {
    echo.clear();
    tidec_issue(&echo, program, rank / lanes, rank % lanes, call);
    std::printf("rank %lld %zu\n", static_cast<long long>(rank), echo.size());
    std::fwrite(echo.text(), 1, echo.size(), stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    list();
    return 0;
  }
  if (argc < 4) {
    std::fprintf(stderr, "echo: write PROGRAM CALL RANK...\n");
    return 2;
  }
  const int64_t program = parse_whole(argv[1]);
  const int64_t call = parse_whole(argv[2]);
  if (program >= tidec_num_programs()) {
    std::fprintf(stderr, "echo: there is no program %lld\n", static_cast<long long>(program));
    return 2;
  }
  const tidec_program* p = tidec_program_at(program);
  for (int i = 3; i < argc; ++i) {
    const char* rest = nullptr;
    const int64_t first = parse(argv[i], &rest);
    const int64_t last = *rest == '-' ? parse_whole(rest + 1) : first;
    if ((*rest != '-' && *rest != '\0') || last < first || last >= p->nodes * p->lanes) {
      std::fprintf(stderr, "echo: \"%s\" is not a rank of program %lld\n", argv[i], static_cast<long long>(program));
      return 2;
    }
    print(program, call, first, last);
  }
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 3;
}
