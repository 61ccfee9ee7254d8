// One pointwise call on plain tensors: the output, the index space, the launch.
#pragma once

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

// out = op(call).
inline at::Tensor forward(const Call& call, const Agreement& a, const RandomState& random) {
  const Op& op = *call.op;
  const Given given = given_of(call);
  auto value = [&](int arg) {
    const double number = call.tensor[arg] ? value_of(*call.tensor[arg]) : call.number[arg];
    return arg == op.inverted && a.device.is_cuda() ? 1.0 / number : number;
  };
  if (C10_LIKELY(a.same_shape)) {  // one long row
    const at::Tensor* like = nullptr;
    for (int arg : op.tensors)
      if (!like && !a.by_value[arg]) like = call.tensor[arg];
    at::Tensor out = allocate(like->sizes(), {}, a.out, a.device);
    Space space;
    space.numel = like->numel();
    if (space.numel == 0) return out;
    space.outputs = 1;
    space.add(a.out, 'c', out.mutable_data_ptr());
    for (int arg : op.tensors) {
      if (a.by_value[arg])
        space.add_value(value(arg));
      else
        space.add(call.tensor[arg]->scalar_type(), 'c', call.tensor[arg]->const_data_ptr());
    }
    space.size[0] = space.numel;
    for (int i = 0; i < space.operands; ++i) space.operand[i].stride[0] = 1;
    Request request{given, Family::kForward, a.device, a.common, a.use_double};
    run_pointwise(request, space, random.view(op.functor));
    return out;
  }
  Shape shape;
  for (int arg : op.tensors)
    if (!a.by_value[arg] && !broadcast_into(shape, call.tensor[arg]->sizes())) throw BadArguments{};
  if (shape.size() > kMaxDims * 4) throw UseReference{};
  c10::SmallVector<Shape, 8> strides;
  for (int arg : op.tensors)
    if (!a.by_value[arg])
      strides.push_back(strides_in(shape, call.tensor[arg]->sizes(), call.tensor[arg]->strides()));
  const Order order = memory_order(shape, strides);
  at::Tensor out =
      allocate(shape, is_logical(order) ? Shape() : dense_strides(shape, order), a.out, a.device);
  Pass pass(given, Family::kForward, shape, a.device);
  pass.in_order(order).write(out);
  for (int arg : op.tensors) {
    if (a.by_value[arg])
      pass.read(value(arg));
    else
      pass.read(*call.tensor[arg]);
  }
  pass.run(a.common, random.view(op.functor));
  return out;
}

}  // namespace megafuse
