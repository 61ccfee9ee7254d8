// What the tensors of one call agree on, or that they do not.
#pragma once

#include <cmath>
#include <optional>

#include "core/launch.h"
#include "torch/op.h"

namespace megafuse {

// The arguments do not fit the op; `explain` will say how (Python has the words).
struct BadArguments {};

inline bool is_kernel_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

// What all tensor arguments agree on.
struct Agreement {
  c10::Device device{at::kCPU};
  at::ScalarType common = at::kFloat;  // the dtype PyTorch would compute in
  at::ScalarType out = at::kFloat;
  bool use_double = false;
  bool by_value[kMaxArgs] = {};
  bool same_shape = true;  // all tensors not taken by value have one shape and are contiguous
};

inline bool can_build_for(c10::DeviceType type) {
  static std::atomic<int> known[2] = {{-1}, {-1}};
  std::atomic<int>& answer = known[type == at::kCUDA];
  if (C10_LIKELY(answer.load(std::memory_order_relaxed) >= 0)) return answer == 1;
  GilAcquire gil;
  Owned result(
      PyObject_CallFunction(python_side.available, "s", type == at::kCUDA ? "cuda" : "cpu"));
  return (answer = PyObject_IsTrue(result.object)) == 1;
}

// The same for one op, once one of its kernels has turned out to be unbuildable. From then on
// neither its forward nor its backward has kernels: one must not read what the other's reference
// never wrote.
inline bool can_build_for(const Op& op, c10::DeviceType type) {
  return C10_LIKELY(!op.unbuildable[type == at::kCUDA].load(std::memory_order_relaxed)) &&
         can_build_for(type);
}

// PyTorch's type promotion: tensors with dimensions decide, zero-dimensional ones only
// where they are of a higher category, Python numbers not at all.
class Promotion {
 public:
  void see(at::ScalarType dtype, bool has_dims) {
    at::ScalarType& slot = has_dims ? dims_ : zeros_;
    slot =
        slot == at::ScalarType::Undefined || slot == dtype ? dtype : c10::promoteTypes(slot, dtype);
  }
  // float32 where only integers were seen.
  at::ScalarType result() const {
    if (dims_ == at::ScalarType::Undefined) return floating(zeros_);
    if (at::isFloatingType(dims_) || zeros_ == at::ScalarType::Undefined) return floating(dims_);
    return floating(at::isFloatingType(zeros_) ? zeros_ : dims_);
  }

 private:
  static at::ScalarType floating(at::ScalarType t) {
    return at::isFloatingType(t) ? t : at::kFloat;
  }
  at::ScalarType dims_ = at::ScalarType::Undefined, zeros_ = at::ScalarType::Undefined;
};

// Whether a kernel that knows x's, the divisor's and the common dtype rounds their quotient as
// PyTorch does. A zero-dimensional divisor does not change the quotient's dtype, and a
// zero-dimensional x does only beside other zero-dimensional tensors.
inline bool can_round_quotient(const at::Tensor& x, const at::Tensor* divisor,
                               at::ScalarType common) {
  return x.dim() > 0 && (!divisor || divisor->dim() > 0 || x.scalar_type() == common ||
                         x.scalar_type() == divisor->scalar_type());
}

// Pointwise: dtypes promote, shapes broadcast (forward.h sees to that).
inline Agreement agree_pointwise(const Call& call) {
  const Op& op = *call.op;
  Agreement a;
  const at::Tensor* first = nullptr;
  bool any_cuda = false, any_dims = false;
  for (int arg : op.tensors)
    if (const at::Tensor* t = call.tensor[arg]) any_cuda |= t->is_cuda(), any_dims |= t->dim() > 0;
  Promotion promotion;
  for (int arg : op.tensors) {
    const at::Tensor* t = call.tensor[arg];
    // What may be a number is one also as a zero-dimensional CPU tensor beside a first argument
    // that has dimensions: it promotes nothing.
    const bool number = op.args[arg].kind == ArgKind::kTensorOrNumber && t && t->dim() == 0 &&
                        t->is_cpu() && call.tensor[0]->dim() > 0 &&
                        !(op.differentiable() && t->requires_grad());
    a.by_value[arg] = !t || number || (any_cuda && t->is_cpu());
    if (!t) continue;
    at::ScalarType dtype = t->scalar_type();
    if (!is_kernel_dtype(dtype)) throw BadArguments{};
    if (op.args[arg].kind == ArgKind::kTensor && !at::isFloatingType(dtype)) throw BadArguments{};
    if (a.by_value[arg]) {
      if (t->dim() != 0) throw BadArguments{};
    } else if (!first) {
      first = t;
      a.device = t->device();
      a.same_shape = t->is_contiguous();
    } else {
      if (t->device() != a.device) throw BadArguments{};
      a.same_shape = a.same_shape && t->is_contiguous() && t->sizes() == first->sizes();
    }
    if (arg == 0 && op.dtype_like >= 0) {
      const at::Tensor* like = call.tensor[op.dtype_like];
      dtype = like && at::isFloatingType(like->scalar_type()) ? like->scalar_type() : at::kFloat;
    }
    promotion.see(dtype, t->dim() > 0);
  }
  if (!first) throw BadArguments{};
  a.common = promotion.result();
  if (op.inverted >= 0 && any_dims &&
      !can_round_quotient(*first, a.by_value[op.inverted] ? nullptr : call.tensor[op.inverted],
                          a.common))
    throw UseReference{};
  a.use_double = a.common == at::kDouble;
  a.out = op.fixed_dtype != at::ScalarType::Undefined ? op.fixed_dtype : a.common;
  return a;
}

// The sizes that the letters of shape rules stand for, as they are met.
class Sizes {
 public:
  bool fit(const ShapeRule& rule, at::IntArrayRef shape) {
    if (!rule.given) return true;
    const size_t named = rule.sizes.size();
    if (rule.leading ? shape.size() < named : shape.size() != named) return false;
    const at::IntArrayRef lead = shape.slice(0, shape.size() - named);
    if (rule.leading && leading_ && *leading_ != lead) return false;
    if (rule.leading) leading_ = lead;
    for (size_t i = 0; i < named; ++i) {
      int64_t& size = size_[rule.sizes[i].letter - 'A'];
      const int64_t here = shape[lead.size() + i];
      if (size < 0) size = here;
      if (size * rule.sizes[i].times != here) return false;
    }
    return true;
  }

  Sizes() { std::fill(std::begin(size_), std::end(size_), -1); }

 private:
  int64_t size_[26];
  std::optional<at::IntArrayRef> leading_;
};

// Other families: one device, one dtype but for arguments that have their own, shapes by the op's
// rules.
inline Agreement agree_by_rule(const Call& call) {
  const Op& op = *call.op;
  Agreement a;
  bool first = true, shared = false;
  Sizes sizes;
  for (int arg : op.tensors) {
    const at::Tensor* t = call.tensor[arg];
    if (!t) continue;
    const bool own = op.args[arg].own_dtype;
    const at::ScalarType dtype = t->scalar_type();
    const bool floating = at::isFloatingType(dtype);
    if (!is_kernel_dtype(dtype) || (op.args[arg].kind == ArgKind::kTensor && !floating))
      throw BadArguments{};
    if (first) a.device = t->device();
    if (first || (!own && !shared)) a.common = dtype;
    if (t->device() != a.device || (!own && dtype != a.common)) throw BadArguments{};
    first = false, shared |= !own;
    if (!sizes.fit(op.args[arg].shape, t->sizes())) throw BadArguments{};
  }
  if (first) throw BadArguments{};
  a.use_double = a.common == at::kDouble;
  a.out = a.common;
  return a;
}

inline Agreement agree(const Call& call) {
  const Op& op = *call.op;
  const Agreement a = op.pointwise() ? agree_pointwise(call) : agree_by_rule(call);
  for (int arg : op.numbers) {
    const double number = call.number[arg];
    if (op.args[arg].optional && std::isnan(number)) continue;
    if (!(number >= op.args[arg].least && number <= op.args[arg].most)) throw BadArguments{};
  }
  if (!can_build_for(op, a.device.type())) throw UseReference{};
  return a;
}

}  // namespace megafuse
