// The gradients of one call in one launch, those of broadcast arguments summed on the way.
#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "forward.h"

namespace megafuse {

// What a backward pass needs: `saved` in the op's order, and for each gradient whether it is
// wanted and, where it differs from the incoming gradient in shape or dtype, its argument.
struct BackwardCall {
  Call call;  // numbers and choices only
  at::Tensor grad;
  c10::SmallVector<at::Tensor, 4> saved;
  c10::SmallVector<double, 4> saved_value;  // where saved[i] is undefined: a Python number
  c10::SmallVector<at::Tensor, 4> like;     // per gradient; undefined: as the incoming one
  c10::SmallVector<bool, 4> wanted;
  RandomState random;
};

using Gradients = std::vector<at::Tensor>;  // per gradient, undefined where not wanted

// A backward whose sums can be taken inside the kernel: the index space is (A, K, B) with
// all summed arguments varying along K alone. B == 1 sums columns, else rows are summed.
struct SumPlan {
  bool possible = false;
  int64_t outer = 1, kept = 1, inner = 1;
};

// Recasts a laid-out space into exactly those three dimensions (inner, kept, outer).
inline SumPlan plan_sum(Space& space) {
  SumPlan plan;
  std::string pattern;
  for (int d = 0; d < space.dims; ++d) {
    char kind = 0;
    for (int i = 0; i < space.outputs; ++i) {
      const Operand& op = space.operand[i];
      if (op.walk != 'r') continue;
      const char here = op.stride[d] ? 'K' : 'R';
      if (kind && kind != here) return plan;
      kind = here;
    }
    pattern += kind;
  }
  int place[3];  // of inner, kept, outer among the dimensions, or -1
  if (pattern == "R") place[0] = 0, place[1] = -1, place[2] = -1;
  else if (pattern == "RK") place[0] = 0, place[1] = 1, place[2] = -1;
  else if (pattern == "KR") place[0] = -1, place[1] = 0, place[2] = 1;
  else if (pattern == "RKR") place[0] = 0, place[1] = 1, place[2] = 2;
  else return plan;
  int64_t size[3];
  for (int p = 0; p < 3; ++p) size[p] = place[p] < 0 ? 1 : space.size[place[p]];
  for (int i = 0; i < space.operands; ++i) {
    Operand& op = space.operand[i];
    int64_t stride[3];
    for (int p = 0; p < 3; ++p) stride[p] = place[p] < 0 ? 0 : op.stride[place[p]];
    if (op.walk == 'r' && place[1] >= 0 && stride[1] != 1) return plan;
    std::copy(stride, stride + 3, op.stride);
  }
  std::copy(size, size + 3, space.size);
  space.dims = 3;
  plan.possible = true;
  plan.inner = size[0], plan.kept = size[1], plan.outer = size[2];
  return plan;
}

// Runs a summing kernel. Every block (or thread) sums its part into a row of its own in
// `partial`, and the rows are added up afterwards in a fixed order: deterministic.
inline void launch_sum(Request& request, Space& space, const SumPlan& plan,
                       c10::SmallVector<at::Tensor, 4>& sums) {
  const bool columns = plan.inner == 1;
  request.family = columns ? Family::kReduceColumns : Family::kReduceRows;
  const int along = columns ? 1 : 0;
  set_walks(space, along);
  const bool cuda = request.device.is_cuda();
  std::optional<CudaScope> scope;
  if (cuda) {
    scope.emplace(request.device);
    request.vector = vector_width(space, along);
    request.wide_index = needs_64_bits(space);
  }
  std::array<double, kMaxArgs> storage;
  const auto numbers = numbers_of(request.call, storage);
  const Compiled kernel = KernelTable::get().find(request, space);

  // How the work is cut up.
  int64_t parts = 1;
  unsigned grid_x = 1, grid_y = 1;
  if (cuda && columns) {
    // Blocks of 32 x 8 threads: 32 vectors wide, 8 rows at a time.
    const int64_t tiles = (plan.kept + 32 * request.vector - 1) / (32 * request.vector);
    parts = std::clamp<int64_t>(kernel.max_grid / tiles, 1, (plan.outer + 31) / 32);
    parts = std::min<int64_t>(parts, 65535);
    grid_x = unsigned(tiles), grid_y = unsigned(parts);
  } else if (cuda) {
    // One block per row, or several where there are few rows.
    const int64_t rows = plan.kept * plan.outer;
    const int64_t per_turn = int64_t(kernel.block) * request.vector;
    const int64_t turns = (plan.inner + per_turn - 1) / per_turn;
    const int64_t cuts = std::clamp<int64_t>(kernel.max_grid / rows, 1, std::min<int64_t>(turns, 65535));
    parts = plan.outer * cuts;
    grid_x = unsigned(rows), grid_y = unsigned(cuts);
  } else {
    parts = at::get_num_threads();
  }
  const auto options = at::TensorOptions()
                           .dtype(request.use_double ? at::kDouble : at::kFloat)
                           .device(request.device);
  int count = 0;
  for (int i = 0; i < space.outputs; ++i) count += space.operand[i].walk == 'r';
  at::Tensor partial = cuda ? at::empty({parts, count, plan.kept}, options)
                            : at::zeros({parts, count, plan.kept}, options);
  const int64_t row_bytes = plan.kept * partial.element_size();
  for (int i = 0, n = 0; i < space.outputs; ++i) {
    Operand& op = space.operand[i];
    if (op.walk != 'r') continue;
    op.word = reinterpret_cast<uint64_t>(partial.mutable_data_ptr()) + uint64_t(n++ * row_bytes);
    op.stride[2] = count * plan.kept;  // from one part to the next
  }
  const Words words = pack(space, numbers, {}, 1);
  {
    GilRelease no_gil;
    if (cuda) {
      launch_cuda(kernel, request.device, grid_x, grid_y, words);
    } else {
      launches.fetch_add(1, std::memory_order_relaxed);
      const auto function = reinterpret_cast<CpuKernel>(kernel.function);
      auto run = [&](int64_t begin, int64_t end, int64_t slot) {
        function(words.data(), begin, end, slot);
      };
      if (columns)
        split(plan.outer, plan.kept, 1, parts, run);
      else
        split(space.numel, 1, 64, parts, run);
    }
  }
  at::Tensor total = parts == 1 ? partial.squeeze(0) : at::sum(partial, {0});
  for (int n = 0; n < count; ++n) sums.push_back(total.select(0, n));
}

inline Gradients backward(const BackwardCall& b) {
  at::AutoDispatchBelowADInplaceOrView below;
  const Op& op = *b.call.op;
  const size_t n = op.grads.size();
  const at::Tensor& grad = b.grad;
  Gradients gradients(n);

  bool use_double = grad.scalar_type() == at::kDouble;
  bool same_shape = grad.is_contiguous();
  for (const at::Tensor& t : b.saved)
    if (t.defined() && !(t.dim() == 0 && t.is_cpu() && grad.is_cuda())) {
      use_double |= t.scalar_type() == at::kDouble;
      same_shape &= t.is_contiguous() && t.sizes() == grad.sizes();
    }
  const at::ScalarType compute = use_double ? at::kDouble : at::kFloat;

  // Which gradients are written in full, and which are sums.
  c10::SmallVector<int, 4> full, summed;
  for (size_t i = 0; i < n; ++i) {
    if (!b.wanted[i]) continue;
    const bool is_sum = b.like[i].defined() && b.like[i].numel() != grad.numel();
    const at::ScalarType dtype = b.like[i].defined() ? b.like[i].scalar_type() : grad.scalar_type();
    if (op.grads[i].passthrough && !is_sum && dtype == grad.scalar_type())
      gradients[i] = grad;
    else
      (is_sum ? summed : full).push_back(int(i));
  }
  auto dtype_of = [&](int i) {
    return b.like[i].defined() ? b.like[i].scalar_type() : grad.scalar_type();
  };
  auto reshaped = [&](at::Tensor t, int i) {
    return b.like[i].defined() ? t.reshape(b.like[i].sizes()) : t;
  };
  if (grad.numel() == 0) {
    for (int i : full) gradients[i] = at::empty_like(b.like[i].defined() ? b.like[i] : grad);
    for (int i : summed) gradients[i] = at::zeros(b.like[i].sizes(), b.like[i].options());
    return gradients;
  }

  // The index space: grad and what was saved, in the order of their memory.
  const Shape shape(grad.sizes().begin(), grad.sizes().end());
  c10::SmallVector<Shape, 8> in_strides;
  in_strides.push_back(strides_in(shape, grad.sizes(), grad.strides()));
  auto by_value = [&](const at::Tensor& t) {
    return !t.defined() || (t.is_cpu() && grad.is_cuda());
  };
  for (const at::Tensor& t : b.saved)
    if (!by_value(t)) in_strides.push_back(strides_in(shape, t.sizes(), t.strides()));
  Order order(shape.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (!same_shape && !op.random) order = memory_order(shape, in_strides);
  const Shape out_strides = dense_strides(shape, order);
  const bool logical = is_logical(order);

  auto attempt = [&](const c10::SmallVector<int, 4>& whole, const c10::SmallVector<int, 4>& sums) {
    Space space;
    c10::SmallVector<Shape, 8> strides;
    space.numel = grad.numel();
    c10::SmallVector<int, 4> written;  // `whole` less those that share another's memory
    c10::SmallVector<at::Tensor, 4> memory;
    for (int i : whole) {
      bool shared = false;
      for (size_t w = 0; w < written.size() && !shared; ++w)
        if (op.grads[written[w]].result == op.grads[i].result && dtype_of(written[w]) == dtype_of(i)) {
          gradients[i] = memory[w];
          shared = true;
        }
      if (shared) continue;
      at::Tensor out = allocate(shape, logical ? at::IntArrayRef() : at::IntArrayRef(out_strides),
                                dtype_of(i), grad.device());
      space.add(dtype_of(i), 'c', out.mutable_data_ptr()).result = int8_t(op.grads[i].result);
      strides.push_back(out_strides);
      gradients[i] = out;
      written.push_back(i);
      memory.push_back(out);
    }
    for (int i : sums) {
      space.add(compute, 'r', nullptr).result = int8_t(op.grads[i].result);
      Order like_order(b.like[i].dim());
      std::iota(like_order.rbegin(), like_order.rend(), 0);
      // Strides of the kept elements as if packed in the space's own order of dimensions.
      Shape sizes(shape.size(), 1);
      std::copy(b.like[i].sizes().begin(), b.like[i].sizes().end(), sizes.end() - b.like[i].dim());
      Shape packed(shape.size(), 0);
      int64_t next = 1;
      for (int64_t d : Order([&] {
             Order o(shape.size());
             std::iota(o.rbegin(), o.rend(), 0);
             return o;
           }())) {
        if (sizes[d] != 1) packed[d] = next;
        next *= sizes[d];
      }
      strides.push_back(packed);
    }
    space.outputs = space.operands;
    space.add(grad.scalar_type(), 'c', grad.const_data_ptr());
    for (size_t s = 0; s < b.saved.size(); ++s) {
      const at::Tensor& t = b.saved[s];
      if (by_value(t))
        space.add_value(t.defined() ? value_of(t) : b.saved_value[s]);
      else
        space.add(t.scalar_type(), 'c', t.const_data_ptr());
    }
    strides.append(in_strides.begin(), in_strides.end());
    if (!lay_out(space, shape, strides, order)) return false;
    Request request{b.call, Family::kBackward, grad.device(), compute, use_double};
    if (sums.empty()) {
      set_walks(space);
      run(request, space, b.random.view(op));
      return true;
    }
    const SumPlan plan = plan_sum(space);
    if (!plan.possible) return false;
    c10::SmallVector<at::Tensor, 4> totals;
    launch_sum(request, space, plan, totals);
    for (size_t s = 0; s < sums.size(); ++s) gradients[sums[s]] = totals[s].to(dtype_of(sums[s]));
    return true;
  };

  if (!full.empty() || !summed.empty()) {
    if (summed.empty() || !attempt(full, summed)) {
      // Sums that do not fit the kernel: write them in full, then add them up.
      c10::SmallVector<int, 4> all = full;
      all.append(summed.begin(), summed.end());
      if (!attempt(all, {})) throw UseReference{};
      for (int i : summed) gradients[i] = at::sum_to(gradients[i], b.like[i].sizes());
    }
  }
  for (size_t i = 0; i < n; ++i)
    if (gradients[i].defined()) gradients[i] = reshaped(gradients[i], int(i));
  return gradients;
}

}  // namespace megafuse
