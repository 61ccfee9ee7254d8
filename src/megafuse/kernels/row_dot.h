// row_dot: out = sum of a b over a row, one number for each row
#pragma once

#include "rows.h"

namespace mf {

template <class F>
struct RowDot : RowFunctor<F, 2, 2, 1>, Scalars<0> {
  using Total = Pack<F, 1>;
  struct Row {
    F sum;
  };

  MF_INLINE explicit RowDot(const F*) {}
  MF_INLINE Pack<F, 2> load(F a, F b) const { return {a, b}; }
  static MF_INLINE Total start() { return {F(0)}; }
  template <int S>
  MF_INLINE F term(const Pack<F, 2>& kept, const Total&) const {
    return kept[0] * kept[1];
  }
  template <int S>
  MF_INLINE void fold(Total& total, F sum, F) const {
    total[0] = sum;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return {a[0] + b[0]}; }
  MF_INLINE Row row(const Total& total, const Total&, F) const { return {total[0]}; }
  MF_INLINE F result(const Pack<F, 2>& kept, const Row&) const { return kept[0]; }  // for nobody
  MF_INLINE F row_result(const Row& row) const { return row.sum; }
};

}  // namespace mf
