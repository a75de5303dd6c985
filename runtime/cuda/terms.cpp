#include "cuda/terms.hpp"

#include <algorithm>
#include <utility>

namespace tidec::cuda {

void gather(const std::vector<Term>& terms, int64_t lanes, char* into, SumPieces& sum) {
  sum.staged.clear();
  sum.pieces.clear();
  const size_t others = static_cast<size_t>(lanes) - 1, num = terms.size() / static_cast<size_t>(lanes);
  if (num * static_cast<size_t>(lanes) != terms.size()) throw Unfit{"the lanes of a sum have different terms"};
  if (num == 0) return;
  const Term* const own = terms.data() + others * num;
  for (size_t i = 0; i < others; ++i) {
    const Term* const mine = terms.data() + i * num;
    sum.staged.push_back(mine->from);
    if ((mine->from - terms[0].from) % 16 != 0) throw Unfit{"the staged blocks of a sum differ modulo 16"};
    for (size_t k = 0; k < num; ++k) {
      const Term &t = mine[k], &o = own[k];
      if (t.into != o.into || t.into_pitch != o.into_pitch || t.elems != o.elems || t.rows != o.rows) throw Unfit{"the lanes of a sum have different terms"};
      if (t.from - mine->from != terms[k].from - terms[0].from || t.from_pitch != terms[k].from_pitch) throw Unfit{"the staged blocks of a sum differ in their layout"};
    }
  }
  for (size_t k = 0; k < num; ++k) {
    const Term& o = own[k];
    const int64_t staged = others > 0 ? terms[k].from - terms[0].from : 0, staged_pitch = others > 0 ? terms[k].from_pitch : 0;
    sum.pieces.push_back({o.from, o.from_pitch, staged, staged_pitch, o.into - into, o.into_pitch, o.elems, o.rows});
  }
}

std::vector<Gap> gaps(const std::vector<Term>& terms, size_t num_pieces, char* into, int64_t bytes) {
  std::vector<std::pair<char*, int64_t>> rows;
  for (size_t i = terms.size() - num_pieces; i < terms.size(); ++i) {
    for (int64_t r = 0; r < terms[i].rows; ++r) rows.emplace_back(terms[i].into + r * terms[i].into_pitch, 4 * terms[i].elems);
  }
  std::sort(rows.begin(), rows.end());
  std::vector<Gap> found;
  char* end = into;
  for (const auto& [begin, size] : rows) {
    if (begin < end) throw Unfit{"rows of a sum overlap, or lie before it"};
    if (begin > end) found.push_back({end, begin - end});
    end = begin + size;
  }
  if (end > into + bytes) throw Unfit{"a row of a sum lies past its end"};
  if (end < into + bytes) found.push_back({end, into + bytes - end});
  return found;
}

}  // namespace tidec::cuda
