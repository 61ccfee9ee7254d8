// The machine's words for what the threads of a row tell each other, across warps (cluster_cuda.h:
// across the blocks of a cluster), and for copies that go on by themselves.
#pragma once

#include "cluster_cuda.h"

namespace mf {

// ---- between the threads of a row

// The value of the thread whose index differs in `bit`, whatever its type.
template <class T>
__device__ __forceinline__ T across(const T& value, int bit) {
  static_assert(sizeof(T) % 4 == 0, "words are exchanged");
  auto words = bits_as<Pack<u32, sizeof(T) / 4>>(value);
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / 4); ++i)
    words[i] = __shfl_xor_sync(0xffffffffu, words[i], bit);
  return bits_as<T>(words);
}

// Waits for `threads` threads of the block, those that name the same barrier.
__device__ __forceinline__ void wait_for(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- rows to come

// Starts a copy of 16 bytes from global to shared memory (where `wanted`: a branch would cost more
// than the copy), and waits for all but the last N groups of them. A thread sees its own copies
// without any barrier.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ __forceinline__ void copy_16_bytes(void* shared, const void* global, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}\n" ::"r"(u32(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(int(wanted))
      : "memory");
}
__device__ __forceinline__ void end_group_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
__device__ __forceinline__ void copy_16_bytes(void*, const void*, bool) {}
__device__ __forceinline__ void end_group_of_copies() {}
template <int N>
__device__ __forceinline__ void wait_for_copies() {}
#endif

}  // namespace mf
