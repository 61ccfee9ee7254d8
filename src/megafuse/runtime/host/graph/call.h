// A step that calls an ATen operation.
#pragma once

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "graph/memory.h"

namespace megafuse::graph {

// torch's attention pads a mask whose rows do not begin at whole 16 bytes before it calls its
// kernel. A program calls the kernel itself, with sizes that may need it where those it was traced
// with did not.
inline at::Tensor with_whole_rows(const at::Tensor& mask) {
  constexpr int64_t kWhole = 8;
  const int64_t last = mask.dim() - 1;
  if (!mask.is_cuda() || last < 0) return mask;
  bool whole = mask.stride(last) == 1;
  for (int64_t d = 0; d < last; ++d)
    whole = whole && (mask.size(d) == 1 || mask.stride(d) % kWhole == 0);
  if (whole) return mask;
  std::vector<int64_t> sizes = mask.sizes().vec();
  sizes.back() = (sizes.back() + kWhole - 1) / kWhole * kWhole;
  const at::Tensor padded = allocate(sizes, {}, mask.scalar_type(), mask.device());
  return padded.narrow(last, 0, mask.size(last)).copy_(mask);
}

// One argument of the operation: a constant, a number of the call, a tensor, or a list of these.
struct Argument {
  enum class Kind : uint8_t { kConstant, kInteger, kReal, kTensor, kList };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  int slot = -1;
  View view;
  std::vector<Argument> items;
  c10::TypePtr type;       // of a list: what its items are declared as
  bool as_tensor = false;  // a number where the schema has a tensor
  bool is_mask = false;    // of an attention

  c10::IValue value(const Memory& memory) const {
    switch (kind) {
      case Kind::kConstant:
        return number(constant);
      case Kind::kInteger:
        return number(memory.slots[slot].integer);
      case Kind::kReal:
        return number(memory.slots[slot].real);
      case Kind::kTensor:
        return is_mask ? with_whole_rows(memory.view(view)) : memory.view(view);
      case Kind::kList:
        break;
    }
    c10::impl::GenericList list(type);
    for (const Argument& item : items) list.push_back(item.value(memory));
    return list;
  }

 private:
  // Python's numbers promote nothing, also as tensors.
  c10::IValue number(const c10::IValue& value) const {
    if (!as_tensor || !value.isScalar()) return value;
    at::Tensor made = c10::scalar_to_tensor(value.toScalar());
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
};

struct CallStep {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;  // all that the schema names
  // The buffer of each result, -1 for one that nobody reads, and how it should lie in memory.
  std::vector<std::pair<int, BufferType>> writes;

  void run(Memory& memory) const {
    torch::jit::Stack stack;
    stack.reserve(arguments.size());
    for (const Argument& argument : arguments) stack.push_back(argument.value(memory));
    op.callBoxed(stack);
    size_t next = 0;
    auto keep = [&](const at::Tensor& t) {
      if (next < writes.size() && writes[next].first >= 0)
        memory.buffers[writes[next].first] = as_promised(t, writes[next].second, memory);
      ++next;
    };
    for (const c10::IValue& result : stack) {
      if (result.isTensor())
        keep(result.toTensor());
      else if (result.isTensorList())
        for (const at::Tensor& t : result.toTensorVector()) keep(t);
      else
        ++next;
    }
  }

 private:
  // Kernels go by the strides that the operation had when it was traced. It may choose others.
  static at::Tensor as_promised(const at::Tensor& t, const BufferType& type, const Memory& memory) {
    if (!t.defined()) return t;
    const Shape strides = read(type.strides, memory.slots);
    bool same = t.dim() == int64_t(strides.size());
    for (int64_t d = 0; same && d < t.dim(); ++d)
      same = t.size(d) == 1 || t.stride(d) == strides[size_t(d)];
    if (same || t.numel() == 0) return t;
    return allocate(t.sizes(), strides, t.scalar_type(), t.device()).copy_(t);
  }
};

}  // namespace megafuse::graph
