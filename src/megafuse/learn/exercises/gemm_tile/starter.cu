// Exercise 19: out = relu(x * weight^T + bias); blocks of 16 x 16 threads

extern "C" __global__ void linear_relu(Input x, Input weight, Input bias,
                                       Output out, int rows, int outs,
                                       int ins) {
  int tx = threadIdx.x, ty = threadIdx.y;
  int r = blockIdx.y * 16 + ty, o = blockIdx.x * 16 + tx;
  if (r >= rows || o >= outs) return;

  float sum = 0;
  for (int i = 0; i < ins; ++i) sum += x[r * ins + i] * weight[o * ins + i];
  out[r * outs + o] = fmaxf(sum + bias[o], 0.0f);
}
