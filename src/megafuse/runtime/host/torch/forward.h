// One pointwise call on plain tensors: the output, the index space, the launch.
#pragma once

#include <optional>

#include "torch/program.h"

namespace megafuse {

// A number as a tensor operand: either a Python number or a zero-dimensional CPU tensor
// beside CUDA tensors, which PyTorch also takes by value.
inline double value_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return *t.const_data_ptr<double>();
    case at::kFloat:
      return *t.const_data_ptr<float>();
    case at::kHalf:
      return float(*t.const_data_ptr<at::Half>());
    case at::kBFloat16:
      return float(*t.const_data_ptr<at::BFloat16>());
    case at::kLong:
      return double(*t.const_data_ptr<int64_t>());
    case at::kInt:
      return double(*t.const_data_ptr<int32_t>());
    case at::kShort:
      return double(*t.const_data_ptr<int16_t>());
    case at::kChar:
      return double(*t.const_data_ptr<int8_t>());
    case at::kByte:
      return double(*t.const_data_ptr<uint8_t>());
    case at::kBool:
      return double(*t.const_data_ptr<bool>());
    default:
      throw BadArguments{};
  }
}

// Launches without the GIL where that is worth its 0.1 µs.
inline void run(Request& request, Space& space, at::ArrayRef<uint64_t> random) {
  std::optional<CudaScope> scope;
  std::optional<GilRelease> no_gil;
  if (request.device.is_cuda()) {
    scope.emplace(request.device);
    request.vector = vector_width(space);
    const int most = most_vector_width(space);
    if (C10_UNLIKELY(request.vector < most) && cut_across(space, most)) {
      request.across = true;
      request.vector = most;
    }
    request.wide_index = needs_64_bits(space);
  }
  // On the CPU where a row is so short that a loop of its own costs more than it does.
  constexpr int64_t kFewElements = 64;
  if (request.device.is_cpu() && space.dims > 1 && space.size[0] < kFewElements)
    request.across = cut_across(space, 1);
  if (request.device.is_cuda() || space.numel > 4096) no_gil.emplace();
  launch(request, space, random);
}

// out = op(call).
inline at::Tensor forward(const Call& call, const Agreement& a, const RandomState& random) {
  const Op& op = *call.op;
  Space space;
  space.outputs = 1;
  c10::SmallVector<Shape, 8> strides;
  at::Tensor out;
  auto add_operands = [&] {
    space.add(a.out, 'c', out.mutable_data_ptr());
    for (int arg : op.tensors) {
      const at::Tensor* t = call.tensor[arg];
      if (a.by_value[arg]) {
        const double value = t ? value_of(*t) : call.number[arg];
        space.add_value(arg == op.inverted && a.device.is_cuda() ? 1.0 / value : value);
      } else {
        space.add(t->scalar_type(), 'c', t->const_data_ptr());
      }
    }
  };
  Request request{call, Family::kForward, a.device, a.common, a.use_double};
  if (C10_LIKELY(a.same_shape)) {
    const at::Tensor* like = nullptr;
    for (int arg : op.tensors)
      if (!like && !a.by_value[arg]) like = call.tensor[arg];
    out = allocate(like->sizes(), {}, a.out, a.device);
    space.numel = like->numel();
    if (space.numel == 0) return out;
    add_operands();
    space.size[0] = space.numel;
    for (int i = 0; i < space.operands; ++i) space.operand[i].stride[0] = 1;
  } else {
    Shape shape;
    for (int arg : op.tensors)
      if (!a.by_value[arg] && !broadcast_into(shape, call.tensor[arg]->sizes()))
        throw BadArguments{};
    if (shape.size() > kMaxDims * 4) throw UseReference{};
    for (int arg : op.tensors)
      if (!a.by_value[arg])
        strides.push_back(
            strides_in(shape, call.tensor[arg]->sizes(), call.tensor[arg]->strides()));
    const Order order = memory_order(shape, strides);
    const Shape out_strides = dense_strides(shape, order);
    out = allocate(shape, is_logical(order) ? at::IntArrayRef() : at::IntArrayRef(out_strides),
                   a.out, a.device);
    space.numel = out.numel();
    if (space.numel == 0) return out;
    add_operands();
    strides.insert(strides.begin(), out_strides);
    if (!lay_out(space, shape, strides, order)) throw UseReference{};
    set_walks(space);
  }
  run(request, space, random.view(op));
  return out;
}

}  // namespace megafuse
