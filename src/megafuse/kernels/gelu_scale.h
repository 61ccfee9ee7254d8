// gelu_scale: y = gelu(x) * scale
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

template <class F, class Act>
struct GeluScale : Scalars<1> {
  F scale;
  MF_INLINE explicit GeluScale(const F* s) : scale(s[0]) {}
  MF_INLINE F operator()(F x) const { return Act::value(x) * scale; }
};

template <class F, class Act>
struct GeluScaleBackward : Scalars<1> {
  F scale;
  MF_INLINE explicit GeluScaleBackward(const F* s) : scale(s[0]) {}
  MF_INLINE F operator()(F grad, F x) const { return grad * scale * Act::derivative(x); }
};

}  // namespace mf
