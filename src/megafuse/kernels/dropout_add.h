// dropout_add: out = residual + x / (1 - p) where an element of x is kept, else residual
#pragma once

#include "dropout_relu.h"

namespace mf {

template <class F, bool kTraining>
struct DropoutAdd : ScalarsAndDraws<1, kTraining> {
  Dropout<F, kTraining> dropout;
  MF_INLINE explicit DropoutAdd(const F* s) : dropout(s[0]) {}
  MF_INLINE F operator()(F x, F residual, u32 drawn = 0) const {
    return x * dropout.factor(drawn) + residual;
  }
};

// The gradient of x.
template <class F, bool kTraining>
struct DropoutAddBackward : ScalarsAndDraws<1, kTraining> {
  Dropout<F, kTraining> dropout;
  MF_INLINE explicit DropoutAddBackward(const F* s) : dropout(s[0]) {}
  MF_INLINE F operator()(F grad, u32 drawn = 0) const { return grad * dropout.factor(drawn); }
};

}  // namespace mf
