// The digest of what one rank gave: one function for all targets, so that equal outputs have equal digests on each of them.
#pragma once

#include <cstdint>
#include <cstring>

namespace tidec {

// outputs: of `calls` calls, output_bytes each, one after the other; a last word that is not whole is filled with zeros.
inline uint64_t digest_outputs(const char* outputs, int64_t calls, int64_t output_bytes, int64_t rank) {
  uint64_t h = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(rank + 1);
  for (int64_t e = 0; e < calls; ++e) {
    for (int64_t i = 0; i < output_bytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, outputs + e * output_bytes + i, static_cast<size_t>(output_bytes - i < 8 ? output_bytes - i : 8));
      h = (h ^ word) * 0xff51afd7ed558ccdu;
      h ^= h >> 29;
    }
  }
  return h;
}

}  // namespace tidec
