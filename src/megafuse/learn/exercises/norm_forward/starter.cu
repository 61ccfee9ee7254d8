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

  float sum = 0;
  for (int c = lane; c < cols; c += 32) sum += a[c] + b[c];
  float mean = warp_sum(sum) / cols;

  float squares = 0;
  for (int c = lane; c < cols; c += 32) {
    float away = a[c] + b[c] - mean;
    squares += away * away;
  }
  float scale = rsqrtf(warp_sum(squares) / cols + 1e-5f);

  for (int c = lane; c < cols; c += 32) {
    float away = a[c] + b[c] - mean;
    out[row * cols + c] = away * scale * weight[c] + bias[c];
  }
}
