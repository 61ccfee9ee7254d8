// sum_parts: the last step of a summing backward, which adds up the blocks' partial sums, of up to
// four sums at once. It is a summing "backward" itself, of the function that changes nothing.
#pragma once

#include "pointwise.h"

namespace mf {

template <class F, int kCount>
struct Same : Scalars<0> {
  MF_INLINE explicit Same(const F*) {}
  template <class... Each>
  MF_INLINE Pack<F, sizeof...(Each)> operator()(Each... x) const {
    static_assert(sizeof...(Each) == kCount);
    return {x...};
  }
};

}  // namespace mf
