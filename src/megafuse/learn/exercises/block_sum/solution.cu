// Exercise 14: out[r] = the sum of row r; a block of 256 threads a row

extern "C" __global__ void row_sums(Input x, Output out, int rows,
                                    int cols) {
  __shared__ float sums[8];
  int t = threadIdx.x, row = blockIdx.x, lane = t % 32, warp = t / 32;

  float sum = 0;
  for (int c = t; c < cols; c += 256) sum += x[row * cols + c];
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, d);
  }
  if (lane == 0) sums[warp] = sum;
  __syncthreads();

  if (t == 0) {
    float all = 0;
    for (int w = 0; w < 8; ++w) all += sums[w];
    out[row] = all;
  }
}
