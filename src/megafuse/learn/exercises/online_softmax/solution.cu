// Exercise 16: out = softmax(x) along each row; a warp a row, 4 a block

extern "C" __global__ void softmax(Input x, Output out, int rows,
                                   int cols) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  Input in = x + row * cols;

  float m = -3e38f, s = 0;
  for (int c = lane; c < cols; c += 32) {
    float v = in[c], larger = fmaxf(m, v);
    s = s * expf(m - larger) + expf(v - larger);
    m = larger;
  }
  for (int d = 16; d > 0; d /= 2) {
    float om = __shfl_xor_sync(0xffffffffu, m, d);
    float os = __shfl_xor_sync(0xffffffffu, s, d);
    float both = fmaxf(m, om);
    s = s * expf(m - both) + os * expf(om - both);
    m = both;
  }

  for (int c = lane; c < cols; c += 32) {
    out[row * cols + c] = expf(in[c] - m) / s;
  }
}
