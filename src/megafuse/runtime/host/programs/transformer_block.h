// transformer_block: h = x + attention(norm(x)) projected, then h + ffn(norm(h)), in seven
// launches:
//
//   norm, qkv, attention, projection + x, norm, first layer with its activation, second layer + h
//
// q, k and v are views of one product, and their gradients lie side by side in one buffer: our
// attention kernels and torch's "efficient" one write them there, after cuDNN's and flash one copy
// does. The gradient of a norm is added to that of the residual beside it in the same pass.
//
// x may be float32 beside 16-bit weights, as under autocast: it and the sums it goes into stay
// float32, as in eager. No GEMM adds to another dtype than its own, so the sum in the middle is
// then part of the norm that follows, and the last one a pass.
#pragma once

#include "programs/attention.h"
#include "programs/ffn.h"
#include "programs/layernorm_linear.h"

namespace megafuse {

// Without dropout, so that results 0 and 1 of the backward are the same.
inline Given residual_norm_given(double eps) {
  static const Functor* const functor = new Functor("residual_layer_norm", {{"training", {}}});
  return Given(*functor).number(0).number(eps);
}

// beside + the gradient of layer_norm(x) for dy, written to `into`, which may be dy or `beside`,
// and to `narrow`, where that is defined. `weight_like` and `bias_like` are defined where those
// gradients are wanted.
inline LayerNormGradients residual_norm_grad(const at::Tensor& dy, const at::Tensor& beside,
                                             const at::Tensor& x, const RowMoments& moments,
                                             const at::Tensor& weight, double eps, at::Tensor into,
                                             at::Tensor narrow, at::Tensor weight_like,
                                             at::Tensor bias_like) {
  Pass pass(residual_norm_given(eps), Family::kRowsBackward, x.sizes(), x.device());
  pass.write(into, 0);
  if (narrow.defined()) pass.write(narrow, 1);
  if (weight_like.defined()) pass.sum(weight_like.scalar_type(), 2);
  if (bias_like.defined()) pass.sum(bias_like.scalar_type(), 3);
  pass.read(dy).read(beside, 0).read(x);
  moments.read(pass);
  const auto sums = pass.read(weight, 1).run(x.scalar_type());
  LayerNormGradients gradients{into, {}, {}};
  if (weight_like.defined()) gradients.weight = sums.front();
  if (bias_like.defined()) gradients.bias = sums.back();
  return gradients;
}

// sum = residual + x, and its norm as `normed`, which may be narrower, and its moments.
inline void residual_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const at::Tensor& bias, double eps, const at::Tensor& normed,
                          const at::Tensor& sum, const RowMoments& moments) {
  Pass pass(residual_norm_given(eps), Family::kRowsForward, x.sizes(), x.device());
  pass.write(normed, 0).write(sum, 1);
  moments.write(pass);
  pass.read(x).read(residual).read(weight, 1).read(bias, 0).run(residual.scalar_type());
}

inline at::Tensor new_matrix_like(const at::Tensor& t) {
  return new_matrix(t.size(0), t.size(1), t);
}

class TransformerBlock : public Program {
 public:
  explicit TransformerBlock(const Op& op)
      : x_(op, "x"),
        mask_(op, "mask"),
        norm1_{{op, "ln1_weight"}, {op, "ln1_bias"}},
        qkv_{{op, "qkv_weight"}, {op, "qkv_bias"}},
        proj_{{op, "proj_weight"}, {op, "proj_bias"}},
        norm2_{{op, "ln2_weight"}, {op, "ln2_bias"}},
        first_{{op, "w1"}, {op, "b1"}},
        second_{{op, "w2"}, {op, "b2"}},
        heads_(op, "heads"),
        eps_(op, "eps"),
        recompute_(op, "recompute"),
        causal_(op, "causal"),
        act_(op, "act"),
        out_(op, "out"),
        kept_{{op, "normed1"}, {op, "qkv"},     {op, "attended"}, {op, "lse"},
              {op, "middle"},  {op, "normed2"}, {op, "pre"},      {op, "hidden"},
              {op, "mean1"},   {op, "scale1"},  {op, "mean2"},    {op, "scale2"}} {}

  Results forward(const Call& call, const Agreement& a, const RandomState&,
                  bool keep) const override {
    const Block block(*this, call, call);
    // A mask's gradient has the size of all scores: PyTorch's business.
    if (block.mask.defined() && block.mask.requires_grad() && at::GradMode::is_enabled())
      throw UseReference{};
    Values v;
    if (keep) v.moments1 = RowMoments::of(block.rows), v.moments2 = RowMoments::of(block.rows);
    block.find_middle(v, keep);
    block.find_hidden(v, keep && block.act != Act::kRelu);
    Results results = results_of(*call.op, keep);
    out_.of(results) = with_rows_of(block.x, block.result(v));
    if (!keep) return results;
    // By what each saves the backward: level 1 works out norms and activation again, level 2 all
    // but the attention.
    const bool all = block.recompute == 0, few = block.recompute == 2;
    const bool relu = block.act == Act::kRelu;
    auto put = [&](const Result& result, const at::Tensor& value, bool wanted = true) {
      result.of(results) = wanted ? value : allocate({0}, {}, a.common, a.device);
    };
    put(kept_.normed1, v.normed1, all);
    put(kept_.qkv, v.qkv, !few);
    put(kept_.attended, v.attended);
    put(kept_.lse, v.lse);
    put(kept_.middle, v.middle, !few);
    put(kept_.normed2, v.normed2, all);
    put(kept_.pre, v.pre, !few && !relu);
    put(kept_.hidden, v.hidden, all || (relu && !few));
    put(kept_.mean1, v.moments1.mean), put(kept_.scale1, v.moments1.scale);
    put(kept_.mean2, v.moments2.mean), put(kept_.scale2, v.moments2.scale);
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    const Block block(*this, b.call, b);
    Values v = kept_.of(b);
    block.find_middle(v, true);
    block.find_hidden(v, block.act != Act::kRelu);
    Gradients g(b.wanted.size());
    // A linear layer's parameters, from the gradient of its product.
    auto layer = [&](const Layer& named, const at::Tensor& dy, const at::Tensor& x) {
      if (named.bias.wanted(b)) named.bias.of(g) = sum_rows(dy);
      if (named.weight.wanted(b)) named.weight.of(g) = grad_weight(dy, x);
    };
    // Whether anything that is wanted lies before a layer.
    const bool before_qkv = x_.wanted(b) || norm1_.wanted(b);
    const bool before_proj = before_qkv || qkv_.wanted(b);
    const bool before_first = before_proj || proj_.wanted(b) || norm2_.wanted(b);
    const bool before_second = before_first || first_.wanted(b);

    const at::Tensor dy = as_operand(b.grads[0]), dout = as_operand(block.narrowed(dy));
    layer(second_, dout, v.hidden);
    if (!before_second) return g;
    const ActGradient first = act_grad_input(dout, as_operand(block.second.weight),
                                             block.act == Act::kRelu ? v.hidden : v.pre, block.act,
                                             first_.bias.wanted(b));
    first_.bias.of(g) = first.bias;
    if (first_.weight.wanted(b)) first_.weight.of(g) = grad_weight(first.pre, v.normed2);
    if (!before_first) return g;
    // Where dtypes allow it, gradients take the place of those they are made from.
    const at::Tensor dnormed2 = grad_input(first.pre, as_operand(block.first.weight));
    const at::Tensor dmiddle = block.mixed ? new_matrix_like(block.rows) : dnormed2;
    const at::Tensor dproduct = block.mixed ? new_matrix_like(dnormed2) : dmiddle;
    const auto norm2 = residual_norm_grad(dnormed2, dy, v.middle, v.moments2, block.norm2.weight,
                                          block.eps, dmiddle, block.mixed ? dproduct : at::Tensor(),
                                          norm2_.weight.like(b), norm2_.bias.like(b));
    norm2_.weight.of(g) = norm2.weight, norm2_.bias.of(g) = norm2.bias;
    layer(proj_, dproduct, v.attended);
    if (!before_proj) return g;
    const at::Tensor dattended = grad_input(dproduct, as_operand(block.proj.weight));
    const AttentionWants packed{true, true, true};
    const at::Tensor dqkv = attention_grad(block.attention_call(v.qkv), block.by_heads(dattended),
                                           {block.by_heads(v.attended), v.lse}, packed)
                                .packed.view(v.qkv.sizes());
    layer(qkv_, dqkv, v.normed1);
    if (!before_qkv) return g;
    const at::Tensor dnormed1 = grad_input(dqkv, as_operand(block.qkv.weight), dattended);
    const at::Tensor dx = block.mixed ? dmiddle : dnormed1;
    const auto norm1 =
        residual_norm_grad(dnormed1, dmiddle, block.rows, v.moments1, block.norm1.weight, block.eps,
                           dx, {}, norm1_.weight.like(b), norm1_.bias.like(b));
    if (x_.wanted(b)) x_.of(g) = with_rows_of(block.x, dx);
    norm1_.weight.of(g) = norm1.weight, norm1_.bias.of(g) = norm1.bias;
    return g;
  }

 private:
  // Everything between x and the result, as matrices; what is undefined is not known (yet).
  struct Values {
    at::Tensor normed1, qkv, attended, lse, middle, normed2, pre, hidden;
    RowMoments moments1, moments2;
  };

  // Where the forward puts them.
  struct Kept {
    Result normed1, qkv, attended, lse, middle, normed2, pre, hidden, mean1, scale1, mean2, scale2;

    Values of(const BackwardCall& b) const {
      auto value = [&](const Result& result) {
        return result.of(b).numel() ? result.of(b) : at::Tensor();
      };
      return {value(normed1),
              value(qkv),
              value(attended),
              value(lse),
              value(middle),
              value(normed2),
              value(pre),
              value(hidden),
              {value(mean1), value(scale1)},
              {value(mean2), value(scale2)}};
    }
  };

  struct Block {
    at::Tensor x, mask;
    WeightAndBias norm1, qkv, proj, norm2, first, second;
    at::Tensor rows;  // x as a matrix
    int64_t batches, tokens, heads;
    bool causal;
    Act act;
    double eps;
    int recompute;
    at::ScalarType dtype;  // of the products
    bool mixed;            // x has another

    // The tensors are in the call, or among what it saved.
    template <class Holder>
    Block(const TransformerBlock& names, const Call& call, const Holder& holder)
        : x(names.x_.of(holder)),
          mask(names.mask_.of(holder)),
          norm1(names.norm1_.of(holder)),
          qkv(names.qkv_.of(holder)),
          proj(names.proj_.of(holder)),
          norm2(names.norm2_.of(holder)),
          first(names.first_.of(holder)),
          second(names.second_.of(holder)),
          rows(as_operand(x)),
          batches(x.size(0)),
          tokens(x.size(1)),
          heads(int64_t(names.heads_.of(call))),
          causal(names.causal_.of(call)),
          act(names.act_.of(call)),
          eps(names.eps_.of(call)),
          recompute(int(names.recompute_.of(call))),
          dtype(qkv.weight.scalar_type()),
          mixed(x.scalar_type() != dtype) {
      if (rows.size(1) % heads) throw BadArguments{};
      const bool widens = x.scalar_type() == at::kFloat && dtype != at::kDouble;
      if (x.numel() == 0 || (mixed && !widens)) throw UseReference{};
    }

    LinearResult product(const at::Tensor& input, const WeightAndBias& layer,
                         Act act_of_it = Act::kNone, const at::Tensor& residual = {},
                         bool want_pre = false) const {
      return linear({input, as_operand(layer.weight), as_vector(layer.bias), act_of_it, residual,
                     want_pre, /*from_pre=*/want_pre});
    }
    at::Tensor normed(const at::Tensor& matrix, const WeightAndBias& norm,
                      const RowMoments& moments) const {
      return layer_norm(matrix, norm.weight, norm.bias, eps, moments,
                        allocate(matrix.sizes(), {}, dtype, matrix.device()));
    }
    at::Tensor narrowed(const at::Tensor& matrix) const {
      return mixed ? matrix.to(dtype) : matrix;
    }

    // A matrix of tokens by features as [batches, heads, tokens, dim].
    at::Tensor by_heads(const at::Tensor& matrix) const {
      return matrix.view({batches, tokens, heads, -1}).transpose(1, 2);
    }
    // q, k or v of their product.
    at::Tensor part(const at::Tensor& product, int which) const {
      return product.view({batches, tokens, 3, heads, -1}).select(2, which).transpose(1, 2);
    }
    AttentionCall attention_call(const at::Tensor& product) const {
      const at::Tensor q = part(product, 0);
      return {q,    part(product, 1), part(product, 2),
              mask, causal,           1.0 / std::sqrt(double(q.size(3)))};
    }

    // Fills in what is not there yet, up to the sum in the middle of the block.
    void find_middle(Values& v, bool keep) const {
      if (!v.normed1.defined() && (keep || !v.qkv.defined()))
        v.normed1 = normed(rows, norm1, v.moments1);
      if (!v.qkv.defined()) v.qkv = product(v.normed1, qkv).out;
      if (!v.attended.defined()) {
        const AttentionResult result = attention(attention_call(v.qkv), keep);
        v.attended = result.out.transpose(1, 2).reshape({rows.size(0), rows.size(1)});
        v.lse = result.lse;
      }
      if (v.middle.defined()) return;
      if (!mixed) {
        v.middle = product(v.attended, proj, Act::kNone, rows).out;
        return;
      }
      const at::Tensor projected = product(v.attended, proj).out;
      v.middle = new_matrix_like(rows), v.normed2 = new_matrix_like(projected);
      residual_norm(projected, rows, norm2.weight, norm2.bias, eps, v.normed2, v.middle,
                    v.moments2);
    }
    void find_hidden(Values& v, bool want_pre) const {
      if (!v.normed2.defined()) v.normed2 = normed(v.middle, norm2, v.moments2);
      if (v.hidden.defined()) return;
      if (v.pre.defined()) {
        v.hidden = new_matrix(v.pre.size(0), v.pre.size(1), v.pre);
        finish(v.pre, {}, act, {}, v.hidden, {});
        return;
      }
      const LinearResult layer = product(v.normed2, first, act, {}, want_pre);
      v.hidden = layer.out, v.pre = layer.pre;
    }
    at::Tensor result(const Values& v) const {
      return last_layer({v.hidden, as_operand(second.weight), as_vector(second.bias)}, v.middle, {},
                        {});
    }
  };

  Argument x_, mask_;
  Layer norm1_, qkv_, proj_, norm2_, first_, second_;
  Number heads_, eps_, recompute_;
  Flag causal_;
  ActArgument act_;
  Result out_;
  Kept kept_;
};

}  // namespace megafuse
