// layer_norm: out = (x - mean) / sqrt(variance + eps) * weight + bias, over a row
#pragma once

#include "math.h"
#include "rows.h"

namespace mf {

// 1 / sqrt(x)
MF_INLINE float inverse_sqrt(float x) {
#if MF_ON_GPU
  return rsqrtf(x);
#else
  return 1.0f / __builtin_sqrtf(x);
#endif
}
MF_INLINE double inverse_sqrt(double x) {
#if MF_ON_GPU
  return 1.0 / ::sqrt(x);
#else
  return 1.0 / __builtin_sqrt(x);
#endif
}

// Number and mean of some elements, and the sum of the squared distances from that mean.
template <class F>
struct Moments {
  F n, mean, squares;
};

// Two groups of elements as one (Chan et al. 1979). Their shares are 0 where there are no elements.
template <class F>
MF_INLINE Moments<F> joined(const Moments<F>& a, const Moments<F>& b) {
  const F n = a.n + b.n, each = reciprocal(n > F(0) ? n : F(1));
  const F apart = b.mean - a.mean, share_b = b.n * each;
  return {n, a.mean + apart * share_b, a.squares + b.squares + apart * (a.n * share_b) * apart};
}

// Mean and variance take two steps: the mean of a piece, then the squares around it. The GPU takes
// one for rows of 16-bit numbers (S), around the first element of the piece: where that is far from
// the mean, it is a part of the variance itself, so n elements' squares are off by n eps at most. A
// piece has up to 4096: 2e-4, less than half an ulp of float16, and in fact 1e-6.
template <class S>
struct OneStep {
  static constexpr bool value = MF_ON_GPU && sizeof(S) == 2;
};

template <class F, class S>
struct LayerNorm : RowFunctor<F, 1, 1, OneStep<S>::value ? 1 : 2>, Scalars<1> {
  static constexpr bool pivots = OneStep<S>::value;
  using Total = Moments<F>;
  struct Row {
    F mean, scale;
  };

  F eps;
  MF_INLINE explicit LayerNorm(const F* s) : eps(s[0]) {}
  MF_INLINE Pack<F, 1> load(F x) const { return {x}; }
  static MF_INLINE Total start() { return {F(0), F(0), F(0)}; }
  static MF_INLINE Total around(F pivot) { return {F(0), pivot, F(0)}; }
  template <int kStep>
  MF_INLINE auto term(const Pack<F, 1>& x, const Total& total) const {
    const F d = x[0] - total.mean;
    if constexpr (pivots)
      return Pack<F, 2>{d, d * d};
    else
      return kStep == 0 ? x[0] : d * d;
  }
  template <int kStep>
  MF_INLINE void fold(Total& total, F sum, F n) const {
    if constexpr (kStep == 0)
      total = {n, n > F(0) ? sum / n : F(0), F(0)};
    else
      total.squares = sum;
  }
  template <int kStep>
  MF_INLINE void fold(Total& total, const Pack<F, 2>& sums, F n) const {
    const F away = quotient(sums[0], n), squares = sums[1] - sums[0] * away;
    if (n > F(0))
      total = {n, total.mean + away, select(squares < F(0), F(0), squares)};
    else
      total = {F(0), F(0), F(0)};
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return joined(a, b); }
  MF_INLINE Row row(const Total& total, const Total&, F n) const {
    return {total.mean, inverse_sqrt(total.squares / n + eps)};
  }
  MF_INLINE F result(const Pack<F, 1>& x, const Row& row, F weight, F bias) const {
    return fma((x[0] - row.mean) * row.scale, weight, bias);
  }
  MF_INLINE Pack<F, 2> row_result(const Row& row) const { return {row.mean, row.scale}; }
};

// With g = grad weight and h = (x - mean) scale, dx = scale (g - mean g - h mean(g h)), mean and
// scale as the forward found them. g is rounded, in the sum and where its mean is taken off, so
// that a row of one has no gradient left. What is kept begins with grad and ends with x. Results:
// dx, and the terms of dweight and dbias.
template <class F>
struct LayerNormBackward : RowFunctor<F, 2, 2, 1>, Scalars<1> {
  struct Total {
    F mean, scale;
    F sum, product;  // of g, and of g (x - mean)
  };
  struct Row {
    F mean, scale, mean_g, mean_gh;
  };
  static constexpr int known = 2;
  static constexpr bool weighs = true;
  static constexpr int results = 3;

  MF_INLINE explicit LayerNormBackward(const F*) {}
  MF_INLINE Pack<F, 2> load(F grad, F x) const { return {grad, x}; }
  static MF_INLINE Total start(F mean, F scale) { return {mean, scale, F(0), F(0)}; }
  template <int S, int N>
  MF_INLINE Pack<F, 2> term(const Pack<F, N>& kept, const Total& total, F weight) const {
    const F g = rounded_product(kept[0], weight);
    return {g, g * (kept[N - 1] - total.mean)};
  }
  template <int S>
  MF_INLINE void fold(Total& total, const Pack<F, 2>& sums, F) const {
    total.sum = sums[0];
    total.product = sums[1];
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const {
    return {a.mean, a.scale, a.sum + b.sum, a.product + b.product};
  }
  MF_INLINE Row row(const Total& total, const Total&, F n) const {
    return {total.mean, total.scale, total.sum / n, total.product * total.scale / n};
  }
  template <int N>
  MF_INLINE Pack<F, 3> result(const Pack<F, N>& kept, const Row& row, F weight) const {
    const F grad = kept[0], h = (kept[N - 1] - row.mean) * row.scale;
    const F g = rounded_product(grad, weight);
    return {row.scale * fma(-h, row.mean_gh, g - row.mean_g), grad * h, grad};
  }
};

}  // namespace mf
