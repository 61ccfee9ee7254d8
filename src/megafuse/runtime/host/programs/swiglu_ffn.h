// swiglu_ffn: residual + dropout((silu(x·w_gateᵀ + b_gate) ∘ (x·w_upᵀ + b_up))·w_downᵀ + b_down)
#pragma once

#include "programs/ffn.h"

namespace megafuse {

inline Pass swiglu_pass(Family family, const at::Tensor& like) {
  static const Functor* const functor = new Functor("swiglu");
  return Pass(*functor, family, like.sizes(), like.device());
}

struct SwigluFfn : Program {
  enum { kX, kGate, kUp, kDown, kGateBias, kUpBias, kDownBias, kResidual, kP, kTraining };
  enum { kSavedGate = 7, kSavedUp, kSavedHidden };  // after the weights and biases

  // Kept: gate, up and silu(gate) ∘ up. The product could be had again in the backward, for one
  // more write of its size there; kept, it costs no traffic, as the last GEMM reads it anyway.
  Results forward(const Call& call, const Agreement&, const RandomState& random,
                  bool keep) const override {
    const at::Tensor& x = *call.tensor[kX];
    const at::Tensor rows = as_operand(x);
    auto layer = [&](int weight, int bias) {
      return linear({rows, as_operand(*call.tensor[weight]), as_vector(argument(call, bias))}).out;
    };
    const at::Tensor gate = layer(kGate, kGateBias), up = layer(kUp, kUpBias);
    const at::Tensor hidden = keep ? new_matrix(gate.size(0), gate.size(1), gate) : gate;
    Pass product = swiglu_pass(Family::kForward, hidden);
    product.write(hidden).read(gate).read(up).run(hidden.scalar_type());
    at::Tensor residual = argument(call, kResidual);
    if (residual.defined()) residual = as_matrix(residual);
    const at::Tensor out =
        last_layer({hidden, as_operand(*call.tensor[kDown]), as_vector(argument(call, kDownBias))},
                   residual, dropout_of(call), random);
    Results results{with_rows_of(x, out)};
    if (keep)
      for (const at::Tensor& t : {gate, up, hidden}) results.push_back(with_rows_of(x, t));
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = b.saved[kX];
    const at::Tensor dy = last_layer_grad(b, x.scalar_type(), dropout_of(b.call));
    Gradients gradients(kP);  // in the arguments' order
    if (b.wanted[kResidual]) gradients[kResidual] = as_added(b, kResidual);
    if (b.wanted[kDownBias]) gradients[kDownBias] = sum_rows(dy);
    if (b.wanted[kDown]) gradients[kDown] = grad_weight(dy, as_matrix(b.saved[kSavedHidden]));
    bool further = false;
    for (int i : {kX, kGate, kUp, kGateBias, kUpBias}) further |= b.wanted[i];
    if (!further) return gradients;
    // The gradient of gate takes the place of that of the product.
    const at::Tensor gate = grad_input(dy, as_operand(b.saved[kDown]));
    const at::Tensor up = new_matrix(gate.size(0), gate.size(1), gate);
    Pass pass = swiglu_pass(Family::kBackward, gate);
    pass.write(gate, 0).write(up, 1);
    if (b.wanted[kGateBias]) pass.sum(gate.scalar_type(), 0);
    if (b.wanted[kUpBias]) pass.sum(gate.scalar_type(), 1);
    pass.read(gate).read(as_matrix(b.saved[kSavedGate])).read(as_matrix(b.saved[kSavedUp]));
    const auto sums = pass.run(gate.scalar_type());
    if (b.wanted[kGateBias]) gradients[kGateBias] = sums.front();
    if (b.wanted[kUpBias]) gradients[kUpBias] = sums.back();
    if (b.wanted[kGate]) gradients[kGate] = grad_weight(gate, as_operand(x));
    if (b.wanted[kUp]) gradients[kUp] = grad_weight(up, as_operand(x));
    if (b.wanted[kX]) {
      const at::Tensor dx = grad_input(gate, as_operand(b.saved[kGate]));
      gradients[kX] = with_rows_of(x, grad_input(up, as_operand(b.saved[kUp]), dx, true));
    }
    return gradients;
  }

 private:
  static Dropout dropout_of(const Call& call) {
    return {call.number[kP], call.choice[kTraining] != 0};
  }
};

}  // namespace megafuse
