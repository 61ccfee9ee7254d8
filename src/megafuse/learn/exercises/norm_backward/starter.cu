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

  for (int c = lane; c < cols; c += 32) {
    float up = grad[row * cols + c];
    float h = (x[row * cols + c] - m) * r;
    dx[row * cols + c] = r * up * weight[c];
    dweight[c] += up * h;
  }
}
