// Exercise 21: y = w2 * relu(w1 * x + b1) + b2, one launch, 2 warps a block

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

__device__ float dot(Input row, Input v, int n) {
  float sum = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32) sum += row[i] * v[i];
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, d);
  }
  return sum;
}

extern "C" __global__ void mlp(Input x, Input w1, Input b1, Input w2,
                               Input b2, Output h, Output y,
                               Counter arrived, int ins, int hidden,
                               int outs) {
  int lane = threadIdx.x % 32, here = threadIdx.x / 32;
  int warp = blockIdx.x * 2 + here, warps = gridDim.x * 2;

  for (int j = warp; j < hidden; j += warps) {
    float v = dot(w1 + j * ins, x, ins);
    if (lane == 0) h[j] = fmaxf(v + b1[j], 0.0f);
  }
  grid_barrier(arrived);

  for (int o = warp; o < outs; o += warps) {
    float v = dot(w2 + o * hidden, h, hidden);
    if (lane == 0) y[o] = v + b2[o];
  }
}
