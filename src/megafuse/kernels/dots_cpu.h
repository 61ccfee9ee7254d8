// Products of a matrix's rows with a few vectors on the CPU: the matrix is read once, in order, and
// widened in registers; sums are float32. The decode kernel is made of these, and a linear layer of
// few rows in 16 bits.
#pragma once

#include "attention_cpu.h"
#include "half_cpu.h"

namespace mf::products {

using Lanes = Simd<float>::V;
constexpr int kLanes = Simd<float>::lanes;

// ---- numbers in registers

// kLanes weights as floats. GCC 12 converts half a vector at a time unless told the instruction.
#if defined(__AVX512F__) && !defined(__clang__)
typedef short Words __attribute__((vector_size(2 * kLanes)));
typedef char Bytes __attribute__((vector_size(kLanes)));
typedef int Integers __attribute__((vector_size(4 * kLanes)));
MF_INLINE Integers widened_words(Words v) {
  return __builtin_ia32_pmovzxwd512_mask(v, Integers{}, -1);
}
MF_INLINE Integers widened_bytes(Bytes v) {
  return __builtin_ia32_pmovsxbd512_mask(v, Integers{}, -1);
}
#else
typedef u16 Words __attribute__((vector_size(2 * kLanes)));
typedef i8 Bytes __attribute__((vector_size(kLanes)));
typedef i32 Integers __attribute__((vector_size(4 * kLanes)));
MF_INLINE Integers widened_words(Words v) { return __builtin_convertvector(v, Integers); }
MF_INLINE Integers widened_bytes(Bytes v) { return __builtin_convertvector(v, Integers); }
#endif

MF_INLINE Lanes wide(const float* from) { return load_vector(from); }
MF_INLINE Lanes wide(const bfloat16* from) {
  Words packed;
  __builtin_memcpy(&packed, from, sizeof packed);
  return (Lanes)(widened_words(packed) << 16);
}
MF_INLINE Lanes wide(const i8* from) {
  Bytes packed;
  __builtin_memcpy(&packed, from, sizeof packed);
  return __builtin_convertvector(widened_bytes(packed), Lanes);
}
MF_INLINE Lanes wide(const half* from) {
#if defined(__F16C__) || defined(__aarch64__)
  static_assert(kHalfLanes == kLanes, "a vector of halves is a vector of floats");
  Halves packed;
  __builtin_memcpy(&packed, from, sizeof packed);
  return widened(packed);
#else
  Lanes result;
  for (int i = 0; i < kLanes; ++i) result[i] = to_float(from[i]);
  return result;
#endif
}

// The first n of kLanes; the others are 0.
template <class W>
MF_INLINE Lanes wide_part(const W* from, i64 n) {
  W buffer[kLanes] = {};
  for (i64 i = 0; i < n; ++i) buffer[i] = from[i];
  return wide(buffer);
}

template <int kCount>
MF_INLINE float total_of(const float* lanes) {
  if constexpr (kCount == 4) {
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  } else {
    typedef float Half __attribute__((vector_size(kCount / 2 * sizeof(float))));
    Half low, high;
    __builtin_memcpy(&low, lanes, sizeof low);
    __builtin_memcpy(&high, lanes + kCount / 2, sizeof high);
    low += high;
    float half_as_many[kCount / 2];
    __builtin_memcpy(half_as_many, &low, sizeof low);
    return total_of<kCount / 2>(half_as_many);
  }
}
MF_INLINE float total(Lanes v) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &v, sizeof v);
  return total_of<kLanes>(lanes);
}

// ---- products

// Products and sums are fused here: an accumulation has no other rounding to keep to.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

// kRows rows of a matrix, `pitch` numbers apart, each with kBatch inputs: out[row][b]. The rows
// that come after them are fetched meanwhile: the CPU's own prefetcher stops at the end of a page.
template <class W, int kRows, int kBatch>
__attribute__((noinline)) void dots(const W* w, i64 pitch, i64 cols,
                                    const float* const (&x)[kBatch], float (&out)[kRows][kBatch]) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#endif
  Lanes sum[kRows][kBatch] = {};
  const i64 whole = cols / kLanes * kLanes;
  for (i64 k = 0; k < whole; k += kLanes) {
    Lanes in[kBatch];
    for (int b = 0; b < kBatch; ++b) in[b] = load_vector(x[b] + k);
    for (int r = 0; r < kRows; ++r) {
      const W* const at = w + r * pitch + k;
      __builtin_prefetch(at + kRows * pitch);
      const Lanes weights = wide(at);
      for (int b = 0; b < kBatch; ++b) sum[r][b] += weights * in[b];
    }
  }
  if (whole < cols) {
    Lanes in[kBatch];
    for (int b = 0; b < kBatch; ++b) in[b] = wide_part(x[b] + whole, cols - whole);
    for (int r = 0; r < kRows; ++r) {
      const Lanes weights = wide_part(w + r * pitch + whole, cols - whole);
      for (int b = 0; b < kBatch; ++b) sum[r][b] += weights * in[b];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int b = 0; b < kBatch; ++b) out[r][b] = total(sum[r][b]);
}

// Adds kRows rows of a matrix to each of kBatch sums, times a number for each. The sums have room
// for whole vectors.
template <class W, int kRows, int kBatch>
__attribute__((noinline)) void add_rows(const W* w, i64 pitch, i64 cols,
                                        const float (&x)[kBatch][kRows],
                                        float* const (&sums)[kBatch]) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#endif
  const auto add = [&](i64 k, auto load) __attribute__((always_inline)) {
    Lanes weights[kRows];
    for (int r = 0; r < kRows; ++r) weights[r] = load(w + r * pitch + k);
    for (int b = 0; b < kBatch; ++b) {
      Lanes sum = load_vector(sums[b] + k);
      for (int r = 0; r < kRows; ++r) sum += weights[r] * x[b][r];
      store_vector(sums[b] + k, sum);
    }
  };
  const i64 whole = cols / kLanes * kLanes;
  for (i64 k = 0; k < whole; k += kLanes)
    add(k, [](const W* at) __attribute__((always_inline)) { return wide(at); });
  if (whole < cols) add(whole, [n = cols - whole](const W* at) { return wide_part(at, n); });
}

#if !defined(__clang__)
#pragma GCC pop_options
#endif

}  // namespace mf::products
