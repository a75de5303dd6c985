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

void Rank::load(const Recorder& recorder, int64_t call) {
  streams_ = recorder.streams();
  flags_ = recorder.flags();
  const std::vector<Op>& ops = recorder.ops();
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    Task task{};
    task.kind = op.kind;
    task.in_set = op.in_set;
    task.line = op.line;
    task.call = call;
    std::vector<Task>& tasks = worker(op.stream, false, 0, 0).tasks;
    switch (op.kind) {
      case Kind::kWait:
      case Kind::kSignal:
        task.first = count(op.first, op.kind == Kind::kWait);
        tasks.push_back(task);
        break;
      case Kind::kCopy:
      case Kind::kPut:
      case Kind::kCast: load_move(task, op, call); break;
      case Kind::kSum:
      case Kind::kLand: {
        const Kind kind = op.kind == Kind::kSum ? Kind::kTerm : Kind::kLanding;
        size_t end = i + 1;
        while (end < ops.size() && ops[end].kind == kind && ops[end].stream == op.stream) ++end;
        if (kind == Kind::kTerm) load_sum(task, &op, ops.data() + end, call);
        else load_landing(task, &op, ops.data() + end, call);
        i = end - 1;
        break;
      }
      case Kind::kTerm:
      case Kind::kLanding: throw Stopped{"a term stands outside its sum"};
      case Kind::kJoin: tasks.push_back(task); break;
      case Kind::kRead:
        if (call == 0 || !has_outputs()) break;
        task.src = at(op.extent.place, call, op.extent.bytes);
        task.dst = object().output(call - 1);
        task.bytes = std::min(op.extent.bytes, job_.sizes.output_bytes);
        tasks.push_back(task);
        break;
      case Kind::kZero:
      case Kind::kFree:
        task.dst = at(op.extent.place, call, op.extent.bytes);
        task.bytes = op.extent.bytes;
        tasks.push_back(task);
        break;
    }
  }
}

void Rank::load_move(Task task, const Op& op, int64_t call) {
  const Move& m = op.move;
  task.width = m.width;
  task.rows = m.rows;
  task.src_pitch = m.src_pitch;
  task.dst_pitch = m.dst_pitch;
  task.from = m.from;
  task.to = m.to;
  task.src = at(m.src, call, span(m.width, m.rows, m.src_pitch));
  const bool is_multicast = m.dst.rank.lane == kAll;
  const int64_t first = is_multicast ? 0 : m.dst.rank.lane, last = is_multicast ? job_.lanes() - 1 : first;
  for (int64_t lane = first; lane <= last; ++lane) {
    task.dst = at(m.dst, call, span(dst_width(m), m.rows, m.dst_pitch), lane);
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

void Rank::load_sum(Task task, const Op* first, const Op* last, int64_t call) {
  const Extent& into = first->extent;
  task.adds = first->seed && job_.told->accumulate;
  task.dst = at(into.place, call, into.bytes);
  task.bytes = into.bytes;
  task.first_piece = static_cast<int64_t>(pieces_.size());
  // Terms of one place, in their order.
  std::map<char*, std::pair<Piece, std::vector<Source>>> found;
  for (const Op* op = first + 1; op < last; ++op) {
    const Move& m = op->move;
    char* dst = at(m.dst, call, span(dst_width(m), m.rows, m.dst_pitch));
    const Piece piece{dst, elems_of(m), m.rows, m.dst_pitch, m.from, 0, 0};
    auto [place, is_new] = found.try_emplace(dst, piece, std::vector<Source>());
    const Piece& known = place->second.first;
    if (!is_new && (known.elems != piece.elems || known.rows != piece.rows || known.from != piece.from)) throw Stopped{"terms of one sum overlap"};
    place->second.second.push_back({at(m.src, call, span(m.width, m.rows, m.src_pitch)), m.src_pitch});
  }
  for (auto& [dst, entry] : found) {
    Piece& piece = entry.first;
    if (dst < task.dst || dst + span(4 * piece.elems, piece.rows, piece.dst_pitch) > task.dst + task.bytes) throw Stopped{"a term lies outside its sum"};
    piece.first_source = static_cast<int64_t>(sources_.size());
    piece.num_sources = static_cast<int64_t>(entry.second.size());
    sources_.insert(sources_.end(), entry.second.begin(), entry.second.end());
    pieces_.push_back(piece);
  }
  task.num_pieces = static_cast<int64_t>(pieces_.size()) - task.first_piece;
  load_gaps(task);
  worker(first->stream, false, 0, 0).tasks.push_back(task);
}

void Rank::load_landing(Task task, const Op* first, const Op* last, int64_t call) {
  const Extent& into = first->extent;
  task.adds = !first->seed || job_.told->accumulate;
  task.dst = at(into.place, call, into.bytes);
  task.bytes = into.bytes;
  task.first_piece = static_cast<int64_t>(pieces_.size());
  for (const Op* op = first + 1; op < last; ++op) {
    const Move& m = op->move;
    task.reduction = op->reduction;
    char* dst = at(m.dst, call, m.width);
    if (dst < task.dst || dst + m.width > task.dst + task.bytes) throw Stopped{"a landing lies outside its output"};
    pieces_.push_back({dst, elems_of(m), 1, 0, m.from, static_cast<int64_t>(sources_.size()), job_.lanes()});
    for (int64_t lane = 0; lane < job_.lanes(); ++lane) sources_.push_back({at(m.src, call, m.width, lane), 0});
  }
  task.num_pieces = static_cast<int64_t>(pieces_.size()) - task.first_piece;
  load_gaps(task);
  worker(first->stream, false, 0, 0).tasks.push_back(task);
}

void Rank::load_gaps(Task& task) {
  task.first_gap = static_cast<int64_t>(gaps_.size());
  if (!task.adds) {
    std::vector<std::pair<char*, int64_t>> rows;
    for (int64_t p = task.first_piece; p < task.first_piece + task.num_pieces; ++p) {
      const Piece& piece = pieces_[static_cast<size_t>(p)];
      for (int64_t r = 0; r < piece.rows; ++r) rows.emplace_back(piece.dst + r * piece.dst_pitch, 4 * piece.elems);
    }
    std::sort(rows.begin(), rows.end());
    char* end = task.dst;
    for (const auto& [begin, bytes] : rows) {
      if (begin < end) throw Stopped{"terms of one sum overlap"};
      if (begin > end) gaps_.push_back({end, begin - end});
      end = begin + bytes;
    }
    if (end < task.dst + task.bytes) gaps_.push_back({end, task.dst + task.bytes - end});
  }
  task.num_gaps = static_cast<int64_t>(gaps_.size()) - task.first_gap;
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

char* Rank::at(const Place& place, int64_t call, int64_t bytes, int64_t lane) {
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
    base = object().output(call);
    size = job_.sizes.output_bytes;
  } else if (is_own) {
    base = inputs_.empty() ? object().input(call) : inputs_.data() + call * job_.sizes.input_bytes;
    size = job_.sizes.input_bytes;
    if (place.space == Space::kGrad) {
      const int64_t start = input_at(*job_.layout, job_.program->is_reduction, place.param);
      size = start < 0 ? 0 : job_.layout->params[place.param].real_elems * item_bytes(job_.layout->moved);
      base += std::max<int64_t>(start, 0);
    }
  }
  if (place.offset < 0 || bytes < 0 || place.offset > size - bytes) {
    throw Stopped{"an op of rank " + job_.name(number_) + " in call " + std::to_string(call) + " names bytes " + std::to_string(place.offset) + " to " +
                  std::to_string(place.offset + bytes) + " of " + std::to_string(size) + " on rank " + job_.name(rank)};
  }
  return base + place.offset;
}

}  // namespace tidec::host
