// erfc, erfinv and digamma, of which only erfc is in both the CPU's libm and CUDA. Of float the
// first two are done in double on the CPU (in_double.h); digamma is rare, and not made for SIMD.
#pragma once

#include "in_double.h"

namespace mf {

MF_DOUBLE_FUNCTION(erfc)

#if MF_ON_GPU
MF_FLOAT_FUNCTION(erfc)

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

// e^(-x^2) p(u), u = (x - 3) / (x + 3), for x >= 0; 2 less that of -x for others.
MF_INLINE float erfc(float x) {
  const double y = min(abs(double(x)), 10.3), u = (y - 3.0) / (y + 3.0);
  const double p = polynomial(
      u, 0.17900115118104801, -0.32623356014730398, 0.24560380193509132, -0.15011593097399961,
      0.071665829320032653, -0.024392584343775447, 0.0042692103947857343, 0.00070832662203006028,
      -0.00059727527208428878, 4.3272809637084618e-05, 6.3934296553445078e-05,
      -9.5778920009904594e-06, -6.7058132299516668e-06);  // scaled_erfc
  const double tail = p * in_double::Exponential(-y * y).value();
  return float(select(x < 0.0f, 2.0 - tail, tail));
}

// x p(w), w = -ln(1 - x^2); from w = 5 on by the root of w.
MF_INLINE float erfinv(float x) {
  const double t = x, w = -in_double::ln((1.0 - t) * (1.0 + t)), s = __builtin_sqrt(w);
  const double near = polynomial(
      w, 0.88622692581963891, 0.23201364443109276, 0.011549558656358207, -0.0023359175494999584,
      -0.00012649200296638223, 4.4927438609056198e-05, 3.1180371478595849e-06,
      -1.4364662782430567e-06, 4.4867317021188687e-08, 2.3721310377171861e-08,
      -3.2165934393969539e-09, 1.3285908582771128e-10);  // erfinv_near
  const double far = polynomial(s, -3.9389480427226036, 16.061467031852313, -23.265838741242266,
                                19.819988297371403, -10.635953826407684, 3.8127782254720293,
                                -0.93212518088833674, 0.15418916465463964, -0.016566194762238792,
                                0.0010460171500822452, -2.9515460414668675e-05);  // erfinv_far
  const double made = t * select(w < 5.0, near, far);
  return float(select(abs(t) == 1.0, t * infinity<double>(), made));
}
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
