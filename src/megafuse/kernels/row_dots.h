// row_dots: out[i] = sum of a b[i] over a row of a, for kCount rows b that all rows of a have: the
// product of a matrix with a few vectors, which reads the matrix once
#pragma once

#include "rows.h"
#include "same.h"

#if !MF_ON_GPU
#include "dots_cpu.h"
#endif

namespace mf {

template <class F, int kCount>
struct RowDots : RowFunctor<F, 1 + kCount, 1 + kCount, 1>, Scalars<0> {
  using Kept = Pack<F, 1 + kCount>;
  using Total = Pack<F, kCount>;
  struct Row {
    Total sums;
  };

  MF_INLINE explicit RowDots(const F*) {}
  template <class... Rest>
  MF_INLINE Kept load(F a, Rest... b) const {
    static_assert(sizeof...(Rest) == kCount);
    return {a, b...};
  }
  static MF_INLINE Total start() { return {}; }
  template <int S>
  MF_INLINE Total term(const Kept& kept, const Total&) const {
    Total products;
    for (int i = 0; i < kCount; ++i) products[i] = kept[0] * kept[1 + i];
    return products;
  }
  template <int S>
  MF_INLINE void fold(Total& total, const Total& sum, F) const {
    total = sum;
  }
  template <int S>
  MF_INLINE void fold(Total& total, F sum, F) const {
    total[0] = sum;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return joined<false>(a, b); }
  MF_INLINE Row row(const Total& total, const Total&, F) const { return {total}; }
  MF_INLINE F result(const Kept& kept, const Row&) const { return kept[0]; }  // for nobody
  MF_INLINE Total row_result(const Row& row) const { return row.sums; }

#if !MF_ON_GPU
  // Several rows of the matrix side by side, so that what is loaded of b serves all of them.
  static constexpr bool does_rows = is_same<F, float>;
  template <class Driver>
  bool rows(const Driver& driver, i64 begin, i64 end) const {
    using W = typename Driver::template In<0>::T;
    constexpr int kMatrix = kCount, kTogether = 4;
    if (driver.stride(kMatrix, 0) != 1) return false;
    const float* b[kCount];
    for (int i = 0; i < kCount; ++i) {
      const int operand = kMatrix + 1 + i;
      if (driver.stride(operand, 0) != 1 || driver.stride(operand, 1) != 0) return false;
      b[i] = reinterpret_cast<const float*>(driver.words[operand]);
    }
    const i64 pitch = driver.stride(kMatrix, 1);
    const W* const matrix = reinterpret_cast<const W*>(driver.words[kMatrix]);
    const auto write = [&](i64 row, const float (&found)[kCount]) {
      for (int i = 0; i < kCount; ++i)
        reinterpret_cast<float*>(driver.words[i])[row * driver.stride(i, 1)] = found[i];
    };
    i64 row = begin;
    for (; row + kTogether <= end; row += kTogether) {
      float found[kTogether][kCount];
      products::dots(matrix + row * pitch, pitch, driver.cols, b, found);
      for (int i = 0; i < kTogether; ++i) write(row + i, found[i]);
    }
    for (; row < end; ++row) {
      float found[1][kCount];
      products::dots(matrix + row * pitch, pitch, driver.cols, b, found);
      write(row, found[0]);
    }
    return true;
  }
#endif
};

}  // namespace mf
