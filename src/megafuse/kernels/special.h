// Functions that neither the CPU's libm nor CUDA has for both processors: erfinv and digamma. Rare,
// so they are done in double and not made for SIMD.
#pragma once

#include "logarithms.h"

namespace mf {

#if MF_ON_GPU
MF_INLINE float erfinv(float x) { return ::erfinvf(x); }
MF_INLINE double erfinv(double x) { return ::erfinv(x); }
#else
// Halley's method on erf(y) = x, from a formula that is right to 1 %. Beyond 1/2 on erfc(y) = 1 -
// x, whose digits do not cancel.
MF_INLINE double erfinv(double x) {
  constexpr double slope = 1.12837916709551257390;  // 2 / sqrt(pi)
  const double t = __builtin_fabs(x), left = 1.0 - t;
  if (!(t < 1.0)) return t == 1.0 ? x * infinity<double>() : (x - x) / 0.0;
  const double w = __builtin_log(left * (1.0 + t)), a = 4.33 + 0.5 * w;
  double y = __builtin_sqrt(__builtin_sqrt(a * a - 6.8 * w) - a);
  for (int turn = 0; turn < 3; ++turn) {
    const double off = t < 0.5 ? __builtin_erf(y) - t : left - __builtin_erfc(y);
    const double step = off / (slope * __builtin_exp(-y * y));
    y -= step / (1.0 + y * step);
  }
  return __builtin_copysign(y, x);
}
MF_INLINE float erfinv(float x) { return float(erfinv(double(x))); }
#endif

// psi(x) = psi(x + 1) - 1 / x up to 10, then the asymptotic series; psi(1 - x) - pi / tan(pi x) for
// negative x. At 0 it is -Inf with the zero's sign turned, at negative integers NaN, as PyTorch's.
MF_INLINE double digamma(double x) {
  constexpr double pi = 3.14159265358979323846;
  if (x == 0.0) return copysign(infinity<double>(), -x);
  double from_reflection = 0.0;
  if (x < 0.0) {
#if MF_ON_GPU
    const double whole = ::trunc(x);
    if (x == whole) return infinity<double>() - infinity<double>();
    from_reflection = -pi / ::tan(pi * (x - whole));
#else
    const double whole = __builtin_trunc(x);
    if (x == whole) return infinity<double>() - infinity<double>();
    from_reflection = -pi / __builtin_tan(pi * (x - whole));
#endif
    x = 1.0 - x;
  }
  double below = 0.0;
  for (; x < 10.0; x += 1.0) below -= 1.0 / x;
  const double z = 1.0 / (x * x);
  const double series =
      z * polynomial(z, 1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760);
  return from_reflection + below + (log(x) - 0.5 / x - (x < 1e17 ? series : 0.0));
}
MF_INLINE float digamma(float x) { return float(digamma(double(x))); }

}  // namespace mf
