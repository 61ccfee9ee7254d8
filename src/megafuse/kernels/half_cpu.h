// float16 on the CPU. Every CPU of note converts 4 to 16 at a time with one instruction, which
// GCC 12 does not find inside a loop that also computes: so a block is converted to a buffer of
// floats and back, 3x faster on x86 than converting element by element.
#pragma once

#include "portable.h"

namespace mf {

#if defined(__F16C__) || defined(__aarch64__)
constexpr bool kStageHalf = true;
#else
constexpr bool kStageHalf = false;
#endif

template <class T>
constexpr bool is_half = false;
template <>
inline constexpr bool is_half<half> = true;

template <bool kFirst, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

template <int N>
struct Number {
  static constexpr int value = N;
};

// kHalfLanes at a time: Halves to Floats and back.
#if defined(__AVX512F__)
constexpr int kHalfLanes = 16;
typedef short Halves __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(64)));
MF_INLINE Floats widened(Halves h) {
  constexpr int current_rounding = 4;
  return __builtin_ia32_vcvtph2ps512_mask(h, Floats{}, 0xffff, current_rounding);
}
MF_INLINE Halves narrowed(Floats f) {
  return __builtin_ia32_vcvtps2ph512_mask(f, /*nearest even*/ 0, Halves{}, 0xffff);
}
#elif defined(__F16C__)
constexpr int kHalfLanes = 8;
typedef short Halves __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(32)));
MF_INLINE Floats widened(Halves h) { return __builtin_ia32_vcvtph2ps256(h); }
MF_INLINE Halves narrowed(Floats f) { return __builtin_ia32_vcvtps2ph256(f, /*nearest even*/ 0); }
#elif defined(__aarch64__)
constexpr int kHalfLanes = 4;
typedef short Halves __attribute__((vector_size(8)));
typedef float Floats __attribute__((vector_size(16)));
// Spelled as instructions: GCC 12 takes __builtin_convertvector apart into scalars.
MF_INLINE Floats widened(Halves h) {
  Floats f;
  asm("fcvtl %0.4s, %1.4h" : "=w"(f) : "w"(h));
  return f;
}
MF_INLINE Halves narrowed(Floats f) {
  Halves h;
  asm("fcvtn %0.4h, %1.4s" : "=w"(h) : "w"(f));
  return h;
}
#endif

// n numbers converted. Where n is no multiple of kHalfLanes, the last vector overlaps the one
// before it: to and from a float16 one at a time are 15 instructions each.
MF_INLINE void widen(const half* from, float* to, i64 n) {
  i64 i = 0;
#if defined(__F16C__) || defined(__aarch64__)
  auto vector = [from, to](i64 at) __attribute__((always_inline)) {
    Halves packed;
    __builtin_memcpy(&packed, from + at, sizeof packed);
    const Floats wide = widened(packed);
    __builtin_memcpy(to + at, &wide, sizeof wide);
  };
  for (; i + kHalfLanes <= n; i += kHalfLanes) vector(i);
  if (i < n && n > kHalfLanes) return vector(n - kHalfLanes);
#endif
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

MF_INLINE void narrow(const float* from, half* to, i64 n) {
  i64 i = 0;
#if defined(__F16C__) || defined(__aarch64__)
  auto vector = [from, to](i64 at) __attribute__((always_inline)) {
    Floats wide;
    __builtin_memcpy(&wide, from + at, sizeof wide);
    const Halves packed = narrowed(wide);
    __builtin_memcpy(to + at, &packed, sizeof packed);
  };
  for (; i + kHalfLanes <= n; i += kHalfLanes) vector(i);
  if (i < n && n > kHalfLanes) return vector(n - kHalfLanes);
#endif
  for (; i < n; ++i) to[i] = to_half(from[i]);
}

}  // namespace mf
