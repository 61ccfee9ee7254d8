// quantize_int8: q = clamp(round(x / scale + zero_point), -128, 127), ties to even
#pragma once

#include "math.h"
#include "pointwise.h"

namespace mf {

// How x / scale is computed. All three give what PyTorch gives there, bit for bit.
enum class Divide {
  kDirect,      // IEEE division
  kUniform,     // scale is the same along the row: its reciprocal and one correction, no division
  kReciprocal,  // x * (1 / scale): what PyTorch's CUDA kernel does when scale is a number
};

// Intermediate results are rounded to Stored, as they would be between separate PyTorch operations.
template <class F, class Stored, Divide kDivide>
struct QuantizeInt8 : Scalars<0> {
  MF_INLINE explicit QuantizeInt8(const F*) {}

  static MF_INLINE F rounded(F value) { return cast<F>(cast<Stored>(value)); }

  MF_INLINE i32 operator()(F x, F scale, F zero_point) const {
    F quotient;
    if constexpr (kDivide == Divide::kReciprocal) {
      quotient = x * (F(1) / scale);
    } else if constexpr (kDivide == Divide::kUniform) {
      const F inverse = F(1) / scale;
      const F guess = x * inverse;
      const F rest = fma(-guess, scale, x);
      const F better = fma(rest, inverse, guess);
      quotient = better == better ? better : guess;  // guess is Inf or NaN already
    } else {
      quotient = x / scale;
    }
    const F shifted = rounded(rounded(quotient) + zero_point);
    // Clamping before rounding changes nothing, and keeps to the range of rounded_integer.
    const F number = select(shifted == shifted, shifted, F(0));
    return rounded_integer(at_least(at_most(number, F(127)), F(-128)));
  }
};

}  // namespace mf
