// add_mul_add: out = (x + y) * z + w
#pragma once

#include "pointwise.h"

namespace mf {

template <class F>
struct AddMulAdd : Scalars<0> {
  MF_INLINE explicit AddMulAdd(const F*) {}
  MF_INLINE F operator()(F x, F y, F z, F w) const { return (x + y) * z + w; }
};

// Gradients of x (also that of y) and z. That of w is the incoming one.
template <class F>
struct AddMulAddBackward : Scalars<0> {
  MF_INLINE explicit AddMulAddBackward(const F*) {}
  MF_INLINE Pack<F, 2> operator()(F grad, F x, F y, F z) const {
    return {grad * z, grad * (x + y)};
  }
};

}  // namespace mf
