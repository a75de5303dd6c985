#include "host/rank.hpp"

#include <algorithm>
#include <cstring>

#include "tidec/digest.hpp"

namespace tidec::host {

void poison(char* at, int64_t bytes) {
  const uint64_t four = kPoison * 0x0001000100010001u;
  int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) std::memcpy(at + i, &four, 8);
  if (i < bytes) std::memcpy(at + i, &four, static_cast<size_t>(bytes - i));
}

uint64_t Draw::next() {
  if (state_ == 0) return 0;
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_ * 0x2545f4914f6cdd1du;
}

std::string Job::name(int64_t rank) const { return std::to_string(rank / lanes()) + "." + std::to_string(rank % lanes()); }

std::string Job::spot(int line) const {
  for (int64_t i = 0; i < program->num_spots; ++i) {
    if (program->spots[i].line == line) return std::string(program->spots[i].schedule) + " (" + program->header + ":" + std::to_string(line) + ")";
  }
  return std::string(program->header) + ":" + std::to_string(line);
}

int64_t input_at(const Layout& layout, bool is_reduction, int64_t param) {
  if (!is_reduction) return 0;
  const auto bytes = [&](int64_t p) {
    return layout.params[p].is_trainable ? (layout.params[p].real_elems * item_bytes(layout.moved) + 63) / 64 * 64 : 0;
  };
  if (param < 0 || param >= layout.params.count || !layout.params[param].is_trainable) return -1;
  int64_t at = 0;
  for (int64_t p = 0; p < param; ++p) at += bytes(p);
  return at;
}

int64_t shard_bytes(const Layout& layout) {
  int64_t bytes = layout.casts.count == 0 ? layout.shard_bytes : 0;
  for (const CastRun& run : layout.casts) bytes = most(bytes, run.src + run.elems * item_bytes(run.from));
  return bytes;
}

void Rank::begin() {
  const tidec_host_job& told = *job_.told;
  object().reset_counters();
  char* arena = object().arena();
  if (told.poison) {
    poison(arena, job_.sizes.arena_bytes);
    for (int64_t i = 0; i < told.num_zero; ++i) std::memset(arena + told.zero[i].offset, 0, static_cast<size_t>(told.zero[i].bytes));
  } else {
    std::memset(arena, 0, static_cast<size_t>(job_.sizes.arena_bytes));
  }
  for (int64_t e = 0; e < told.calls; ++e) {
    if (!inputs_.empty()) std::memcpy(inputs_.data() + e * job_.sizes.input_bytes, object().input(e), static_cast<size_t>(job_.sizes.input_bytes));
    if (has_outputs()) std::memcpy(object().output(e), object().before(e), static_cast<size_t>(job_.sizes.output_bytes));
  }
  for (Worker& w : workers_) {
    w.next = 0;
    w.open.clear();
    w.issued.store(0, std::memory_order_relaxed);
    w.phase = 0;
    w.blocked_ns = 0;
    std::fill(w.tallies, w.tallies + kTallied, Tally{});
  }
}

bool Rank::is_through(const Worker& w) const { return w.next == w.tasks.size() && w.open.empty(); }

bool Rank::is_through(const Worker& w, int64_t call) const {
  if (w.next < w.tasks.size() && w.tasks[w.next].call <= call) return false;
  for (size_t i : w.open) {
    if (w.tasks[i].call <= call) return false;
  }
  return true;
}

bool Rank::can_run(const Task& task) const { return task.kind != Kind::kWait || task.first.cell->value.load(std::memory_order_acquire) >= task.first.value; }

const Task* Rank::waiting(const Worker& w) const {
  if (w.is_wire) return nullptr;
  if (w.next < w.tasks.size() && !can_run(w.tasks[w.next])) return &w.tasks[w.next];
  for (size_t i : w.open) {
    if (!can_run(w.tasks[i])) return &w.tasks[i];
  }
  return nullptr;
}

bool Rank::step(Worker& w, Draw& draw) {
  if (w.is_wire) return step_wire(w, draw);
  const bool has_head = w.next < w.tasks.size();
  const Task* head = has_head ? &w.tasks[w.next] : nullptr;
  const bool head_goes = has_head && (head->in_set || (head->kind == Kind::kJoin ? w.open.empty() : can_run(*head)));
  if (!w.open.empty() && (!head_goes || draw.below(2) == 1)) {
    const size_t pick = draw.below(w.open.size());
    const Task& task = w.tasks[w.open[pick]];
    if (can_run(task)) {
      w.open.erase(w.open.begin() + static_cast<std::ptrdiff_t>(pick));
      run(task, w);
      return true;
    }
  }
  if (!head_goes) return false;
  if (head->in_set) w.open.push_back(w.next);
  else if (head->kind != Kind::kJoin) run(*head, w);
  ++w.next;
  return true;
}

namespace {

void copy_rows(char* dst, int64_t dst_pitch, const char* src, int64_t src_pitch, int64_t width, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) copy_row(dst + r * dst_pitch, src + r * src_pitch, width);
}

}  // namespace

namespace {

void note(Worker& w, const Task& task, int kind, int64_t bytes, int64_t ops = 1) {
  if (task.call < 0) return;
  Tally& tally = w.tallies[task.call % kTallied];
  if (tally.call != task.call) tally = Tally{task.call, {}, {}};
  tally.ops[kind] += ops;
  tally.bytes[kind] += bytes;
}

// The bytes of all terms of a sum or landing.
int64_t read_by(const Task& task) {
  int64_t bytes = 0;
  for (int64_t p = task.first_piece; p < task.first_piece + task.num_pieces; ++p) {
    const Piece& piece = task.terms->pieces[static_cast<size_t>(p)];
    bytes += piece.num_sources * piece.rows * piece.elems * item_bytes(piece.from);
  }
  return bytes;
}

}  // namespace

Tally Rank::tally(int64_t call) const {
  Tally all{call, {}, {}};
  for (const Worker& w : workers_) {
    const Tally& tally = w.tallies[call % kTallied];
    if (tally.call != call) continue;
    for (int kind = 0; kind < TIDEC_NODE_KINDS; ++kind) all.ops[kind] += tally.ops[kind], all.bytes[kind] += tally.bytes[kind];
  }
  return all;
}

void Rank::run(const Task& task, Worker& w) {
  const int64_t bytes = task.width * task.rows;
  switch (task.kind) {
    case Kind::kSignal: raise(task.first), note(w, task, TIDEC_NODE_SIGNALS, 0); break;
    case Kind::kCopy:
      copy_rows(task.dst, task.dst_pitch, task.src, task.src_pitch, task.width, task.rows);
      note(w, task, TIDEC_NODE_COPIES, bytes);
      break;
    case Kind::kPut: workers_[static_cast<size_t>(task.wire)].issued.fetch_add(1, std::memory_order_release); break;
    case Kind::kZero: std::memset(task.dst, 0, static_cast<size_t>(task.bytes)), note(w, task, TIDEC_NODE_ZEROS, task.bytes); break;
    case Kind::kCast:
      note(w, task, TIDEC_NODE_CASTS, bytes);
      for (int64_t r = 0; r < task.rows; ++r) {
        cast_row(task.dst + r * task.dst_pitch, task.to, task.src + r * task.src_pitch, task.from, task.width / item_bytes(task.from), job_.told->scalar != 0);
      }
      break;
    case Kind::kSum:
    case Kind::kLand: run_sum(task), note(w, task, task.kind == Kind::kSum ? TIDEC_NODE_SUMS : TIDEC_NODE_LANDINGS, read_by(task)); break;
    case Kind::kRead: std::memcpy(task.dst, task.src, static_cast<size_t>(task.bytes)); break;
    case Kind::kFree:
      if (job_.told->poison) poison(task.dst, task.bytes);
      break;
    case Kind::kWait: note(w, task, TIDEC_NODE_WAITS, 0); break;
    case Kind::kJoin:
    case Kind::kTerm:
    case Kind::kLanding: break;
  }
}

void Rank::run_sum(const Task& task) const {
  const bool scalar = job_.told->scalar != 0;
  for (int64_t g = task.first_gap; g < task.first_gap + task.num_gaps; ++g) {
    const Gap& gap = task.terms->gaps[static_cast<size_t>(g)];
    std::memset(gap.dst, 0, static_cast<size_t>(gap.bytes));
  }
  std::vector<const char*> rows;
  for (int64_t p = task.first_piece; p < task.first_piece + task.num_pieces; ++p) {
    const Piece& piece = task.terms->pieces[static_cast<size_t>(p)];
    rows.resize(static_cast<size_t>(piece.num_sources));
    for (int64_t r = 0; r < piece.rows; ++r) {
      for (size_t s = 0; s < rows.size(); ++s) {
        const Source& source = task.terms->sources[static_cast<size_t>(piece.first_source) + s];
        rows[s] = source.src + r * source.pitch;
      }
      float* dst = reinterpret_cast<float*>(piece.dst + r * piece.dst_pitch);
      if (task.kind == Kind::kSum) sum_rows(dst, rows.data(), piece.num_sources, piece.from, piece.elems, task.terms->alpha, task.adds, scalar);
      else land_rows(dst, rows.data(), piece.num_sources, piece.elems, task.adds, task.reduction, scalar);
    }
  }
}

// A put is read and then written, or read, reported as reusable, and written later. Its `then` is raised after its data, always.
bool Rank::step_wire(Worker& w, Draw& draw) {
  if (w.next >= w.issued.load(std::memory_order_acquire)) return false;
  const Task& put = w.tasks[w.next];
  const size_t row = static_cast<size_t>(put.width);
  switch (w.phase) {
    case 0:
      if (draw.below(2) == 0) {
        copy_rows(put.dst, put.dst_pitch, put.src, put.src_pitch, put.width, put.rows);
        w.phase = 1;
      } else {
        w.bounce.resize(row * static_cast<size_t>(put.rows));
        copy_rows(w.bounce.data(), put.width, put.src, put.src_pitch, put.width, put.rows);
        w.phase = 3;
      }
      return true;
    case 1: raise(put.first); break;
    case 2:
    case 3: raise(put.second); break;
    case 4: copy_rows(put.dst, put.dst_pitch, w.bounce.data(), put.width, put.width, put.rows); break;
    default: raise(put.first); break;
  }
  if (w.phase == 2 || w.phase == 5) {
    note(w, put, TIDEC_NODE_PUTS, put.width * put.rows);
    note(w, put, TIDEC_NODE_SIGNALS, 0, 2);
    w.phase = 0;
    ++w.next;
  } else {
    ++w.phase;
  }
  return true;
}

void Rank::raise(const Count& count) const {
  const uint64_t value = count.cell->value.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (value != count.value) {
    throw Stopped{"rank " + job_.name(number_) + " raises " + counter(*count.cell) + " of rank " + job_.name(count.owner) + " out of turn: to " +
                  std::to_string(value) + ", where " + std::to_string(count.value) + " was planned"};
  }
}

std::string Rank::counter(const Cell& cell) const {
  const size_t flag = static_cast<size_t>(cell.key.flag);
  std::string text = flag < flags_.size() && flags_[flag] != nullptr ? flags_[flag] : "flag " + std::to_string(flag);
  for (int i = 0; i < cell.key.num_keys; ++i) text += (i == 0 ? "[" : ", ") + std::to_string(cell.key.keys[i]);
  return cell.key.num_keys > 0 ? text + "]" : text;
}

std::string Rank::waits_for(const Worker& w, const Task& task) const {
  const Cell& cell = *task.first.cell;
  const std::string what = counter(cell), raiser = job_.name(cell.key.raiser), value = std::to_string(task.first.value);
  return "rank " + job_.name(number_) + ", stream " + streams_[static_cast<size_t>(w.stream)] + ", call " + std::to_string(task.call) + ": " + what + " by rank " +
         raiser + " is " + std::to_string(cell.value.load(std::memory_order_relaxed)) + ", and " + value + " is awaited\n  at " + job_.spot(task.line) +
         "\n  missing: rank " + raiser + " has not raised " + what + " to " + value;
}

bool Rank::will_raise(const Count& count) const {
  const auto raises = [&](const Count& c) { return c.cell == count.cell && c.value >= count.value; };
  const auto waits = [&](const Task& t, bool is_wire) {
    return t.kind == Kind::kSignal ? raises(t.first) : t.kind == Kind::kPut && is_wire && (raises(t.first) || raises(t.second));
  };
  for (const Worker& w : workers_) {
    for (size_t i = w.next; i < w.tasks.size(); ++i) {
      if (waits(w.tasks[i], w.is_wire)) return true;
    }
    for (size_t i : w.open) {
      if (waits(w.tasks[i], w.is_wire)) return true;
    }
  }
  return false;
}

void Rank::take_last_landing(const Recorder& after) {
  for (const Op& op : after.ops()) {
    if (op.kind != Kind::kRead) continue;
    const int64_t last = job_.told->calls - 1;
    std::memcpy(object().output(last), at(op.extent.place, op.extent.bytes), static_cast<size_t>(std::min(op.extent.bytes, job_.sizes.output_bytes)));
  }
}

bool Rank::has_outputs() const { return job_.program->is_reduction || !job_.told->unread; }

uint64_t Rank::digest() const {
  if (!has_outputs()) return 0;
  return digest_outputs(object().output(0), job_.told->calls, job_.sizes.output_bytes, number_);
}

}  // namespace tidec::host
