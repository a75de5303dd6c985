// The C interface of the host target (tidec/host.h): objects are mapped, walks are recorded, seeds are run.
#include "tidec/host.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <set>
#include <tuple>

#include "host/drive.hpp"
#include "tidec/guard.hpp"

namespace tidec::host {

namespace {

constexpr int64_t kPage = 4096, kMaxCalls = 1 << 20, kMaxRanks = 4096;
static_assert(kHeaderBytes <= kPage);

int64_t rounded(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

void record(Recorder& recorder, int64_t program, int64_t rank, int64_t call) {
  const int64_t lanes = tidec_program_at(program)->lanes;
  recorder.clear();
  tidec_issue(&recorder, program, rank / lanes, rank % lanes, call);
}

// The most counters that lie with one rank: those of its own waits, and those that any rank raises for it. All calls name the same ones.
int64_t most_counters(int64_t program) {
  using Name = std::tuple<int64_t, int64_t, int, std::vector<int64_t>>;
  const tidec_program& p = *tidec_program_at(program);
  std::set<Name> found;
  std::vector<int64_t> counts(static_cast<size_t>(p.nodes * p.lanes), 0);
  Recorder recorder;
  for (int64_t rank = 0; rank < p.nodes * p.lanes; ++rank) {
    for (int64_t call : {0, 1}) {
      record(recorder, program, rank, call);
      for (const Op& op : recorder.ops()) {
        const auto add = [&](const Level& level, bool is_wait) {
          const int64_t far = level.rank.node * p.lanes + level.rank.lane, owner = is_wait ? rank : far;
          if (owner < 0 || owner >= p.nodes * p.lanes) return;
          const Counter& c = level.counter;
          if (found.emplace(owner, is_wait ? far : rank, c.flag->index, std::vector<int64_t>(c.keys, c.keys + c.num_keys)).second) {
            ++counts[static_cast<size_t>(owner)];
          }
        };
        if (op.kind == Kind::kWait || op.kind == Kind::kSignal) add(op.first, op.kind == Kind::kWait);
        if (op.kind == Kind::kPut) add(op.first, false), add(op.second, false);
      }
    }
  }
  return *std::max_element(counts.begin(), counts.end());
}

// Bytes of what a call is given, and of what it gives.
int64_t input_bytes(const tidec_program& p, const Layout& layout) {
  if (p.is_reduction) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < layout.params.count; ++i) {
      const int64_t at = input_at(layout, true, i);
      if (at >= 0) bytes = at + layout.params[i].real_elems * item_bytes(layout.moved);
    }
    return bytes;
  }
  return shard_bytes(layout);
}

int64_t output_bytes(const tidec_program& p, const Layout& layout) {
  return p.is_reduction ? 4 * layout.packed_elems : p.nodes * p.lanes * layout.shard_bytes;
}

// Makes the pages of an arena this process's own before anything is timed; a kernel that cannot leaves them to the first access.
void touch([[maybe_unused]] char* at, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(at, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
#endif
}

int32_t misused(char* message, int64_t room, const char* why) {
  tell(message, room, why);
  return TIDEC_HOST_USAGE;
}

// The mapped objects of all ranks; unmapped at the end.
class Mapped {
 public:
  Mapped() = default;
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() {
    for (char* base : bases_) munmap(base, static_cast<size_t>(bytes_));
  }

  bool map(const int32_t* files, int64_t num, int64_t bytes) {
    bytes_ = bytes;
    for (int64_t r = 0; r < num; ++r) {
      struct stat about;
      if (fstat(files[r], &about) != 0 || about.st_size < bytes) return false;
      void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, files[r], 0);
      if (base == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();
      if (base == MAP_FAILED) return false;
      bases_.push_back(static_cast<char*>(base));
    }
    return true;
  }

  char* base(int64_t rank) const { return bases_[static_cast<size_t>(rank)]; }

 private:
  std::vector<char*> bases_;
  int64_t bytes_ = 0;
};

tidec_host_sizes sizes_of(int64_t program, int64_t calls) {
  const tidec_program& p = *tidec_program_at(program);
  const Layout& layout = *static_cast<const Layout*>(p.layout);
  tidec_host_sizes s{};
  s.cells_at = kPage;
  s.num_cells = most_counters(program) * 5 / 4 + 8;
  s.arena_at = rounded(s.cells_at + s.num_cells * static_cast<int64_t>(sizeof(Cell)), kPage);
  s.arena_bytes = p.arena_bytes;
  s.inputs_at = rounded(s.arena_at + s.arena_bytes, kPage);
  s.input_bytes = rounded(input_bytes(p, layout), 64);
  s.before_at = rounded(s.inputs_at + calls * s.input_bytes, kPage);
  s.output_bytes = rounded(output_bytes(p, layout), 64);
  s.outputs_at = rounded(s.before_at + calls * s.output_bytes, kPage);
  s.object_bytes = rounded(s.outputs_at + calls * s.output_bytes, kPage);
  return s;
}

// As tidec_host_run, which maps what is thrown before the ranks are there: then nobody waits for them.
int32_t run(const tidec_host_job& told, int64_t first_rank, int64_t num_ranks, const int32_t* files, uint64_t* digests, int64_t* nanoseconds, char* message, int64_t message_bytes) {
  Job job{};
  job.told = &told;
  const int32_t sized = tidec_host_size(told.program, told.calls, &job.sizes);
  if (sized == TIDEC_HOST_STOPPED) throw std::bad_alloc();
  if (sized != TIDEC_HOST_OK) {
    return misused(message, message_bytes, "there is no such program, or a number is out of range");
  }
  job.program = tidec_program_at(told.program);
  job.layout = static_cast<const Layout*>(job.program->layout);
  if (first_rank < 0 || num_ranks < 1 || first_rank + num_ranks > job.ranks() || told.deadline_ms < 1 || told.first_seed < 0 || told.num_seeds < 1) {
    return misused(message, message_bytes, "a number of the job is out of range");
  }
  Mapped mapped;
  if (!mapped.map(files, job.ranks(), job.sizes.object_bytes)) {
    return misused(message, message_bytes, "the object of a rank cannot be mapped, or is too small");
  }
  for (int64_t r = 0; r < job.ranks(); ++r) {
    job.objects.emplace_back(mapped.base(r), job.sizes);
    touch(mapped.base(r) + job.sizes.arena_at, job.sizes.arena_bytes);
  }

  std::vector<std::unique_ptr<Rank>> owned;
  std::vector<Rank*> ranks;
  for (int64_t r = first_rank; r < first_rank + num_ranks; ++r) {
    owned.push_back(std::make_unique<Rank>(job, r));
    ranks.push_back(owned.back().get());
  }
  Driver driver(job, ranks);
  Recorder recorder;
  char why[kReasonBytes];
  const bool is_done = guarded<Stopped>(why, kReasonBytes, [&] {
    for (Rank* rank : ranks) {
      for (int64_t e = 0; e < told.calls; ++e) {
        record(recorder, told.program, rank->number(), e);
        rank->load(recorder, e);
      }
    }
    for (int64_t i = 0; i < told.num_seeds; ++i) {
      for (Rank* rank : ranks) rank->begin();
      if (!driver.meet()) throw Stopped{driver.why()};
      const int64_t start = now_ns();
      if (!driver.run(static_cast<uint64_t>(told.first_seed + i)) || !driver.meet()) throw Stopped{driver.why()};
      nanoseconds[i] = now_ns() - start;
      digests[i] = 0;
      for (Rank* rank : ranks) {
        if (!job.program->is_reduction && rank->has_outputs()) {
          record(recorder, told.program, rank->number(), told.calls);
          rank->take_last_landing(recorder);
        }
        digests[i] ^= rank->digest();
      }
    }
    if (!driver.meet()) throw Stopped{driver.why()};
  });
  if (is_done) return TIDEC_HOST_OK;
  driver.stop(why, first_rank);
  tell(message, message_bytes, driver.why().c_str());
  return TIDEC_HOST_STOPPED;
}

}  // namespace

}  // namespace tidec::host

using namespace tidec::host;

extern "C" {

int32_t tidec_host_size(int64_t program, int64_t calls, tidec_host_sizes* sizes) {
  if (program < 0 || program >= tidec_num_programs() || calls < 1 || calls > kMaxCalls) return TIDEC_HOST_USAGE;
  if (tidec_program_at(program)->nodes * tidec_program_at(program)->lanes > kMaxRanks) return TIDEC_HOST_USAGE;
  return tidec::guarded<Stopped>(nullptr, 0, [&] { *sizes = sizes_of(program, calls); }) ? TIDEC_HOST_OK : TIDEC_HOST_STOPPED;
}

int64_t tidec_host_input_at(int64_t program, int64_t param) {
  if (program < 0 || program >= tidec_num_programs()) return -1;
  const tidec_program& p = *tidec_program_at(program);
  return input_at(*static_cast<const tidec::Layout*>(p.layout), p.is_reduction != 0, param);
}

int32_t tidec_host_run(const tidec_host_job* told, int64_t first_rank, int64_t num_ranks, const int32_t* files, uint64_t* digests, int64_t* nanoseconds,
                       char* message, int64_t message_bytes) {
  int32_t code = TIDEC_HOST_STOPPED;
  tidec::guarded<Stopped>(message, message_bytes, [&] { code = run(*told, first_rank, num_ranks, files, digests, nanoseconds, message, message_bytes); });
  return code;
}

}  // extern "C"
