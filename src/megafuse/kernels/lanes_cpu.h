// Vectors of the CPU that are more than a loop over elements: the sum or the largest of all lanes,
// a sum of many, and a square of 4 x 4 turned. Spelled as vectors and shuffles, because GCC 12
// makes scalars of such loops.
#pragma once

#include "portable.h"

// The elements of a vector, or of two, in another order.
#if defined(__clang__)
#define MF_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#define MF_SHUFFLE_TWO(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MF_SHUFFLE(v, ...) __builtin_shuffle(v, decltype(v > v){__VA_ARGS__})
#define MF_SHUFFLE_TWO(a, b, ...) __builtin_shuffle(a, b, decltype(a > b){__VA_ARGS__})
#endif

namespace mf {

template <class F>
struct Sixteen {
  typedef F Vector __attribute__((vector_size(16 * sizeof(F))));
  template <bool kMax>
  static MF_INLINE Vector join(Vector a, Vector b) {
    if constexpr (kMax)
      return ((a > b) | (a != a)) ? a : b;  // NaN wins, as in rows.h
    else
      return a + b;
  }
};

// All lanes added up, or their largest, in pairs: rounding errors then grow with the logarithm of
// their number. As a loop over 16 lanes the maximum would be 16 branches.
template <bool kMax, class F, int kWide>
MF_INLINE F across(const F (&lanes)[kWide]) {
  using S = Sixteen<F>;
  typename S::Vector all[kWide / 16];
  __builtin_memcpy(all, lanes, sizeof all);
  for (int half = kWide / 32; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) all[i] = S::template join<kMax>(all[i], all[i + half]);
  typename S::Vector v = all[0];
  v = S::template join<kMax>(v,
                             MF_SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = S::template join<kMax>(v, MF_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  v = S::template join<kMax>(v, MF_SHUFFLE(v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  v = S::template join<kMax>(v, MF_SHUFFLE(v, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0));
  return v[0];
}

// n elements added up: in 16 lanes, then what is left of them in 4.
template <class F>
MF_INLINE F sum_of(const F* x, i64 n) {
  typedef F Four __attribute__((vector_size(4 * sizeof(F))));
  auto load = [x](i64 i) {
    Four v;
    __builtin_memcpy(&v, x + i, sizeof v);
    return v;
  };
  Four sums[4] = {};
  i64 i = 0;
  for (; i + 16 <= n; i += 16)
    for (int lane = 0; lane < 4; ++lane) sums[lane] += load(i + 4 * lane);
  Four sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; i + 4 <= n; i += 4) sum += load(i);
  F rest = 0;
  for (; i < n; ++i) rest += x[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

// Four rows of four elements; `turn` makes rows of the columns.
template <class E>
struct Square {
  typedef E Four __attribute__((vector_size(4 * sizeof(E))));
  Four v[4];
  MF_INLINE void load(int i, const E* from) { __builtin_memcpy(&v[i], from, sizeof(Four)); }
  MF_INLINE void store(int i, E* to) const { __builtin_memcpy(to, &v[i], sizeof(Four)); }
  MF_INLINE void turn() {
    const Four a = MF_SHUFFLE_TWO(v[0], v[1], 0, 4, 1, 5);
    const Four b = MF_SHUFFLE_TWO(v[2], v[3], 0, 4, 1, 5);
    const Four c = MF_SHUFFLE_TWO(v[0], v[1], 2, 6, 3, 7);
    const Four d = MF_SHUFFLE_TWO(v[2], v[3], 2, 6, 3, 7);
    v[0] = MF_SHUFFLE_TWO(a, b, 0, 1, 4, 5);
    v[1] = MF_SHUFFLE_TWO(a, b, 2, 3, 6, 7);
    v[2] = MF_SHUFFLE_TWO(c, d, 0, 1, 4, 5);
    v[3] = MF_SHUFFLE_TWO(c, d, 2, 3, 6, 7);
  }
};

}  // namespace mf
