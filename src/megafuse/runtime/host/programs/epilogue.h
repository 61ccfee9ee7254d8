// What surrounds a GEMM, in one pass each: bias, activation and residual after it, the gradients of
// activation and bias before it.
#pragma once

#include "programs/linear_call.h"
#include "core/matrix.h"
#include "core/pass.h"

namespace megafuse {

inline const Op& epilogue_op() {
  static Op* const op = [] {
    Op* made = internal_op("linear_epilogue", 1);
    add_choice(made, "act", {"none", "relu", "gelu", "gelu_tanh"});
    return made;
  }();
  return *op;
}

// out = act(x + bias) + residual, and pre = x + bias where `pre` is defined. All are matrices but
// `bias`; `out` or `pre` may be `x`.
inline void finish(const at::Tensor& x, const at::Tensor& bias, Act act, const at::Tensor& residual,
                   const at::Tensor& out, const at::Tensor& pre) {
  Pass pass(epilogue_op(), Family::kForward, out);
  pass.call.choice[0] = uint8_t(act);
  pass.write(out);
  if (pre.defined()) pass.write(pre, 1);
  pass.read(x);
  // Adding -0.0 changes nothing, not even the sign of a zero.
  bias.defined() ? pass.read(bias) : pass.read(-0.0);
  residual.defined() ? pass.read(residual) : pass.read(-0.0);
  pass.run();
}

// act'(saved) ∘ dy into `into`, which may be dy, and its sum over the rows where wanted, in one
// pass. `saved` is the activation's argument, or for relu its value.
inline ActGradient act_grad(const at::Tensor& dy, const at::Tensor& saved, Act act, bool want_bias,
                            at::Tensor into = {}) {
  ActGradient gradient{into.defined() ? into : new_matrix(dy.size(0), dy.size(1), dy), {}};
  Pass pass(epilogue_op(), Family::kBackward, dy);
  pass.call.choice[0] = uint8_t(act);
  pass.write(gradient.pre);
  if (want_bias) pass.sum(dy.scalar_type());
  pass.read(dy).read(saved);
  const auto sums = pass.run();
  if (want_bias) gradient.bias = sums[0];
  return gradient;
}

// dy summed over its rows: the gradient of a bias.
inline at::Tensor sum_rows(const at::Tensor& dy) {
  Pass pass(epilogue_op(), Family::kBackward, dy);
  pass.call.choice[0] = uint8_t(Act::kNone);
  return pass.sum(dy.scalar_type()).read(dy).read(0.0).run()[0];
}

}  // namespace megafuse
