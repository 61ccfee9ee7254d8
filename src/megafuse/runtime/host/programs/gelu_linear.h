// gelu_linear: gelu(x)·weightᵀ + bias
#pragma once

#include "programs/linear_act.h"

namespace megafuse {

struct GeluLinear : Program {
  // (x, weight, bias, approximate) → out; kept: gelu(x), which the GEMM reads anyway.
  Results forward(const Call& call, const Agreement&, const RandomState&,
                  bool keep) const override {
    const at::Tensor& x = *call.tensor[0];
    const at::Tensor matrix = as_matrix(x);
    const at::Tensor activated = new_matrix(matrix.size(0), matrix.size(1), matrix);
    finish(matrix, {}, gelu_form(call.choice[3]), {}, activated, {});
    const LinearResult result =
        linear({activated, as_operand(*call.tensor[1]), as_vector(argument(call, 2))});
    Results results{with_rows_of(x, result.out)};
    if (keep) results.push_back(with_rows_of(x, activated));
    return results;
  }

  // saved: x, weight, bias, gelu(x)
  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = b.saved[0];
    const at::Tensor dy = as_operand(b.grads[0]);
    Gradients gradients(3);
    if (b.wanted[0]) {
      const ActGradient gradient = act_grad_input(dy, as_operand(b.saved[1]), as_matrix(x),
                                                  gelu_form(b.call.choice[3]), false);
      gradients[0] = with_rows_of(x, gradient.pre);
    }
    if (b.wanted[1]) gradients[1] = grad_weight(dy, as_matrix(b.saved[3]));
    if (b.wanted[2]) gradients[2] = sum_rows(dy);
    return gradients;
  }
};

}  // namespace megafuse
