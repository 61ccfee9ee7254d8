// Float functions of the CPU that are done in double and rounded once: logarithm and exponentials
// for trigonometry.h, hyperbolic.h, powers.h and special.h. No branch, no table and no libm call,
// so that a loop around them becomes SIMD code: half as many lanes, but a formula whose roundings
// nobody sees. (Tables: on CPUs that guard their gathers, sin by one took 6.9 ns and 2.9 without.)
// Good to 2^-29 and better. Coefficients: benchmarks/fit_polynomials.py.
#pragma once

#include "logarithms.h"

#if !MF_ON_GPU

namespace mf {
namespace in_double {

constexpr double pi = 3.14159265358979323846, ln_2 = 0.693147180559945309417;

MF_INLINE double nan() { return bits_as<double>(0x7ff8000000000000ull); }

// value with the sign bit turned where the lowest bit of odd is 1.
MF_INLINE double turned(double value, u64 odd) {
  return bits_as<double>(bits_as<u64>(value) ^ (odd << 63));
}

// The natural logarithm. x = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1), for normal numbers,
// which all floats are in double. The exponent becomes a double by its bits: AVX2 has no such
// conversion of 64 bits.
MF_INLINE double ln(double x) {
  constexpr u64 one = 0x3ff0000000000000ull, half_root = 0x3fe6a09e667f3bcdull;
  const u64 bits = bits_as<u64>(x);
  const u64 exponent = (bits + (one - half_root)) >> 52;  // and 1023
  const double e = bits_as<double>(exponent | 0x4330000000000000ull) - (0x1p52 + 1023.0);
  const double f = bits_as<double>(bits - (exponent << 52) + one) - 1.0;
  const double p = polynomial(f, 0.99999999998596412, -0.50000000029292269, 0.33333334333435111,
                              -0.24999994105566736, 0.19999881175904766, -0.16666941923782905,
                              0.14290985252203806, -0.12497520552578377, 0.11005130127432923,
                              -0.099224732054194853, 0.10032612684357332, -0.099023498636618204,
                              0.053655876757577041);  // ln
  const double made = fma(e, ln_2, f * p);
  const double finite = select(x < infinity<double>(), made, x);  // NaN is kept, too
  return select(x > 0.0, finite, select(x == 0.0, -infinity<double>(), select(x == x, nan(), x)));
}

// e^x = 2^n + 2^n q, q = e^r - 1, for |x| < 700; NaN stays.
struct Exponential {
  double power, q;
  MF_INLINE explicit Exponential(double x) {
    const double shifted = fma(x, 1.0 / ln_2, 0x1.8p52 + 1023.0);
    power = bits_as<double>(bits_as<u64>(shifted) << 52);
    const double r = fma(shifted - (0x1.8p52 + 1023.0), -ln_2, x);
    q = r * polynomial(r, 1.0000000000314477, 0.50000000469320183, 0.16666666247112974,
                       0.041666353200811627, 0.0083334031777166206, 0.001394110916773281,
                       0.00019841250871314851);  // expm1_double
  }
  MF_INLINE double value() const { return fma(power, q, power); }
  MF_INLINE double minus_one() const { return fma(power, q, power - 1.0); }
};

}  // namespace in_double
}  // namespace mf

#endif
