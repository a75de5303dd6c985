// Failures of CUDA as one type: every call is checked, and none is tried again.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "cuda/failure.hpp"

namespace tidec::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Failure{std::string(what) + ": " + cudaGetErrorString(error)};
}

inline void check(CUresult error, const char* what) {
  if (error != CUDA_SUCCESS) throw Failure{std::string(what) + ": the driver gives error " + std::to_string(static_cast<int>(error))};
}

}  // namespace tidec::cuda
