// Sums of one stream that follow each other, made one call of several steps. No CUDA.
//
// Between two sums of a stream stand the waits for the other lanes' blocks and what they are told once their blocks are read. A launch that does both
// itself leaves no gap between two sums. Whatever else comes on the stream comes after it, and so does every wait, of any stream, for what it tells: the
// host's order stays one in which nothing waits for what is enqueued later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/terms.hpp"

namespace tidec::cuda {

// A word that is waited for or written, and its value.
template <class Word>
struct WordValue {
  Word* word;
  uint64_t value;
};

class SumChain {
 public:
  // others: lanes beside the own one.  max_pieces: of a launch.
  SumChain(int64_t others, size_t max_pieces) : others_(static_cast<size_t>(others)), max_pieces_(max_pieces) {}

  bool is_empty() const { return steps_.empty(); }

  // Another step, for which the waits since the last one stand. False where it does not go with those before; then nothing is changed.
  bool add(const SumPieces& sum, char* into, bool adds);
  // The next sum begins once `word`, which another lane raises, has that value. There has been a sum.
  void await(const uint64_t* word, uint64_t value);
  // Another lane's word gets that value after the last sum. False where no launch does it so; then nothing is changed.
  bool tell(uint64_t* word, uint64_t value);
  // What the call does not do itself: waits that no sum has followed, and what only some lanes were told after the last one. Comes after the launch.
  const std::vector<WordValue<const uint64_t>>& waits() const { return waits_; }
  const std::vector<WordValue<uint64_t>>& tellings() const { return tellings_; }
  // Whether it tells of this value or a lower one.
  bool tells_by(uint64_t value) const { return !steps_.empty() && steps_[0].told != 0 && steps_[0].told <= value; }

  // The call, whose arrays are this object's; without steps where it waits for nothing and tells nobody. `alpha`, `counts` and `deadline_ns` are the
  // caller's to set.
  SumCall call() const;
  void clear();

 private:
  const size_t others_;
  const size_t max_pieces_;
  char* into_ = nullptr;
  bool adds_ = false;
  SumPieces sum_;
  std::vector<SumStep> steps_;
  std::vector<const uint64_t*> awaits_;
  std::vector<uint64_t*> tells_;
  // Since the last sum.
  std::vector<WordValue<const uint64_t>> waits_;
  std::vector<WordValue<uint64_t>> tellings_;
};

}  // namespace tidec::cuda
