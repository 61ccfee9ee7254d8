// One call of attention on tensors, and what it gives.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "torch/program.h"

namespace megafuse {

// out = softmax(q kᵀ scale + mask) v: q [B, H, S, D], k and v [B, G, T, D], all of any strides.
struct AttentionCall {
  at::Tensor q, k, v;
  at::Tensor mask;  // added (float) or true where a query may look (bool); broadcasts; or undefined
  bool causal = false;
  double scale = 1;

  int64_t batches() const { return q.size(0); }
  int64_t heads() const { return q.size(1); }
  int64_t key_heads() const { return k.size(1); }
  int64_t queries() const { return q.size(2); }
  int64_t keys() const { return k.size(2); }
  int64_t dim() const { return q.size(3); }
  bool grouped() const { return heads() != key_heads(); }
  // The mask as [B, H, S, T], a view.
  at::Tensor whole_mask() const { return mask.expand({batches(), heads(), queries(), keys()}); }
};

// What kernels are compiled for: the mask's dtype, or -1 and "" where there is none.
inline int mask_dtype(const AttentionCall& call) {
  return call.mask.defined() ? int(call.mask.scalar_type()) : -1;
}
inline const char* mask_dtype_name(const AttentionCall& call) {
  return call.mask.defined() ? c10::toString(call.mask.scalar_type()) : "";
}

struct AttentionResult {
  at::Tensor out;  // laid out as q
  at::Tensor lse;  // log of the sum of exponentials by [B, H, S], undefined if not kept
};

// Which gradients are wanted: `packed` asks for all three as one [B, S, 3, H, D], as the gradient
// of a projection that q, k and v are views of.
struct AttentionWants {
  bool query = true, keys = true, packed = false;
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;  // undefined where not wanted
  at::Tensor packed = {};
};

// Memory for what is wanted, each gradient laid out as its argument.
inline AttentionGradients allocate_gradients(const AttentionCall& call, AttentionWants wants) {
  if (!wants.packed)
    return {wants.query ? allocate_like(call.q) : at::Tensor(),
            wants.keys ? allocate_like(call.k) : at::Tensor(),
            wants.keys ? allocate_like(call.v) : at::Tensor()};
  at::Tensor packed = allocate({call.batches(), call.queries(), 3, call.heads(), call.dim()}, {},
                               call.q.scalar_type(), call.q.device());
  auto part = [&](int64_t i) { return packed.select(2, i).transpose(1, 2); };
  return {part(0), part(1), part(2), packed};
}

// Gradients that a kernel of torch's allocated, as they are wanted.
inline AttentionGradients as_wanted(const AttentionCall& call, AttentionWants wants,
                                    const at::Tensor& dq, const at::Tensor& dk,
                                    const at::Tensor& dv) {
  if (!wants.packed)
    return {wants.query ? dq : at::Tensor(), wants.keys ? dk : at::Tensor(),
            wants.keys ? dv : at::Tensor()};
  AttentionGradients gradients = allocate_gradients(call, wants);
  at::stack_out(gradients.packed, {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)}, 2);
  return gradients;
}

// Every kernel, torch's and ours, gives the same natural logarithms, so that any backward goes with
// any forward.
inline at::Tensor new_lse(const AttentionCall& call) {
  const bool is_double = call.q.scalar_type() == at::kDouble;
  return allocate({call.batches(), call.heads(), call.queries()}, {},
                  is_double ? at::kDouble : at::kFloat, call.q.device());
}

// The mask as torch's kernels want it: floating point, of q's dtype, four-dimensional.
inline at::Tensor additive_mask(const AttentionCall& call) {
  if (!call.mask.defined()) return {};
  at::Tensor mask = call.mask;
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  if (mask.scalar_type() != at::kBool) return mask.to(call.q.scalar_type());
  const auto options = call.q.options();
  return at::where(mask, at::zeros({}, options), at::full({}, -INFINITY, options));
}

// Rows whose elements lie one after the other, as every kernel wants them.
inline at::Tensor with_whole_rows(const at::Tensor& t) {
  return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous();
}

// The problem as kernels read it: AttentionProblem of kernels/attention.h, word by word.
struct AttentionWords {
  struct View {
    uint64_t address = 0;
    int64_t batch = 0, head = 0, token = 0;
    View() = default;
    View(const at::Tensor& t) {
      if (!t.defined()) return;
      address = reinterpret_cast<uint64_t>(t.const_data_ptr());
      batch = t.stride(0), head = t.stride(1), token = t.stride(2);
    }
  };
  uint64_t wanted = 0;
  int64_t batches, heads, key_heads, queries, keys, dim;
  double scale;
  int64_t causal;
  View q, k, v, out, lse, mask;
  int64_t mask_key = 0;
  View dout, dq, dk, dv;
  int64_t together = 1;
  uint64_t scratch = 0, scratch_bytes = 0;
  int64_t aligned = 0;

  static constexpr uint64_t kGradQuery = 1, kGradKeys = 2;

  AttentionWords(const AttentionCall& c, const at::Tensor& to, const at::Tensor& sums)
      : batches(c.batches()),
        heads(c.heads()),
        key_heads(c.key_heads()),
        queries(c.queries()),
        keys(c.keys()),
        dim(c.dim()),
        scale(c.scale),
        causal(c.causal),
        q(c.q),
        k(c.k),
        v(c.v),
        out(to),
        lse(sums) {
    if (!c.mask.defined()) return;
    const at::Tensor whole = c.whole_mask();
    mask = whole;
    mask_key = whole.stride(3);
  }

  void want(const at::Tensor& grad, const AttentionGradients& to) {
    dout = grad, dq = to.dq, dk = to.dk, dv = to.dv;
    wanted = (to.dq.defined() ? kGradQuery : 0) | (to.dk.defined() ? kGradKeys : 0);
  }

  const uint64_t* data() const { return reinterpret_cast<const uint64_t*>(this); }
};
static_assert(sizeof(AttentionWords) == 54 * sizeof(uint64_t));

}  // namespace megafuse
