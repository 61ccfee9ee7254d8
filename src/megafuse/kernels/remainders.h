// Remainders and whole quotients of floats: fmod with the sign of a, mod and floor_div with b's, as
// Python has them. fmod of float on the CPU is done in double (in_double.h), and exact as libm's.
#pragma once

#include "in_double.h"
#include "rounding.h"

namespace mf {

#if MF_ON_GPU
MF_INLINE float fmod(float a, float b) { return ::fmodf(a, b); }
MF_INLINE double fmod(double a, double b) { return ::fmod(a, b); }
#else
MF_INLINE double fmod(double a, double b) { return __builtin_fmod(a, b); }

// Long division: `left` loses the nearest multiples of |b| 2^250, then of |b| 2^200, ..., of |b|.
// Each is exact, since an fma is: the quotient has 51 bits, what is left 25. A CPU without it needs
// quotients of 29 bits, so that the product is exact.
MF_INLINE float fmod(float a, float b) {
#if defined(__FMA__) || defined(__aarch64__)
  constexpr double scales[] = {0x1p250, 0x1p200, 0x1p150, 0x1p100, 0x1p50, 1.0};
#else
  constexpr double scales[] = {0x1p252, 0x1p224, 0x1p196, 0x1p168, 0x1p140,
                               0x1p112, 0x1p84,  0x1p56,  0x1p28,  1.0};
#endif
  const double size = abs(double(b)), reciprocal = 1.0 / size;
  double left = abs(double(a));
  for (const double scale : scales) {
    const double quotient = rint_even(left * (reciprocal * (1.0 / scale)));
    left = fma(-quotient, size * scale, left);
  }
  left = select(left < 0.0, left + size, left);
  const bool within = (size == infinity<double>()) & (abs(a) < infinity<float>());
  return copysign(select(within, abs(a), float(left)), a);
}
#endif

// Quotients of floats, as PyTorch makes them of fmod.
template <class F>
MF_INLINE F float_mod(F a, F b) {
  const F r = fmod(a, b);
  return select((r != F(0)) & ((r < F(0)) != (b < F(0))), r + b, r);
}
template <class F>
MF_INLINE F float_floor_div(F a, F b) {
  const F r = fmod(a, b), quotient = a / b;
  const F q = (a - r) / b - select((r != F(0)) & ((r < F(0)) != (b < F(0))), F(1), F(0));
  const F whole = floor(q);
  const F near = select(q - whole > F(0.5), whole + F(1), whole);
  return select(b == F(0), quotient, select(q == F(0), copysign(F(0), quotient), near));
}
MF_INLINE float mod(float a, float b) { return float_mod(a, b); }
MF_INLINE double mod(double a, double b) { return float_mod(a, b); }
MF_INLINE float floor_div(float a, float b) { return float_floor_div(a, b); }
MF_INLINE double floor_div(double a, double b) { return float_floor_div(a, b); }
MF_INLINE float trunc_div(float a, float b) { return trunc(a / b); }
MF_INLINE double trunc_div(double a, double b) { return trunc(a / b); }

}  // namespace mf
