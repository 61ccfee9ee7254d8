// split_epilogue: what follows a product of split matrices (split.h). Its exponents undone,
// pre = product + bias, out = act(pre) + residual
#pragma once

#include "linear_epilogue.h"
#include "split.h"

namespace mf {

// product 2^exponent, in two factors: one would leave the range of float before the result does.
MF_INLINE float scaled_back(float product, float exponent) {
  const float half_of_it = rint_even(exponent * 0.5f);
  return product * power_of_two(half_of_it) * power_of_two(exponent - half_of_it);
}

template <class F, class Act>
struct SplitEpilogue : LinearEpilogue<F, Act> {
  using LinearEpilogue<F, Act>::LinearEpilogue;
  MF_INLINE Pack<F, 2> operator()(F product, F row, F column, F bias, F residual) const {
    const F exponent = row + column;  // NaN: split_mend.h has put the result there
    const F value = exponent == exponent ? scaled_back(product, exponent) : product;
    return LinearEpilogue<F, Act>::operator()(value, bias, residual);
  }
};

}  // namespace mf
