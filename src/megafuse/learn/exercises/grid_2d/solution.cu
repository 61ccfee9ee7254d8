// Exercise 10: out[r][c] = x[r][c] + bias[c]

extern "C" __global__ void add_bias(Input x, Input bias, Output out,
                                    int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  int r = blockIdx.y * blockDim.y + threadIdx.y;
  if (r < rows && c < cols) {
    out[r * cols + c] = x[r * cols + c] + bias[c];
  }
}
