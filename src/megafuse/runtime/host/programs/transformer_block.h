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

struct TransformerBlock : Program {
  enum Argument {
    kX,
    kNorm1Weight,
    kNorm1Bias,
    kQkvWeight,
    kQkvBias,
    kProjWeight,
    kProjBias,
    kNorm2Weight,
    kNorm2Bias,
    kW1,
    kB1,
    kW2,
    kB2,
    kParameters,  // how many of them there are; mask is saved after them
    kHeads = kParameters,
    kCausal,
    kAct,
    kMask,
    kEps,
    kRecompute
  };
  enum Kept {
    kNormed1,
    kQkv,
    kAttended,
    kLse,
    kMiddle,
    kNormed2,
    kPre,
    kHidden,
    kMean1,
    kScale1,
    kMean2,
    kScale2,
    kCount
  };

  // Everything between x and the result, as matrices; what is undefined is not known (yet).
  struct Values {
    at::Tensor normed1, qkv, attended, lse, middle, normed2, pre, hidden;
    RowMoments moments1, moments2;
  };

  Results forward(const Call& call, const Agreement& a, const RandomState&,
                  bool keep) const override {
    at::Tensor parameter[kParameters];
    for (int i = 0; i < kParameters; ++i) parameter[i] = argument(call, i);
    const Block block(call, parameter, argument(call, kMask));
    // A mask's gradient has the size of all scores: PyTorch's business.
    if (block.mask.defined() && block.mask.requires_grad() && at::GradMode::is_enabled())
      throw UseReference{};
    Values v;
    if (keep) v.moments1 = RowMoments::of(block.x), v.moments2 = RowMoments::of(block.x);
    block.find_middle(v, keep);
    block.find_hidden(v, keep && block.act != Act::kRelu);
    Results results{with_rows_of(parameter[kX], block.result(v))};
    if (!keep) return results;
    // By what each saves the backward: level 1 works out norms and activation again, level 2 all
    // but the attention.
    const bool all = block.recompute == 0, few = block.recompute == 2;
    const bool relu = block.act == Act::kRelu;
    const bool wanted[kCount] = {all,  !few, true,          true,
                                 !few, all,  !few && !relu, all || (relu && !few),
                                 true, true, true,          true};
    const at::Tensor* values[kCount] = {
        &v.normed1,       &v.qkv,           &v.attended, &v.lse,           &v.middle,
        &v.normed2,       &v.pre,           &v.hidden,   &v.moments1.mean, &v.moments1.scale,
        &v.moments2.mean, &v.moments2.scale};
    for (int i = 0; i < kCount; ++i)
      results.push_back(wanted[i] ? *values[i] : allocate({0}, {}, a.common, a.device));
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    constexpr int kGradients = kParameters;
    const Block block(b.call, b.saved.data(), b.saved[kParameters]);
    Values v = kept(b);
    block.find_middle(v, true);
    block.find_hidden(v, block.act != Act::kRelu);
    Gradients g(kGradients);
    auto like = [&](int i) { return b.wanted[i] ? b.like[i] : at::Tensor(); };
    // A linear layer's parameters, from the gradient of its product.
    auto layer = [&](int weight, int bias, const at::Tensor& dy, const at::Tensor& x) {
      if (b.wanted[bias]) g[bias] = sum_rows(dy);
      if (b.wanted[weight]) g[weight] = grad_weight(dy, x);
    };
    auto any = [&](int first, int last) {
      return std::any_of(b.wanted.begin() + first, b.wanted.begin() + last + 1,
                         [](bool w) { return w; });
    };
    const at::Tensor dy = as_operand(b.grads[0]), dout = as_operand(block.narrowed(dy));
    layer(kW2, kB2, dout, v.hidden);
    if (!any(kX, kB1)) return g;
    const ActGradient first =
        act_grad_input(dout, block.weight(kW2), block.act == Act::kRelu ? v.hidden : v.pre,
                       block.act, b.wanted[kB1]);
    g[kB1] = first.bias;
    if (b.wanted[kW1]) g[kW1] = grad_weight(first.pre, v.normed2);
    if (!any(kX, kNorm2Bias)) return g;
    // Where dtypes allow it, gradients take the place of those they are made from.
    const at::Tensor dnormed2 = grad_input(first.pre, block.weight(kW1));
    const at::Tensor dmiddle = block.mixed ? new_matrix_like(block.x) : dnormed2;
    const at::Tensor dproduct = block.mixed ? new_matrix_like(dnormed2) : dmiddle;
    const auto norm2 = residual_norm_grad(
        dnormed2, dy, v.middle, v.moments2, block.parameter[kNorm2Weight], block.eps, dmiddle,
        block.mixed ? dproduct : at::Tensor(), like(kNorm2Weight), like(kNorm2Bias));
    g[kNorm2Weight] = norm2.weight, g[kNorm2Bias] = norm2.bias;
    layer(kProjWeight, kProjBias, dproduct, v.attended);
    if (!any(kX, kQkvBias)) return g;
    const at::Tensor dattended = grad_input(dproduct, block.weight(kProjWeight));
    const AttentionWants packed{true, true, true};
    const at::Tensor dqkv = attention_grad(block.attention_call(v.qkv), block.by_heads(dattended),
                                           {block.by_heads(v.attended), v.lse}, packed)
                                .packed.view(v.qkv.sizes());
    layer(kQkvWeight, kQkvBias, dqkv, v.normed1);
    if (!any(kX, kNorm1Bias)) return g;
    const at::Tensor dnormed1 = grad_input(dqkv, block.weight(kQkvWeight), dattended);
    const at::Tensor dx = block.mixed ? dmiddle : dnormed1;
    const auto norm1 =
        residual_norm_grad(dnormed1, dmiddle, block.x, v.moments1, block.parameter[kNorm1Weight],
                           block.eps, dx, {}, like(kNorm1Weight), like(kNorm1Bias));
    if (b.wanted[kX]) g[kX] = with_rows_of(b.saved[kX], dx);
    g[kNorm1Weight] = norm1.weight, g[kNorm1Bias] = norm1.bias;
    return g;
  }

 private:
  struct Block {
    const at::Tensor* parameter;
    at::Tensor x, mask;
    int64_t batches, tokens, heads;
    bool causal;
    Act act;
    double eps;
    int recompute;
    at::ScalarType dtype;  // of the products
    bool mixed;            // x has another

    Block(const Call& call, const at::Tensor* parameters, at::Tensor given_mask)
        : parameter(parameters),
          x(as_operand(parameters[kX])),
          mask(std::move(given_mask)),
          batches(parameters[kX].size(0)),
          tokens(parameters[kX].size(1)),
          heads(int64_t(call.number[kHeads])),
          causal(call.choice[kCausal] != 0),
          eps(call.number[kEps]),
          recompute(int(call.number[kRecompute])),
          dtype(parameters[kQkvWeight].scalar_type()),
          mixed(x.scalar_type() != dtype) {
      constexpr Act acts[] = {Act::kGelu, Act::kGeluTanh, Act::kRelu};  // in the order of choices
      act = acts[call.choice[kAct]];
      if (x.size(1) % heads) throw BadArguments{};
      const bool widens = x.scalar_type() == at::kFloat && dtype != at::kDouble;
      if (x.numel() == 0 || (mixed && !widens)) throw UseReference{};
    }

    at::Tensor weight(int which) const { return as_operand(parameter[which]); }
    LinearResult layer(const at::Tensor& input, int which, Act act_of_it = Act::kNone,
                       const at::Tensor& residual = {}, bool want_pre = false) const {
      return linear({input, weight(which), as_vector(parameter[which + 1]), act_of_it, residual,
                     want_pre, /*from_pre=*/want_pre});
    }
    at::Tensor norm(const at::Tensor& rows, int which, const RowMoments& moments) const {
      return layer_norm(rows, parameter[which], parameter[which + 1], eps, moments,
                        allocate(rows.sizes(), {}, dtype, rows.device()));
    }
    at::Tensor narrowed(const at::Tensor& rows) const { return mixed ? rows.to(dtype) : rows; }

    // A matrix of tokens by features as [batches, heads, tokens, dim].
    at::Tensor by_heads(const at::Tensor& matrix) const {
      return matrix.view({batches, tokens, heads, -1}).transpose(1, 2);
    }
    // q, k or v of their product.
    at::Tensor part(const at::Tensor& qkv, int which) const {
      return qkv.view({batches, tokens, 3, heads, -1}).select(2, which).transpose(1, 2);
    }
    AttentionCall attention_call(const at::Tensor& qkv) const {
      const at::Tensor q = part(qkv, 0);
      return {q, part(qkv, 1), part(qkv, 2), mask, causal, 1.0 / std::sqrt(double(q.size(3)))};
    }

    // Fills in what is not there yet, up to the sum in the middle of the block.
    void find_middle(Values& v, bool keep) const {
      if (!v.normed1.defined() && (keep || !v.qkv.defined()))
        v.normed1 = norm(x, kNorm1Weight, v.moments1);
      if (!v.qkv.defined()) v.qkv = layer(v.normed1, kQkvWeight).out;
      if (!v.attended.defined()) {
        const AttentionResult result = attention(attention_call(v.qkv), keep);
        v.attended = result.out.transpose(1, 2).reshape({x.size(0), x.size(1)});
        v.lse = result.lse;
      }
      if (v.middle.defined()) return;
      if (!mixed) {
        v.middle = layer(v.attended, kProjWeight, Act::kNone, x).out;
        return;
      }
      const at::Tensor product = layer(v.attended, kProjWeight).out;
      v.middle = new_matrix_like(x), v.normed2 = new_matrix_like(product);
      residual_norm(product, x, parameter[kNorm2Weight], parameter[kNorm2Bias], eps, v.normed2,
                    v.middle, v.moments2);
    }
    void find_hidden(Values& v, bool want_pre) const {
      if (!v.normed2.defined()) v.normed2 = norm(v.middle, kNorm2Weight, v.moments2);
      if (v.hidden.defined()) return;
      if (v.pre.defined()) {
        v.hidden = new_matrix(v.pre.size(0), v.pre.size(1), v.pre);
        finish(v.pre, {}, act, {}, v.hidden, {});
        return;
      }
      const LinearResult first = layer(v.normed2, kW1, act, {}, want_pre);
      v.hidden = first.out, v.pre = first.pre;
    }
    at::Tensor result(const Values& v) const {
      return last_layer({v.hidden, weight(kW2), as_vector(parameter[kB2])}, v.middle, {}, {});
    }
  };

  static Values kept(const BackwardCall& b) {
    auto value = [&](int which) {
      const at::Tensor& t = b.saved[size_t(kParameters + 1 + which)];
      return t.numel() ? t : at::Tensor();
    };
    return {value(kNormed1),
            value(kQkv),
            value(kAttended),
            value(kLse),
            value(kMiddle),
            value(kNormed2),
            value(kPre),
            value(kHidden),
            {value(kMean1), value(kScale1)},
            {value(kMean2), value(kScale2)}};
  }
};

}  // namespace megafuse
