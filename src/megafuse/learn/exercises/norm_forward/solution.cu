// Exercise 17: out = layer_norm(x + residual); a warp a row, cols <= 1024

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

extern "C" __global__ void residual_norm(Input x, Input residual,
                                         Input weight, Input bias,
                                         Output out, int rows, int cols) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  Input a = x + row * cols;
  Input b = residual + row * cols;

  float kept[32], sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    int c = k * 32 + lane;
    kept[k] = c < cols ? a[c] + b[c] : 0;
    sum += kept[k];
  }
  float mean = warp_sum(sum) / cols;
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    float away = kept[k] - mean;
    if (k * 32 + lane < cols) squares += away * away;
  }
  float scale = rsqrtf(warp_sum(squares) / cols + 1e-5f);
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    int c = k * 32 + lane;
    float away = kept[k] - mean;
    if (c < cols) out[row * cols + c] = away * scale * weight[c] + bias[c];
  }
}
