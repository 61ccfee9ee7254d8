// Exercise 16: out = softmax(x) along each row; a warp a row, 4 a block

extern "C" __global__ void softmax(Input x, Output out, int rows,
                                   int cols) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  Input in = x + row * cols;

  float m = -3e38f;
  for (int c = lane; c < cols; c += 32) m = fmaxf(m, in[c]);
  for (int d = 16; d > 0; d /= 2) {
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
  }

  float s = 0;
  for (int c = lane; c < cols; c += 32) s += expf(in[c] - m);
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);

  for (int c = lane; c < cols; c += 32) {
    out[row * cols + c] = expf(in[c] - m) / s;
  }
}
