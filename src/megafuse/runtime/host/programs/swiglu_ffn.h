// swiglu_ffn: residual + dropout((silu(x·w_gateᵀ + b_gate) ∘ (x·w_upᵀ + b_up))·w_downᵀ + b_down)
#pragma once

#include "programs/ffn.h"

namespace megafuse {

inline Pass swiglu_pass(Family family, const at::Tensor& like) {
  static const Functor* const functor = new Functor("swiglu");
  return Pass(*functor, family, like.sizes(), like.device());
}

class SwigluFfn : public Program {
 public:
  explicit SwigluFfn(const Op& op)
      : x_(op, "x"),
        residual_(op, "residual"),
        gate_{{op, "w_gate"}, {op, "b_gate"}},
        up_{{op, "w_up"}, {op, "b_up"}},
        down_{{op, "w_down"}, {op, "b_down"}},
        out_(op, "out"),
        kept_gate_(op, "gate"),
        kept_up_(op, "up"),
        kept_hidden_(op, "hidden") {}

  // Kept: gate, up and silu(gate) ∘ up. The product could be had again in the backward, for one
  // more write of its size there; kept, it costs no traffic, as the last GEMM reads it anyway.
  Results forward(const Call& call, const Agreement&, const RandomState& random,
                  bool keep) const override {
    const at::Tensor& x = x_.of(call);
    const at::Tensor rows = as_operand(x);
    auto product = [&](const Layer& named) {
      const WeightAndBias layer = named.of(call);
      return linear({rows, as_operand(layer.weight), as_vector(layer.bias)}).out;
    };
    const at::Tensor gate = product(gate_), up = product(up_);
    const at::Tensor hidden = keep ? new_matrix(gate.size(0), gate.size(1), gate) : gate;
    Pass pass = swiglu_pass(Family::kForward, hidden);
    pass.write(hidden).read(gate).read(up).run(hidden.scalar_type());
    at::Tensor residual = residual_.of(call);
    if (residual.defined()) residual = as_matrix(residual);
    const WeightAndBias down = down_.of(call);
    Results results = results_of(*call.op, keep);
    out_.of(results) =
        with_rows_of(x, last_layer({hidden, as_operand(down.weight), as_vector(down.bias)},
                                   residual, dropout_of(call), random));
    if (!keep) return results;
    kept_gate_.of(results) = with_rows_of(x, gate);
    kept_up_.of(results) = with_rows_of(x, up);
    kept_hidden_.of(results) = with_rows_of(x, hidden);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = x_.of(b);
    const at::Tensor dy = last_layer_grad(b, x.scalar_type(), dropout_of(b.call));
    Gradients gradients(b.wanted.size());
    if (residual_.wanted(b)) residual_.of(gradients) = as_added(b, residual_);
    if (down_.bias.wanted(b)) down_.bias.of(gradients) = sum_rows(dy);
    if (down_.weight.wanted(b))
      down_.weight.of(gradients) = grad_weight(dy, as_matrix(kept_hidden_.of(b)));
    if (!x_.wanted(b) && !gate_.wanted(b) && !up_.wanted(b)) return gradients;
    // The gradient of gate takes the place of that of the product.
    const at::Tensor gate = grad_input(dy, as_operand(down_.weight.of(b)));
    const at::Tensor up = new_matrix(gate.size(0), gate.size(1), gate);
    Pass pass = swiglu_pass(Family::kBackward, gate);
    pass.write(gate, 0).write(up, 1);
    if (gate_.bias.wanted(b)) pass.sum(gate.scalar_type(), 0);
    if (up_.bias.wanted(b)) pass.sum(gate.scalar_type(), 1);
    pass.read(gate).read(as_matrix(kept_gate_.of(b))).read(as_matrix(kept_up_.of(b)));
    const auto sums = pass.run(gate.scalar_type());
    if (gate_.bias.wanted(b)) gate_.bias.of(gradients) = sums.front();
    if (up_.bias.wanted(b)) up_.bias.of(gradients) = sums.back();
    if (gate_.weight.wanted(b)) gate_.weight.of(gradients) = grad_weight(gate, as_operand(x));
    if (up_.weight.wanted(b)) up_.weight.of(gradients) = grad_weight(up, as_operand(x));
    if (x_.wanted(b)) {
      const at::Tensor dx = grad_input(gate, as_operand(gate_.weight.of(b)));
      x_.of(gradients) = with_rows_of(x, grad_input(up, as_operand(up_.weight.of(b)), dx, true));
    }
    return gradients;
  }

 private:
  Argument x_, residual_;
  Layer gate_, up_, down_;
  Result out_, kept_gate_, kept_up_, kept_hidden_;
};

}  // namespace megafuse
