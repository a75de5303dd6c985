#include "nccl/rails.hpp"

#include <string>

namespace tidec::nccl {

namespace {

using cuda::Failure;

}  // namespace

Rails::Rails(cuda::World& world, cuda::Issuer& issuer, int64_t program, const Rank& rank, const std::shared_ptr<Window>& window, int64_t arena_at, char* spare, int64_t spare_bytes)
    : world_(world),
      issuer_(issuer),
      program_(*tidec_program_at(program)),
      rank_(rank),
      window_(window),
      arena_at_(arena_at),
      spare_(spare),
      spare_bytes_(spare_bytes),
      signals_(program, rank) {}

void Rails::wait(const Stream& s, const Level& x, int line) {
  if (!sends_.empty()) flush_sends();
  if (x.value <= 0) return;
  world_.waits(s, x, line);
  waits_.push_back({s, x, signals_.await(x)});
}

void Rails::signal(const Stream& s, const Level& x) {
  send(s, {signals_.raise(x, 0), static_cast<int>(x.rank.node), nullptr, 0, 0, nullptr, 0});
}

void Rails::put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
  const int64_t arena = program_.arena_bytes;
  if (m.rows != 1 || m.from != m.to) throw Failure{"a put of several rows, or between types, is none of NCCL's"};
  if (m.dst.space != Space::kArena || m.dst.rank.lane != rank_.lane || m.dst.offset < 0 || m.width < 0 || m.dst.offset > arena - m.width) {
    throw Failure{"a put of rank " + std::to_string(number(rank_)) + " names bytes " + std::to_string(m.dst.offset) + " to " + std::to_string(m.dst.offset + m.width) + " of " +
                  std::to_string(arena) + " of another rank, or leaves its rail"};
  }
  if (m.src.space == Space::kShard && (m.src.offset < 0 || m.src.offset > spare_bytes_ - m.width)) throw Failure{"a put reads more of the shard than there is room for"};
  if (m.src.space != Space::kShard && m.src.space != Space::kArena) throw Failure{"a put reads neither the shard nor the arena"};
  const char* const from = m.src.space == Space::kShard ? spare_ + m.src.offset : world_.at(m.src, m.src.rank.lane, m.width);
  if (is_coming_ && m.src.space == Space::kShard) {
    flush();
    cuda::check(cudaStreamWaitEvent(stream_, brought_, 0), "cudaStreamWaitEvent");
    is_coming_ = false;
  }
  world_.waits(s, done, 0);
  void* const word = world_.counter(done.counter, number(done.rank), number(rank_));
  send(s, {signals_.raise(then, context), static_cast<int>(m.dst.rank.node), from, arena_at_ + m.dst.offset, m.width, word, static_cast<uint64_t>(done.value)});
}

void Rails::send(const Stream& s, const Sending& one) {
  if (!waits_.empty()) flush_waits();
  if (!sends_.empty() && s.index != sender_.index) flush_sends();
  sender_ = s;
  sends_.push_back(one);
}

void Rails::flush_waits() {
  std::vector<Expected> expected;
  size_t first = 0;
  const auto issue = [&](size_t end) {
    counters_.flush();
    if (!expected.empty()) check(library().wait_signal(static_cast<int>(expected.size()), expected.data(), window_->rail(), stream_), "ncclWaitSignal");
    for (; first < end; ++first) {
      if (waits_[first].await.count > 0) counters_.write(stream_, word(waits_[first].level), static_cast<uint64_t>(waits_[first].level.value), false);
    }
    expected.clear();
  };
  for (size_t i = 0; i < waits_.size(); ++i) {
    const Await& await = waits_[i].await;
    const Expected one{await.count, static_cast<int>(waits_[i].level.rank.node), await.wire.index, await.wire.context};
    if (await.count == 0) continue;
    // One level after another of one counter: others wait for the lower ones too.
    for (const Expected& e : expected) {
      if (e.peer != one.peer || e.index != one.index || e.context != one.context) continue;
      issue(i);
      break;
    }
    expected.push_back(one);
  }
  issue(waits_.size());
  for (const Waiting& w : waits_) counters_.wait(issuer_.on(w.stream), word(w.level), static_cast<uint64_t>(w.level.value));
  counters_.flush();
  waits_.clear();
}

void Rails::flush_sends() {
  cuda::order(issuer_.on(sender_), stream_, event_);
  // NOTE: a group has puts and signals only: among waits of other contexts NCCL may issue them in another order.
  if (sends_.size() == 1) {
    issue(sends_[0]);
  } else {
    check(library().group_start(), "ncclGroupStart");
    try {
      for (const Sending& one : sends_) issue(one);
    } catch (...) {
      library().group_end();
      throw;
    }
    check(library().group_end(), "ncclGroupEnd");
  }
  for (const Sending& one : sends_) {
    if (one.done != nullptr) counters_.write(stream_, one.done, one.done_value, false);
  }
  counters_.flush();
  sends_.clear();
}

void Rails::issue(const Sending& one) {
  const Library& nccl = library();
  if (one.bytes == 0) {
    check(nccl.signal(one.peer, one.wire.index, one.wire.context, 0, window_->rail(), stream_), "ncclSignal");
    return;
  }
  check(nccl.put_signal(one.from, static_cast<size_t>(one.bytes), kUint8, one.peer, window_->on_rail(), static_cast<size_t>(one.at), one.wire.index, one.wire.context, 0,
                        window_->rail(), stream_),
        "ncclPutSignal");
}

void Rails::bring(const void* shard, cudaEvent_t given) {
  if (spare_bytes_ == 0) return;
  // Puts of the call before read what is there.
  cuda::order(stream_, bringing_, event_);
  cuda::check(cudaStreamWaitEvent(bringing_, given, 0), "cudaStreamWaitEvent");
  cuda::check(cudaMemcpyAsync(spare_, shard, static_cast<size_t>(spare_bytes_), cudaMemcpyDeviceToDevice, bringing_), "cudaMemcpyAsync");
  cuda::check(cudaEventRecord(brought_, bringing_), "cudaEventRecord");
  is_coming_ = true;
}

}  // namespace tidec::nccl
