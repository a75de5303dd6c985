// The kernels of this bundle: what its plans sum, land and cast. The last row of a table ends it.
#include "cuda/launch.cuh"

namespace tidec::cuda {

namespace {

constexpr SumEntry kSums[] = {
    {},
};

constexpr LandEntry kLands[] = {
    {},
};

constexpr CastEntry kCasts[] = {
    {},
};

constexpr Kernels kKernels = {0, kSums, 0, kLands, 0, kCasts, launcher<Zeroing>()};

}  // namespace

const Kernels& kernels() { return kKernels; }

}  // namespace tidec::cuda
