// What a walk issued becomes tasks: places become addresses, counters become cells, and terms of one place become one sum.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "host/rank.hpp"

namespace tidec::host {

namespace {

int64_t elems_of(const Move& m) { return m.width / item_bytes(m.from); }

// The last byte that rows of a width reach, from their first one.
int64_t span(int64_t width, int64_t rows, int64_t pitch) { return rows < 1 ? 0 : (rows - 1) * pitch + width; }

int64_t dst_width(const Move& m) { return elems_of(m) * item_bytes(m.to); }

}  // namespace

Rank::Rank(const Job& job, int64_t number) : job_(job), number_(number) {
  if (job.told->poison) inputs_.resize(static_cast<size_t>(job.sizes.input_bytes * job.told->calls));
}

Worker& Rank::worker(int stream, bool is_wire, int64_t peer, int64_t context) {
  for (Worker& w : workers_) {
    if (w.stream == stream && w.is_wire == is_wire && w.peer == peer && w.context == context) return w;
  }
  Worker& w = workers_.emplace_back();
  w.stream = stream;
  w.is_wire = is_wire;
  w.peer = peer;
  w.context = context;
  return w;
}

// In a job all of a call lies in the rank's object, or is a copy of what lies there where what is freed is poisoned.
Given Rank::given_by_job(int64_t call) {
  Given g;
  const char* const input = inputs_.empty() ? object().input(call) : inputs_.data() + call * job_.sizes.input_bytes;
  g.shard = input;
  g.shard_bytes = job_.sizes.input_bytes;
  gradients_.assign(static_cast<size_t>(job_.layout->params.count), nullptr);
  for (int64_t p = 0; p < job_.layout->params.count && job_.program->is_reduction; ++p) {
    const int64_t start = input_at(*job_.layout, true, p);
    if (start >= 0) gradients_[static_cast<size_t>(p)] = input + start;
  }
  g.gradients = gradients_.data();
  g.out = object().output(call);
  g.out_bytes = job_.sizes.output_bytes;
  g.landing = call > 0 && has_outputs() ? object().output(call - 1) : nullptr;
  g.alpha = job_.told->alpha;
  g.accumulates = job_.told->accumulate != 0;
  return g;
}

Terms& Rank::new_terms(int64_t call, float alpha) {
  if (spare_terms_.empty()) spare_terms_.push_back(std::make_unique<Terms>());
  terms_.push_back(std::move(spare_terms_.back()));
  spare_terms_.pop_back();
  Terms& terms = *terms_.back();
  terms.call = call;
  terms.alpha = alpha;
  terms.pieces.clear();
  terms.sources.clear();
  terms.gaps.clear();
  return terms;
}

void Rank::drop_done() {
  for (Worker& w : workers_) {
    const size_t done = w.open.empty() ? w.next : std::min(w.next, *std::min_element(w.open.begin(), w.open.end()));
    if (done == 0) continue;
    w.tasks.erase(w.tasks.begin(), w.tasks.begin() + static_cast<std::ptrdiff_t>(done));
    w.next -= done;
    for (size_t& i : w.open) i -= done;
    if (w.is_wire) w.issued.fetch_sub(done, std::memory_order_relaxed);
  }
  const auto is_used = [&](const Terms& terms) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) { return !is_through(w, terms.call); });
  };
  while (!terms_.empty() && !is_used(*terms_.front())) {
    spare_terms_.push_back(std::move(terms_.front()));
    terms_.pop_front();
  }
}

void Rank::load(const Recorder& recorder, int64_t call) { load(recorder, call, given_by_job(call), Part::kAll); }

const char* Rank::landing(const Recorder& recorder, int64_t call) {
  call_ = call;
  for (const Op& op : recorder.ops()) {
    if (op.kind == Kind::kRead) return at(op.extent.place, op.extent.bytes);
  }
  return nullptr;
}

void Rank::load(const Recorder& recorder, int64_t call, const Given& given, Part part) {
  given_ = given;
  call_ = call;
  streams_ = recorder.streams();
  flags_ = recorder.flags();
  const Terms& terms = new_terms(call, given.alpha);
  const std::vector<Op>& ops = recorder.ops();
  bool is_read = false;
  const auto takes = [&](const Op& op) {
    if (part == Part::kAll) return true;
    if (op.stream != recorder.read_stream()) return part == Part::kMoves;
    return part == (is_read ? Part::kRelease : Part::kAcquire);
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const bool is_taken = takes(op);
    is_read = is_read || op.kind == Kind::kRead;
    if (!is_taken) continue;
    Task task{};
    task.kind = op.kind;
    task.in_set = op.in_set;
    task.line = op.line;
    task.call = call;
    task.terms = &terms;
    std::vector<Task>& tasks = worker(op.stream, false, 0, 0).tasks;
    switch (op.kind) {
      case Kind::kWait:
      case Kind::kSignal:
        task.first = count(op.first, op.kind == Kind::kWait);
        tasks.push_back(task);
        break;
      case Kind::kCopy:
      case Kind::kPut:
      case Kind::kCast: load_move(task, op); break;
      case Kind::kSum:
      case Kind::kLand: {
        const Kind kind = op.kind == Kind::kSum ? Kind::kTerm : Kind::kLanding;
        size_t end = i + 1;
        while (end < ops.size() && ops[end].kind == kind && ops[end].stream == op.stream) ++end;
        if (kind == Kind::kTerm) load_sum(task, &op, ops.data() + end);
        else load_landing(task, &op, ops.data() + end);
        i = end - 1;
        break;
      }
      case Kind::kTerm:
      case Kind::kLanding: throw Stopped{"a term stands outside its sum"};
      case Kind::kJoin: tasks.push_back(task); break;
      case Kind::kRead:
        if (given.landing == nullptr) break;
        task.src = at(op.extent.place, op.extent.bytes);
        task.dst = given.landing;
        task.bytes = std::min(op.extent.bytes, job_.sizes.output_bytes);
        tasks.push_back(task);
        break;
      case Kind::kZero:
      case Kind::kFree:
        task.dst = at(op.extent.place, op.extent.bytes);
        task.bytes = op.extent.bytes;
        tasks.push_back(task);
        break;
    }
  }
}

void Rank::load_move(Task task, const Op& op) {
  const Move& m = op.move;
  task.width = m.width;
  task.rows = m.rows;
  task.src_pitch = m.src_pitch;
  task.dst_pitch = m.dst_pitch;
  task.from = m.from;
  task.to = m.to;
  task.src = at(m.src, span(m.width, m.rows, m.src_pitch));
  const bool is_multicast = m.dst.rank.lane == kAll;
  const int64_t first = is_multicast ? 0 : m.dst.rank.lane, last = is_multicast ? job_.lanes() - 1 : first;
  for (int64_t lane = first; lane <= last; ++lane) {
    task.dst = at(m.dst, span(dst_width(m), m.rows, m.dst_pitch), lane);
    if (op.kind == Kind::kPut) {
      task.first = count(op.first, false);
      task.second = count(op.second, false);
      Worker& wire = worker(op.stream, true, m.dst.rank.node, op.context);
      task.wire = static_cast<int>(std::find_if(workers_.begin(), workers_.end(), [&](const Worker& w) { return &w == &wire; }) - workers_.begin());
      wire.tasks.push_back(task);
    }
    worker(op.stream, false, 0, 0).tasks.push_back(task);
  }
}

void Rank::load_sum(Task task, const Op* first, const Op* last) {
  Terms& terms = *terms_.back();
  const Extent& into = first->extent;
  task.adds = first->seed && given_.accumulates;
  task.dst = at(into.place, into.bytes);
  task.bytes = into.bytes;
  task.first_piece = static_cast<int64_t>(terms.pieces.size());
  // Terms of one place, in their order.
  std::map<char*, std::pair<Piece, std::vector<Source>>> found;
  for (const Op* op = first + 1; op < last; ++op) {
    const Move& m = op->move;
    char* dst = at(m.dst, span(dst_width(m), m.rows, m.dst_pitch));
    const Piece piece{dst, elems_of(m), m.rows, m.dst_pitch, m.from, 0, 0};
    auto [place, is_new] = found.try_emplace(dst, piece, std::vector<Source>());
    const Piece& known = place->second.first;
    if (!is_new && (known.elems != piece.elems || known.rows != piece.rows || known.from != piece.from)) throw Stopped{"terms of one sum overlap"};
    place->second.second.push_back({at(m.src, span(m.width, m.rows, m.src_pitch)), m.src_pitch});
  }
  for (auto& [dst, entry] : found) {
    Piece& piece = entry.first;
    if (dst < task.dst || dst + span(4 * piece.elems, piece.rows, piece.dst_pitch) > task.dst + task.bytes) throw Stopped{"a term lies outside its sum"};
    piece.first_source = static_cast<int64_t>(terms.sources.size());
    piece.num_sources = static_cast<int64_t>(entry.second.size());
    terms.sources.insert(terms.sources.end(), entry.second.begin(), entry.second.end());
    terms.pieces.push_back(piece);
  }
  task.num_pieces = static_cast<int64_t>(terms.pieces.size()) - task.first_piece;
  load_gaps(task);
  worker(first->stream, false, 0, 0).tasks.push_back(task);
}

void Rank::load_landing(Task task, const Op* first, const Op* last) {
  Terms& terms = *terms_.back();
  const Extent& into = first->extent;
  task.adds = !first->seed || given_.accumulates;
  task.dst = at(into.place, into.bytes);
  task.bytes = into.bytes;
  task.first_piece = static_cast<int64_t>(terms.pieces.size());
  for (const Op* op = first + 1; op < last; ++op) {
    const Move& m = op->move;
    task.reduction = op->reduction;
    char* dst = at(m.dst, m.width);
    if (dst < task.dst || dst + m.width > task.dst + task.bytes) throw Stopped{"a landing lies outside its output"};
    terms.pieces.push_back({dst, elems_of(m), 1, 0, m.from, static_cast<int64_t>(terms.sources.size()), job_.lanes()});
    for (int64_t lane = 0; lane < job_.lanes(); ++lane) terms.sources.push_back({at(m.src, m.width, lane), 0});
  }
  task.num_pieces = static_cast<int64_t>(terms.pieces.size()) - task.first_piece;
  load_gaps(task);
  worker(first->stream, false, 0, 0).tasks.push_back(task);
}

void Rank::load_gaps(Task& task) {
  Terms& terms = *terms_.back();
  task.first_gap = static_cast<int64_t>(terms.gaps.size());
  if (!task.adds) {
    std::vector<std::pair<char*, int64_t>> rows;
    for (int64_t p = task.first_piece; p < task.first_piece + task.num_pieces; ++p) {
      const Piece& piece = terms.pieces[static_cast<size_t>(p)];
      for (int64_t r = 0; r < piece.rows; ++r) rows.emplace_back(piece.dst + r * piece.dst_pitch, 4 * piece.elems);
    }
    std::sort(rows.begin(), rows.end());
    char* end = task.dst;
    for (const auto& [begin, bytes] : rows) {
      if (begin < end) throw Stopped{"terms of one sum overlap"};
      if (begin > end) terms.gaps.push_back({end, begin - end});
      end = begin + bytes;
    }
    if (end < task.dst + task.bytes) terms.gaps.push_back({end, task.dst + task.bytes - end});
  }
  task.num_gaps = static_cast<int64_t>(terms.gaps.size()) - task.first_gap;
}

Count Rank::count(const Level& level, bool is_wait) {
  const tidec::Rank& other = level.rank;
  if (other.node < 0 || other.node >= job_.program->nodes || other.lane < 0 || other.lane >= job_.lanes()) throw Stopped{"an op names a rank that does not exist"};
  const int64_t far = other.node * job_.lanes() + other.lane;
  const int64_t owner = is_wait ? number_ : far;
  Key key{};
  key.raiser = is_wait ? far : number_;
  key.flag = level.counter.flag->index;
  key.num_keys = level.counter.num_keys;
  std::copy(level.counter.keys, level.counter.keys + key.num_keys, key.keys);
  Cell* cell = job_.objects[static_cast<size_t>(owner)].find(key);
  if (cell == nullptr) throw Stopped{"there are more counters than the object of rank " + job_.name(owner) + " has room for"};
  return {cell, static_cast<uint64_t>(std::max<int64_t>(level.value, 0)), owner};
}

char* Rank::at(const Place& place, int64_t bytes, int64_t lane) const {
  const int64_t rank = place.rank.node * job_.lanes() + lane;
  const bool is_own = rank == number_;
  char* base = nullptr;
  int64_t size = 0;
  if (place.rank.node < 0 || place.rank.node >= job_.program->nodes || lane < 0 || lane >= job_.lanes()) {
    throw Stopped{"an op names memory of a rank that does not exist"};
  }
  if (place.space == Space::kArena) {
    base = job_.objects[static_cast<size_t>(rank)].arena();
    size = job_.sizes.arena_bytes;
  } else if (is_own && place.space == Space::kOut) {
    base = given_.out;
    size = given_.out_bytes;
  } else if (is_own && place.space == Space::kShard) {
    base = const_cast<char*>(given_.shard);
    size = given_.shard_bytes;
  } else if (is_own && place.param >= 0 && place.param < job_.layout->params.count && given_.gradients != nullptr) {
    base = static_cast<char*>(const_cast<void*>(given_.gradients[place.param]));
    size = base == nullptr ? 0 : job_.layout->params[place.param].real_elems * item_bytes(job_.layout->moved);
  }
  if (place.offset < 0 || bytes < 0 || place.offset > size - bytes) {
    throw Stopped{"an op of rank " + job_.name(number_) + " in call " + std::to_string(call_) + " names bytes " + std::to_string(place.offset) + " to " +
                  std::to_string(place.offset + bytes) + " of " + std::to_string(size) + " on rank " + job_.name(rank)};
  }
  return base + place.offset;
}

}  // namespace tidec::host
