// Exercise 20: out = x / sum(x), in one launch; 64 threads a block

__device__ void grid_barrier(Counter arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) < gridDim.x) {
    }
  }
  __syncthreads();
}

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

extern "C" __global__ void normalise(Input x, Output out, Output sums,
                                     Counter arrived, int n) {
  __shared__ float halves[2];
  int t = threadIdx.x, step = gridDim.x * blockDim.x;

  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += step) sum += x[i];
  sum = warp_sum(sum);
  if (t % 32 == 0) halves[t / 32] = sum;
  __syncthreads();
  if (t == 63) sums[blockIdx.x] = halves[0] + halves[1];

  grid_barrier(arrived);

  float all = 0;
  for (int b = 0; b < gridDim.x; ++b) all += sums[b];
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += step) {
    out[i] = x[i] / all;
  }
}
