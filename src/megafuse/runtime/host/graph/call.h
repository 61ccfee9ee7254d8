// A step that calls an ATen operation.
#pragma once

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "graph/memory.h"

namespace megafuse::graph {

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

  c10::IValue value(const Memory& memory) const {
    switch (kind) {
      case Kind::kConstant:
        return number(constant);
      case Kind::kInteger:
        return number(memory.slots[slot].integer);
      case Kind::kReal:
        return number(memory.slots[slot].real);
      case Kind::kTensor:
        return memory.view(view);
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
  Places writes;                    // the buffer of each result, -1 for one that nobody reads

  void run(Memory& memory) const {
    torch::jit::Stack stack;
    stack.reserve(arguments.size());
    for (const Argument& argument : arguments) stack.push_back(argument.value(memory));
    op.callBoxed(stack);
    size_t next = 0;
    auto keep = [&](const at::Tensor& t) {
      if (next < writes.size() && writes[next] >= 0) memory.buffers[writes[next]] = t;
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
};

}  // namespace megafuse::graph
