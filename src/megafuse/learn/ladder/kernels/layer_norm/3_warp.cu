// One warp a row, three passes over it. Its 32 threads add up their sums by
// shuffles, from register to register: nothing goes through shared memory,
// and no warp waits at a barrier for another.
#include "layer_norm.h"

// The sum over the warp, for all of its threads.
__device__ float warp_sum(float mine) {
  for (int away = 16; away > 0; away /= 2)
    mine += __shfl_xor_sync(0xffffffffu, mine, away);
  return mine;
}

extern "C" __global__ void layer_norm(const float* __restrict x,
                                      const float* __restrict weight,
                                      const float* __restrict bias,
                                      float* __restrict out, float eps,
                                      long long rows, long long cols) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const long long row = (long long)blockIdx.x * warps + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp at once
  const float* in = x + row * cols;
  float sum = 0;
  for (long long c = lane; c < cols; c += 32) sum += in[c];
  const float mean = warp_sum(sum) / cols;
  float squares = 0;
  for (long long c = lane; c < cols; c += 32) {
    const float away = in[c] - mean;
    squares += away * away;
  }
  const float scale = mf::inverse_sqrt(warp_sum(squares) / cols + eps);
  for (long long c = lane; c < cols; c += 32)
    out[row * cols + c] =
        mf::fma((in[c] - mean) * scale, weight[c], bias[c]);
}
