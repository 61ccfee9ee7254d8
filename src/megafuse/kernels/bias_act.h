// bias_act: out = act(x + bias)
#pragma once

#include "activations.h"
#include "pointwise.h"

namespace mf {

template <class F, class Act>
struct BiasAct : Scalars<0> {
  MF_INLINE explicit BiasAct(const F*) {}
  MF_INLINE F operator()(F x, F bias) const { return Act::value(x + bias); }
};

// The gradient of x; summed over the rows it is that of bias.
template <class F, class Act>
struct BiasActBackward : Scalars<0> {
  MF_INLINE explicit BiasActBackward(const F*) {}
  MF_INLINE F operator()(F grad, F x, F bias) const { return Act::gradient(grad, x + bias); }
};

}  // namespace mf
