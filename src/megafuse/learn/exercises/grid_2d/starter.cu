// Exercise 10: out[r][c] = x[r][c] + bias[c]

extern "C" __global__ void add_bias(Input x, Input bias, Output out,
                                    int rows, int cols) {
  int r = threadIdx.x;
  int c = threadIdx.y;
  out[r * cols + c] = x[r * cols + c] + bias[c];
}
