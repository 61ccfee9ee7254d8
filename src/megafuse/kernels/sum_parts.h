// sum_parts: the last step of a summing backward, which adds up the blocks' partial sums. It is
// a summing "backward" itself, of the function that changes nothing.
#pragma once

#include "pointwise.h"

namespace mf {

template <class F>
struct Same : Scalars<0> {
  MF_INLINE explicit Same(const F*) {}
  MF_INLINE F operator()(F x) const { return x; }
};

}  // namespace mf
