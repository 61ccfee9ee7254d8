// Exercise 14: out[r] = the sum of row r; a block of 256 threads a row

extern "C" __global__ void row_sums(Input x, Output out, int rows,
                                    int cols) {
  __shared__ float sums[256];
  int t = threadIdx.x, row = blockIdx.x;

  float sum = 0;
  for (int c = t; c < cols; c += 256) sum += x[row * cols + c];
  sums[t] = sum;
  __syncthreads();

  for (int half = 128; half > 0; half /= 2) {
    if (t < half) sums[t] += sums[t + half];
    __syncthreads();
  }
  if (t == 0) out[row] = sums[0];
}
