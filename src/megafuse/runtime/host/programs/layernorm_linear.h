// layernorm_linear: layer_norm(x)·weightᵀ + bias
#pragma once

#include "programs/linear.h"
#include "torch/named.h"
#include "torch/rows.h"

namespace megafuse {

// Of each row, for the norm's backward.
struct RowMoments {
  at::Tensor mean, scale;

  bool defined() const { return mean.defined(); }
  static RowMoments of(const at::Tensor& matrix) {
    const bool use_double = matrix.scalar_type() == at::kDouble;
    return {one_a_row(matrix, use_double), one_a_row(matrix, use_double)};
  }
  // As the last outputs of a norm, if they are wanted.
  void write(Pass& pass) const {
    if (defined()) pass.write_once(mean, 0).write_once(scale, 1);
  }
  void read(Pass& pass) const { pass.read(mean, 0).read(scale, 0); }
};

inline Given layer_norm_given(double eps) {
  static const Functor* const functor = new Functor("layer_norm");
  return Given(*functor).number(eps);
}

// The rows of a matrix normed, then scaled by `weight` and shifted by `bias` where these are
// defined, written to `out`, where that is, and their moments to `moments`.
inline at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             double eps, const RowMoments& moments, at::Tensor out = {}) {
  if (!out.defined()) out = new_matrix(x.size(0), x.size(1), x);
  if (x.numel() == 0) return out;
  Pass pass(layer_norm_given(eps), Family::kRowsForward, x.sizes(), x.device());
  pass.write(out);
  moments.write(pass);
  pass.read(x).read(weight, 1).read(bias, 0).run(x.scalar_type());
  return out;
}

struct LayerNormGradients {
  at::Tensor x, weight, bias;
};

// Its gradients: `weight_like` and `bias_like` are defined where theirs are wanted. That of x is
// written over dy, if dy is `into`.
inline LayerNormGradients layer_norm_grad(const at::Tensor& dy, const at::Tensor& x,
                                          const RowMoments& moments, const at::Tensor& weight,
                                          double eps, at::Tensor into, at::Tensor weight_like,
                                          at::Tensor bias_like) {
  if (x.numel() == 0) {
    auto zeros = [](const at::Tensor& like) {
      return like.defined() ? at::zeros_like(like) : like;
    };
    return {into, zeros(weight_like), zeros(bias_like)};
  }
  Pass pass(layer_norm_given(eps), Family::kRowsBackward, x.sizes(), x.device());
  if (into.defined()) pass.write(into, 0);
  if (weight_like.defined()) pass.sum(weight_like.scalar_type(), 1);
  if (bias_like.defined()) pass.sum(bias_like.scalar_type(), 2);
  pass.read(dy).read(x);
  moments.read(pass);
  const auto sums = pass.read(weight, 1).run(x.scalar_type());
  LayerNormGradients gradients{into, {}, {}};
  if (weight_like.defined()) gradients.weight = sums.front();
  if (bias_like.defined()) gradients.bias = sums.back();
  return gradients;
}

class LayernormLinear : public Program {
 public:
  explicit LayernormLinear(const Op& op)
      : x_(op, "x"),
        norm_{{op, "ln_weight"}, {op, "ln_bias"}},
        layer_{{op, "weight"}, {op, "bias"}},
        eps_(op, "eps"),
        out_(op, "out"),
        normed_(op, "normed"),
        mean_(op, "mean"),
        scale_(op, "scale") {}

  // Kept: the normed rows, which the GEMM reads anyway, and their moments.
  Results forward(const Call& call, const Agreement&, const RandomState&,
                  bool keep) const override {
    const at::Tensor& x = x_.of(call);
    const WeightAndBias norm = norm_.of(call), layer = layer_.of(call);
    const at::Tensor rows = as_matrix(x);
    const RowMoments moments = keep ? RowMoments::of(rows) : RowMoments();
    const at::Tensor normed = layer_norm(rows, norm.weight, norm.bias, eps_.of(call), moments);
    Results results = results_of(*call.op, keep);
    out_.of(results) =
        with_rows_of(x, linear({normed, as_operand(layer.weight), as_vector(layer.bias)}).out);
    if (!keep) return results;
    normed_.of(results) = with_rows_of(x, normed);
    mean_.of(results) = with_rows_of(x, moments.mean);
    scale_.of(results) = with_rows_of(x, moments.scale);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& x = x_.of(b);
    const at::Tensor dy = as_operand(b.grads[0]);
    Gradients gradients(b.wanted.size());
    if (layer_.bias.wanted(b)) layer_.bias.of(gradients) = sum_rows(dy);
    if (layer_.weight.wanted(b))
      layer_.weight.of(gradients) = grad_weight(dy, as_matrix(normed_.of(b)));
    if (!x_.wanted(b) && !norm_.wanted(b)) return gradients;
    // The gradient of x takes the place of that of the normed rows.
    const at::Tensor dnormed = grad_input(dy, as_operand(layer_.weight.of(b)));
    const auto norm =
        layer_norm_grad(dnormed, as_matrix(x), {as_matrix(mean_.of(b)), as_matrix(scale_.of(b))},
                        norm_.weight.of(b), eps_.of(b.call), x_.wanted(b) ? dnormed : at::Tensor(),
                        norm_.weight.like(b), norm_.bias.like(b));
    if (x_.wanted(b)) x_.of(gradients) = with_rows_of(x, norm.x);
    norm_.weight.of(gradients) = norm.weight;
    norm_.bias.of(gradients) = norm.bias;
    return gradients;
  }

 private:
  Argument x_;
  Layer norm_, layer_;
  Number eps_;
  Result out_, normed_, mean_, scale_;
};

}  // namespace megafuse
