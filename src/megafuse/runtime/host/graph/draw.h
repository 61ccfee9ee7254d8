// A step that draws the state of a call's random numbers: a seed and an offset, from torch's
// generator, so that torch.manual_seed governs them. kernels/draws.h makes numbers of it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "graph/memory.h"

namespace megafuse::graph {

struct DrawStep {
  int buffer;

  void run(Memory& memory, c10::Device device) const {
    const at::Tensor state = allocate({2}, {}, at::kLong, device);
    if (device.is_cpu()) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      auto* cpu = generator.get<at::CPUGeneratorImpl>();
      auto* words = state.mutable_data_ptr<int64_t>();
      for (int i = 0; i < 2; ++i) words[i] = int64_t(cpu->random64());
    } else {
      // By a kernel of the library's: under graph capture each replay draws anew.
      state.random_(std::numeric_limits<int64_t>::min(), std::optional<int64_t>());
    }
    memory.buffers[buffer] = state;
  }
};

}  // namespace megafuse::graph
