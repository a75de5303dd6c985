// Which calls of a node are in turn, and whether they name all memory that their plan needs; the same on every target.
#pragma once

#include <cstdint>
#include <string>

#include "tidec/layout.hpp"
#include "tidec/module.hpp"

namespace tidec {

// Every function gives why a call is refused; empty text = it is in turn, and counts as made.
class Calls {
 public:
  explicit Calls(const tidec_program& program) : is_reduction_(program.is_reduction != 0), landings_(program.landings), layout_(*static_cast<const Layout*>(program.layout)) {}

  std::string gather(int64_t call, const void* shard) {
    if (is_reduction_) return "the plan is a reduce-scatter, and gathers nothing";
    if (call != begun_) return out_of_turn("gather", call, begun_);
    if (call >= released_ + landings_) return "gather(" + std::to_string(call) + ") comes before release(" + std::to_string(call - landings_) + "), whose landing it would overwrite";
    if (shard == nullptr && layout_.shard_bytes > 0) return "gather(" + std::to_string(call) + ") has no shard";
    ++begun_;
    return "";
  }

  std::string acquire(int64_t call) {
    if (is_reduction_) return "the plan is a reduce-scatter, and has no landing";
    if (call != acquired_) return out_of_turn("acquire", call, acquired_);
    if (call >= begun_) return "acquire(" + std::to_string(call) + ") comes before gather(" + std::to_string(call) + ")";
    ++acquired_;
    return "";
  }

  std::string release(int64_t call) {
    if (is_reduction_) return "the plan is a reduce-scatter, and has no landing";
    if (call != released_) return out_of_turn("release", call, released_);
    if (call >= acquired_) return "release(" + std::to_string(call) + ") comes before acquire(" + std::to_string(call) + ")";
    ++released_;
    return "";
  }

  std::string reduce(int64_t call, const void* const* gradients, int64_t num_gradients, const void* out) {
    if (!is_reduction_) return "the plan is an all-gather, and sums nothing";
    if (call != begun_) return out_of_turn("reduce", call, begun_);
    if (num_gradients != layout_.params.count) {
      return "reduce(" + std::to_string(call) + ") has " + std::to_string(num_gradients) + " gradients, and the group " + std::to_string(layout_.params.count) + " parameters";
    }
    for (int64_t i = 0; i < num_gradients; ++i) {
      const Param& p = layout_.params[i];
      if (gradients[i] == nullptr && p.is_trainable && p.real_elems > 0) {
        return "reduce(" + std::to_string(call) + ") has no gradient of parameter " + std::to_string(i) + ", and the plan sums it";
      }
    }
    if ((out == nullptr && layout_.packed_elems > 0) || reinterpret_cast<uintptr_t>(out) % alignof(float) != 0) {
      return "reduce(" + std::to_string(call) + ") has an output that is not " + (out == nullptr ? "there" : "aligned to 4 bytes");
    }
    ++begun_;
    return "";
  }

  // Of a call that is over, one of the last `kept`.
  std::string counted(int64_t call, int64_t kept) const {
    const int64_t over = is_reduction_ ? begun_ : released_;
    if (call >= 0 && call < over && call >= over - kept) return "";
    return "counts(" + std::to_string(call) + ") is not of the last " + std::to_string(kept) + " calls that are over: they end before " + std::to_string(over);
  }

 private:
  static std::string out_of_turn(const char* what, int64_t call, int64_t next) {
    return std::string(what) + "(" + std::to_string(call) + ") is out of turn: the next is " + what + "(" + std::to_string(next) + ")";
  }

  const bool is_reduction_;
  const int64_t landings_;
  const Layout& layout_;
  int64_t begun_ = 0, acquired_ = 0, released_ = 0;
};

}  // namespace tidec
