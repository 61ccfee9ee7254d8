// Logarithms, and the exponentials that math.h lacks: 2^x and e^x - 1. As in math.h: on the CPU in
// float no branch and no libm call, the compiler's builtins in double, CUDA's functions on the GPU.
// Coefficients: benchmarks/fit_polynomials.py.
#pragma once

#include "math.h"

namespace mf {

// `name` as CUDA has it, in double as the CPU's libm.
#if MF_ON_GPU
#define MF_FLOAT_FUNCTION(name) \
  MF_INLINE float name(float x) { return ::name##f(x); }
#define MF_DOUBLE_FUNCTION(name) \
  MF_INLINE double name(double x) { return ::name(x); }
#else
#define MF_FLOAT_FUNCTION(name) \
  MF_INLINE float name(float x) { return __builtin_##name##f(x); }
#define MF_DOUBLE_FUNCTION(name) \
  MF_INLINE double name(double x) { return __builtin_##name(x); }
#endif

MF_DOUBLE_FUNCTION(log)
MF_DOUBLE_FUNCTION(log2)
MF_DOUBLE_FUNCTION(log10)
MF_DOUBLE_FUNCTION(log1p)
MF_DOUBLE_FUNCTION(exp2)
MF_DOUBLE_FUNCTION(expm1)

#if MF_ON_GPU
MF_FLOAT_FUNCTION(log)
MF_FLOAT_FUNCTION(log2)
MF_FLOAT_FUNCTION(log10)
MF_FLOAT_FUNCTION(log1p)
MF_FLOAT_FUNCTION(exp2)
MF_FLOAT_FUNCTION(expm1)
#else

MF_INLINE float not_a_number() { return bits_as<float>(0x7fc00000u); }

// x = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1), for positive finite x. Subnormals are scaled
// first.
struct Binary {
  float e, f;
  MF_INLINE explicit Binary(float x) {
    const bool subnormal = x < 0x1p-126f;
    const u32 bits = bits_as<u32>(select(subnormal, x * 0x1p23f, x));
    const i32 exponent = i32(bits - 0x3f3504f3u) >> 23;
    f = bits_as<float>(bits - (u32(exponent) << 23)) - 1.0f;
    e = float(exponent) - select(subnormal, 23.0f, 0.0f);
  }
  // ln(1 + f) - f: small, so that f is added last.
  MF_INLINE float rest() const {
    const float p = polynomial(f, 0.333333313f, -0.250008196f, 0.200012416f, -0.166234091f,
                               0.1420158f, -0.131596103f, 0.127622172f, -0.0763643906f);  // log1p
    const float f2 = f * f;
    return fma(f * f2, p, -0.5f * f2);
  }
};

// What a logarithm is where x is no positive finite number.
MF_INLINE float logarithm_or_special(float x, float logarithm) {
  const float finite = select(x < infinity<float>(), logarithm, x);  // NaN is kept, too
  return select(x > 0.0f, finite,
                select(x == 0.0f, -infinity<float>(), select(x == x, not_a_number(), x)));
}

MF_INLINE float log(float x) {
  const Binary b(x);
  const float low = fma(b.e, ln2_low, b.rest());
  return logarithm_or_special(x, fma(b.e, ln2_high, b.f + low));
}

// log2(e) and log10(e) in two parts, of which the first has 12 bits: f times it is exact or nearly.
MF_INLINE float log2(float x) {
  constexpr float high = 0x1.716p+0f, low = -0x1.7135a8p-13f;
  const Binary b(x);
  const float rest = b.rest();
  const float small = fma(rest, high, (b.f + rest) * low);
  return logarithm_or_special(x, fma(b.f, high, small) + b.e);
}
MF_INLINE float log10(float x) {
  constexpr float high = 0x1.bccp-2f, low = -0x1.09d5b2p-15f;         // log10(e)
  constexpr float two_high = 0x1.344p-2f, two_low = 0x1.3509f8p-18f;  // log10(2)
  const Binary b(x);
  const float rest = b.rest();
  const float small = fma(b.e, two_low, fma(rest, high, (b.f + rest) * low));
  return logarithm_or_special(x, fma(b.e, two_high, fma(b.f, high, small)));
}

// ln(1 + x): 1 + x is rounded to u, and what is lost, c, is worth c / u.
MF_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  const float c = select(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x));
  const Binary b(u);
  const float low = fma(b.e, ln2_low, b.rest() + c / u);
  const float made = logarithm_or_special(u, fma(b.e, ln2_high, b.f + low));
  return select(x == 0.0f, x, made);  // -0 stays
}

// e^x - 1 = 2 (s q + (s - 1/2)), s = 2^(n - 1), q = e^r - 1, r = x - n ln 2. For small x n is 0 and
// nothing cancels; the halved power is finite where the result is.
MF_INLINE float expm1(float x) {
  constexpr float magic = 0x1.8p23f + 127.0f - 1.0f;
  const float v = min(max(x, -26.0f), 89.0f);
  const float shifted = fma(v, log2_e, magic);
  const float n = shifted - magic;
  const float s = bits_as<float>(bits_as<u32>(shifted) << 23);
  const float r = fma(n, -ln2_low, fma(n, -ln2_high, v));
  const float g = polynomial(r, 0.5f, 0.166666657f, 0.0416664928f, 0.00833354425f, 0.00139323424f,
                             0.000197633795f);  // expm1
  const float q = fma(r * r, g, r);
  const float made = fma(s, q, s - 0.5f);
  return select(abs(x) < 0x1p-30f, x, made + made);  // -0 and subnormals stay; NaN came through
}

// 2^x = 2^n 2^f as in exp: by two powers of half the exponent, for subnormals and overflow.
MF_INLINE float exp2(float x) {
  const float v = min(max(x, -152.0f), 130.0f);
  const float n = rint_even(v), f = v - n;
  const i32 whole = rounded_integer(v), half_of = whole >> 1;
  const float s = bits_as<float>(u32(half_of + 127) << 23);
  const float t = bits_as<float>(u32(whole - half_of + 127) << 23);
  const float p = polynomial(f, 1.0f, 0.693147182f, 0.240226492f, 0.0555036739f, 0.0096183056f,
                             0.00133874209f, 0.000153845787f);  // exp2_minus_1
  return p * s * t;
}
#endif

}  // namespace mf
