// What residual_layer_norm and residual_rms_norm share: s = residual + dropout(x), then a norm of
// s.
#pragma once

#include "dropout_relu.h"
#include "rows.h"

namespace mf {

// S is the dtype that s is stored in: the norm is of s as stored. Results: out, s.
template <class Norm, class F, class S, bool kTraining>
struct ResidualNorm : Norm {
  using KeptAs = S;
  static constexpr int early = 2;
  static constexpr bool keeps_inputs = false;
  static constexpr int scalars = 2;  // p, eps
  static constexpr bool random = kTraining;

  Dropout<F, kTraining> dropout;
  MF_INLINE explicit ResidualNorm(const F* s) : Norm(s + 1), dropout(s[0]) {}
  MF_INLINE Pack<F, 1> load(F x, F residual, u32 drawn = 0) const {
    return {residual + x * dropout.factor(drawn)};
  }
  template <class... Late>
  MF_INLINE Pack<F, 2> result(const Pack<F, 1>& s, const typename Norm::Row& row,
                              Late... late) const {
    return {Norm::result(s, row, late...), s[0]};
  }
};

// ds = the norm's gradient + what comes in for s itself. Results: dx, dresidual, and the terms of
// the norm's dweight and dbias.
template <class NormBackward, class F, bool kTraining>
struct ResidualNormBackward : NormBackward {
  static constexpr int early = 3;
  static constexpr int kept = 3;
  static constexpr int scalars = 2;  // p, eps
  static constexpr bool random = kTraining;
  static constexpr bool draws_late = true;
  static constexpr int results = NormBackward::results + 1;

  Dropout<F, kTraining> dropout;
  MF_INLINE explicit ResidualNormBackward(const F* s) : NormBackward(s + 1), dropout(s[0]) {}
  MF_INLINE Pack<F, 3> load(F grad, F grad_s, F s) const { return {grad, grad_s, s}; }
  MF_INLINE Pack<F, results> result(const Pack<F, 3>& kept, const typename NormBackward::Row& row,
                                    F weight, u32 drawn = 0) const {
    const auto norm = NormBackward::result(kept, row, weight);
    const F ds = norm[0] + kept[1];
    Pack<F, results> all{ds * dropout.factor(drawn), ds};
    for (int i = 1; i < NormBackward::results; ++i) all[i + 1] = norm[i];
    return all;
  }
};

}  // namespace mf
