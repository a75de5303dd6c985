// What the proofs assume of streams, copy engines and counters, tried on the hardware with the calls that a plan's ops become.
//
//     orders flag <how> <rounds> <waits> <from> <to>      a copy, then a flag; the stream that waits for the flag reads all of the data
//     orders meeting <lanes> <rounds> <waits>             every lane's block, then a meeting, then a landing that reads all lanes' blocks
//     orders full <how> <from> <to>                       a copy, and a kernel, while other threads keep every multiprocessor full
//
// The first two print how many words were not those of the round. waits = 0 leaves the wait out: then words of an earlier round must be seen, or this test
// sees nothing. The last one prints whether the copy ended, whether the kernel did, and how many words were wrong in the end.
// how: one, batch, rows, word.  from, to: GPUs of the copying stream and of what it copies to.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/launch.cuh"
#include "cuda/streams.hpp"

using namespace tidec::cuda;

namespace {

constexpr int kCtas = 16, kThreads = 256;

// Of one word of one round: no word is the same in two rounds that follow each other, nor two of a round.
__host__ __device__ uint32_t word_of(uint32_t round, int64_t at) { return round * 2654435761u ^ static_cast<uint32_t>(at) * 40503u; }

// A lane's value, small enough that every sum of lanes is exact.
__host__ __device__ float value_of(uint32_t round, int lane, int64_t at) { return static_cast<float>((round * 31u + static_cast<uint32_t>(at) * 7u + static_cast<uint32_t>(lane) * 1009u) & 0xffffu); }

__global__ void fill_words(uint32_t* into, int64_t num, uint32_t round) {
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < num; i += kCtas * kThreads) into[i] = word_of(round, i);
}

// into_pitch, from_pitch: words from one row to the next, in what is read and in what was copied.
__global__ void check_words(const uint32_t* seen, int64_t width, int64_t rows, int64_t pitch, int64_t from_pitch, uint32_t round, unsigned long long* wrong) {
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < width * rows; i += kCtas * kThreads) {
    const int64_t row = i / width, column = i % width;
    if (seen[row * pitch + column] != word_of(round, row * from_pitch + column)) atomicAdd(wrong, 1ull);
  }
}

__global__ void fill_values(float* into, int64_t num, uint32_t round, int lane) {
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < num; i += kCtas * kThreads) into[i] = value_of(round, lane, i);
}

__global__ void check_sums(const float* seen, int64_t num, uint32_t round, int lanes, unsigned long long* wrong) {
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < num; i += kCtas * kThreads) {
    float sum = 0.f;
    for (int lane = 0; lane < lanes; ++lane) sum += value_of(round, lane, i);
    if (seen[i] != sum) atomicAdd(wrong, 1ull);
  }
}

// Takes up time, so that one stream is late.
__global__ void linger(int64_t ns) {
  const uint64_t start = nanoseconds();
  while (static_cast<int64_t>(nanoseconds() - start) < ns) {
  }
}

// Fills a multiprocessor with two CTAs until `go` is set, or the deadline is over.
__global__ void __launch_bounds__(1024, 2) hold(volatile int* arrived, volatile int* go, int64_t deadline_ns) {
  if (threadIdx.x == 0) atomicAdd_system(const_cast<int*>(arrived), 1);
  const uint64_t start = nanoseconds();
  while (*go == 0 && static_cast<int64_t>(nanoseconds() - start) < deadline_ns) {
  }
}

void on(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
void launched() { check(cudaGetLastError(), "a kernel"); }
unsigned long long taken(const OwnMemory& wrong) {
  unsigned long long found = 0;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(&found, wrong.base(), sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return found;
}

// Rectangles of words; from and into one memory each.
struct Shape {
  int64_t width;
  int64_t rows;
  int64_t into_pitch;
  int64_t from_pitch;
  bool is_batch;
};

Shape shape_of(const std::string& how) {
  if (how == "one") return {300001, 1, 0, 0, false};
  if (how == "batch") return {8191, 30, 9001, 8191, true};
  if (how == "rows") return {8191, 30, 9001, 8200, false};
  if (how == "word") return {1, 1, 0, 0, false};
  throw Failure{"there is no way to copy called " + how};
}

int64_t source_words(const Shape& s) { return (s.rows - 1) * s.from_pitch + s.width; }
int64_t target_words(const Shape& s) { return (s.rows - 1) * s.into_pitch + s.width; }

void copy(const Shape& s, char* into, const char* from, cudaStream_t stream) {
  std::vector<Copy> copies;
  for (int64_t r = 0; r < (s.is_batch ? s.rows : 1); ++r) {
    // A memory of its own for each copy of a batch, so that they stay a batch.
    copies.push_back({into + 4 * r * s.into_pitch, from + 4 * r * s.from_pitch, 4 * s.width, s.is_batch ? 1 : s.rows, 4 * s.into_pitch, 4 * s.from_pitch, s.is_batch ? r : 0, 0});
  }
  copy_all(stream, copies);
}

void open_peers(int from, int to) {
  if (from == to) return;
  on(from);
  check(cudaDeviceEnablePeerAccess(to, 0), "cudaDeviceEnablePeerAccess");
  on(to);
  check(cudaDeviceEnablePeerAccess(from, 0), "cudaDeviceEnablePeerAccess");
}

unsigned long long copy_then_flag(const std::string& how, uint32_t rounds, bool waits, int from, int to) {
  const Shape s = shape_of(how);
  open_peers(from, to);
  on(to);
  const OwnMemory target(4 * target_words(s)), flag(64), wrong(64);
  const OwnStream reader;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  on(from);
  const OwnMemory source(4 * source_words(s)), credit(64);
  const OwnStream writer;
  CounterOps counters;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (uint32_t i = 1; i <= rounds; ++i) {
    on(from);
    if (i > 1) counters.wait(writer, credit.base(), i - 1);
    counters.flush();
    fill_words<<<kCtas, kThreads, 0, writer>>>(reinterpret_cast<uint32_t*>(source.base()), source_words(s), i);
    launched();
    copy(s, target.base(), source.base(), writer);
    counters.write(writer, flag.base(), i, from != to);
    counters.flush();
    on(to);
    if (waits) counters.wait(reader, flag.base(), i);
    counters.flush();
    check_words<<<kCtas, kThreads, 0, reader>>>(reinterpret_cast<const uint32_t*>(target.base()), s.width, s.rows, s.into_pitch, s.from_pitch, i,
                                               reinterpret_cast<unsigned long long*>(wrong.base()));
    launched();
    counters.write(reader, credit.base(), i, from != to);
    counters.flush();
  }
  on(from);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  on(to);
  return taken(wrong);
}

// Host memory that a GPU reads and writes too.
struct Shared {
  Shared() { check(cudaHostAlloc(&at, sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc"), *static_cast<volatile int*>(at) = 0; }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { cudaFreeHost(at); }
  volatile int* word() const { return static_cast<volatile int*>(at); }
  void* at = nullptr;
};

// Whether `is_so` is so within that time.
template <class Question>
bool becomes(Question is_so, int64_t ms) {
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < std::chrono::milliseconds(ms);) {
    if (is_so()) return true;
  }
  return is_so();
}

void copy_while_full(const std::string& how, int from, int to) {
  constexpr int64_t kHoldNs = 20'000'000'000;
  const Shape s = shape_of(how);
  open_peers(from, to);
  on(to);
  const OwnMemory target(4 * target_words(s)), wrong(64);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  on(from);
  const OwnMemory source(4 * source_words(s)), other(64);
  const OwnStream holder, writer, third;
  const OwnEvent copied, ran;
  const Shared arrived, go;
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, from), "cudaDeviceGetAttribute");
  // All of it once, so that nothing is loaded while the multiprocessors are full.
  *go.word() = 1;
  hold<<<1, 1024, 0, holder>>>(arrived.word(), go.word(), kHoldNs);
  fill_words<<<kCtas, kThreads, 0, third>>>(reinterpret_cast<uint32_t*>(other.base()), 16, 1);
  fill_words<<<kCtas, kThreads, 0, writer>>>(reinterpret_cast<uint32_t*>(source.base()), source_words(s), 1);
  copy(s, target.base(), source.base(), writer);
  fill_words<<<kCtas, kThreads, 0, writer>>>(reinterpret_cast<uint32_t*>(source.base()), source_words(s), 2);
  launched();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  *go.word() = 0, *arrived.word() = 0;
  hold<<<2 * sms, 1024, 0, holder>>>(arrived.word(), go.word(), kHoldNs);
  launched();
  if (!becomes([&] { return *arrived.word() == 2 * sms; }, 5000)) throw Failure{"the multiprocessors do not become full"};
  copy(s, target.base(), source.base(), writer);
  check(cudaEventRecord(copied, writer), "cudaEventRecord");
  fill_words<<<kCtas, kThreads, 0, third>>>(reinterpret_cast<uint32_t*>(other.base()), 16, 2);
  launched();
  check(cudaEventRecord(ran, third), "cudaEventRecord");
  const bool has_copied = becomes([&] { return cudaEventQuery(copied) == cudaSuccess; }, 2000), has_run = becomes([&] { return cudaEventQuery(ran) == cudaSuccess; }, 500);
  *go.word() = 1;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  on(to);
  check_words<<<kCtas, kThreads>>>(reinterpret_cast<const uint32_t*>(target.base()), s.width, s.rows, s.into_pitch, s.from_pitch, 2, reinterpret_cast<unsigned long long*>(wrong.base()));
  launched();
  std::printf("%d %d %llu\n", has_copied, has_run, taken(wrong));
}

// A lane: its blocks, its output, and a row of counters that every lane raises one of.
struct Lane {
  explicit Lane(int64_t bytes, int lanes) : staged(bytes), arena(bytes), out(bytes), ready(64 * lanes), landed(64 * lanes) {}
  OwnMemory staged, arena, out, ready, landed;
  OwnStream stream;
};

template <int kLanes>
unsigned long long landing_after_meeting(uint32_t rounds, bool waits) {
  constexpr int64_t kWords = 65539;
  using Kernel = Landing<InOrder<kLanes>>;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<const char*> arenas;
  for (int j = 0; j < kLanes; ++j) {
    lanes.push_back(std::make_unique<Lane>(4 * kWords, kLanes));
    arenas.push_back(lanes.back()->arena.base());
  }
  const OwnMemory wrong(64);
  CounterOps counters;
  check(Kernel::prepare(), "a landing");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const LandPiece pieces[] = {{0, 0, 40003}, {160016, 160012, 25535}};
  for (uint32_t i = 1; i <= rounds; ++i) {
    for (int j = 0; j < kLanes; ++j) {
      Lane& lane = *lanes[j];
      if (waits && i > 1) {
        for (int o = 0; o < kLanes; ++o) counters.wait(lane.stream, lane.landed.base() + 64 * o, i - 1);
      }
      counters.flush();
      // In every round another lane is late.
      if (i % kLanes == static_cast<uint32_t>(j)) linger<<<1, 1, 0, lane.stream>>>(20'000);
      // Lanes with an even number copy their block to where it is read, the others write it there.
      char* const into = j % 2 == 0 ? lane.staged.base() : lane.arena.base();
      // The second piece lies one word further in an arena than in an output, so that both ways of loading are tried.
      fill_values<<<kCtas, kThreads, 0, lane.stream>>>(reinterpret_cast<float*>(into), 40003, i, j);
      fill_values<<<kCtas, kThreads, 0, lane.stream>>>(reinterpret_cast<float*>(into + 160016), 25535, i + 1, j);
      launched();
      if (j % 2 == 0) {
        std::vector<Copy> copies = {{lane.arena.base(), lane.staged.base(), 4 * kWords, 1, 0, 0}};
        copy_all(lane.stream, copies);
      }
      for (int o = 0; o < kLanes; ++o) counters.write(lane.stream, lanes[o]->ready.base() + 64 * j, i, false);
      counters.flush();
    }
    for (int j = 0; j < kLanes; ++j) {
      Lane& lane = *lanes[j];
      if (waits) {
        for (int o = 0; o < kLanes; ++o) counters.wait(lane.stream, lane.ready.base() + 64 * o, i);
      }
      counters.flush();
      check(Kernel::launch({lane.out.base(), arenas.data(), pieces, 2, false}, 8, lane.stream), "a landing");
      auto* const count = reinterpret_cast<unsigned long long*>(wrong.base());
      check_sums<<<kCtas, kThreads, 0, lane.stream>>>(reinterpret_cast<const float*>(lane.out.base()), 40003, i, kLanes, count);
      check_sums<<<kCtas, kThreads, 0, lane.stream>>>(reinterpret_cast<const float*>(lane.out.base() + 160012), 25535, i + 1, kLanes, count);
      launched();
      for (int o = 0; o < kLanes; ++o) counters.write(lane.stream, lanes[o]->landed.base() + 64 * j, i, false);
      counters.flush();
    }
  }
  return taken(wrong);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  try {
    if (argc == 7 && std::strcmp(argv[1], "flag") == 0) {
      std::printf("%llu\n", copy_then_flag(argv[2], static_cast<uint32_t>(number(3)), number(4) != 0, number(5), number(6)));
    } else if (argc == 5 && std::strcmp(argv[1], "meeting") == 0 && (number(2) == 2 || number(2) == 8)) {
      const auto run = number(2) == 2 ? landing_after_meeting<2> : landing_after_meeting<8>;
      std::printf("%llu\n", run(static_cast<uint32_t>(number(3)), number(4) != 0));
    } else if (argc == 5 && std::strcmp(argv[1], "full") == 0) {
      copy_while_full(argv[2], number(3), number(4));
    } else {
      std::fprintf(stderr, "how to ask stands at the head of orders.cu\n");
      return 2;
    }
  } catch (const Failure& problem) {
    std::fprintf(stderr, "%s\n", problem.why.c_str());
    return 1;
  }
  return 0;
}
