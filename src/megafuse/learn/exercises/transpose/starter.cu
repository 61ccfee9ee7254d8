// Exercise 12: out[c][r] = x[r][c], tiles of 32 x 32, blocks of 32 x 8

extern "C" __global__ void transpose(Input x, Output out, int rows,
                                     int cols) {
  __shared__ float tile[32][32];
  int c = blockIdx.x * 32 + threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8) {
    int r = blockIdx.y * 32 + k;
    if (r < rows && c < cols) tile[k][threadIdx.x] = x[r * cols + c];
  }
  __syncthreads();
  int r = blockIdx.y * 32 + threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8) {
    int c = blockIdx.x * 32 + k;
    if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.x][k];
  }
}
