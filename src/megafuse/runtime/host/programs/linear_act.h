// linear_relu and linear_gelu: act(x·weightᵀ + bias)
#pragma once

#include "programs/linear.h"

namespace megafuse {

// `approximate` of torch's gelu, by its place among the choices "none" and "tanh".
inline Act gelu_form(uint8_t choice) { return choice == 0 ? Act::kGelu : Act::kGeluTanh; }

class LinearAct : public Program {
 public:
  explicit LinearAct(bool relu) : relu_(relu) {}

  // (x, weight, bias[, approximate]) → out; kept by gelu: its argument. relu's backward needs no
  // more than the sign of out.
  Results forward(const Call& call, const Agreement&, const RandomState&,
                  bool keep) const override {
    const at::Tensor& x = *call.tensor[0];
    const LinearResult result = linear({as_operand(x),
                                        as_operand(*call.tensor[1]),
                                        as_vector(argument(call, 2)),
                                        act_of(call),
                                        {},
                                        keep && !relu_});
    Results results{with_rows_of(x, result.out)};
    if (keep && !relu_) results.push_back(with_rows_of(x, result.pre));
    return results;
  }

  // saved: x, weight, bias, and out (relu) or its argument.
  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor &x = b.saved[0], &weight = b.saved[1];
    const ActGradient gradient =
        act_grad(as_matrix(b.grads[0]), as_matrix(b.saved[3]), act_of(b.call), b.wanted[2]);
    Gradients gradients(3);
    if (b.wanted[0]) gradients[0] = with_rows_of(x, grad_input(gradient.pre, as_operand(weight)));
    if (b.wanted[1]) gradients[1] = grad_weight(gradient.pre, as_operand(x));
    if (b.wanted[2]) gradients[2] = gradient.bias;
    return gradients;
  }

 private:
  Act act_of(const Call& call) const { return relu_ ? Act::kRelu : gelu_form(call.choice[3]); }

  bool relu_;
};

}  // namespace megafuse
