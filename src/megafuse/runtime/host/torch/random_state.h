// Random state from torch's generators, so that torch.manual_seed governs our draws.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#ifdef MF_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#endif

#include "torch/program.h"

namespace megafuse {

inline RandomState draw_state(c10::Device device) {
  RandomState state;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
#ifdef MF_CUDA
  if (device.is_cuda()) {
    // Under graph capture torch gives addresses that each replay fills anew.
    const auto philox = generator.get<at::CUDAGeneratorImpl>()->philox_cuda_state(4);
    state.words[0] = philox.seed_.val;
    state.words[1] = philox.offset_.val;
    state.words[2] = philox.offset_intragraph_;
    state.words[3] = philox.captured_;
    return state;
  }
#endif
  state.words[0] = generator.get<at::CPUGeneratorImpl>()->random64();
  return state;
}

// The state that an earlier call wrote to `kept` (its seed and offset).
inline RandomState stored_state(const at::Tensor& kept) {
  RandomState state;
  const auto address = reinterpret_cast<uint64_t>(kept.const_data_ptr());
  state.words[0] = address;
  state.words[1] = address + sizeof(uint64_t);
  state.words[3] = 1;
  state.kept = kept;
  return state;
}

}  // namespace megafuse
