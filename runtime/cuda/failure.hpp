// Why a session cannot go on. No CUDA.
#pragma once

#include <string>

namespace tidec::cuda {

struct Failure {
  std::string why;
};

}  // namespace tidec::cuda
