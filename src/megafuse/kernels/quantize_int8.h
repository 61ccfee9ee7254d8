// quantize_int8: q = clamp(round(x / scale + zero_point), -128, 127), ties to even
#pragma once

#include "math.h"
#include "pointwise.h"

namespace mf {

// Whether a division costs more than a reciprocal and its correction. Not on Arm: a Neoverse-N1
// divides while it does the rest, 0.69 ns an element against 0.90.
#if defined(__aarch64__) && !MF_ON_GPU
constexpr bool kDivisionIsSlow = false;
#else
constexpr bool kDivisionIsSlow = true;
#endif

// How x / scale is computed. All three give what PyTorch gives there, bit for bit.
enum class Divide {
  kDirect,      // IEEE division
  kUniform,     // scale is the same along the row: its reciprocal and one correction where a
                // division is slow
  kReciprocal,  // x * scale, scale being its reciprocal already, taken in double: what PyTorch's
                // CUDA kernel does when scale is a number
};

// scale, zero_point, the quotient and the sum are rounded to these types, as they would be by
// separate PyTorch operations.
template <class F, class ScaleAs, class ZeroAs, class QuotientAs, class SumAs, Divide kDivide>
struct QuantizeInt8 : Scalars<0> {
  MF_INLINE explicit QuantizeInt8(const F*) {}

  MF_INLINE i32 operator()(F x, F given_scale, F given_zero_point) const {
    const F scale = Rounded<ScaleAs>::to(given_scale);
    const F zero_point = Rounded<ZeroAs>::to(given_zero_point);
    F quotient;
    if constexpr (kDivide == Divide::kReciprocal) {
      quotient = x * scale;
    } else if constexpr (kDivide == Divide::kUniform && kDivisionIsSlow) {
      // The condition is the same for the whole row, so the compiler makes two loops of it.
      if (abs(scale) > F(1e-30) && abs(scale) < F(1e30)) {
        const F inverse = F(1) / scale;
        const F guess = x * inverse;
        const F rest = fma(-guess, scale, x);
        const F better = fma(rest, inverse, guess);
        quotient = select(better == better, better, guess);  // guess is Inf or NaN already
      } else {
        quotient = x / scale;
      }
    } else {
      quotient = x / scale;
    }
    const F shifted = Rounded<SumAs>::to(Rounded<QuotientAs>::to(quotient) + zero_point);
    // Clamping before rounding changes nothing, and keeps to the range of rounded_integer.
    const F number = select(shifted == shifted, shifted, F(0));
    return rounded_integer(at_least(at_most(number, F(127)), F(-128)));
  }
};

}  // namespace mf
