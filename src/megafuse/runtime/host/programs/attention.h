// attention(q, k, v, causal, scale, mask): one interface to the kernels of every device, and the
// op's program.
#pragma once

#include <ATen/ops/zeros.h>

#include "programs/attention_cpu.h"
#include "programs/attention_cuda.h"
#include "torch/named.h"

namespace megafuse {

// out, laid out as q, and, if `keep`, what the backward needs.
inline AttentionResult attention(AttentionCall call, bool keep) {
  call.q = with_whole_rows(call.q), call.k = with_whole_rows(call.k);
  call.v = with_whole_rows(call.v);
  if (call.q.numel() == 0 || call.k.numel() == 0) {
    AttentionResult result{allocate_like(call.q), keep ? new_lse(call) : at::Tensor()};
    result.out.zero_();
    if (keep) result.lse.zero_();
    return result;
  }
  return call.q.is_cuda() ? attention_cuda(call, keep) : attention_cpu(call, keep);
}

// With one key every weight is 1, whatever the scores are, or 0 where the key is hidden: q and k
// have no gradient, and v's is the sum over its queries. Kernels with tiles compute p (dp - sum)
// instead, where dp and the sum are rounded apart, and a model whose sequences have one token sees
// that error alone. `none` is 0, and NaN where the score is not finite.
inline AttentionGradients one_key_grad(const AttentionCall& call, const at::Tensor& dout,
                                       const AttentionResult& kept, AttentionWants wants) {
  const int64_t share = call.heads() / call.key_heads();
  auto of_key_heads = [&](const at::Tensor& t) {
    return t.unflatten(1, {call.key_heads(), share}).sum(at::IntArrayRef{2, 3}).unsqueeze(2);
  };
  auto where_seen = [&](const at::Tensor& t) {
    if (!call.mask.defined()) return t;
    const at::Tensor mask = call.whole_mask();
    const at::Tensor seen = mask.scalar_type() == at::kBool ? mask : mask.ne(-INFINITY);
    return at::where(seen, t, at::zeros({}, t.options()));
  };
  const at::Tensor none = where_seen(kept.lse.sub(kept.lse).unsqueeze(3));
  const AttentionGradients gradients = allocate_gradients(call, wants);
  if (gradients.dq.defined()) gradients.dq.copy_(none.expand_as(call.q));
  if (gradients.dk.defined()) gradients.dk.copy_(of_key_heads(none).expand_as(call.k));
  if (gradients.dv.defined()) gradients.dv.copy_(of_key_heads(where_seen(dout.add(none))));
  return gradients;
}

// The gradients that are wanted, from dout and what the forward kept.
inline AttentionGradients attention_grad(AttentionCall call, const at::Tensor& dout,
                                         const AttentionResult& kept, AttentionWants wants) {
  call.q = with_whole_rows(call.q), call.k = with_whole_rows(call.k);
  call.v = with_whole_rows(call.v);
  if (call.q.numel() == 0 || call.k.numel() == 0) {
    AttentionGradients gradients = allocate_gradients(call, wants);
    for (const at::Tensor* t : {&gradients.dq, &gradients.dk, &gradients.dv})
      if (t->defined()) t->zero_();
    return gradients;
  }
  if (call.q.is_cuda() && call.keys() == 1) return one_key_grad(call, dout, kept, wants);
  const AttentionResult whole{with_whole_rows(kept.out), kept.lse};
  return (call.q.is_cuda() ? attention_grad_cuda : attention_grad_cpu)(call, with_whole_rows(dout),
                                                                       whole, wants);
}

class Attention : public Program {
 public:
  explicit Attention(const Op& op)
      : q_(op, "q"),
        k_(op, "k"),
        v_(op, "v"),
        mask_(op, "mask"),
        causal_(op, "causal"),
        scale_(op, "scale"),
        out_(op, "out"),
        lse_(op, "lse") {}

  Results forward(const Call& c, const Agreement&, const RandomState&, bool keep) const override {
    const AttentionCall call = read(c, c);
    AttentionResult result = attention(call, keep);
    if (call.q.stride(-1) != 1) result.out = laid_out_as(call.q, result.out);
    Results results = results_of(*c.op, keep);
    out_.of(results) = result.out;
    if (keep) lse_.of(results) = result.lse;
    return results;
  }

  Gradients backward(const BackwardCall& b) const override {
    // A mask's gradient has the size of all scores: PyTorch computes that, and the others with it.
    if (mask_.wanted(b)) throw UseReference{};
    const bool wants_k = k_.wanted(b), wants_v = v_.wanted(b);
    const AttentionGradients found = attention_grad(
        read(b.call, b), b.grads[0], {out_.of(b), lse_.of(b)}, {q_.wanted(b), wants_k || wants_v});
    Gradients gradients(b.wanted.size());
    q_.of(gradients) = found.dq;
    if (wants_k) k_.of(gradients) = found.dk;
    if (wants_v) v_.of(gradients) = found.dv;
    return gradients;
  }

 private:
  // The tensors are in the call, or among what it saved.
  template <class Holder>
  AttentionCall read(const Call& c, const Holder& holder) const {
    const at::Tensor &q = q_.of(holder), &k = k_.of(holder), &mask = mask_.of(holder);
    if (k.size(1) == 0 ? q.size(1) != 0 : q.size(1) % k.size(1) != 0) throw BadArguments{};
    if (mask.defined()) {
      const int64_t whole[] = {q.size(0), q.size(1), q.size(2), k.size(2)};
      if (mask.dim() > 4 ||
          !(at::isFloatingType(mask.scalar_type()) || mask.scalar_type() == at::kBool))
        throw BadArguments{};
      for (int64_t d = 0; d < mask.dim(); ++d) {
        const int64_t size = mask.size(mask.dim() - 1 - d);
        if (size != 1 && size != whole[3 - d]) throw BadArguments{};
      }
    }
    const double scale = scale_.of(c);
    return {q,
            k,
            v_.of(holder),
            mask,
            causal_.of(c),
            std::isnan(scale) ? 1.0 / std::sqrt(double(q.size(3))) : scale};
  }

  Argument q_, k_, v_, mask_;
  Flag causal_;
  Number scale_;
  Result out_, lse_;
};

}  // namespace megafuse
