// One rank: what its walk issued, as tasks with addresses, and the workers that carry them out.
//
// A stream is a FIFO: its tasks run in order, but those of an unordered set may run at any time up to the next join. A wire carries the puts of
// one stream to one node over one context, in order, at its own pace. Who goes on next is the driver's business (job.cpp).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "host/arithmetic.hpp"
#include "host/object.hpp"
#include "host/target.hpp"
#include "tidec/layout.hpp"
#include "tidec/module.hpp"
#include "tidec/node.h"

namespace tidec::host {

inline constexpr uint16_t kPoison = 0x7fc0;

// Fills memory with NaN: in bf16, fp16 and fp32.
void poison(char* at, int64_t bytes);

// A small generator: the same numbers on every machine.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) { next(); }
  uint64_t next();
  // 0 <= result < bound.
  uint64_t below(uint64_t bound) { return (next() >> 32) * bound >> 32; }

 private:
  uint64_t state_;
};

// What one call is given by its caller, and where it gives. input_bytes: of the shard.  gradients: one a parameter; gradient_bytes tells how long.
// landing: where the read of the call before is copied to, null where nobody wants that.
struct Given {
  const char* shard = nullptr;
  int64_t shard_bytes = 0;
  const void* const* gradients = nullptr;
  char* out = nullptr;
  int64_t out_bytes = 0;
  char* landing = nullptr;
  float alpha = 1;
  bool accumulates = false;
};

// Which ops of a walk are taken over: all, those but of the stream on which the caller reads, or of that stream the ones up to its read, or behind.
enum class Part { kAll, kMoves, kAcquire, kRelease };

// What a rank cannot do; the job stops.
struct Stopped {
  std::string why;
};

// A counter and what it must reach, or what it is raised to. owner: the rank with which it lies.
struct Count {
  Cell* cell;
  uint64_t value;
  int64_t owner;
};

// Rows of values that go to one place, from several sources in order.
struct Piece {
  char* dst;
  int64_t elems;
  int64_t rows;
  int64_t dst_pitch;
  Dtype from;
  int64_t first_source;
  int64_t num_sources;
};

struct Source {
  const char* src;
  int64_t pitch;
};

// Bytes of a sum or landing that no term reaches.
struct Gap {
  char* dst;
  int64_t bytes;
};

// What the sums of one call read and write.
struct Terms {
  int64_t call = 0;
  float alpha = 1;
  std::vector<Piece> pieces;
  std::vector<Source> sources;
  std::vector<Gap> gaps;
};

// bytes: of the extent that a sum, landing, zero, read or free names.  adds: a sum or landing goes on from what its destination holds.
// terms: of the task's call.
struct Task {
  Kind kind;
  bool in_set;
  bool adds;
  Reduction reduction;
  int line;
  int wire;
  int64_t call;
  Count first;
  Count second;
  const char* src;
  char* dst;
  int64_t width;
  int64_t rows;
  int64_t src_pitch;
  int64_t dst_pitch;
  int64_t bytes;
  Dtype from;
  Dtype to;
  const Terms* terms;
  int64_t first_piece;
  int64_t num_pieces;
  int64_t first_gap;
  int64_t num_gaps;
};

// What was carried out of one call: of each kind how many ops, and how many bytes they read, or of zeros wrote. A put counts once all of it is done.
struct Tally {
  int64_t call = -1;
  int64_t ops[TIDEC_NODE_KINDS] = {};
  int64_t bytes[TIDEC_NODE_KINDS] = {};
};
inline constexpr int64_t kTallied = 8;

// A stream or a wire. stream: its number; a wire's is that of its puts.  context, peer: of a wire; peer is a node.
// issued: of a wire, how many of its tasks the stream has handed over.  open: tasks of unordered sets that have not run.
// tallies: of the last calls, by their number; a call's begins when the first op of it is carried out.
struct Worker {
  int stream = 0;
  bool is_wire = false;
  int64_t peer = 0;
  int64_t context = 0;
  std::vector<Task> tasks;
  size_t next = 0;
  std::vector<size_t> open;
  std::atomic<uint64_t> issued{0};
  int phase = 0;
  std::vector<char> bounce;
  int64_t blocked_ns = 0;
  Tally tallies[kTallied];
};

// The job as one process sees it. objects: of all ranks. Of a node, `told` has a deadline and what holds for all calls.
struct Job {
  const tidec_host_job* told;
  const tidec_program* program;
  const Layout* layout;
  tidec_host_sizes sizes;
  std::vector<Object> objects;

  int64_t lanes() const { return program->lanes; }
  int64_t ranks() const { return program->nodes * program->lanes; }
  std::string name(int64_t rank) const;
  std::string spot(int line) const;
};

// Where an input of a program begins: parameter p's gradient, -1 where it has none; of an all-gather the shard. Rounded up to 64 bytes.
int64_t input_at(const Layout& layout, bool is_reduction, int64_t param);

// Bytes of the shard that an all-gather is given.
int64_t shard_bytes(const Layout& layout);

class Rank {
 public:
  Rank(const Job& job, int64_t number);

  // Takes over what the walk of a call of a job issued. Throws Stopped where an op names memory or a rank that is not there.
  void load(const Recorder& recorder, int64_t call);
  // The same of a part of a walk, for a call on the caller's memory. Tasks are counted to `call`, and the walk may be that of the call after.
  void load(const Recorder& recorder, int64_t call, const Given& given, Part part);

  // Where the landing begins that a walk reads, null where it reads none.
  const char* landing(const Recorder& recorder, int64_t call);

  // What was carried out of one of the last kTallied calls.
  Tally tally(int64_t call) const;

  // Forgets all that was carried out.
  void drop_done();

  // Makes everything as it is before the first call, and the draws those of a seed.
  void begin();

  // One step of a worker. Returns whether it moved. Throws Stopped.
  bool step(Worker& worker, Draw& draw);

  bool is_through(const Worker& worker) const;
  // Whether it has no task left of a call or those before.
  bool is_through(const Worker& worker, int64_t call) const;
  // The task at which a worker stands and waits, null where it waits for none.
  const Task* waiting(const Worker& worker) const;
  // What it waits for, in words.
  std::string waits_for(const Worker& worker, const Task& task) const;
  // Whether some task that has not run raises the counter of `count` to its value.
  bool will_raise(const Count& count) const;

  // Takes the landing of the last call, once all workers are through: the walk of the call after it says where that lies.
  void take_last_landing(const Recorder& after);
  uint64_t digest() const;
  // Whether calls write outputs: all but all-gathers that are not read.
  bool has_outputs() const;

  int64_t number() const { return number_; }
  std::deque<Worker>& workers() { return workers_; }
  const Object& object() const { return job_.objects[static_cast<size_t>(number_)]; }

 private:
  Worker& worker(int stream, bool is_wire, int64_t peer, int64_t context);
  Count count(const Level& level, bool is_wait);
  char* at(const Place& place, int64_t bytes, int64_t lane) const;
  char* at(const Place& place, int64_t bytes) const { return at(place, bytes, place.rank.lane); }
  Given given_by_job(int64_t call);
  Terms& new_terms(int64_t call, float alpha);
  void load_move(Task task, const Op& op);
  void load_sum(Task task, const Op* first, const Op* last);
  void load_landing(Task task, const Op* first, const Op* last);
  void load_gaps(Task& task);
  bool can_run(const Task& task) const;
  void run(const Task& task, Worker& worker);
  void run_sum(const Task& task) const;
  bool step_wire(Worker& wire, Draw& draw);
  void raise(const Count& count) const;
  std::string counter(const Cell& cell) const;

  const Job& job_;
  int64_t number_;
  std::deque<Worker> workers_;
  Given given_;
  int64_t call_ = 0;
  std::deque<std::unique_ptr<Terms>> terms_;
  std::vector<std::unique_ptr<Terms>> spare_terms_;
  std::vector<const void*> gradients_;
  std::vector<const char*> streams_;
  std::vector<const char*> flags_;
  std::vector<char> inputs_;
};

}  // namespace tidec::host
