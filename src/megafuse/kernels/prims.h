// The primitives of codegen/prims.py for every type they take. Those that C++ has an operator for
// are written so in generated source (a + b of floats, a < b, a & b of bits); the rest is here or
// in the headers below, under the primitive's name. NaN and Inf give what PyTorch gives.
#pragma once

#include "activations.h"
#include "brief.h"
#include "hyperbolic.h"
#include "integers.h"
#include "logarithms.h"
#include "powers.h"
#include "remainders.h"
#include "rounding.h"
#include "special.h"
#include "trigonometry.h"
#include "typed.h"

namespace mf {

// ---- one operand

#define MF_FUNCTION(name) MF_FLOAT_FUNCTION(name) MF_DOUBLE_FUNCTION(name)
MF_FUNCTION(sqrt)
MF_FUNCTION(lgamma)
#undef MF_FUNCTION

// 1 / sqrt(x)
MF_INLINE float rsqrt(float x) {
#if MF_ON_GPU
  return ::rsqrtf(x);
#else
  return 1.0f / __builtin_sqrtf(x);
#endif
}
MF_INLINE double rsqrt(double x) {
#if MF_ON_GPU
  return ::rsqrt(x);
#else
  return 1.0 / __builtin_sqrt(x);
#endif
}

template <class F>
MF_INLINE bool isnan(F x) {
  return x != x;
}
template <class F>
MF_INLINE bool isinf(F x) {
  return abs(x) == infinity<F>();
}

template <class F>
MF_INLINE F gelu(F x) {
  return Gelu::value(x);
}
template <class F>
MF_INLINE F gelu_tanh(F x) {
  return GeluTanh::value(x);
}
template <class F>
MF_INLINE F silu(F x) {
  return Silu::value(x);
}
template <class F>
MF_INLINE F gelu_slope(F x) {
  return Gelu::derivative(x);
}
template <class F>
MF_INLINE F gelu_tanh_slope(F x) {
  return GeluTanh::derivative(x);
}
template <class F>
MF_INLINE F silu_slope(F x) {
  return Silu::derivative(x);
}

// ---- two operands

// a / b, for a b that is the same all over the call. On the GPU by its reciprocal, as PyTorch's own
// kernels divide by a number there.
template <class F>
MF_INLINE F over(F a, F b) {
#if MF_ON_GPU
  return a * (F(1) / b);
#else
  return a / b;
#endif
}

// a / b, for a b that is the same all along a row. The GPU multiplies by b's reciprocal, which
// compilers compute once a row, and corrects the quotient by what it is off: the bits of division
// (Markstein 1990), but where |a| is below 1e-30, or the quotient at an end of float's range: there
// it may be off by an ulp. What is infinite, 0 or NaN needs no correction.
MF_INLINE float over_row(float a, float b) {
#if MF_ON_GPU
  const float scale = abs(b) < 0x1p-64f ? 0x1p64f : 1.0f;  // 1 / b is finite, unless b is 0
  const float by = b * scale, of = a * scale, reciprocal = 1.0f / by;
  const float quotient = of * reciprocal, size = abs(quotient);
  const float better = fma(fma(-by, quotient, of), reciprocal, quotient);
  return select((size > 0.0f) & (size < infinity<float>()), better, quotient);
#else
  return a / b;
#endif
}
MF_INLINE double over_row(double a, double b) { return a / b; }

// NaN if either is.
MF_INLINE float maximum(float a, float b) {
#if MF_ON_GPU && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return select((a > b) | (a != a), a, b);
#endif
}
MF_INLINE float minimum(float a, float b) {
#if MF_ON_GPU && __CUDA_ARCH__ >= 800
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return select((a < b) | (a != a), a, b);
#endif
}
MF_INLINE double maximum(double a, double b) { return select((a > b) | (a != a), a, b); }
MF_INLINE double minimum(double a, double b) { return select((a < b) | (a != a), a, b); }

// The other one, where one is NaN.
template <class F>
MF_INLINE F fmax(F a, F b) {
  return select((a > b) | (b != b), a, b);
}
template <class F>
MF_INLINE F fmin(F a, F b) {
  return select((a < b) | (b != b), a, b);
}

// ---- conversions

// Of a float that no T (int32 or int64) can hold, one that converts to what the processor's
// instruction makes of it, and PyTorch with it. GCC takes float(i32(x)) for trunc(x), and an
// integer would be infinite or NaN.
template <class T, class From>
MF_INLINE From convertible(From value) {
  constexpr From end = From(u64(1) << (sizeof(T) * 8 - 1));
#if defined(__aarch64__)
  const From near = select(value < end, select(value > -end, value, -end), end);
  return select(value == value, near, From(0));
#else
  return select((value >= -end) & (value < end), value, -end);
#endif
}

// value.to(T): floats to integers by truncation, to unsigned ones by way of int64; everything but 0
// is true.
template <class T, class From>
MF_INLINE T to(From value) {
  if constexpr (is_floating<From> && !is_floating<T> && !is_signed<T> && sizeof(T) == 1)
    return T(i64(value));
  else if constexpr (!MF_ON_GPU && is_floating<From> && !is_floating<T> && sizeof(T) >= 4)
    return T(convertible<T>(value));
  else
    return T(value);
}
template <>
MF_INLINE bool to<bool, float>(float value) {
  return value != 0.0f;
}
template <>
MF_INLINE bool to<bool, double>(double value) {
  return value != 0.0;
}

// value as a 16-bit float would hold it.
template <class T, class From>
MF_INLINE float rounded(From value) {
  return Rounded<T>::to(float(value));
}

// ---- loads whose place is computed

// The element of T at `base` + `offset` elements, or `otherwise` where it is not to be read.
template <class T>
MF_INLINE typename Register<T>::type fetch(u64 base, i64 offset) {
  return cast<typename Register<T>::type>(reinterpret_cast<const T*>(base)[offset]);
}
template <class T>
MF_INLINE typename Register<T>::type fetch(u64 base, i64 offset, bool inside,
                                           typename Register<T>::type otherwise) {
  return inside ? fetch<T>(base, offset) : otherwise;
}

}  // namespace mf
