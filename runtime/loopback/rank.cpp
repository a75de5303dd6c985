// One virtual rank: its memory, and its ops made into work of its streams.
#include <algorithm>
#include <cstring>

#include "loopback/session.hpp"
#include "tidec/digest.hpp"

namespace tidec::loopback {

namespace {

constexpr uint16_t kPoison = 0x7fc0;

std::vector<char> pattern(int64_t bytes) {
  std::vector<char> filled(static_cast<size_t>(bytes));
  for (size_t i = 0; i + 1 < filled.size(); i += 2) std::memcpy(&filled[i], &kPoison, 2);
  return filled;
}

void copy(void* into, const void* from, int64_t bytes) { cuda::check(cudaMemcpy(into, from, static_cast<size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy"); }

}  // namespace

VirtualRank::VirtualRank(Job& job, int64_t number)
    : job_(job),
      number_(number),
      rank_{number / job.program.lanes, number % job.program.lanes},
      arena_(job.sizes.arena_bytes),
      inputs_(job.told.calls * job.sizes.input_bytes),
      outputs_(job.told.calls * job.sizes.output_bytes),
      issuer_(*this, job.program, rank_, job.budget, false) {
  issuer_.begin_calls(job.told.alpha, job.told.accumulate != 0);
}

void VirtualRank::begin() {
  const char* object = job_.objects[static_cast<size_t>(number_)];
  if (job_.told.poison) {
    std::vector<char> start = pattern(job_.sizes.arena_bytes);
    for (int64_t i = 0; i < job_.told.num_zero; ++i) {
      std::memset(start.data() + job_.told.zero[i].offset, 0, static_cast<size_t>(job_.told.zero[i].bytes));
    }
    copy(arena_.base(), start.data(), job_.sizes.arena_bytes);
  } else {
    cuda::check(cudaMemset(arena_.base(), 0, static_cast<size_t>(job_.sizes.arena_bytes)), "cudaMemset");
  }
  copy(inputs_.base(), object + job_.sizes.inputs_at, job_.told.calls * job_.sizes.input_bytes);
  copy(outputs_.base(), object + job_.sizes.before_at, job_.told.calls * job_.sizes.output_bytes);
  awaited_.clear();
  next_ = 0;
}

void VirtualRank::record() {
  for (int64_t e = 0; e <= job_.told.calls; ++e) {
    host::Recorder recorder;
    tidec_issue(&recorder, job_.told.program, rank_.node, rank_.lane, e);
    for (size_t i = 0; i < recorder.streams().size(); ++i) {
      if (recorder.streams()[i] != nullptr) names_[static_cast<int>(i)] = recorder.streams()[i];
    }
    for (const host::Op& op : recorder.ops()) {
      if (e < job_.told.calls) {
        ops_.push_back({op, e});
      } else if (op.kind == host::Kind::kRead) {
        last_read_ = op.extent;
        has_read_ = true;
      }
    }
  }
}

// ---- places

char* VirtualRank::at(const Place& place, int64_t lane, int64_t bytes) {
  const int64_t lanes = job_.program.lanes, rank = place.rank.node * lanes + lane;
  if (place.rank.node < 0 || place.rank.node >= job_.program.nodes || lane < 0 || lane >= lanes) throw Failure{"an op names memory of a rank that does not exist"};
  char* base = nullptr;
  int64_t size = 0;
  if (place.space == Space::kArena) {
    base = job_.ranks[static_cast<size_t>(rank)]->arena_.base();
    size = job_.sizes.arena_bytes;
  } else if (rank == number_ && place.space == Space::kOut) {
    base = outputs_.base() + call_ * job_.sizes.output_bytes;
    size = job_.sizes.output_bytes;
  } else if (rank == number_) {
    base = inputs_.base() + call_ * job_.sizes.input_bytes;
    size = job_.sizes.input_bytes;
    if (place.space == Space::kGrad) {
      const int64_t start = tidec_host_input_at(job_.told.program, place.param);
      size = start < 0 ? 0 : job_.layout.params[place.param].real_elems * item_bytes(job_.layout.moved);
      base += std::max<int64_t>(start, 0);
    }
  }
  if (place.offset < 0 || bytes < 0 || place.offset > size - bytes) {
    throw Failure{"an op of rank " + std::to_string(number_) + " in call " + std::to_string(call_) + " names bytes " + std::to_string(place.offset) + " to " +
                  std::to_string(place.offset + bytes) + " of " + std::to_string(size) + " on rank " + std::to_string(rank)};
  }
  return base + place.offset;
}

cudaStream_t VirtualRank::stream(const Stream& s) {
  const auto [found, is_new] = of_stream_.try_emplace(s.index, streams_.size());
  if (is_new) streams_.emplace_back();
  return streams_[found->second];
}

void* VirtualRank::counter(const Counter& c, int64_t owner, int64_t raiser) { return job_.counters->word(cuda::name_of(c, owner, raiser)); }

// ---- what the World is asked

void VirtualRank::put(const Stream& s, const cuda::Copy& copy, int64_t to, const Level& then, const Level& done, int64_t context) {
  const auto [found, is_new] = of_wire_.try_emplace({to, context}, streams_.size());
  if (is_new) streams_.emplace_back();
  const cudaStream_t wire = streams_[found->second];
  cuda::order(stream(s), wire, event_);
  std::vector<cuda::Copy> one = {copy};
  cuda::copy_all(wire, one);
  const int64_t lanes = job_.program.lanes;
  const CounterName arrived = cuda::name_of(then.counter, then.rank.node * lanes + then.rank.lane, number_);
  const CounterName reusable = cuda::name_of(done.counter, done.rank.node * lanes + done.rank.lane, number_);
  cuda::write_counter(wire, job_.counters->word(arrived), static_cast<uint64_t>(then.value));
  cuda::write_counter(wire, job_.counters->word(reusable), static_cast<uint64_t>(done.value));
  job_.issued[arrived] = static_cast<uint64_t>(then.value);
  job_.issued[reusable] = static_cast<uint64_t>(done.value);
}

void VirtualRank::read(const Stream& s, const Extent& extent) {
  if (call_ == 0) return;
  const int64_t bytes = std::min(extent.bytes, job_.sizes.output_bytes);
  char* into = outputs_.base() + (call_ - 1) * job_.sizes.output_bytes;
  cuda::check(cudaMemcpyAsync(into, at(extent.place, extent.place.rank.lane, bytes), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream(s)), "cudaMemcpyAsync");
}

void VirtualRank::free(const Stream& s, const Extent& extent) {
  if (!job_.told.poison) return;
  char* into = at(extent.place, extent.place.rank.lane, extent.bytes);
  cuda::check(cudaMemcpyAsync(into, job_.poison->base(), static_cast<size_t>(extent.bytes), cudaMemcpyDeviceToDevice, stream(s)), "cudaMemcpyAsync");
}

void VirtualRank::waits(const Stream& s, const Level& level, int line) {
  const int64_t raiser = level.rank.node * job_.program.lanes + level.rank.lane;
  awaited_.push_back({cuda::name_of(level.counter, number_, raiser), static_cast<uint64_t>(level.value), line, call_, s.name, level.counter.flag->name});
}

// ---- issue

bool VirtualRank::issue_some() {
  bool has_issued = false;
  while (next_ < ops_.size()) {
    const host::Op& op = ops_[next_].op;
    if (is_open_ && !op.in_set) close_set();
    if (op.kind == host::Kind::kWait && op.first.value > 0) {
      const CounterName wanted = cuda::name_of(op.first.counter, number_, op.first.rank.node * job_.program.lanes + op.first.rank.lane);
      const auto found = job_.issued.find(wanted);
      if (found == job_.issued.end() || found->second < static_cast<uint64_t>(op.first.value)) return has_issued;
      if (has_issued && !op.in_set) {
        // Waits are where ranks take turns.
        issue(next_);
        return true;
      }
    }
    issue(next_);
    has_issued = true;
  }
  if (is_open_) close_set();
  return has_issued;
}

void VirtualRank::close_set() {
  issuer_.end_set({set_stream_, names_[set_stream_]});
  is_open_ = false;
}

// Issues op i, with the terms that follow it, and goes on behind them.
void VirtualRank::issue(size_t i) {
  const host::Op& op = ops_[i].op;
  call_ = ops_[i].call;
  const Stream s{op.stream, names_[op.stream]};
  next_ = i + 1;
  if (op.in_set && !is_open_) {
    issuer_.begin_set(s);
    is_open_ = true;
    set_stream_ = op.stream;
  }
  switch (op.kind) {
    case host::Kind::kWait: issuer_.wait(s, op.first, op.line); break;
    case host::Kind::kSignal:
      issuer_.signal(s, op.first);
      job_.issued[cuda::name_of(op.first.counter, op.first.rank.node * job_.program.lanes + op.first.rank.lane, number_)] = static_cast<uint64_t>(op.first.value);
      break;
    case host::Kind::kCopy: issuer_.copy(s, op.move); break;
    case host::Kind::kPut: issuer_.put(s, op.move, op.first, op.second, op.context); break;
    case host::Kind::kZero: issuer_.zero(s, op.extent); break;
    case host::Kind::kCast: issuer_.cast(s, op.move); break;
    case host::Kind::kSum:
      issuer_.begin_sum(s, op.extent, op.seed);
      for (; next_ < ops_.size() && ops_[next_].op.kind == host::Kind::kTerm; ++next_) issuer_.add(s, ops_[next_].op.move);
      issuer_.end_sum(s);
      break;
    case host::Kind::kLand:
      issuer_.begin_land(s, op.extent, op.seed);
      for (; next_ < ops_.size() && ops_[next_].op.kind == host::Kind::kLanding; ++next_) issuer_.land(s, ops_[next_].op.move, ops_[next_].op.reduction);
      issuer_.end_land(s);
      break;
    case host::Kind::kJoin: issuer_.join(s); break;
    case host::Kind::kRead: issuer_.read(s, op.extent); break;
    case host::Kind::kFree: issuer_.free(s, op.extent); break;
    case host::Kind::kTerm:
    case host::Kind::kLanding: throw Failure{"a term stands outside its sum"};
  }
  // Nothing is kept back: other ranks are issued in between.
  issuer_.finish();
}

void VirtualRank::meet(cudaStream_t end) {
  for (const cuda::OwnStream& s : streams_) cuda::order(s, end, event_);
}

void VirtualRank::start_after(cudaEvent_t event) {
  for (const cuda::OwnStream& s : streams_) cuda::check(cudaStreamWaitEvent(s, event, 0), "cudaStreamWaitEvent");
}

uint64_t VirtualRank::take() {
  char* outputs = job_.objects[static_cast<size_t>(number_)] + job_.sizes.outputs_at;
  if (has_read_) {
    call_ = job_.told.calls;
    read({0, ""}, last_read_);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  const int64_t bytes = job_.told.calls * job_.sizes.output_bytes;
  copy(outputs, outputs_.base(), bytes);
  return digest_outputs(outputs, job_.told.calls, job_.sizes.output_bytes, number_);
}

}  // namespace tidec::loopback
