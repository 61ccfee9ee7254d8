// The ground every kernel header stands on: integer names, number formats and
// the macro that makes one function both CPU and GPU code. Nothing is included,
// because NVRTC has no system headers and the CPU compiler is faster without.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define MF_INLINE __host__ __device__ __forceinline__
#define MF_RARELY __host__ __device__ __noinline__  // a call, for what is hardly ever executed
#define MF_DECLARED __host__ __device__  // a function that is never called, for decltype alone
#else
#define MF_INLINE inline __attribute__((always_inline))
#define MF_RARELY MF_INLINE  // a loop with a call is no vector code
#define MF_DECLARED
#endif

#if defined(__CUDA_ARCH__)
#define MF_ON_GPU 1
#else
#define MF_ON_GPU 0
#endif

namespace mf {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// The same bits, read as another type.
template <class To, class From>
MF_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits_as: sizes differ");
  To result;
#if MF_ON_GPU
  memcpy(&result, &value, sizeof(To));
#else
  __builtin_memcpy(&result, &value, sizeof(To));
#endif
  return result;
}

template <class F>
MF_INLINE F infinity();
template <>
MF_INLINE float infinity<float>() {
  return bits_as<float>(0x7f800000u);
}
template <>
MF_INLINE double infinity<double>() {
  return bits_as<double>(0x7ff0000000000000ull);
}

// 16-bit formats are storage only: arithmetic happens in float.
struct half {
  u16 bits;
};
struct bfloat16 {
  u16 bits;
};

MF_INLINE float to_float(bfloat16 value) { return bits_as<float>(u32(value.bits) << 16); }

#if MF_ON_GPU && __CUDA_ARCH__ >= 800
// The value rounded to bfloat16, above one of 0. The instruction for pairs is one of the fast ones,
// that for a single number is not.
MF_INLINE u32 bits_of_pair(float value) {
  u32 bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(value), "f"(0.0f));
  return bits;
}
#endif
MF_INLINE bfloat16 to_bfloat16(float value) {
#if MF_ON_GPU && __CUDA_ARCH__ >= 800
  return bfloat16{u16(bits_of_pair(value) >> 16)};
#else
  // Round to nearest even by adding just under half a unit, plus the bit that
  // breaks ties; NaN is kept a NaN, since the addition could carry it to Inf.
  u32 bits = bits_as<u32>(value);
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return bfloat16{u16(value == value ? rounded : 0x7fc0u)};
#endif
}

// float16 in the low half of a word: arithmetic on 16-bit integers would keep GCC 12 from
// vectorising.
MF_INLINE float float_of_half_bits(u32 bits) {
  // Shift exponent and mantissa into place and let a multiplication by 2^112
  // rebias, which also normalises subnormals; Inf and NaN get the top exponent.
  u32 sign = (bits & 0x8000u) << 16;
  u32 rest = (bits & 0x7fffu) << 13;
  u32 rebiased = bits_as<u32>(bits_as<float>(rest) * 0x1p112f);
  u32 special = rest | 0x7f800000u;
  return bits_as<float>(sign | (rest >= 0x0f800000u ? special : rebiased));
}

MF_INLINE u32 half_bits_of(float value) {
  // Normal results: rebias and round to nearest even in the integer domain.
  // Subnormal results: adding 0.5 aligns the mantissa so that the float adder
  // does the rounding. Too large becomes Inf, NaN stays NaN.
  u32 bits = bits_as<u32>(value);
  u32 sign = (bits >> 16) & 0x8000u;
  u32 magnitude = bits & 0x7fffffffu;
  u32 normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  u32 subnormal = bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  u32 result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return sign | result;
}

MF_INLINE float to_float(half value) {
#if MF_ON_GPU
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return float_of_half_bits(value.bits);
#endif
}

MF_INLINE half to_half(float value) {
#if MF_ON_GPU
  half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  return half{u16(half_bits_of(value))};
#endif
}

// cast<To>(from): one spelling for every conversion between storage formats
// and arithmetic types. Floats become integers by truncation, NaN becomes 0.
template <class To>
struct Cast {
  template <class From>
  static MF_INLINE To from(From value) {
    return To(value);
  }
  static MF_INLINE To from(half value) { return To(to_float(value)); }
  static MF_INLINE To from(bfloat16 value) { return To(to_float(value)); }
};
template <>
struct Cast<half> {
  template <class From>
  static MF_INLINE half from(From value) {
    return to_half(Cast<float>::from(value));
  }
};
template <>
struct Cast<bfloat16> {
  template <class From>
  static MF_INLINE bfloat16 from(From value) {
    return to_bfloat16(Cast<float>::from(value));
  }
};
template <class To, class From>
MF_INLINE To cast(From value) {
  return Cast<To>::from(value);
}

// value as T would hold it.
template <class T>
struct Rounded {
  template <class F>
  static MF_INLINE F to(F value) {
    return cast<F>(cast<T>(value));
  }
};
#if MF_ON_GPU && __CUDA_ARCH__ >= 800
template <>
struct Rounded<bfloat16> {
  template <class F>
  static MF_INLINE F to(F value) {
    return F(bits_as<float>(bits_of_pair(float(value))));
  }
};
#endif
#if !MF_ON_GPU
// Of float16: adding 1.5 * 2^13 times value's power of two, which makes the last bit of float16
// that of the sum, rounds it to nearest even; below 2^-14 the bit stays that of subnormals. What is
// then too large for float16 overflows in a product. A third of the instructions of going through
// half_bits_of: quantize_int8 in float16, which rounds twice, was slower than eager with that.
MF_INLINE float rounded_to_half(float value) {
  const u32 bits = bits_as<u32>(value), sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
  const u32 least = (127 - 14) << 23, most = (127 + 16) << 23;
  const u32 at_least = magnitude > least ? magnitude : least;
  // By a mask: GCC 12 makes branches of a maximum and a minimum, and then no vectors.
  const u32 is_large = -u32(magnitude > most);
  const u32 power = (at_least & ~is_large & 0x7f800000u) | (most & is_large);
  const float shift = bits_as<float>(power + (13u << 23) + (1u << 22));
  const float near = ((value + shift) - shift) * 0x1p112f * 0x1p-112f;
  return bits_as<float>((bits_as<u32>(near) & 0x7fffffffu) | sign);  // a zero keeps it
}
template <>
struct Rounded<half> {
  template <class F>
  static MF_INLINE F to(F value) {
    return F(rounded_to_half(float(value)));
  }
};
#endif

// Two or more results of one functor call.
template <class F, int N>
struct Pack {
  F item[N];
  MF_INLINE F& operator[](int i) { return item[i]; }
  MF_INLINE const F& operator[](int i) const { return item[i]; }
};

}  // namespace mf
