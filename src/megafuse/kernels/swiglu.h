// swiglu: out = silu(gate) * up
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

template <class F>
struct Swiglu : Scalars<0> {
  MF_INLINE explicit Swiglu(const F*) {}
  MF_INLINE F operator()(F gate, F up) const { return Silu::value(gate) * up; }
};

// Gradients of gate and up.
template <class F>
struct SwigluBackward : Scalars<0> {
  MF_INLINE explicit SwigluBackward(const F*) {}
  MF_INLINE Pack<F, 2> operator()(F grad, F gate, F up) const {
    return {grad * up * Silu::derivative(gate), grad * Silu::value(gate)};
  }
};

}  // namespace mf
