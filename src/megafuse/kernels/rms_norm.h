// rms_norm: out = x / sqrt(mean x^2 + eps) * weight, over a row
#pragma once

#include "layer_norm.h"

namespace mf {

template <class F>
struct RmsNorm : RowFunctor<F, 1, 1, 1>, Scalars<1> {
  using Total = Pack<F, 1>;  // the sum of squares
  struct Row {
    F scale;
  };

  F eps;
  MF_INLINE explicit RmsNorm(const F* s) : eps(s[0]) {}
  MF_INLINE Pack<F, 1> load(F x) const { return {x}; }
  static MF_INLINE Total start() { return {F(0)}; }
  template <int S>
  MF_INLINE F term(const Pack<F, 1>& x, const Total&) const {
    return x[0] * x[0];
  }
  template <int S>
  MF_INLINE void fold(Total& total, F sum, F) const {
    total[0] = sum;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return {a[0] + b[0]}; }
  MF_INLINE Row row(const Total& total, const Total&, F n) const {
    return {inverse_sqrt(total[0] / n + eps)};
  }
  MF_INLINE F result(const Pack<F, 1>& x, const Row& row, F weight) const {
    return x[0] * row.scale * weight;
  }
  MF_INLINE F row_result(const Row& row) const { return row.scale; }
};

// With g = grad weight and h = x scale, dx = scale (g - h mean(g h)), scale as the forward found
// it. Results: dx, and the terms of dweight.
template <class F>
struct RmsNormBackward : RowFunctor<F, 2, 2, 1>, Scalars<1> {
  struct Total {
    F scale, product;  // the sum of g x
  };
  struct Row {
    F scale, mean_gh;
  };
  static constexpr int known = 1;
  static constexpr bool weighs = true;
  static constexpr int results = 2;

  MF_INLINE explicit RmsNormBackward(const F*) {}
  MF_INLINE Pack<F, 2> load(F grad, F x) const { return {grad, x}; }
  static MF_INLINE Total start(F scale) { return {scale, F(0)}; }
  template <int S, int N>
  MF_INLINE F term(const Pack<F, N>& kept, const Total&, F weight) const {
    return kept[0] * weight * kept[N - 1];
  }
  template <int S>
  MF_INLINE void fold(Total& total, F sum, F) const {
    total.product = sum;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const {
    return {a.scale, a.product + b.product};
  }
  MF_INLINE Row row(const Total& total, const Total&, F n) const {
    return {total.scale, total.product * total.scale / n};
  }
  template <int N>
  MF_INLINE Pack<F, 2> result(const Pack<F, N>& kept, const Row& row, F weight) const {
    const F grad = kept[0], h = kept[N - 1] * row.scale;
    return {row.scale * fma(-h, row.mean_gh, grad * weight), grad * h};
  }
};

}  // namespace mf
