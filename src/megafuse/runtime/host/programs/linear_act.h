// linear_relu and linear_gelu: act(x·weightᵀ + bias)
#pragma once

#include "programs/act_argument.h"
#include "programs/linear.h"

namespace megafuse {

// Kept by gelu: its argument. relu's backward needs no more than the sign of the result.
class LinearAct : public Program {
 public:
  static std::shared_ptr<const Program> relu(const Op& op) {
    return std::make_shared<LinearAct>(op, "out", ActArgument(Act::kRelu));
  }
  static std::shared_ptr<const Program> gelu(const Op& op) {
    return std::make_shared<LinearAct>(op, "pre", ActArgument(op, "approximate"));
  }
  LinearAct(const Op& op, const char* saved, ActArgument act)
      : x_(op, "x"),
        layer_{{op, "weight"}, {op, "bias"}},
        out_(op, "out"),
        saved_(op, saved),
        act_(std::move(act)) {}

  Results forward(const Call& call, const Agreement&, const RandomState&,
                  bool keep) const override {
    const at::Tensor& x = x_.of(call);
    const WeightAndBias layer = layer_.of(call);
    keep = keep && call.op->kept();
    const LinearResult result = linear(
        {as_operand(x), as_operand(layer.weight), as_vector(layer.bias), act_.of(call), {}, keep});
    Results results = results_of(*call.op, keep);
    out_.of(results) = with_rows_of(x, result.out);
    if (keep) saved_.of(results) = with_rows_of(x, result.pre);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = x_.of(b);
    const ActGradient gradient = act_grad(as_matrix(b.grads[0]), as_matrix(saved_.of(b)),
                                          act_.of(b.call), layer_.bias.wanted(b));
    Gradients gradients(b.wanted.size());
    if (x_.wanted(b))
      x_.of(gradients) = with_rows_of(x, grad_input(gradient.pre, as_operand(layer_.weight.of(b))));
    if (layer_.weight.wanted(b))
      layer_.weight.of(gradients) = grad_weight(gradient.pre, as_operand(x));
    if (layer_.bias.wanted(b)) layer_.bias.of(gradients) = gradient.bias;
    return gradients;
  }

 private:
  Argument x_;
  Layer layer_;
  Result out_, saved_;
  ActArgument act_;
};

}  // namespace megafuse
