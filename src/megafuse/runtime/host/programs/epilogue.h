// What surrounds a GEMM, in one pass each: bias, activation and residual after it, the gradients of
// activation and bias before it.
#pragma once

#include "core/matrix.h"
#include "core/pass.h"
#include "programs/linear_call.h"

namespace megafuse {

inline Given epilogue(Act act) {
  static const Functor* const functor = new Functor("linear_epilogue", {act_choice()});
  return Given(*functor).choose(0, int(act));
}

// out = act(x + bias) + residual, and pre = x + bias where `pre` is defined. All are matrices but
// `bias`; `out` or `pre` may be `x`.
inline void finish(const at::Tensor& x, const at::Tensor& bias, Act act, const at::Tensor& residual,
                   const at::Tensor& out, const at::Tensor& pre) {
  Pass pass(epilogue(act), Family::kForward, out.sizes(), out.device());
  pass.write(out);
  if (pre.defined()) pass.write(pre, 1);
  pass.read(x);
  // Adding -0.0 changes nothing, not even the sign of a zero.
  pass.read(bias, -0.0).read(residual, -0.0).run(out.scalar_type());
}

// act'(saved) ∘ dy into `into`, which may be dy, and its sum over the rows where wanted, in one
// pass. `saved` is the activation's argument, or for relu its value.
inline ActGradient act_grad(const at::Tensor& dy, const at::Tensor& saved, Act act, bool want_bias,
                            at::Tensor into = {}) {
  ActGradient gradient{into.defined() ? into : new_matrix(dy.size(0), dy.size(1), dy), {}};
  Pass pass(epilogue(act), Family::kBackward, dy.sizes(), dy.device());
  pass.write(gradient.pre);
  if (want_bias) pass.sum(dy.scalar_type());
  const auto sums = pass.read(dy).read(saved).run(dy.scalar_type());
  if (want_bias) gradient.bias = sums[0];
  return gradient;
}

// dy summed over its rows: the gradient of a bias.
inline at::Tensor sum_rows(const at::Tensor& dy) {
  Pass pass(epilogue(Act::kNone), Family::kBackward, dy.sizes(), dy.device());
  return pass.sum(dy.scalar_type()).read(dy).read(0.0).run(dy.scalar_type())[0];
}

}  // namespace megafuse
