// Hyperbolic sine and cosine and the inverses, with the tangent's. Of float on the CPU in double
// (in_double.h); the builtins of double, and on the GPU CUDA's functions.
#pragma once

#include "in_double.h"

namespace mf {

MF_DOUBLE_FUNCTION(sinh)
MF_DOUBLE_FUNCTION(cosh)
MF_DOUBLE_FUNCTION(asinh)
MF_DOUBLE_FUNCTION(acosh)
MF_DOUBLE_FUNCTION(atanh)

#if MF_ON_GPU
MF_FLOAT_FUNCTION(sinh)
MF_FLOAT_FUNCTION(cosh)
MF_FLOAT_FUNCTION(asinh)
MF_FLOAT_FUNCTION(acosh)
MF_FLOAT_FUNCTION(atanh)
#else

// With t = e^|x| - 1: (t + t / (t + 1)) / 2, where nothing cancels.
MF_INLINE float sinh(float x) {
  const double t = in_double::Exponential(min(abs(double(x)), 100.0)).minus_one();
  return copysign(float(0.5 * (t + t / (t + 1.0))), x);
}
MF_INLINE float cosh(float x) {
  const double power = in_double::Exponential(min(abs(double(x)), 100.0)).value();
  return float(0.5 * (power + 1.0 / power));
}

// ln(1 + z) for z >= 0: 1 + z is rounded, and what is lost counts only where it is near 1.
MF_INLINE double ln_of_more(double z) {
  const double u = 1.0 + z;
  return in_double::ln(u) + select(u < 2.0, z - (u - 1.0), 0.0);
}

// ln(t + sqrt(t^2 + 1)), t = |x|, as the logarithm of 1 + what is more.
MF_INLINE float asinh(float x) {
  const double t = abs(double(x)), square = t * t;
  const double made = ln_of_more(t + square / (1.0 + __builtin_sqrt(1.0 + square)));
  return copysign(float(select(t < infinity<double>(), made, t)), x);
}
// ln(x + sqrt(x^2 - 1)) likewise; NaN below 1.
MF_INLINE float acosh(float x) {
  const double more = double(x) - 1.0, root = __builtin_sqrt(more * (double(x) + 1.0));
  return float(select(more < 0.0, in_double::nan(), ln_of_more(more + root)));
}
// ln((1 + t) / (1 - t)) / 2 = ln(1 + 2 t / (1 - t)) / 2; Inf at 1, NaN beyond.
MF_INLINE float atanh(float x) {
  const double t = abs(double(x));
  const double half = 0.5 * ln_of_more(2.0 * t / (1.0 - t));
  return copysign(float(select(t > 1.0, in_double::nan(), half)), x);
}
#endif

}  // namespace mf
