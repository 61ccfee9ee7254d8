// One block a row, three passes over it. Neighbouring threads read
// neighbouring floats, and add up their sums in shared memory.
#include "layer_norm.h"

constexpr int kThreads = 256;

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
  const float* in = x + blockIdx.x * cols;
  float sum = 0;
  for (long long c = threadIdx.x; c < cols; c += kThreads) sum += in[c];
  const float mean = block_sum(sum) / cols;
  float squares = 0;
  for (long long c = threadIdx.x; c < cols; c += kThreads) {
    const float away = in[c] - mean;
    squares += away * away;
  }
  const float scale = mf::inverse_sqrt(block_sum(squares) / cols + eps);
  for (long long c = threadIdx.x; c < cols; c += kThreads)
    out[blockIdx.x * cols + c] =
        mf::fma((in[c] - mean) * scale, weight[c], bias[c]);
}
