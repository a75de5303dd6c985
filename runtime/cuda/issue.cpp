#include "cuda/issue.hpp"

#include <algorithm>
#include <utility>

namespace tidec::cuda {

namespace {

// So many copies of a set at home are handed over one by one.
constexpr size_t kFewCopies = 4;
// Of a large copy at home: a copy of tens of MiB inside a GPU takes the memory from the kernels beside it, pieces of these sizes do so less.
constexpr int64_t kPieceBytes = int64_t{4} << 20, kRowsBytes = int64_t{6} << 20, kMostPieces = 8;

// Long rows, in pieces of one row; nothing where rows are short.
// NOTE: as nodes of a graph, copies of 1 MiB are kernels (an H200, driver 580), and these are not.
std::vector<Copy> in_pieces(const std::vector<Copy>& copies) {
  std::vector<Copy> pieces;
  for (const Copy& c : copies) {
    if (c.width < kPieceBytes) return {};
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t at = 0; at < c.width; at += kPieceBytes) {
        pieces.push_back({c.into + row * c.into_pitch + at, c.from + row * c.from_pitch + at, std::min(kPieceBytes, c.width - at), 1, 0, 0, c.from_memory, c.into_memory});
      }
    }
  }
  return pieces;
}

// Many rows, some at a time.
void cut_rows(std::vector<Copy>& copies) {
  std::vector<Copy> cut;
  for (const Copy& c : copies) {
    const int64_t pieces = std::max<int64_t>(1, std::min({kMostPieces, c.rows / 2, c.width * c.rows / kRowsBytes}));
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t row = i * c.rows / pieces;
      Copy piece = c;
      piece.into += row * c.into_pitch, piece.from += row * c.from_pitch, piece.rows = (i + 1) * c.rows / pieces - row;
      cut.push_back(piece);
    }
  }
  copies = std::move(cut);
}

int64_t elems_of(const Move& m) { return m.width / item_bytes(m.from); }
int64_t span(int64_t width, int64_t rows, int64_t pitch) { return rows < 1 ? 0 : (rows - 1) * pitch + width; }

// Which memory a place lies in, and whose: every gradient is a tensor of its own.
int64_t memory(const Place& place, int64_t lane) {
  return ((place.param + 1) * 4 + static_cast<int64_t>(place.space)) * 4096 + lane;
}

[[noreturn]] void unfit(const std::string& why) { throw Failure{"the library has no kernel for this plan: " + why}; }

}  // namespace

void prepare_kernels() {
  const Kernels& k = kernels();
  for (int64_t i = 0; i < k.num_sums; ++i) check(k.sums[i].kernel.prepare(), "a sum");
  for (int64_t i = 0; i < k.num_lands; ++i) check(k.lands[i].kernel.prepare(), "a landing");
  for (int64_t i = 0; i < k.num_casts; ++i) check(k.casts[i].kernel.prepare(), "a cast");
  check(k.zero.prepare(), "a zero");
  check(cudaDeviceSynchronize(), "the first launch of every kernel");
}

Issuer::Issuer(World& world, const tidec_program& program, const Rank& rank, const Budget& budget, bool has_side, uint64_t deadline_ns)
    : world_(world), program_(program), rank_(rank), number_(number(rank)), budget_(budget), kernels_(kernels()), has_side_(has_side), has_asides_(has_side && program.is_reduction),
      chain_(program.lanes - 1, kManySumPieces), deadline_ns_(deadline_ns) {
  const Layout& layout = *static_cast<const Layout*>(program.layout);
  for (int64_t i = 0; i < kernels_.num_sums; ++i) {
    if (kernels_.sums[i].type == layout.moved && kernels_.sums[i].lanes == program.lanes) sum_ = &kernels_.sums[i];
  }
  for (int64_t i = 0; i < kernels_.num_lands; ++i) {
    if (kernels_.lands[i].how == layout.reduction && kernels_.lands[i].lanes == program.lanes) land_ = &kernels_.lands[i];
  }
}

// ---- order

cudaStream_t Issuer::on(const Stream& s) {
  if (is_chained(s)) launch_chain();
  return reached(s);
}

cudaStream_t Issuer::reached(const Stream& s) {
  counters_.flush();
  const cudaStream_t stream = world_.stream(s);
  if (has_asides_) {
    Aside& aside = asides_[s.index];
    if (aside.has_waits) order(aside.waits, stream, aside.waited);
    aside.has_waits = aside.is_reached = false;
  }
  return stream;
}

void Issuer::begin_calls(float alpha, bool accumulates) {
  alpha_ = alpha;
  accumulates_ = accumulates;
  for (auto& [index, aside] : asides_) aside.has_waited = false;
}

void Issuer::finish() {
  launch_chain();
  counters_.flush();
  for (auto& [index, aside] : asides_) {
    if (aside.has_waits) on({index, ""});
  }
}

void Issuer::end_before(cudaStream_t all, cudaEvent_t event) {
  for (auto& [index, aside] : asides_) {
    order(aside.waits, all, event);
    order(aside.signals, all, event);
  }
}

void Issuer::wait(const Stream& s, const Level& x, int line) {
  // NOTE: no counter is below 0, so the first calls do not wait.
  if (x.value <= 0) return;
  const auto value = static_cast<uint64_t>(x.value);
  world_.waits(s, x, line);
  const void* const word = world_.counter(x.counter, number_, number(x.rank));
  if (x.counter.flag->scope == Scope::kLanes && is_chained(s)) {
    chain_.await(static_cast<const uint64_t*>(word), value);
    return;
  }
  // The other lanes' sums stand where the own ones do: what they tell is enqueued before anything waits for it.
  if (is_chained(s) || (x.counter.flag == chain_flag_ && chain_.tells_by(value))) launch_chain();
  wait_by_stream(s, word, value);
}

void Issuer::wait_by_stream(const Stream& s, const void* word, uint64_t value) {
  // What a stream begins with holds it up in any case.
  const bool is_aside = has_asides_ && asides_[s.index].has_waited;
  if (has_asides_) asides_[s.index].has_waited = true, asides_[s.index].has_waits = is_aside;
  counters_.wait(is_aside ? asides_[s.index].waits : world_.stream(s), word, value);
}

void Issuer::signal(const Stream& s, const Level& x) {
  join(s);
  void* const word = world_.counter(x.counter, number(x.rank), number_);
  const auto value = static_cast<uint64_t>(x.value);
  if (is_chained(s)) {
    const bool is_told = x.counter.flag->scope == Scope::kLanes && (chain_flag_ == nullptr || chain_flag_ == x.counter.flag) && chain_.tell(static_cast<uint64_t*>(word), value);
    if (is_told) {
      chain_flag_ = x.counter.flag;
      return;
    }
    launch_chain();
  }
  signal_by_stream(s, word, value, x.rank.lane != rank_.lane);
}

void Issuer::signal_by_stream(const Stream& s, void* word, uint64_t value, bool is_far) {
  cudaStream_t stream = world_.stream(s);
  if (has_asides_) {
    Aside& aside = asides_[s.index];
    // Of pushes a peer waits for the news, of sums nobody does at once.
    if (aside.has_waits || (aside.sums && !aside.is_reached)) stream = reached(s);
    if (aside.sums && !aside.is_reached) order(stream, aside.signals, aside.reached);
    aside.is_reached = aside.sums;
    if (aside.sums) stream = aside.signals;
  }
  counters_.write(stream, word, value, is_far);
}

void Issuer::launch_chain() {
  if (chain_.is_empty()) return;
  SumCall call = chain_.call();
  call.alpha = alpha_;
  call.counts = world_.counts();
  call.deadline_ns = deadline_ns_;
  check(sum_->kernel.launch(call, budget_.sum, reached(chain_stream_)), "a sum");
  asides_[chain_stream_.index].sums = true;
  asides_[chain_stream_.index].is_reached = false;
  const auto tellings = chain_.tellings();
  const auto waits = chain_.waits();
  chain_.clear();
  chain_flag_ = nullptr;
  for (const auto& w : tellings) signal_by_stream(chain_stream_, w.word, w.value, true);
  for (const auto& w : waits) wait_by_stream(chain_stream_, w.word, w.value);
}

void Issuer::join(const Stream& s) {
  const auto found = sides_.find(s.index);
  if (found == sides_.end() || !found->second.is_open) return;
  check(cudaStreamWaitEvent(on(s), found->second.joined, 0), "cudaStreamWaitEvent");
  found->second.is_open = false;
}

// ---- moves

void Issuer::copy(const Stream& s, const Move& m) {
  const bool is_everywhere = m.dst.rank.lane == kAll;
  const int64_t first = is_everywhere ? 0 : m.dst.rank.lane, last = is_everywhere ? program_.lanes - 1 : first;
  const char* from = world_.at(m.src, m.src.rank.lane, span(m.width, m.rows, m.src_pitch));
  for (int64_t lane = first; lane <= last; ++lane) {
    char* into = world_.at(m.dst, lane, span(m.width, m.rows, m.dst_pitch));
    const bool is_near = has_side_ && lane == rank_.lane && m.src.rank.lane == rank_.lane;
    (is_near ? near_ : far_).push_back({into, from, m.width, m.rows, m.dst_pitch, m.src_pitch, memory(m.src, m.src.rank.lane), memory(m.dst, lane)});
  }
  if (in_set_ || in_copy_) return;
  if (is_preparing_) {
    near_.clear(), far_.clear();
  } else {
    std::move(near_.begin(), near_.end(), std::back_inserter(far_));
    near_.clear();
    copy_all(on(s), far_);
  }
}

// Its descriptors have no order, but what follows on the stream is after them.
void Issuer::end_copy(const Stream& s) {
  in_copy_ = false;
  if (in_set_) return;
  flush(s);
  join(s);
}

void Issuer::end_set(const Stream& s) {
  in_set_ = false;
  flush(s);
}

void Issuer::flush(const Stream& s) {
  std::vector<Copy> folded = near_;
  bool is_rows = false;
  fold(folded);
  if (std::vector<Copy> pieces = in_pieces(near_); pieces.size() > kFewCopies) {
    near_ = std::move(pieces);
  } else if (folded.size() <= kFewCopies) {
    near_ = std::move(folded);
    is_rows = true;
  }
  if (is_preparing_) {
    if (near_.size() > kFewCopies) graphs_.make(near_);
    near_.clear(), far_.clear();
    return;
  }
  if (is_rows) cut_rows(near_);
  if (near_.empty() || far_.empty()) {
    copy_all(on(s), far_);
    copy_near(on(s));
  } else {
    Side& side = sides_[s.index];
    join(s);
    check(cudaEventRecord(side.forked, on(s)), "cudaEventRecord");
    copy_all(on(s), far_);
    check(cudaStreamWaitEvent(side.stream, side.forked, 0), "cudaStreamWaitEvent");
    copy_near(side.stream);
    check(cudaEventRecord(side.joined, side.stream), "cudaEventRecord");
    side.is_open = true;
  }
}

void Issuer::copy_near(cudaStream_t stream) {
  CopyGraph* const graph = near_.size() > kFewCopies ? graphs_.find(near_) : nullptr;
  if (graph != nullptr && graph->launch(near_, stream)) near_.clear();
  else copy_all(stream, near_);
}

void Issuer::put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
  const Copy copy{world_.at(m.dst, m.dst.rank.lane, span(m.width, m.rows, m.dst_pitch)), world_.at(m.src, m.src.rank.lane, span(m.width, m.rows, m.src_pitch)),
                  m.width, m.rows, m.dst_pitch, m.src_pitch};
  counters_.flush();
  world_.put(s, copy, number(m.dst.rank), then, done, context);
}

void Issuer::zero(const Stream& s, const Extent& x) {
  check(kernels_.zero.launch({world_.at(x.place, x.place.rank.lane, x.bytes), x.bytes}, budget_.other, on(s)), "a zero");
}

void Issuer::cast(const Stream& s, const Move& m) {
  const char* from = world_.at(m.src, m.src.rank.lane, m.width);
  char* into = world_.at(m.dst, m.dst.rank.lane, elems_of(m) * item_bytes(m.to));
  if (m.from == m.to) {
    check(cudaMemcpyAsync(into, from, static_cast<size_t>(m.width), cudaMemcpyDeviceToDevice, on(s)), "cudaMemcpyAsync");
    return;
  }
  for (int64_t i = 0; i < kernels_.num_casts; ++i) {
    const CastEntry& k = kernels_.casts[i];
    if (k.from != m.from || k.to != m.to) continue;
    check(k.kernel.launch({from, into, elems_of(m)}, budget_.other, on(s)), "a cast");
    return;
  }
  unfit("a cast between types that no other plan of it has");
}

// ---- sums

void Issuer::begin(const Stream&, const Extent& into, bool adds) {
  into_ = into;
  adds_ = adds;
  to_ = world_.at(into.place, into.place.rank.lane, into.bytes);
  terms_.clear();
  lands_.clear();
}

void Issuer::add(const Stream&, const Move& m) {
  const char* from = world_.at(m.src, m.src.rank.lane, span(m.width, m.rows, m.src_pitch));
  // Places of one sum's terms lie in its extent, which was looked up.
  terms_.push_back({from, m.src_pitch, to_ + (m.dst.offset - into_.place.offset), m.dst_pitch, elems_of(m), m.rows});
}

bool Issuer::fills(size_t num) const {
  if (adds_) return true;
  int64_t covered = 0;
  for (size_t i = terms_.size() - num; i < terms_.size(); ++i) covered += 4 * terms_[i].elems * terms_[i].rows;
  return covered == into_.bytes;
}

void Issuer::fill_gaps(cudaStream_t stream, size_t num) {
  if (fills(num)) return;
  std::vector<Gap> found;
  try {
    found = gaps(terms_, num, to_, into_.bytes);
  } catch (const Unfit& problem) {
    unfit(problem.why);
  }
  // A few gaps one by one; of many, all of it: the sum that follows writes the rest anew.
  constexpr size_t kFew = 3;
  if (found.size() > kFew) {
    check(kernels_.zero.launch({to_, into_.bytes}, budget_.other, stream), "a zero");
    return;
  }
  for (const Gap& g : found) check(kernels_.zero.launch({g.into, g.bytes}, budget_.other, stream), "a zero");
}

void Issuer::end_sum(const Stream& s) {
  if (sum_ == nullptr) unfit("a sum");
  try {
    gather(terms_, program_.lanes, to_, sums_);
  } catch (const Unfit& problem) {
    unfit(problem.why);
  }
  // Where nothing has to become 0 first, it goes with the sums before it.
  if (is_chained(s) && fills(sums_.pieces.size()) && chain_.add(sums_, to_, adds_)) return;
  const cudaStream_t stream = on(s);
  fill_gaps(stream, sums_.pieces.size());
  if (has_asides_ && world_.counts() != nullptr) {
    launch_chain();
    chain_stream_ = s;
    if (chain_.add(sums_, to_, adds_)) return;
  }
  const SumCall call{to_, sums_.staged.data(), sums_.pieces.data(), static_cast<int64_t>(sums_.pieces.size()), alpha_, adds_};
  check(sum_->kernel.launch(call, budget_.sum, stream), "a sum");
  if (has_asides_) asides_[s.index].sums = true;
}

void Issuer::land(const Stream&, const Move& m, Reduction) {
  if (m.src.space != Space::kArena) unfit("a landing from elsewhere than the arena");
  land_node_ = m.src.rank.node;
  lands_.push_back({m.src.offset, m.dst.offset - into_.place.offset, elems_of(m)});
  terms_.push_back({nullptr, 0, to_ + lands_.back().into, 0, lands_.back().elems, 1});
}

void Issuer::end_land(const Stream& s) {
  if (land_ == nullptr) unfit("a landing");
  fill_gaps(on(s), terms_.size());
  const cudaStream_t stream = on(s);
  std::vector<const char*> arenas;
  for (int64_t i = 0; i < land_->arenas; ++i) {
    const int64_t lane = land_->arenas == program_.lanes ? i : kAll;
    arenas.push_back(world_.at({Space::kArena, 0, {land_node_, lane}, 0}, lane, program_.arena_bytes));
  }
  const LandCall call{to_, arenas.data(), lands_.data(), static_cast<int64_t>(lands_.size()), adds_};
  check(land_->kernel.launch(call, budget_.land, stream), "a landing");
}

// ---- what the caller does

void Issuer::read(const Stream& s, const Extent& x) {
  counters_.flush();
  world_.read(s, x);
}
void Issuer::free(const Stream& s, const Extent& x) {
  counters_.flush();
  world_.free(s, x);
}

}  // namespace tidec::cuda
