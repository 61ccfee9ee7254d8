// Exercise 18: the gradients of layer_norm; a warp a row, cols <= 256

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

extern "C" __global__ void norm_backward(Input grad, Input x, Input weight,
                                         Input mean, Input rstd, Output dx,
                                         Output dweight, int rows,
                                         int cols) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  float m = mean[row], r = rstd[row];

  float g[8], h[8], sum_g = 0, sum_gh = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    int c = k * 32 + lane;
    g[k] = h[k] = 0;
    if (c < cols) {
      float up = grad[row * cols + c];
      h[k] = (x[row * cols + c] - m) * r;
      g[k] = up * weight[c];
      atomicAdd(&dweight[c], up * h[k]);
    }
    sum_g += g[k];
    sum_gh += g[k] * h[k];
  }
  float mg = warp_sum(sum_g) / cols, mgh = warp_sum(sum_gh) / cols;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    int c = k * 32 + lane;
    if (c < cols) dx[row * cols + c] = r * (g[k] - mg - h[k] * mgh);
  }
}
