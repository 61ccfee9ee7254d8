// One op call on plain tensors: shapes and dtypes, the output, the launch.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <optional>

#include "kernels.h"

namespace megafuse {

// The arguments do not fit the op; `explain` will say how (Python has the words).
struct BadArguments {};
// The call is right but nothing here computes it; the reference does.
struct UseReference {};

// For tests: outputs start as NaN (integers as -1), so that an element no kernel wrote shows.
inline std::atomic<bool> poison_outputs{false};

inline void poison(const at::Tensor& t) {
  constexpr int kOnes = 0xff;
  if (!t.is_cuda()) {
    std::memset(t.mutable_data_ptr(), kOnes, t.nbytes());
    return;
  }
  CudaScope scope(t.device());
  const Driver& driver = Driver::get();
  driver.check(driver.MemsetD8Async(reinterpret_cast<uint64_t>(t.mutable_data_ptr()), kOnes,
                                    t.nbytes(), current_stream(t.device())),
               "cuMemsetD8Async");
}

// A dense tensor of uninitialised memory, without a trip through the dispatcher
// (about 1 µs less than at::empty).
inline at::Tensor allocate(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype,
                           c10::Device device) {
  const bool cuda = device.is_cuda();
  c10::Allocator* allocator = cuda ? c10::GetAllocator(at::kCUDA) : c10::GetCPUAllocator();
  const c10::DispatchKeySet keys(cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  at::Tensor made(strides.empty()
                      ? at::detail::empty_generic(shape, allocator, keys, dtype, std::nullopt)
                      : at::detail::empty_strided_generic(shape, strides, allocator, keys, dtype));
  if (C10_UNLIKELY(poison_outputs.load(std::memory_order_relaxed)) && made.numel() > 0)
    poison(made);
  return made;
}

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

inline Agreement agree(const Call& call) {
  const Op& op = *call.op;
  Agreement a;
  const at::Tensor* first = nullptr;
  bool any_cuda = false;
  for (int arg : op.tensors)
    if (const at::Tensor* t = call.tensor[arg]) any_cuda |= t->is_cuda();
  Promotion promotion;
  for (int arg : op.tensors) {
    const at::Tensor* t = call.tensor[arg];
    a.by_value[arg] = !t || (any_cuda && t->is_cpu());
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
  a.use_double = a.common == at::kDouble;
  a.out = op.fixed_dtype != at::ScalarType::Undefined ? op.fixed_dtype : a.common;
  for (int arg : op.numbers)
    if (!(call.number[arg] >= op.args[arg].least && call.number[arg] <= op.args[arg].most))
      throw BadArguments{};
  if (!can_build_for(a.device.type())) throw UseReference{};
  return a;
}

// Where the random numbers of one call come from, for its backward to draw them again.
struct RandomState {
  uint64_t words[5] = {};
  at::Tensor kept;  // what `words` points into, if anything
  at::ArrayRef<uint64_t> view(const Op& op) const {
    return op.random ? at::ArrayRef<uint64_t>(words, 5) : at::ArrayRef<uint64_t>();
  }
};

// Launches without the GIL where that is worth its 0.1 µs.
inline void run(Request& request, const Space& space, at::ArrayRef<uint64_t> random) {
  std::optional<CudaScope> scope;
  std::optional<GilRelease> no_gil;
  if (request.device.is_cuda()) {
    scope.emplace(request.device);
    request.vector = vector_width(space);
    request.wide_index = needs_64_bits(space);
  }
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
