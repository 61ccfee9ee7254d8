// A compiled graph: checks of its arguments, the numbers of a call, steps in order, results.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>

#include <variant>

#include "graph/call.h"
#include "graph/draw.h"
#include "graph/kernel.h"

namespace megafuse::graph {

struct Step {
  std::variant<KernelStep, CallStep, DrawStep> what;
  std::vector<std::pair<int, BufferType>> allocates;
  Places frees;  // buffers that nobody reads after it
};

// A result: a view of a buffer, a number, or nothing.
struct Output {
  enum class Kind : uint8_t { kTensor, kInteger, kReal, kNone };
  Kind kind = Kind::kNone;
  View view;
  int slot = -1;
  bool aliases = false;  // a view of an argument: seen by whoever writes to either
  // The first output that is this very view, else -1. To autograd they must be one tensor: of two,
  // each could become a parameter's .grad, and both parameters would have the same memory.
  int same_as = -1;
};

struct Program {
  std::string name;
  c10::Device device{at::kCPU};
  Code code;
  Places guards;  // slots that must not be 0
  int buffers = 0;
  Places arguments;  // the buffer that each leaf is, or -1
  std::vector<std::pair<int, at::Tensor>> constants;
  std::vector<Step> steps;
  std::vector<Output> outputs;

  bool accepts(const Slots& slots) const {
    for (int guard : guards)
      if (!slots[guard].integer) return false;
    return true;
  }

  void take(at::ArrayRef<Leaf> leaves, Memory& memory) const {
    memory.buffers.resize(size_t(buffers));
    for (size_t i = 0; i < leaves.size(); ++i)
      if (arguments[i] >= 0) memory.buffers[arguments[i]] = *leaves[i].tensor;
    for (const auto& [buffer, tensor] : constants) memory.buffers[buffer] = tensor;
  }

  // The arguments have been taken, and the numbers of the call are in memory.slots.
  void run(Memory& memory) const {
    size_t at = 0;
    const auto build = [&](const Request&, const Space&) { build_from(at, memory); };
    const Missing missing = build;
    for (; at < steps.size(); ++at) {
      const Step& step = steps[at];
      for (const auto& [buffer, type] : step.allocates) memory.allocate(buffer, type, device);
      if (const auto* kernel = std::get_if<KernelStep>(&step.what))
        kernel->run(memory, device, missing);
      else if (const auto* call = std::get_if<CallStep>(&step.what))
        call->run(memory);
      else
        std::get<DrawStep>(step.what).run(memory, device);
      for (int buffer : step.frees) memory.buffers[buffer].reset();
    }
  }

  // The kernels that this step and later ones want and that are not built, side by side: one after
  // another, as steps come to them, they would take many times as long. What is not foreseen here
  // is built when its step runs.
  void build_from(size_t first, const Memory& memory) const {
    const GilAcquire gil;
    Wanted wanted(device);
    const auto add = [&](const Request& request, const Space& space) {
      wanted.add(request, space);
      throw OnlyAsked{};
    };
    const Missing missing = add;
    for (size_t at = first; at < steps.size(); ++at)
      if (const auto* kernel = std::get_if<KernelStep>(&steps[at].what))
        kernel->ask(memory, device, missing);
    wanted.build();
  }

  // The tensors among the outputs, each where it stands; others are undefined.
  std::vector<at::Tensor> tensors(const Memory& memory) const {
    std::vector<at::Tensor> made;
    for (const Output& output : outputs) {
      if (output.kind != Output::Kind::kTensor)
        made.emplace_back();
      else
        made.push_back(output.same_as >= 0 ? made[size_t(output.same_as)] : tensor(output, memory));
    }
    return made;
  }

 private:
  at::Tensor tensor(const Output& output, const Memory& memory) const {
    const View& view = output.view;
    const at::Tensor& t = memory.buffers[view.buffer];
    if (!output.aliases || view.whole) return memory.view(view);
    return at::as_strided(t, read(view.sizes, memory.slots), read(view.strides, memory.slots),
                          t.storage_offset() + memory.slots[view.offset].integer);
  }
};

}  // namespace megafuse::graph
