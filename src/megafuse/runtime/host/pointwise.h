// The program of pointwise ops: one launch forward, one backward.
#pragma once

#include "backward.h"
#include "forward.h"

namespace megafuse {

struct Pointwise : Program {
  Results forward(const Call& call, const Agreement& agreement, const RandomState& random,
                  bool) const override {
    return {megafuse::forward(call, agreement, random)};
  }
  Gradients backward(const BackwardCall& b) const override { return Backward(b).run(); }
};

}  // namespace megafuse
