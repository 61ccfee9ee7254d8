// The gradients of one pointwise call in one launch, those of broadcast arguments summed on the
// way.
#pragma once

#include <ATen/ops/empty_like.h>

#include "torch/forward.h"

namespace megafuse {

using Which = c10::SmallVector<int, 4>;  // some of the gradients

class Backward {
 public:
  explicit Backward(const BackwardCall& call)
      : b(call),
        op(*call.call.op),
        grad(call.grads[0]),
        shape(grad.sizes().begin(), grad.sizes().end()),
        gradients(op.grads.size()) {
    use_double = grad.scalar_type() == at::kDouble;
    reads.push_back(strides_in(shape, grad.sizes(), grad.strides()));
    for (size_t s = 0; s < b.saved.size(); ++s) {
      if (by_value(s)) continue;
      const at::Tensor& t = b.saved[s];
      use_double |= t.scalar_type() == at::kDouble;
      reads.push_back(strides_in(shape, t.sizes(), t.strides()));
    }
    // An element's random number depends on its place in the index space, so the backward of such
    // an op must walk it as the forward did: in the order of the saved argument's dimensions,
    // whatever the gradient's is.
    at::ArrayRef<Shape> deciding = reads;
    order = memory_order(shape, op.random ? deciding.slice(1) : deciding);
  }

  Gradients run() {
    Which whole, summed;
    for (int i = 0; i < int(op.grads.size()); ++i) {
      if (!b.wanted[i]) continue;
      const bool is_sum = b.like[i].defined() && b.like[i].numel() != grad.numel();
      if (op.grads[i].passthrough && !is_sum && dtype_of(i) == grad.scalar_type())
        gradients[i] = grad;
      else
        (is_sum ? summed : whole).push_back(i);
    }
    if (grad.numel() == 0) {
      for (int i : whole) gradients[i] = at::empty_like(b.like[i].defined() ? b.like[i] : grad);
      for (int i : summed) gradients[i] = at::zeros(b.like[i].sizes(), b.like[i].options());
      return std::move(gradients);
    }
    if (!summed.empty() && !launch(whole, summed)) {
      // No kernel sums along these dimensions: write the gradients whole, then add them up.
      whole.append(summed.begin(), summed.end());
      TORCH_CHECK(launch(whole, {}), "megafuse.", op.name, ": too many dimensions");
      for (int i : summed)
        gradients[i] =
            sum_by_dimension(gradients[i], b.like[i], sum_dtype(grad.device(), use_double));
    } else if (summed.empty() && !whole.empty()) {
      TORCH_CHECK(launch(whole, {}), "megafuse.", op.name, ": too many dimensions");
    }
    for (int i = 0; i < int(gradients.size()); ++i)
      if (gradients[i].defined() && b.like[i].defined())
        gradients[i] = gradients[i].reshape(b.like[i].sizes());
    return std::move(gradients);
  }

 private:
  // As in the forward: a number, also where it came as a zero-dimensional CPU tensor.
  bool by_value(size_t s) const {
    const at::Tensor& t = b.saved[s];
    if (!t.defined()) return true;
    const int arg = op.saved[s];
    const bool number =
        arg >= 0 && op.args[arg].kind == ArgKind::kTensorOrNumber && t.dim() == 0 && grad.dim() > 0;
    return t.is_cpu() && (grad.is_cuda() || number);
  }
  // Which result of the functor it is; -1 is the incoming gradient (kernels/pointwise.h).
  int8_t result_of(int i) const {
    return op.grads[i].passthrough ? int8_t(-1) : int8_t(op.grads[i].result);
  }
  at::ScalarType dtype_of(int i) const {
    return b.like[i].defined() ? b.like[i].scalar_type() : grad.scalar_type();
  }

  // One launch that writes the gradients `whole` and sums those in `summed`; false where their
  // layout does not allow it (nothing is launched then).
  bool launch(const Which& whole, const Which& summed) {
    Pass pass(given_of(b.call), Family::kBackward, shape, grad.device());
    pass.in_order(order);
    Which written;
    for (int i : whole) {
      // Gradients that are the same result in the same dtype share their memory.
      const auto* twin = std::find_if(written.begin(), written.end(), [&](int w) {
        return result_of(w) == result_of(i) && dtype_of(w) == dtype_of(i);
      });
      if (twin != written.end()) {
        gradients[i] = gradients[*twin];
        continue;
      }
      gradients[i] = allocate(shape, is_logical(order) ? Shape() : dense_strides(shape, order),
                              dtype_of(i), grad.device());
      pass.write(gradients[i], result_of(i));
      written.push_back(i);
    }
    for (int i : summed) pass.sum(dtype_of(i), result_of(i), packed_strides(b.like[i].sizes()));
    pass.read(grad);
    for (size_t s = 0; s < b.saved.size(); ++s) {
      const at::Tensor& t = b.saved[s];
      if (by_value(s))
        pass.read(t.defined() ? value_of(t) : b.saved_value[s]);
      else
        pass.read(t);
    }
    const auto sums =
        pass.try_run(use_double ? at::kDouble : at::kFloat, b.random.view(op.functor));
    if (!sums) return false;
    for (size_t s = 0; s < summed.size(); ++s) gradients[summed[s]] = (*sums)[s];
    return true;
  }

  // Contiguous strides of a tensor of these sizes, seen in the whole shape.
  Shape packed_strides(at::IntArrayRef sizes) const {
    Order logical(sizes.size());
    std::iota(logical.rbegin(), logical.rend(), 0);
    Shape seen = strides_in(shape, sizes, dense_strides(sizes, logical));
    const size_t lead = shape.size() - sizes.size();
    for (size_t d = 0; d < sizes.size(); ++d)
      if (sizes[d] == 1) seen[d + lead] = 0;
    return seen;
  }

  const BackwardCall& b;
  const Op& op;
  const at::Tensor& grad;
  Shape shape;
  Order order;                       // of the dimensions in memory
  c10::SmallVector<Shape, 8> reads;  // strides of the gradient and of what was saved
  bool use_double = false;
  Gradients gradients;
};

}  // namespace megafuse
