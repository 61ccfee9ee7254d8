// dropout_relu: out = relu(x) / (1 - p) where an element is kept, else 0
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

// The factor of an element: 0 with probability p, else 1 / (1 - p).
// Outside training, always 1.
template <class F, bool kTraining>
struct Dropout {
  u32 threshold;  // p in units of 2^-32: a word below it drops the element
  F scale;
  MF_INLINE explicit Dropout(F p)
      : threshold(p < F(1) ? u32(p * F(4294967296.0)) : 0xffffffffu),
        scale(p < F(1) ? F(1) / (F(1) - p) : F(0)) {}
  MF_INLINE F factor(u32 drawn) const {
    if constexpr (!kTraining) return F(1);
    return drawn < threshold ? F(0) : scale;
  }
};

// Multiplies by 0 rather than selecting 0, so that a dropped NaN or Inf gives NaN as PyTorch's
// does.
template <class F, bool kTraining>
struct DropoutRelu : ScalarsAndDraws<1, kTraining> {
  Dropout<F, kTraining> dropout;
  MF_INLINE explicit DropoutRelu(const F* s) : dropout(s[0]) {}
  MF_INLINE F operator()(F x, u32 drawn = 0) const {
    return Relu::value(x) * dropout.factor(drawn);
  }
};

template <class F, bool kTraining>
struct DropoutReluBackward : ScalarsAndDraws<1, kTraining> {
  Dropout<F, kTraining> dropout;
  MF_INLINE explicit DropoutReluBackward(const F* s) : dropout(s[0]) {}
  MF_INLINE F operator()(F grad, F x, u32 drawn = 0) const {
    return x <= F(0) ? F(0) : grad * dropout.factor(drawn);
  }
};

}  // namespace mf
