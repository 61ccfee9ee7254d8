// Products of rows that float16 cannot hold. A row of A or of B with Inf or NaN was split into
// zeros (split.h); every product of it is Inf or NaN, and which of them is found here, by the plain
// sum. Where there is no such row, and there hardly ever is, this only looks at the exponents.
#pragma once

#include "portable.h"

namespace mf {

struct Mend {
  float* product;  // [m, n]
  const float *a, *b;
  i64 a_stride, b_stride;  // from row to row
  i64 a_step, b_step;      // and along a row
  const float *a_exponent, *b_exponent;
  i64 m, n, k;
  i64 product_stride;

  static constexpr int kThreads = 256;

  __device__ __forceinline__ void mend(i64 row, i64 column) const {
    // In double, where finite products cannot overflow: what is found is exact.
    double sum = 0;
    for (i64 i = 0; i < k; ++i)
      sum += double(a[row * a_stride + i * a_step]) * double(b[column * b_stride + i * b_step]);
    product[row * product_stride + column] = float(sum);
  }

  // Each thread looks at one row of A or of B; the block then mends those it found.
  __device__ __forceinline__ void run() const {
    __shared__ bool lost[kThreads];
    const i64 first = i64(blockIdx.x) * kThreads, mine = first + threadIdx.x;
    float exponent = 0;
    if (mine < m + n) exponent = mine < m ? a_exponent[mine] : b_exponent[mine - m];
    lost[threadIdx.x] = exponent != exponent;
    if (!__syncthreads_or(lost[threadIdx.x])) return;
    for (int i = 0; i < kThreads; ++i) {
      if (!lost[i]) continue;
      const i64 at = first + i;
      if (at < m)
        for (i64 column = threadIdx.x; column < n; column += kThreads) mend(at, column);
      else
        for (i64 row = threadIdx.x; row < m; row += kThreads) mend(row, at - m);
    }
  }
};

}  // namespace mf
