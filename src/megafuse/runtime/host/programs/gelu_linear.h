// gelu_linear: gelu(x)·weightᵀ + bias
#pragma once

#include "programs/linear_act.h"

namespace megafuse {

class GeluLinear : public Program {
 public:
  explicit GeluLinear(const Op& op)
      : x_(op, "x"),
        layer_{{op, "weight"}, {op, "bias"}},
        act_(op, "approximate"),
        out_(op, "out"),
        activated_(op, "activated") {}

  // Kept: gelu(x), which the GEMM reads anyway.
  Results forward(const Call& call, const Agreement&, const RandomState&,
                  bool keep) const override {
    const at::Tensor& x = x_.of(call);
    const WeightAndBias layer = layer_.of(call);
    const at::Tensor matrix = as_matrix(x);
    const at::Tensor activated = new_matrix(matrix.size(0), matrix.size(1), matrix);
    finish(matrix, {}, act_.of(call), {}, activated, {});
    Results results = results_of(*call.op, keep);
    out_.of(results) =
        with_rows_of(x, linear({activated, as_operand(layer.weight), as_vector(layer.bias)}).out);
    if (keep) activated_.of(results) = with_rows_of(x, activated);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = x_.of(b);
    const at::Tensor dy = as_operand(b.grads[0]);
    Gradients gradients(b.wanted.size());
    if (x_.wanted(b)) {
      const ActGradient gradient =
          act_grad_input(dy, as_operand(layer_.weight.of(b)), as_matrix(x), act_.of(b.call), false);
      x_.of(gradients) = with_rows_of(x, gradient.pre);
    }
    if (layer_.weight.wanted(b))
      layer_.weight.of(gradients) = grad_weight(dy, as_matrix(activated_.of(b)));
    if (layer_.bias.wanted(b)) layer_.bias.of(gradients) = sum_rows(dy);
    return gradients;
  }

 private:
  Argument x_;
  Layer layer_;
  ActArgument act_;
  Result out_, activated_;
};

}  // namespace megafuse
