// dequantize_int8: x = (q - zero_point) * scale
#pragma once

#include "pointwise.h"

namespace mf {

template <class F>
struct DequantizeInt8 : Scalars<0> {
  MF_INLINE explicit DequantizeInt8(const F*) {}
  MF_INLINE F operator()(F q, F scale, F zero_point) const { return (q - zero_point) * scale; }
};

// Gradients of scale and zero_point.
template <class F>
struct DequantizeInt8Backward : Scalars<0> {
  MF_INLINE explicit DequantizeInt8Backward(const F*) {}
  MF_INLINE Pack<F, 2> operator()(F grad, F q, F scale, F zero_point) const {
    return {grad * (q - zero_point), -grad * scale};
  }
};

}  // namespace mf
