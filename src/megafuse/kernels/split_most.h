// The largest magnitude of each column of a float32 matrix, as its bits: those of NaN are larger
// than all others. What split_columns.h scales by.
#pragma once

#include "pointwise_cuda.h"

namespace mf {

struct Most {
  const float* x;  // [k, columns]
  u32* most;       // [columns], 0 before
  i64 stride;      // from row to row
  i64 k, columns;
  i64 rows;  // of a block

  static constexpr int kThreads = 256;
  static constexpr int kVector = 4, kAcross = 64, kDown = kThreads / kAcross;

  __device__ __forceinline__ static u32 magnitude(float value) {
    return bits_as<u32>(value) & 0x7fffffffu;
  }
  // All of a vector's addresses are whole 16 bytes, in every row.
  __device__ __forceinline__ bool is_aligned() const {
    return reinterpret_cast<u64>(x) % 16 == 0 && stride % kVector == 0;
  }

  __device__ __forceinline__ void run() const {
    const i64 column = (i64(blockIdx.x) * kAcross + threadIdx.x % kAcross) * kVector;
    const i64 first = i64(blockIdx.y) * rows + threadIdx.x / kAcross;
    const i64 end = ::min(i64(blockIdx.y + 1) * rows, k);
    u32 found[kVector] = {};
    if (is_aligned() && column + kVector <= columns) {
#pragma unroll 4
      for (i64 row = first; row < end; row += kDown) {
        const auto part =
            read_once(reinterpret_cast<const Vector<float, kVector>*>(x + row * stride + column));
#pragma unroll
        for (int v = 0; v < kVector; ++v) found[v] = ::max(found[v], magnitude(part.item[v]));
      }
    } else {
      for (i64 row = first; row < end; row += kDown)
#pragma unroll
        for (int v = 0; v < kVector; ++v)
          if (column + v < columns)
            found[v] = ::max(found[v], magnitude(x[row * stride + column + v]));
    }
    __shared__ u32 all[kDown][kAcross * kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v)
      all[threadIdx.x / kAcross][threadIdx.x % kAcross + v * kAcross] = found[v];
    __syncthreads();
    if (threadIdx.x >= kAcross) return;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      u32 largest = found[v];
#pragma unroll
      for (int down = 1; down < kDown; ++down)
        largest = ::max(largest, all[down][threadIdx.x + v * kAcross]);
      if (column + v < columns) atomicMax(most + column + v, largest);
    }
  }
};

}  // namespace mf
