// The kernels of a bundle, for the GPU that is none: one value at a time, rounded as runtime/cuda says.
#include "cuda/kernels.hpp"

#include <cstring>
#include <vector>

#include "gpu.hpp"

namespace tidec::cuda {

namespace {

float of_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <Dtype kType>
float value(const char* at, int64_t i) {
  if constexpr (kType == Dtype::kFp32) {
    float found;
    std::memcpy(&found, at + 4 * i, sizeof found);
    return found;
  } else {
    uint16_t found;
    std::memcpy(&found, at + 2 * i, sizeof found);
    return of_bf16(found);
  }
}

void set(char* at, int64_t i, float value) { std::memcpy(at + 4 * i, &value, sizeof value); }

cudaError_t prepare() { return cudaSuccess; }

template <Dtype kType>
void add_up(const SumCall& call, const std::vector<const char*>& staged, const SumPiece* pieces, int64_t num) {
  for (const SumPiece* p = pieces; p < pieces + num; ++p) {
    for (int64_t row = 0; row < p->rows; ++row) {
      char* const into = call.into + p->into + row * p->into_pitch;
      for (int64_t i = 0; i < p->elems; ++i) {
        float total = 0.f;
        for (const char* block : staged) total += value<kType>(block + p->staged + row * p->staged_pitch, i);
        total += value<kType>(p->own + row * p->own_pitch, i);
        const float scaled = call.alpha * total;
        set(into, i, call.accumulates ? scaled + value<Dtype::kFp32>(into, i) : scaled);
      }
    }
  }
}

// A step at a time, each once its words are there, as the kernel does; it is in the way of the stream meanwhile.
template <Dtype kType, int kLanes>
cudaError_t sum(const SumCall& call, int, cudaStream_t stream) {
  using Words = std::vector<const uint64_t*>;
  const std::vector<const char*> staged(call.staged, call.staged + kLanes - 1);
  const std::vector<SumPiece> pieces(call.pieces, call.pieces + call.num_pieces);
  std::vector<SumStep> steps(call.steps, call.steps + call.num_steps);
  const Words awaits = call.awaits != nullptr ? Words(call.awaits, call.awaits + kLanes - 1) : Words();
  const std::vector<uint64_t*> tells(call.tells, call.tells + (call.num_steps > 0 ? kLanes - 1 : 0));
  if (steps.empty()) steps.push_back({call.num_pieces, 0, 0});
  fake::note_steps(call.num_steps);
  int64_t first = 0;
  for (const SumStep& step : steps) {
    const auto run = [call, staged, pieces, tells, step, first] {
      add_up<kType>(call, staged, pieces.data() + first, step.num_pieces);
      for (uint64_t* word : tells) {
        if (step.told != 0) *word = step.told;
      }
    };
    const uint64_t value = first > 0 || &step != steps.data() ? step.awaited : 0;
    fake::push(stream, run, [awaits, value] {
      for (const uint64_t* word : awaits) {
        if (*word < value) return false;
      }
      return true;
    });
    first += step.num_pieces;
  }
  return cudaSuccess;
}

template <int kLanes>
cudaError_t land(const LandCall& call, int, cudaStream_t stream) {
  const std::vector<const char*> arenas(call.arenas, call.arenas + kLanes);
  const std::vector<LandPiece> pieces(call.pieces, call.pieces + call.num_pieces);
  fake::push(stream, [call, arenas, pieces] {
    for (const LandPiece& p : pieces) {
      for (int64_t i = 0; i < p.elems; ++i) {
        float total = call.adds ? value<Dtype::kFp32>(call.into + p.into, i) : 0.f;
        for (const char* arena : arenas) total += value<Dtype::kFp32>(arena + p.from, i);
        set(call.into + p.into, i, total);
      }
    }
  });
  return cudaSuccess;
}

cudaError_t zero(const ZeroCall& call, int, cudaStream_t stream) {
  return fake::push(stream, [call] { std::memset(call.into, 0, static_cast<size_t>(call.bytes)); }), cudaSuccess;
}

cudaError_t cast(const CastCall& call, int, cudaStream_t stream) {
  fake::push(stream, [call] {
    for (int64_t i = 0; i < call.count; ++i) {
      const uint16_t bits = to_bf16(value<Dtype::kFp32>(call.from, i));
      std::memcpy(call.into + 2 * i, &bits, sizeof bits);
    }
  });
  return cudaSuccess;
}

constexpr SumEntry kSums[] = {
    {Dtype::kBf16, 1, {prepare, sum<Dtype::kBf16, 1>}}, {Dtype::kBf16, 2, {prepare, sum<Dtype::kBf16, 2>}}, {Dtype::kBf16, 4, {prepare, sum<Dtype::kBf16, 4>}},
    {Dtype::kFp32, 1, {prepare, sum<Dtype::kFp32, 1>}}, {Dtype::kFp32, 2, {prepare, sum<Dtype::kFp32, 2>}}, {Dtype::kFp32, 4, {prepare, sum<Dtype::kFp32, 4>}},
};
constexpr LandEntry kLands[] = {
    {1, Reduction::kInOrder, 1, {prepare, land<1>}}, {2, Reduction::kInOrder, 2, {prepare, land<2>}}, {4, Reduction::kInOrder, 4, {prepare, land<4>}},
};
constexpr CastEntry kCasts[] = {{Dtype::kFp32, Dtype::kBf16, {prepare, cast}}};
constexpr Kernels kKernels{6, kSums, 3, kLands, 1, kCasts, {prepare, zero}};

}  // namespace

const Kernels& kernels() { return kKernels; }

}  // namespace tidec::cuda
