// The program of pointwise ops: one launch forward, one backward.
#pragma once

#include "torch/backward.h"
#include "torch/forward.h"

namespace megafuse {

struct Pointwise : Program {
  explicit Pointwise(const Op&) {}

  Results forward(const Call& call, const Agreement& agreement, const RandomState& random,
                  bool) const override {
    if (C10_LIKELY(!call.op->random)) return {megafuse::forward(call, agreement, random)};
    return {megafuse::forward(without_idle_draws(call), agreement, random)};
  }
  Gradients backward(const BackwardCall& b) const override {
    if (C10_LIKELY(!b.call.op->random)) return Backward(b).run();
    BackwardCall made = b;
    made.call = without_idle_draws(b.call);
    return Backward(made).run();
  }
};

}  // namespace megafuse
