// What a rank does on its rail: puts, signals and waits, given to NCCL in the order in which the walk issues them.
//
// NCCL carries out all RMA operations of a communicator in the order in which the host issues them, whatever their streams: so they have one stream,
// the rail's. A put or signal comes there behind what its own stream holds. A wait is issued there once, however many streams and waits of the walk
// name its level; behind it the level is written to a word of the rank's own, which those streams wait for. In the order of issue every wait comes
// after what ends it (V204), which this one more serial order keeps.
//
// Puts and signals of one stream with nothing between them are one group of NCCL's, and so are waits: no op is issued before one that the walk has
// issued earlier.
#pragma once

#include <memory>
#include <vector>

#include "cuda/issue.hpp"
#include "nccl/signals.hpp"
#include "nccl/window.hpp"

namespace tidec::nccl {

class Rails {
 public:
  // arena_at: where the arena begins in the memory of every rank.  spare: room in this rank's memory for a shard, which puts read there; or null.
  Rails(cuda::World& world, cuda::Issuer& issuer, int64_t program, const Rank& rank, const std::shared_ptr<Window>& window, int64_t arena_at, char* spare, int64_t spare_bytes);

  const Signals& signals() const { return signals_; }
  // Whether a level is told or awaited between nodes.
  bool takes(const Level& level) const { return signals_.is_rail(level); }

  void wait(const Stream& s, const Level& x, int line);
  void signal(const Stream& s, const Level& x);
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context);
  // Issues what is held back to form a group: before any other op, and at the end of a walk.
  void flush() {
    if (!waits_.empty()) flush_waits();
    if (!sends_.empty()) flush_sends();
  }

  // Another call begins, whose puts read this shard once `given` has ended. It comes by a stream beside the rail's, which goes on until the first of them.
  void bring(const void* shard, cudaEvent_t given);
  void restart(int64_t calls) { signals_.restart(calls); }
  cudaStream_t stream() const { return stream_; }

 private:
  struct Waiting {
    Stream stream;
    Level level;
    Await await;
  };
  // bytes: 0 of a signal.  at: in the memory of the peer.  done: null of a signal.
  struct Sending {
    Wire wire;
    int peer;
    const char* from;
    int64_t at;
    int64_t bytes;
    void* done;
    uint64_t done_value;
  };

  int64_t number(const Rank& rank) const { return rank.node * program_.lanes + rank.lane; }
  // Where a level of another rank is written once it is taken off.
  void* word(const Level& x) { return world_.counter(x.counter, number(rank_), number(x.rank)); }
  void send(const Stream& s, const Sending& one);
  void flush_waits();
  void flush_sends();
  void issue(const Sending& one);

  cuda::World& world_;
  cuda::Issuer& issuer_;
  const tidec_program& program_;
  const Rank rank_;
  const std::shared_ptr<Window> window_;
  const int64_t arena_at_;
  char* const spare_;
  const int64_t spare_bytes_;
  Signals signals_;
  cuda::OwnStream stream_, bringing_;
  cuda::OwnEvent event_, brought_;
  bool is_coming_ = false;
  cuda::CounterOps counters_;
  std::vector<Waiting> waits_;
  std::vector<Sending> sends_;
  Stream sender_{};
};

}  // namespace tidec::nccl
