#include "cuda/chain.hpp"

namespace tidec::cuda {

namespace {

// Whether these are words of all lanes, in order: the known ones, if any are known.
template <class Word>
bool are_known(const std::vector<WordValue<Word>>& found, const std::vector<Word*>& known, size_t others) {
  if (found.size() != others || others == 0) return false;
  for (size_t i = 0; i < others; ++i) {
    if (found[i].value == 0 || found[i].value != found[0].value || (!known.empty() && found[i].word != known[i])) return false;
  }
  return true;
}

template <class Word>
void learn(const std::vector<WordValue<Word>>& found, std::vector<Word*>& known) {
  if (!known.empty()) return;
  for (const auto& f : found) known.push_back(f.word);
}

}  // namespace

bool SumChain::add(const SumPieces& sum, char* into, bool adds) {
  const int64_t num = static_cast<int64_t>(sum.pieces.size());
  if (sum_.pieces.size() + sum.pieces.size() > max_pieces_ || (num > 0 && sum.staged.size() != others_)) return false;
  uint64_t awaited = 0;
  int64_t shift = 0;
  if (!steps_.empty()) {
    if (steps_.size() == static_cast<size_t>(kMaxSumSteps) || adds != adds_ || steps_.back().told == 0 || !tellings_.empty()) return false;
    if (!waits_.empty() && (!are_known(waits_, awaits_, others_) || waits_[0].value < steps_.back().awaited)) return false;
    // A later step waits for all that an earlier one does.
    awaited = waits_.empty() ? steps_.back().awaited : waits_[0].value;
    if (num > 0 && !sum_.pieces.empty()) shift = sum.staged[0] - sum_.staged[0];
    for (size_t i = 0; i < others_ && num > 0 && !sum_.pieces.empty(); ++i) {
      if (sum.staged[i] - sum_.staged[i] != shift) return false;
    }
    learn(waits_, awaits_);
    waits_.clear();
  } else {
    into_ = into, adds_ = adds;
  }
  if (sum_.pieces.empty()) sum_.staged = sum.staged;
  for (SumPiece piece : sum.pieces) {
    piece.staged += shift;
    piece.into += into - into_;
    sum_.pieces.push_back(piece);
  }
  steps_.push_back({num, awaited, 0});
  return true;
}

void SumChain::await(const uint64_t* word, uint64_t value) { waits_.push_back({word, value}); }

bool SumChain::tell(uint64_t* word, uint64_t value) {
  if (steps_.empty() || !waits_.empty() || steps_.back().told != 0) return false;
  tellings_.push_back({word, value});
  if (tellings_.size() < others_) return true;
  if (!are_known(tellings_, tells_, others_) || (steps_.size() > 1 && value <= steps_[steps_.size() - 2].told)) {
    tellings_.pop_back();
    return false;
  }
  learn(tellings_, tells_);
  steps_.back().told = value;
  tellings_.clear();
  return true;
}

SumCall SumChain::call() const {
  SumCall made{into_, sum_.staged.data(), sum_.pieces.data(), static_cast<int64_t>(sum_.pieces.size()), 1.f, adds_};
  if (steps_.size() == 1 && steps_[0].told == 0) return made;
  made.steps = steps_.data();
  made.num_steps = static_cast<int64_t>(steps_.size());
  made.awaits = awaits_.empty() ? nullptr : awaits_.data();
  made.tells = tells_.data();
  return made;
}

void SumChain::clear() {
  sum_.staged.clear();
  sum_.pieces.clear();
  steps_.clear();
  awaits_.clear();
  tells_.clear();
  waits_.clear();
  tellings_.clear();
}

}  // namespace tidec::cuda
