// scale_bias_sigmoid: out = sigmoid(x * w + b)
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

template <class F>
struct ScaleBiasSigmoid : Scalars<0> {
  MF_INLINE explicit ScaleBiasSigmoid(const F*) {}
  MF_INLINE F operator()(F x, F w, F b) const { return Sigmoid::value(x * w + b); }
};

// Gradients of x, w and b.
template <class F>
struct ScaleBiasSigmoidBackward : Scalars<0> {
  MF_INLINE explicit ScaleBiasSigmoidBackward(const F*) {}
  MF_INLINE Pack<F, 3> operator()(F grad, F x, F w, F b) const {
    const F inner = grad * Sigmoid::derivative(x * w + b);
    return {inner * w, inner * x, inner};
  }
};

}  // namespace mf
