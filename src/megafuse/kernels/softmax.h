// softmax: out = e^z / sum e^z over a row, z = scale x + mask
#pragma once

#include "math.h"
#include "rows.h"

namespace mf {

template <class F>
struct ExpSum {
  F max, sum;  // the sum is of e^(z - max)
};

// e^x, x <= 0. Of 16-bit results (S) the GPU's 2^x of a rounded product is good enough: it is off
// by 6e-8 |x|, half an ulp of bfloat16 is 2e-3. expf, exact to 2 ulps of float32, takes four times
// the instructions, and rows of 64 Ki are then bound by them: 72 % of a copy.
template <class F, class S>
MF_INLINE F relative_exp(F x) {
#if MF_ON_GPU
  if constexpr (sizeof(S) == 2) return exp2_in_range(x * F(log2_e));
#endif
  return exp(x);
}

// Exponentials are taken once, relative to the largest z of the piece, and kept; the result brings
// them to the row's maximum. Of a row that is all -Inf the sum is 0 and 0 / 0 NaN, as PyTorch's.
//
// With kAgain they are taken twice: for rows that wait in shared memory, where nothing else is
// kept.
template <class F, class S, bool kCausal, bool kAgain = false>
struct Softmax : RowFunctor<F, 2, 1, 2>, Scalars<1> {
  using Total = ExpSum<F>;
  struct Row {
    F factor, max;
  };
  static constexpr bool keeps_inputs = kAgain;
  static constexpr bool changes_kept = !kAgain;
  static constexpr bool causal = kCausal;
  template <int kStep>
  static constexpr bool takes_max = kStep == 0;
  static MF_INLINE F minus_infinity() { return -infinity<F>(); }

  F scale;
  MF_INLINE explicit Softmax(const F* s) : scale(s[0]) {}
  MF_INLINE Pack<F, 1> load(F x, F mask) const { return {fma(x, scale, mask)}; }
  MF_INLINE Pack<F, 1> left_out() const { return {minus_infinity()}; }
  static MF_INLINE Total start() { return {minus_infinity(), F(0)}; }
  // e^(z - max), 0 where all are -Inf.
  static MF_INLINE F relative_exp(F z, F max) {
    return mf::relative_exp<F, S>(z - select(max == minus_infinity(), F(0), max));
  }
  template <int kStep>
  MF_INLINE F term(Pack<F, 1>& kept, const Total& total) const {
    if constexpr (kStep == 0) return kept[0];
    const F power = relative_exp(kept[0], total.max);
    if constexpr (!kAgain) kept[0] = power;
    return power;
  }
  template <int kStep>
  MF_INLINE void fold(Total& total, F value, F) const {
    (kStep == 0 ? total.max : total.sum) = value;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const {
    const F most = larger(a.max, b.max);
    return {most, a.sum * relative_exp(a.max, most) + b.sum * relative_exp(b.max, most)};
  }
  MF_INLINE Row row(const Total& total, const Total& local, F) const {
    if (kAgain || local.max == total.max) return {F(1) / total.sum, total.max};
    return {relative_exp(local.max, total.max) / total.sum, total.max};
  }
  MF_INLINE F result(const Pack<F, 1>& kept, const Row& row) const {
    return (kAgain ? relative_exp(kept[0], row.max) : kept[0]) * row.factor;
  }
  MF_INLINE F left_out_result(const Row& row) const { return F(0) * row.factor; }  // or NaN
};

// dz = out (grad - sum grad out); results: dx = scale dz, and dz for the mask.
template <class F, bool kCausal>
struct SoftmaxBackward : RowFunctor<F, 2, 2, 1>, Scalars<1> {
  using Total = Pack<F, 1>;
  using Row = Pack<F, 1>;
  static constexpr bool causal = kCausal;

  F scale;
  MF_INLINE explicit SoftmaxBackward(const F* s) : scale(s[0]) {}
  MF_INLINE Pack<F, 2> load(F grad, F out) const { return {grad, out}; }
  MF_INLINE Pack<F, 2> left_out() const { return {F(0), F(0)}; }
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
  MF_INLINE Row row(const Total& total, const Total&, F) const { return total; }
  MF_INLINE Pack<F, 2> result(const Pack<F, 2>& kept, const Row& row) const {
    const F dz = kept[1] * (kept[0] - row[0]);
    return {scale * dz, dz};
  }
  MF_INLINE Pack<F, 2> left_out_result(const Row&) const { return {F(0), F(0)}; }
};

}  // namespace mf
