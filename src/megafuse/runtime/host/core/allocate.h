// Memory for outputs, without a trip through the dispatcher.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/CPUAllocator.h>

#include "core/cuda.h"

namespace megafuse {

// For tests: outputs start as NaN (integers as -1), so that an element no kernel wrote shows.
inline std::atomic<bool> poison_outputs{false};

// All of its memory: elements that share a place (expand, unfold) make that less than their bytes.
inline void poison(const at::Tensor& t) {
  constexpr int kOnes = 0xff;
  const size_t bytes = t.storage().nbytes();
  if (!t.is_cuda()) {
    std::memset(t.mutable_data_ptr(), kOnes, bytes);
    return;
  }
  CudaScope scope(t.device());
  const Driver& driver = Driver::get();
  driver.check(driver.MemsetD8Async(reinterpret_cast<uint64_t>(t.mutable_data_ptr()), kOnes, bytes,
                                    current_stream(t.device())),
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

// A dense tensor with the dimensions in the order that t has them in memory, as at::empty_like.
inline at::Tensor allocate_like(const at::Tensor& t) {
  if (t.is_contiguous()) return allocate(t.sizes(), {}, t.scalar_type(), t.device());
  const std::vector<int64_t> strides = t.is_non_overlapping_and_dense()
                                           ? t.strides().vec()
                                           : at::infer_dense_strides(t.sizes(), t.strides());
  return allocate(t.sizes(), strides, t.scalar_type(), t.device());
}

// `value` with the strides of allocate_like(like).
inline at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& value) {
  at::Tensor out = allocate_like(like);
  return value.strides() == out.strides() ? value : out.copy_(value);
}

}  // namespace megafuse
