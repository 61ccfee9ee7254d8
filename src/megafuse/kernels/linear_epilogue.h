// linear_epilogue: what follows a GEMM. pre = x + bias, out = act(pre) + residual. Where pre is
// kept, out is that of pre as it is stored (Pre), so that a backward that works out act(pre) again
// finds the forward's numbers.
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

struct NoAct {
  template <class F>
  static MF_INLINE F value(F x) {
    return x;
  }
  template <class F>
  static MF_INLINE F gradient(F grad, F) {
    return grad;
  }
};

// out and pre.
template <class F, class Act, class Pre = F>
struct LinearEpilogue : Scalars<0> {
  MF_INLINE explicit LinearEpilogue(const F*) {}
  MF_INLINE Pack<F, 2> operator()(F x, F bias, F residual) const {
    const F pre = Rounded<Pre>::to(x + bias);
    return {Act::value(pre) + residual, pre};
  }
};

// The gradient of pre; summed over the rows it is that of bias. `saved` is pre, or for relu out:
// both have the same sign.
template <class F, class Act>
struct LinearEpilogueBackward : Scalars<0> {
  MF_INLINE explicit LinearEpilogueBackward(const F*) {}
  MF_INLINE F operator()(F grad, F saved) const { return Act::gradient(grad, saved); }
};

}  // namespace mf
