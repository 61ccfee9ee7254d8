// Elementary functions, written once for the CPU and the GPU.
//
// CPU, float: no branch and no libm call, so a loop around them becomes SIMD code under
//   -O3 -fno-math-errno -fno-trapping-math  (no -ffast-math: NaN and Inf keep their meaning).
// CPU, double: the compiler's builtins. GPU: the same formulas where they are cheap, on top of the
// hardware's ex2 and rcp; CUDA's own functions elsewhere.
// The coefficients come from benchmarks/fit_polynomials.py, each under the name given beside it.
#pragma once

#include "portable.h"

namespace mf {

// a * b + c, rounded once. A CPU without the instruction would call libm, so it rounds twice.
MF_INLINE float fma(float a, float b, float c) {
#if MF_ON_GPU
  return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
MF_INLINE double fma(double a, double b, double c) {
#if MF_ON_GPU
  return ::fma(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// a * b, never made part of an fma.
MF_INLINE float rounded_product(float a, float b) {
#if MF_ON_GPU
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
MF_INLINE double rounded_product(double a, double b) {
#if MF_ON_GPU
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// The builtin: GCC 12 spends a copy and a masking on the sign bit on NEON, which has one
// instruction.
MF_INLINE float abs(float x) {
#if MF_ON_GPU
  return fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}
MF_INLINE double abs(double x) { return bits_as<double>(bits_as<u64>(x) & ~(1ull << 63)); }

// The magnitude of x with the sign of s.
MF_INLINE float copysign(float x, float s) {
  return bits_as<float>((bits_as<u32>(x) & 0x7fffffffu) | (bits_as<u32>(s) & 0x80000000u));
}
MF_INLINE double copysign(double x, double s) {
#if MF_ON_GPU
  return ::copysign(x, s);
#else
  return __builtin_copysign(x, s);
#endif
}

// min(x, c), max(x, c): NaN in x gives NaN, NaN in c gives x. Chosen by a bit mask, because GCC 12
// spends 8 NEON instructions on `x > c ? c : x` and 2 on this; x86 takes a compare and a blend.
MF_INLINE float select(bool which, float a, float b) {
#if MF_ON_GPU
  return which ? a : b;
#else
  u32 mask = -u32(which);
  return bits_as<float>((bits_as<u32>(a) & mask) | (bits_as<u32>(b) & ~mask));
#endif
}
MF_INLINE double select(bool which, double a, double b) {
#if MF_ON_GPU
  return which ? a : b;
#else
  u64 mask = -u64(which);
  return bits_as<double>((bits_as<u64>(a) & mask) | (bits_as<u64>(b) & ~mask));
#endif
}
MF_INLINE float min(float x, float c) { return select(x > c, c, x); }
MF_INLINE float max(float x, float c) { return select(x < c, c, x); }
MF_INLINE double min(double x, double c) { return select(x > c, c, x); }
MF_INLINE double max(double x, double c) { return select(x < c, c, x); }

// Clamps for a bound of known sign, one instruction on every CPU: floats of one sign are ordered
// like their bits, and integer minimum vectorises where the float one does not. NaN is lost
// (it may become the bound), so the caller must bring it back.
MF_INLINE float at_most(float x, float positive_bound) {
#if MF_ON_GPU
  return fminf(x, positive_bound);
#else
  i32 a = bits_as<i32>(x), b = bits_as<i32>(positive_bound);
  return bits_as<float>(a < b ? a : b);
#endif
}
MF_INLINE float at_least(float x, float negative_bound) {
#if MF_ON_GPU
  return fmaxf(x, negative_bound);
#else
  u32 a = bits_as<u32>(x), b = bits_as<u32>(negative_bound);
  return bits_as<float>(a < b ? a : b);
#endif
}
MF_INLINE double at_most(double x, double positive_bound) { return min(x, positive_bound); }
MF_INLINE double at_least(double x, double negative_bound) { return max(x, negative_bound); }

// x rounded to an integer, ties to even; for |x| < 2^22 (float), 2^51 (double). Adding 1.5 * 2^23
// pushes the fraction out of the mantissa: two additions, where rint is no vector instruction in
// SSE2 and keeps GCC from vectorising elsewhere.
MF_INLINE float rint_even(float x) {
#if MF_ON_GPU
  return rintf(x);
#else
  return (x + 0x1.8p23f) - 0x1.8p23f;
#endif
}
MF_INLINE double rint_even(double x) {
#if MF_ON_GPU
  return ::rint(x);
#else
  return (x + 0x1.8p52) - 0x1.8p52;
#endif
}

// x as the nearest integer, ties to even, for |x| < 2^22: the low bits of the same sum, with no
// conversion instruction.
MF_INLINE i32 rounded_integer(float x) {
  return i32(bits_as<u32>(x + 0x1.8p23f) - bits_as<u32>(0x1.8p23f));
}
MF_INLINE i32 rounded_integer(double x) { return i32(bits_as<u64>(x + 0x1.8p52)); }

// 1 / x. On the GPU the float version is 1 ulp off at most and takes subnormals for 0.
MF_INLINE float reciprocal(float x) {
#if MF_ON_GPU
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}
MF_INLINE double reciprocal(double x) { return 1.0 / x; }

// a / b, with the GPU's reciprocal: for b neither subnormal nor above 2^126.
MF_INLINE float quotient(float a, float b) {
#if MF_ON_GPU
  return a * reciprocal(b);
#else
  return a / b;
#endif
}
MF_INLINE double quotient(double a, double b) { return a / b; }

// c0 + c1 x + c2 x^2 + ..., lowest power first. NEON's fused multiply-add overwrites its addend, so
// a step of Horner's rule copies a constant first; taking two powers at a time halves the copies.
template <class F>
MF_INLINE F polynomial_by_pairs(F, F, F c0) {
  return c0;
}
template <class F>
MF_INLINE F polynomial_by_pairs(F x, F, F c0, F c1) {
  return fma(x, c1, c0);
}
template <class F, class... Rest>
MF_INLINE F polynomial_by_pairs(F x, F x2, F c0, F c1, Rest... rest) {
  return fma(x2, polynomial_by_pairs(x, x2, rest...), fma(x, c1, c0));
}
template <class F>
MF_INLINE F polynomial(F, F c0) {
  return c0;
}
template <class F, class... Rest>
MF_INLINE F polynomial(F x, F c0, Rest... rest) {
#if defined(__aarch64__)
  return polynomial_by_pairs(x, x * x, c0, rest...);
#else
  return fma(x, polynomial(x, rest...), c0);
#endif
}

// 2^(v + kShift) = 2^n p(f), n = round(v) + kShift, f = v - round(v): for v + kShift in [-127, 128]
// only. n falls out of the low bits of v + (1.5 * 2^23 + 127 + kShift), and those bits moved to the
// exponent field are 2^n; n = -127 makes 0 and n = 128 makes Inf, so a caller clamps to these and
// gets the limits for nothing.
template <int kShift = 0>
MF_INLINE float exp2_in_range(float v) {
#if MF_ON_GPU
  float result;
  static_assert(kShift == 0,
                "on the GPU the shift is an instruction: add it to v where it is free");
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
#else
  constexpr float magic = 0x1.8p23f + 127.0f + kShift;
  float shifted = v + magic;
  float f = v - (shifted - magic);
  float power = bits_as<float>(bits_as<u32>(shifted) << 23);
  return power * polynomial(f, 1.0f, 0.693147004f, 0.240222454f, 0.0555071086f, 0.00967139192f,
                            0.00132697029f);  // exp2_narrow
#endif
}

// 2^v, 0 below 2^-126. NaN gives any value on the CPU, so the caller must bring it back.
MF_INLINE float exp2_flushed(float v) {
#if MF_ON_GPU
  return exp2_in_range(v);
#else
  return exp2_in_range(at_most(at_least(v, -127.0f), 128.0f));
#endif
}
MF_INLINE double exp2_flushed(double v) {
#if MF_ON_GPU
  return ::exp2(v);
#else
  return __builtin_exp2(v);
#endif
}

// ln 2 in two parts; the first has 10 bits, so that its product with an integer is exact.
constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
constexpr float ln2 = 0.693147181f, log2_e = 1.44269504f;

// e^x = p(r) s s, s = 2^k, r = x - 2k ln 2 in [-ln 2, ln 2]. Two factors s instead of one 2^n cost
// two polynomial degrees but round subnormals and overflow to Inf with no select. Above the range
// k stays at 64 and p(r) grows; below, x is clamped, since p is wrong for r far below 0. Where the
// result is 0, s is: products that underflow are slow on Intel's CPUs, and masks are full of -Inf
// (a causal softmax took 2.2 times as long).
MF_INLINE float exp(float x) {
#if MF_ON_GPU
  return expf(x);
#else
  constexpr float magic = 0x1.8p23f + 127.0f;
  x = max(x, -105.0f);
  float shifted = at_most(fma(x, 0.5f * log2_e, magic), magic + 64.0f);
  float k = shifted - magic;
  float s = select(x < -104.0f, 0.0f, bits_as<float>(bits_as<u32>(shifted) << 23));
  float r = fma(k, -2.0f * ln2_low, fma(k, -2.0f * ln2_high, x));
  float p = polynomial(r, 1.0f, 1.0f, 0.500000358f, 0.166666165f, 0.0416611955f, 0.00833596382f,
                       0.00141055265f, 0.000196304871f);  // exp_wide
  return p * s * s;
#endif
}
MF_INLINE double exp(double x) {
#if MF_ON_GPU
  return ::exp(x);
#else
  return __builtin_exp(x);
#endif
}

// 1 / (1 + e^-x) = c / (c + c e^-x), c = 2^-63: the factor centres the exponents that matter, from
// e^-x = 2^-24 to 2^150, in the range of float, so that the subnormal results come out as well.
// e^-x = 2^n p enters as 2^n (p - 1) + 2^n: one rounding less than p, and 2.0 ulp instead of 2.3.
// The GPU gives 0 below 2^-126.
MF_INLINE float sigmoid(float x) {
#if MF_ON_GPU
  return reciprocal(1.0f + exp(-x));
#else
  constexpr float magic = 0x1.8p23f + 127.0f;
  x = min(x, 40.0f);
  float shifted = at_most(fma(x, -log2_e, magic - 63.0f), magic + 88.0f);
  float n = shifted - (magic - 63.0f);
  float power = bits_as<float>(bits_as<u32>(shifted) << 23);
  float minus_r = fma(n, ln2_low, fma(n, ln2_high, x));
  float g = polynomial(minus_r, 0.49999994f, -0.166665211f, 0.0416682735f, -0.00836868584f,
                       0.00138201355f);  // exp_narrow
  float p_minus_1 = fma(minus_r * minus_r, g, -minus_r);
  return 0x1p-63f / (fma(p_minus_1, power, 0x1p-63f) + power);
#endif
}
MF_INLINE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// E + E E / (1 - E), E = (1 - w) / 2, w = e^-2y, y = |x|: equals E / (1 - E), but the quotient's
// error fades with y. E = s q + (1 - s) / 2 with s = 2^n and q = (1 - e^-2r) / 2 fitted in relative
// terms: for small y, n is 0 and q is E, so no digit cancels. From y = 0.87 on 1 - 2 w / (1 + w) is
// nearer, 0.5 to 1 ulp in place of 2: E is rounded below 1/2, which counts four times in the
// result, and most in the little that 1 - tanh^2 leaves of it.
MF_INLINE float tanh(float x) {
  constexpr float magic = 0x1.8p23f + 127.0f;
  float y = min(abs(x), 10.0f);
  float shifted = fma(y, -2.0f * log2_e, magic);
  float s = bits_as<float>(bits_as<u32>(shifted) << 23);
  float r = fma(shifted - magic, 0.5f * ln2, y);
  float g = polynomial(r, -0.99999994f, 0.666661859f, -0.333339572f, 0.133860022f,
                       -0.0443826728f);  // tanh
  float q = fma(r * r, g, r);
  float e = fma(s, q, fma(s, -0.5f, 0.5f));
  float w = fma(s, -2.0f * q, s);
  bool far = s < 0.2f;
  float part = quotient(select(far, w, e), select(far, fma(w, 0.5f, 0.5f), 1.0f - e));
  return copysign(fma(select(far, -1.0f, e), part, select(far, 1.0f, e)), x);
}
MF_INLINE double tanh(double x) {
#if MF_ON_GPU
  return ::tanh(x);
#else
  return __builtin_tanh(x);
#endif
}

// 1 - 2^v, v = log2(erfc(y)), y = |x|. As in tanh, 2^v - 1 = s q + (s - 1) with s = 2^n and
// q = 2^f - 1: v and q vanish with y and are fitted in relative terms. At y = 4 it is 1.
MF_INLINE float erf(float x) {
#if MF_ON_GPU
  return erff(x);
#else
  constexpr float magic = 0x1.8p23f + 127.0f;
  float y = min(abs(x), 4.0f);
  float v_rest =
      y * y *
      polynomial(y, -0.918447375f, -0.148280442f, 0.0276483949f, 0.000194183522f, -0.00236083963f,
                 0.000884974841f, -0.000160769399f, 1.22273168e-05f);  // log2_erfc
  float v = fma(y, -1.62790704f, v_rest);
  float shifted = v + magic;
  float s = bits_as<float>(bits_as<u32>(shifted) << 23);
  float f = v - (shifted - magic);
  float q_rest = f * f *
                 polynomial(f, 0.240226492f, 0.0555036739f, 0.0096183056f, 0.00133874209f,
                            0.000153845787f);  // exp2_minus_1
  float q = fma(f, 0.693147182f, q_rest);
  return copysign(fma(-s, q, 1.0f - s), x);
#endif
}
MF_INLINE double erf(double x) {
#if MF_ON_GPU
  return ::erf(x);
#else
  return __builtin_erf(x);
#endif
}

}  // namespace mf
