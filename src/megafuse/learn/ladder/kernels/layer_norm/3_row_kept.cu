// One block a row, read once: each thread keeps its floats in registers for
// all three passes. kKept registers a thread are rows of at most kThreads *
// kKept floats.
#include "layer_norm.h"

constexpr int kThreads = 256;
constexpr int kKept = 16;

// The sum over the block, for all of its threads.
__device__ float block_sum(float mine) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = part[0];
  __syncthreads();  // all have read it before the next sum overwrites it
  return sum;
}

extern "C" __global__ void layer_norm(const float* x, const float* weight,
                                      const float* bias, float* out,
                                      float eps, long long rows,
                                      long long cols) {
  float kept[kKept];  // the loops below are unrolled, so this is registers,
                      // not memory
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const long long c = threadIdx.x + k * kThreads;
    kept[k] = c < cols ? x[blockIdx.x * cols + c] : 0;
    sum += kept[k];
  }
  const float mean = block_sum(sum) / cols;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (threadIdx.x + k * kThreads < cols)
      squares += (kept[k] - mean) * (kept[k] - mean);
  const float scale = mf::inverse_sqrt(block_sum(squares) / cols + eps);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const long long c = threadIdx.x + k * kThreads;
    if (c < cols)
      out[blockIdx.x * cols + c] =
          mf::fma((kept[k] - mean) * scale, weight[c], bias[c]);
  }
}
