// How an op is computed: the interface between the registry's side (dispatcher, autograd, autocast)
// and the arithmetic. Pointwise ops share one program, so do row-wise ones; each composite has its
// own. programs.h lists them.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "core/pass.h"
#include "torch/agreement.h"
#include "torch/plain.h"

namespace megafuse {

// Where the random numbers of one call come from, for its backward to draw them again.
struct RandomState {
  uint64_t words[5] = {};
  at::Tensor kept;  // what `words` points into, if anything
  at::ArrayRef<uint64_t> view(const Functor& functor) const {
    return functor.random ? at::ArrayRef<uint64_t>(words, 5) : at::ArrayRef<uint64_t>();
  }
};

// Whether a random op drops some elements and keeps others. PyTorch's dropout takes numbers from
// the generator only then, and so do we: a call that draws nothing leaves it as it was.
inline bool drops_some(const Call& call) {
  const Op& op = *call.op;
  return op.random && call.choice[op.training] && call.number[op.p] > 0 && call.number[op.p] < 1;
}
inline bool draws(const Call& call) {
  return drops_some(call) && call.tensor[call.op->tensors[0]]->numel() > 0;
}

// The call as its kernel sees it: with nothing to drop, `training` is off, and the kernel is one
// that draws nothing.
inline Call without_idle_draws(const Call& call) {
  Call made = call;
  if (call.op->random && !(call.number[call.op->p] > 0)) made.choice[call.op->training] = 0;
  return made;
}

// What a backward pass needs: `saved` in the op's order, and for each gradient whether it is
// wanted and the argument it is for.
struct BackwardCall {
  Call call;                                // numbers and choices only
  c10::SmallVector<at::Tensor, 2> grads;    // per output; undefined where none came, but the first
  c10::SmallVector<at::Tensor, 4> saved;    // undefined: a number, or None
  c10::SmallVector<double, 4> saved_value;  // where saved[i] is undefined: a Python number
  c10::SmallVector<at::Tensor, 4> like;     // per gradient; undefined: shape and dtype of grads[0]
  c10::SmallVector<bool, 4> wanted;
  RandomState random;
};

using Results = c10::SmallVector<at::Tensor, 4>;
using Gradients = std::vector<at::Tensor>;  // per op.grads, undefined where not wanted

struct Program {
  // The outputs, then, if `keep`, the kept results.
  virtual Results forward(const Call&, const Agreement&, const RandomState&, bool keep) const = 0;
  virtual Gradients backward(const BackwardCall&) const = 0;
  virtual ~Program() = default;
};

// What a program other than pointwise runs under: its own calls of PyTorch are neither recorded
// nor cast, and other threads of Python may go on beside a composite.
struct Below {
  explicit Below(const Op& op) {
    if (op.family == OpFamily::kComposite) no_gil.emplace();
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_autocast{kAutocast};
  std::optional<GilRelease> no_gil;
};

inline Results run_forward(const Call& call, const Agreement& agreement, const RandomState& random,
                           bool keep) {
  const Op& op = *call.op;
  try {
    if (C10_LIKELY(op.pointwise())) return op.program->forward(call, agreement, random, keep);
    const Below below(op);
    Results results = op.program->forward(call, agreement, random, keep);
    TORCH_INTERNAL_ASSERT(int(results.size()) >= op.outputs + (keep ? op.kept() : 0));
    return results;
  } catch (const Unbuildable&) {
    op.unbuildable[agreement.device.is_cuda()] = true;
    throw;
  }
}

Gradients python_vjp(const BackwardCall& b);  // python.h

inline Gradients run_backward(const BackwardCall& b) {
  const Op& op = *b.call.op;
  if (!can_build_for(op, b.grads[0].device().type())) return python_vjp(b);
  if (op.pointwise()) {
    try {
      at::AutoDispatchBelowADInplaceOrView below;
      return op.program->backward(b);
    } catch (const UseReference&) {
      return python_vjp(b);
    }
  }
  BackwardCall full = b;
  for (at::Tensor& t : full.like)
    if (!t.defined()) t = b.grads[0];
  try {
    const Below below(op);
    return op.program->backward(full);
  } catch (const UseReference&) {
    return python_vjp(b);
  }
}

}  // namespace megafuse
