// Powers and lengths of two numbers. Of float on the CPU in double (in_double.h); the builtins of
// double, and on the GPU CUDA's functions.
#pragma once

#include "in_double.h"
#include "rounding.h"

namespace mf {

#if MF_ON_GPU
MF_INLINE float pow(float a, float b) { return ::powf(a, b); }
MF_INLINE double pow(double a, double b) { return ::pow(a, b); }
MF_INLINE float hypot(float a, float b) { return ::hypotf(a, b); }
MF_INLINE double hypot(double a, double b) { return ::hypot(a, b); }
#else
MF_INLINE double pow(double a, double b) { return __builtin_pow(a, b); }
MF_INLINE double hypot(double a, double b) { return __builtin_hypot(a, b); }

// a^b = e^(b ln|a|), with a's sign where b is odd, NaN where a is negative and b has a fraction; 1
// where b is 0 or a is 1, even of NaN, and where -1 has an infinite exponent.
MF_INLINE float pow(float a, float b) {
  const double exponent = double(b) * in_double::ln(abs(double(a)));
  const double near = max(min(exponent, 300.0), -300.0);  // float ends at 89 and -104
  float size = float(in_double::Exponential(near).value());
  const float half_of = 0.5f * b;
  const bool whole = trunc(b) == b, odd = whole & (trunc(half_of) != half_of);
  const bool is_negative = bits_as<u32>(a) >> 31;
  size = select((a < 0.0f) & !whole & (a > -infinity<float>()), not_a_number(), size);
  size = select(odd & is_negative, -size, size);
  const bool one = (b == 0.0f) | (a == 1.0f) | ((a == -1.0f) & (abs(b) == infinity<float>()));
  return select(one, 1.0f, size);
}

// sqrt(a^2 + b^2); Inf if either is, also beside NaN.
MF_INLINE float hypot(float a, float b) {
  const double x = a, y = b;
  const float length = float(__builtin_sqrt(fma(x, x, y * y)));
  const bool endless = (abs(a) == infinity<float>()) | (abs(b) == infinity<float>());
  return select(endless, infinity<float>(), length);
}
#endif

}  // namespace mf
