// Functions of values that PyTorch rounds to 16 bits at once. On the GPU they take a few
// instructions and are within about 1e-5 of the result, a fiftieth of half an ulp of float16, where
// float32's take up to forty. (16 Mi elements of bfloat16 pass through an H200's memory in the time
// of some thirty instructions each.) On the CPU they are float32's own.
#pragma once

#include "logarithms.h"

namespace mf::brief {

#if MF_ON_GPU

// Within 2 ulps of float32, and right for every pair of numbers, subnormal and huge ones, too.
MF_INLINE float div(float a, float b) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
MF_INLINE float reciprocal(float x) { return div(1.0f, x); }

MF_INLINE float sqrt(float x) {
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

MF_INLINE float exp2(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// The product's rounding is worth 5e-6 at the ends of the range.
MF_INLINE float exp(float x) { return exp2(x * log2_e); }

MF_INLINE float log2(float x) {
  float result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
MF_INLINE float log(float x) { return log2(x) * ln2; }
MF_INLINE float log10(float x) { return log2(x) * 0.301029996f; }

// Near 0 the first terms of the series: the sum or difference would lose digits there. -0 stays.
MF_INLINE float log1p(float x) {
  const float near = x * polynomial(x, 1.0f, -0.5f, 0.333333333f, -0.25f);
  return select(abs(x) < 0x1p-6f, near, log(1.0f + x));
}
MF_INLINE float expm1(float x) {
  const float near = x * polynomial(x, 1.0f, 0.5f, 0.166666667f, 0.0416666667f);
  return select(abs(x) < 0x1p-4f, near, exp(x) - 1.0f);
}
MF_INLINE float tanh(float x) {
  const float z = x * x;
  const float near = x * polynomial(z, 1.0f, -0.333333333f, 0.133333333f, -0.0539682540f);
  const float y = abs(x);
  const float far = fma(-2.0f, mf::reciprocal(exp(2.0f * y) + 1.0f), 1.0f);
  return select(y < 0.125f, near, copysign(far, x));
}
MF_INLINE float sigmoid(float x) { return mf::reciprocal(1.0f + exp(-x)); }

MF_INLINE double exp(double x) { return mf::exp(x); }  // for tests

#else

MF_INLINE float div(float a, float b) { return a / b; }
MF_INLINE float reciprocal(float x) { return 1.0f / x; }
MF_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
using mf::exp;
using mf::exp2;
using mf::expm1;
using mf::log;
using mf::log10;
using mf::log1p;
using mf::log2;
using mf::sigmoid;
using mf::tanh;

#endif

}  // namespace mf::brief
