// column_dots: out[i] = sum of a b[i] over a column of a, for kCount columns b: a few rows times a
// matrix, which reads the matrix once
// outer_sum: out = a[0] b[0] + a[1] b[1] + …: the product of two matrices that share a short side
#pragma once

#include "pointwise.h"
#include "same.h"

#if !MF_ON_GPU
#include "dots_cpu.h"
#endif

namespace mf {

template <class F, int kCount>
struct ColumnDots : Scalars<0> {
  MF_INLINE explicit ColumnDots(const F*) {}
  template <class... Rest>
  MF_INLINE Pack<F, sizeof...(Rest)> operator()(F a, Rest... b) const {
    static_assert(sizeof...(Rest) == kCount);
    return {(a * b)...};
  }

#if !MF_ON_GPU
  // Four rows of the matrix at a time, so that a sum is loaded and stored once for them.
  static constexpr bool does_columns = is_same<F, float>;
  template <class Driver, int kWidth>
  bool columns(const Driver& driver, i64 first, i64 last, i64 column, i64 width,
               float (&sums)[kCount][kWidth]) const {
    using W = typename Driver::template In<0>::T;
    constexpr int kMatrix = kCount, kTogether = 4;
    if (driver.stride(kMatrix, 1) != 1) return false;
    for (int i = 0; i < kCount; ++i)
      if (driver.stride(kMatrix + 1 + i, 1) != 0) return false;
    const i64 pitch = driver.stride(kMatrix, 2);
    const W* const matrix = reinterpret_cast<const W*>(driver.words[kMatrix]) + column;
    float* to[kCount];
    for (int i = 0; i < kCount; ++i) to[i] = sums[i];
    const auto number = [&](int i, i64 row) {
      const int operand = kMatrix + 1 + i;
      return reinterpret_cast<const float*>(driver.words[operand])[row * driver.stride(operand, 2)];
    };
    i64 row = first;
    for (; row + kTogether <= last; row += kTogether) {
      float x[kCount][kTogether];
      for (int i = 0; i < kCount; ++i)
        for (int r = 0; r < kTogether; ++r) x[i][r] = number(i, row + r);
      products::add_rows(matrix + row * pitch, pitch, width, x, to);
    }
    for (; row < last; ++row) {
      float x[kCount][1];
      for (int i = 0; i < kCount; ++i) x[i][0] = number(i, row);
      products::add_rows(matrix + row * pitch, pitch, width, x, to);
    }
    return true;
  }
#endif
};

template <class F, int kCount>
struct OuterSum : Scalars<0> {
  MF_INLINE explicit OuterSum(const F*) {}
  template <class... Both>
  MF_INLINE F operator()(Both... both) const {
    static_assert(sizeof...(Both) == 2 * kCount);
    const F from[] = {both...};
    F sum = from[0] * from[kCount];
    for (int i = 1; i < kCount; ++i) sum += from[i] * from[kCount + i];
    return sum;
  }
};

}  // namespace mf
