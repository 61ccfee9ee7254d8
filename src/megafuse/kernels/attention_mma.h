// The tensor cores' words for 16-bit tiles in shared memory (sm_80 and later): asynchronous copies,
// fragments, products. A warp's 32 lanes call each together.
//
// A fragment is a 16 x 16 piece of a matrix, two elements a register; lane l holds, of each 8 x 8
// quarter, elements 2 (l % 4) and the next of row l / 4.
#pragma once

#include "attention.h"

namespace mf {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MF_TENSOR_WORDS(...) __trap()  // never launched there
#else
#define MF_TENSOR_WORDS(...) asm volatile(__VA_ARGS__)
#endif

__device__ __forceinline__ u32 address_in_shared(const void* p) {
  return u32(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool real) {
  [[maybe_unused]] const u32 bytes = real ? 16 : 0;
  MF_TENSOR_WORDS("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_in_shared(to)),
                  "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies.
__device__ __forceinline__ void end_copies() {
  MF_TENSOR_WORDS("cp.async.commit_group;" :: : "memory");
}
// Waits until all groups but the last kPending are there, for this thread's copies.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  MF_TENSOR_WORDS("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

struct Fragment {
  u32 part[4];
};

// Four 8 x 8 quarters, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point at.
__device__ __forceinline__ Fragment load_quarters(const void* row) {
  Fragment f{};
  MF_TENSOR_WORDS(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(f.part[0]),
      "=r"(f.part[1]), "=r"(f.part[2]), "=r"(f.part[3]) : "r"(address_in_shared(row)) : "memory");
  return f;
}
// The same, each quarter turned over.
__device__ __forceinline__ Fragment load_quarters_turned(const void* row) {
  Fragment f{};
  MF_TENSOR_WORDS(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(f.part[0]),
      "=r"(f.part[1]), "=r"(f.part[2]), "=r"(f.part[3]) : "r"(address_in_shared(row)) : "memory");
  return f;
}

// Two numbers in one register, the first in the low half.
template <class T>
__device__ __forceinline__ u32 packed(float low, float high) {
  u32 both = 0;
  if constexpr (is_same<T, bfloat16>)
    MF_TENSOR_WORDS("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    MF_TENSOR_WORDS("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// sum[16 x 8] += left[16 x 16] right[16 x 8]; lane l holds of the sum elements 2 (l % 4) and the
// next of rows l / 4 and l / 4 + 8.
template <class T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const Fragment& left, u32 right_0,
                                             u32 right_1) {
  if constexpr (is_same<T, bfloat16>)
    MF_TENSOR_WORDS(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};" : "+f"(sum[0]),
        "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(left.part[0]), "r"(left.part[1]),
        "r"(left.part[2]), "r"(left.part[3]), "r"(right_0), "r"(right_1));
  else
    MF_TENSOR_WORDS(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};" : "+f"(sum[0]),
        "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(left.part[0]), "r"(left.part[1]),
        "r"(left.part[2]), "r"(left.part[3]), "r"(right_0), "r"(right_1));
}

// The largest and the sum over the four lanes that share a row of a sum.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace mf
