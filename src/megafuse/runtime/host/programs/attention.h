// attention(q, k, v, causal, scale, mask): one interface to the kernels of every device, and the
// op's program.
#pragma once

#include <ATen/ops/zeros.h>

#include "programs/attention_cpu.h"
#include "programs/attention_cuda.h"

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
  const AttentionResult whole{with_whole_rows(kept.out), kept.lse};
  return (call.q.is_cuda() ? attention_grad_cuda : attention_grad_cpu)(call, with_whole_rows(dout),
                                                                       whole, wants);
}

struct Attention : Program {
  enum Argument { kQ, kK, kV, kCausal, kScale, kMask };
  enum Saved { kSavedQ, kSavedK, kSavedV, kSavedMask, kSavedOut, kSavedLse };
  enum Gradient { kGradQ, kGradK, kGradV, kGradMask };

  Results forward(const Call& c, const Agreement&, const RandomState&, bool keep) const override {
    const AttentionCall call = read(c, *c.tensor[kQ], *c.tensor[kK], *c.tensor[kV],
                                    c.tensor[kMask] ? *c.tensor[kMask] : at::Tensor());
    AttentionResult result = attention(call, keep);
    if (call.q.stride(-1) != 1) result.out = laid_out_as(call.q, result.out);
    return keep ? Results{result.out, result.lse} : Results{result.out};
  }

  Gradients backward(const BackwardCall& b) const override {
    // A mask's gradient has the size of all scores: PyTorch computes that, and the others with it.
    if (b.wanted[kGradMask]) throw UseReference{};
    const AttentionCall call =
        read(b.call, b.saved[kSavedQ], b.saved[kSavedK], b.saved[kSavedV], b.saved[kSavedMask]);
    const AttentionGradients g =
        attention_grad(call, b.grads[0], {b.saved[kSavedOut], b.saved[kSavedLse]},
                       {b.wanted[kGradQ], b.wanted[kGradK] || b.wanted[kGradV]});
    return {g.dq, b.wanted[kGradK] ? g.dk : at::Tensor(), b.wanted[kGradV] ? g.dv : at::Tensor(),
            at::Tensor()};
  }

 private:
  static AttentionCall read(const Call& c, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& mask) {
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
    const double scale = c.number[kScale];
    return {q,
            k,
            v,
            mask,
            bool(c.choice[kCausal]),
            std::isnan(scale) ? 1.0 / std::sqrt(double(q.size(3))) : scale};
  }
};

}  // namespace megafuse
