// ffn: residual + dropout(act(x·w1ᵀ + b1)·w2ᵀ + b2)
#pragma once

#include "programs/act_argument.h"
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

class Ffn : public Program {
 public:
  explicit Ffn(const Op& op)
      : x_(op, "x"),
        residual_(op, "residual"),
        first_{{op, "w1"}, {op, "b1"}},
        second_{{op, "w2"}, {op, "b2"}},
        act_(op, "act"),
        out_(op, "out"),
        pre_(op, "pre"),
        hidden_(op, "hidden") {}

  // Kept: the activation's argument (but for relu) and its value.
  Results forward(const Call& call, const Agreement& a, const RandomState& random,
                  bool keep) const override {
    const at::Tensor& x = x_.of(call);
    const WeightAndBias layer = first_.of(call), last = second_.of(call);
    const Act act = act_.of(call);
    const bool has_pre = act != Act::kRelu;
    const LinearResult first = linear(
        {as_operand(x), as_operand(layer.weight), as_vector(layer.bias), act, {}, keep && has_pre});
    at::Tensor residual = residual_.of(call);
    if (residual.defined()) residual = as_matrix(residual);
    Results results = results_of(*call.op, keep);
    out_.of(results) =
        with_rows_of(x, last_layer({first.out, as_operand(last.weight), as_vector(last.bias)},
                                   residual, dropout_of(call), random));
    if (!keep) return results;
    pre_.of(results) = has_pre ? with_rows_of(x, first.pre) : allocate({0}, {}, a.out, a.device);
    hidden_.of(results) = with_rows_of(x, first.out);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = x_.of(b);
    const Act act = act_.of(b.call);
    const at::Tensor hidden = as_matrix(hidden_.of(b));
    const at::Tensor dy = last_layer_grad(b, x.scalar_type(), dropout_of(b.call));
    Gradients gradients(b.wanted.size());
    if (residual_.wanted(b)) residual_.of(gradients) = as_added(b, residual_);
    if (second_.bias.wanted(b)) second_.bias.of(gradients) = sum_rows(dy);
    if (second_.weight.wanted(b)) second_.weight.of(gradients) = grad_weight(dy, hidden);
    if (!x_.wanted(b) && !first_.wanted(b)) return gradients;
    const at::Tensor saved = act == Act::kRelu ? hidden : as_matrix(pre_.of(b));
    const ActGradient gradient =
        act_grad_input(dy, as_operand(second_.weight.of(b)), saved, act, first_.bias.wanted(b));
    if (first_.bias.wanted(b)) first_.bias.of(gradients) = gradient.bias;
    if (first_.weight.wanted(b))
      first_.weight.of(gradients) = grad_weight(gradient.pre, as_operand(x));
    if (x_.wanted(b))
      x_.of(gradients) = with_rows_of(x, grad_input(gradient.pre, as_operand(first_.weight.of(b))));
    return gradients;
  }

 private:
  Argument x_, residual_;
  Layer first_, second_;
  ActArgument act_;
  Result out_, pre_, hidden_;
};

}  // namespace megafuse
