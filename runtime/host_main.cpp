// A program around the host target, without Python: the plans of a module on data of its own, all ranks in this process.
//
//   host                                  the programs: number, nodes, lanes, digest of the plan, name
//   host PROGRAM CALLS FIRST_SEED NUM_SEEDS drawn|threads
//                                         a line a seed: seed, digest of everything that the ranks gave
//
// Exit 1 where the run stops, with the reason on stderr; exit 2 where an argument is not what it should be.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tidec/host.h"

namespace {

constexpr int64_t kDeadlineMs = 60000;

int64_t number(const char* text) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < 0) {
    std::fprintf(stderr, "host: \"%s\" is not a number from 0 on\n", text);
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

// Numbers in bf16 and fp32 alike: 1.0 up to 2.0 in both halves of every word, other ones in every rank and place.
void fill(char* at, int64_t bytes, uint64_t rank) {
  uint64_t state = (rank + 1) * 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i + 2 <= bytes; i += 2) {
    state = state * 0x5851f42d4c957f2du + 0x14057b7ef767814fu;
    const uint16_t half = static_cast<uint16_t>(0x3f80 | (state >> 57));
    std::memcpy(at + i, &half, 2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    list();
    return 0;
  }
  if (argc != 6 || (std::strcmp(argv[5], "drawn") != 0 && std::strcmp(argv[5], "threads") != 0)) {
    std::fprintf(stderr, "host: write PROGRAM CALLS FIRST_SEED NUM_SEEDS drawn|threads\n");
    return 2;
  }
  tidec_host_job job{};
  job.program = number(argv[1]);
  job.calls = number(argv[2]);
  job.first_seed = number(argv[3]);
  job.num_seeds = number(argv[4]);
  job.deadline_ms = kDeadlineMs;
  job.alpha = 0.5f;
  job.threads = std::strcmp(argv[5], "threads") == 0;
  tidec_host_sizes sizes;
  const int32_t sized = tidec_host_size(job.program, job.calls, &sizes);
  if (sized == TIDEC_HOST_STOPPED) {
    std::fprintf(stderr, "host: there is no more memory\n");
    return 1;
  }
  if (sized != TIDEC_HOST_OK || job.num_seeds < 1) {
    std::fprintf(stderr, "host: there is no program %s, or a number is out of range\n", argv[1]);
    return 2;
  }
  const tidec_program* p = tidec_program_at(job.program);
  std::vector<int32_t> objects;
  for (int64_t r = 0; r < p->nodes * p->lanes; ++r) {
    const int file = memfd_create("tidec-rank", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizes.object_bytes) != 0) {
      std::perror("host: shared memory");
      return 1;
    }
    void* base = mmap(nullptr, static_cast<size_t>(sizes.object_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
      std::perror("host: shared memory");
      return 1;
    }
    fill(static_cast<char*>(base) + sizes.inputs_at, job.calls * sizes.input_bytes, static_cast<uint64_t>(r));
    munmap(base, static_cast<size_t>(sizes.object_bytes));
    objects.push_back(file);
  }
  std::vector<uint64_t> digests(static_cast<size_t>(job.num_seeds));
  std::vector<int64_t> nanoseconds(digests.size());
  char message[8192] = "";
  const int32_t code = tidec_host_run(&job, 0, static_cast<int64_t>(objects.size()), objects.data(), digests.data(), nanoseconds.data(), message, sizeof message);
  if (code != TIDEC_HOST_OK) {
    std::fprintf(stderr, "host: %s\n", message);
    return code;
  }
  for (size_t i = 0; i < digests.size(); ++i) {
    std::printf("%lld %016llx\n", static_cast<long long>(job.first_seed) + static_cast<long long>(i), static_cast<unsigned long long>(digests[i]));
  }
  return 0;
}
