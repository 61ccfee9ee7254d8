// What split.h does to rows, for a matrix whose columns are to be multiplied: each column has a
// scale of its own, and both halves stay as the matrix lies. So nobody turns it first.
#pragma once

#include "pointwise_cuda.h"
#include "split.h"

namespace mf {

struct Columns {
  const float* x;     // [k, columns]
  const u32* most;    // of each column: split_most.h
  half *low, *high;   // [k, width]
  float* exponents;   // [columns]
  i64 stride, width;  // from row to row; width is a multiple of kVector, and at least `columns`
  i64 k, columns;
  i64 rows;  // of a block

  static constexpr int kThreads = 256;
  static constexpr int kVector = 8, kAcross = 32, kDown = kThreads / kAcross;

  __device__ __forceinline__ bool is_aligned() const {
    return reinterpret_cast<u64>(x) % 16 == 0 && stride % 4 == 0;
  }

  __device__ __forceinline__ void run() const {
    const i64 column = (i64(blockIdx.x) * kAcross + threadIdx.x % kAcross) * kVector;
    if (column >= width) return;
    const i64 first = i64(blockIdx.y) * rows + threadIdx.x / kAcross;
    const i64 end = ::min(i64(blockIdx.y + 1) * rows, k);
    float scale[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      scale[v] = 0;
      if (column + v >= columns) continue;
      const auto row = SplitHalves<float>::row({bits_as<float>(most[column + v])});
      scale[v] = row.scale;
      if (first == 0) exponents[column + v] = row.exponent;
    }
    const bool whole = is_aligned() && column + kVector <= columns;
#pragma unroll 2
    for (i64 row = first; row < end; row += kDown) {
      const float* const from = x + row * stride + column;
      Vector<float, kVector> part;
      if (whole) {
        part = read_once(reinterpret_cast<const Vector<float, kVector>*>(from));
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) part.item[v] = column + v < columns ? from[v] : 0.0f;
      }
      float upper[kVector], lower[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const float scaled = scale[v] > 0 ? part.item[v] * scale[v] : 0.0f;
        upper[v] = Rounded<half>::to(scaled);
        lower[v] = (scaled - upper[v]) * float(1 << split_low_bits);
      }
      Vector<half, kVector> packed;
      narrow(upper, packed);
      *reinterpret_cast<Vector<half, kVector>*>(high + row * width + column) = packed;
      narrow(lower, packed);
      *reinterpret_cast<Vector<half, kVector>*>(low + row * width + column) = packed;
    }
  }
};

}  // namespace mf
