// The kernels of this bundle: what its plans sum, land and cast. The last row of a table ends it.
#include "cuda/launch.cuh"

namespace tidec::cuda {

namespace {

constexpr SumEntry kSums[] = {
    {Dtype::kBf16, 2, launcher<Sum<Bf16, 2>>()},
    {},
};

constexpr LandEntry kLands[] = {
    {2, Reduction::kInOrder, Landing<InOrder<2>>::kArenas, launcher<Landing<InOrder<2>>>()},
    {},
};

constexpr CastEntry kCasts[] = {
    {Dtype::kFp32, Dtype::kBf16, launcher<Casting<float, Bf16>>()},
    {},
};

constexpr Kernels kKernels = {1, kSums, 1, kLands, 1, kCasts, launcher<Zeroing>()};

}  // namespace

const Kernels& kernels() { return kKernels; }

}  // namespace tidec::cuda
