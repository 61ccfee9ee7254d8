// ffn: residual + dropout(act(x·w1ᵀ + b1)·w2ᵀ + b2)
#pragma once

#include "programs/dropout_add.h"

namespace megafuse {

// The last layer of a feed-forward block: a linear layer with what follows it. Without dropout the
// residual rides in the GEMM; with it, or where it has another dtype (float32 under autocast, which
// the result then has too), one pass does what is left.
inline at::Tensor last_layer(LinearCall call, const at::Tensor& residual, Dropout dropout,
                             const RandomState& random) {
  const bool widens = residual.defined() && residual.scalar_type() != call.x.scalar_type();
  if (!dropout.does_something() && !widens) {
    call.residual = residual;
    return linear(call).out;
  }
  const at::Tensor product = linear(call).out;
  const at::Tensor out = widens ? like_sum(product, residual) : product;
  if (dropout.does_something())
    dropout_add(product, residual, dropout, random, out);
  else
    finish(product, {}, Act::kNone, residual, out, {});
  return out;
}

// The gradient of its product, from that of its result.
inline at::Tensor last_layer_grad(const BackwardCall& b, at::ScalarType dtype, Dropout dropout) {
  const at::Tensor& dy = b.grads[0];
  if (dropout.does_something()) return dropout_grad(as_matrix(dy), dtype, dropout, b.random);
  return as_operand(dy.to(dtype));
}

struct Ffn : Program {
  enum { kX, kW1, kB1, kW2, kB2, kAct, kResidual, kP, kTraining };  // arguments
  enum { kPre = 5, kHidden };  // saved, after x, w1, b1, w2 and b2

  // Kept: the activation's argument (but for relu) and its value.
  Results forward(const Call& call, const Agreement& a, const RandomState& random,
                  bool keep) const override {
    const at::Tensor& x = *call.tensor[kX];
    const Act act = act_of(call);
    const LinearResult first = linear({as_operand(x),
                                       as_operand(*call.tensor[kW1]),
                                       as_vector(argument(call, kB1)),
                                       act,
                                       {},
                                       keep && act != Act::kRelu});
    at::Tensor residual = argument(call, kResidual);
    if (residual.defined()) residual = as_matrix(residual);
    const at::Tensor out =
        last_layer({first.out, as_operand(*call.tensor[kW2]), as_vector(argument(call, kB2))},
                   residual, dropout_of(call), random);
    Results results{with_rows_of(x, out)};
    if (!keep) return results;
    const bool has_pre = act != Act::kRelu;
    results.push_back(has_pre ? with_rows_of(x, first.pre) : allocate({0}, {}, a.out, a.device));
    results.push_back(with_rows_of(x, first.out));
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    enum { kDx, kDw1, kDb1, kDw2, kDb2, kDresidual, kGradients };
    const at::Tensor& x = b.saved[kX];
    const Act act = act_of(b.call);
    const at::Tensor hidden = as_matrix(b.saved[kHidden]);
    const at::Tensor dy = last_layer_grad(b, x.scalar_type(), dropout_of(b.call));
    Gradients gradients(kGradients);
    if (b.wanted[kDresidual]) gradients[kDresidual] = as_added(b, kDresidual);
    if (b.wanted[kDb2]) gradients[kDb2] = sum_rows(dy);
    if (b.wanted[kDw2]) gradients[kDw2] = grad_weight(dy, hidden);
    if (!b.wanted[kDx] && !b.wanted[kDw1] && !b.wanted[kDb1]) return gradients;
    const at::Tensor saved = act == Act::kRelu ? hidden : as_matrix(b.saved[kPre]);
    const ActGradient gradient =
        act_grad_input(dy, as_operand(b.saved[kW2]), saved, act, b.wanted[kDb1]);
    if (b.wanted[kDb1]) gradients[kDb1] = gradient.bias;
    if (b.wanted[kDw1]) gradients[kDw1] = grad_weight(gradient.pre, as_operand(x));
    if (b.wanted[kDx])
      gradients[kDx] = with_rows_of(x, grad_input(gradient.pre, as_operand(b.saved[kW1])));
    return gradients;
  }

 private:
  static Act act_of(const Call& call) {
    constexpr Act acts[] = {Act::kGelu, Act::kGeluTanh, Act::kRelu};  // in the order of choices
    return acts[call.choice[kAct]];
  }
  static Dropout dropout_of(const Call& call) {
    return {call.number[kP], call.choice[kTraining] != 0};
  }
};

}  // namespace megafuse
