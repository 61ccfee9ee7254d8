// Exercise 19: out = relu(x * weight^T + bias); blocks of 16 x 16 threads

extern "C" __global__ void linear_relu(Input x, Input weight, Input bias,
                                       Output out, int rows, int outs,
                                       int ins) {
  __shared__ float xs[16][17], ws[16][17];
  int tx = threadIdx.x, ty = threadIdx.y;
  int r = blockIdx.y * 16 + ty, o = blockIdx.x * 16 + tx;
  int fetched = blockIdx.x * 16 + ty;  // a row of weight

  float sum = 0;
  for (int first = 0; first < ins; first += 16) {
    int i = first + tx;
    xs[ty][tx] = r < rows && i < ins ? x[r * ins + i] : 0;
    ws[ty][tx] = fetched < outs && i < ins ? weight[fetched * ins + i] : 0;
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += xs[ty][k] * ws[tx][k];
    __syncthreads();
  }
  if (r < rows && o < outs) {
    out[r * outs + o] = fmaxf(sum + bias[o], 0.0f);
  }
}
