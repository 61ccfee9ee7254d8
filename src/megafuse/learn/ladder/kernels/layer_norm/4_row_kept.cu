// One warp a row, and the row is read once: each thread keeps its floats in
// registers for all three passes. Registers have no index that could be
// computed, so the compiler must know how many it needs: COLS, the length
// of a row, is compiled in. launch.py writes `#define COLS 1024` above this
// text when it first meets rows of 1024 floats.
#include "layer_norm.h"

constexpr int kEach = (COLS + 31) / 32;  // floats that a thread keeps

__device__ float warp_sum(float mine) {
  for (int away = 16; away > 0; away /= 2)
    mine += __shfl_xor_sync(0xffffffffu, mine, away);
  return mine;
}

extern "C" __global__ void layer_norm(const float* __restrict x,
                                      const float* __restrict weight,
                                      const float* __restrict bias,
                                      float* __restrict out, float eps,
                                      long long rows) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const long long row = (long long)blockIdx.x * warps + threadIdx.x / 32;
  if (row >= rows) return;
  float kept[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int c = lane + 32 * k;
    kept[k] = c < COLS ? x[row * COLS + c] : 0;
  }
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) sum += kept[k];
  const float mean = warp_sum(sum) / COLS;
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (lane + 32 * k < COLS)
      squares += (kept[k] - mean) * (kept[k] - mean);
  const float scale = mf::inverse_sqrt(warp_sum(squares) / COLS + eps);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int c = lane + 32 * k;
    if (c < COLS)
      out[row * COLS + c] =
          mf::fma((kept[k] - mean) * scale, weight[c], bias[c]);
  }
}
