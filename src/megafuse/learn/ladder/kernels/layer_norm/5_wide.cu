// One warp a row, read once, 16 bytes with each load and store: a quarter
// of the instructions for the same bytes. Rows that are no multiple of four
// floats do not all begin at a multiple of 16 bytes: they go float by
// float.
#include "layer_norm.h"

constexpr int kWide = COLS % 4 == 0 ? 4 : 1;  // floats a load
constexpr int kEach = (COLS + 32 * kWide - 1) / (32 * kWide);  // loads

struct alignas(4 * kWide) Floats {
  float at[kWide];
};

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
  Floats kept[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int c = (lane + 32 * k) * kWide;
    kept[k] = Floats{};
    if (c < COLS)
      kept[k] = *reinterpret_cast<const Floats*>(x + row * COLS + c);
  }
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    for (float v : kept[k].at) sum += v;
  const float mean = warp_sum(sum) / COLS;
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if ((lane + 32 * k) * kWide < COLS)
      for (float v : kept[k].at) squares += (v - mean) * (v - mean);
  const float scale = mf::inverse_sqrt(warp_sum(squares) / COLS + eps);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int c = (lane + 32 * k) * kWide;
    if (c >= COLS) continue;
    const Floats w = *reinterpret_cast<const Floats*>(weight + c);
    const Floats b = *reinterpret_cast<const Floats*>(bias + c);
    Floats y;
    for (int i = 0; i < kWide; ++i)
      y.at[i] = mf::fma((kept[k].at[i] - mean) * scale, w.at[i], b.at[i]);
    *reinterpret_cast<Floats*>(out + row * COLS + c) = y;
  }
}
