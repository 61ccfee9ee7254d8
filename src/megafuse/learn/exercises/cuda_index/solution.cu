// Exercise 9: out[i] = a * x[i] + y[i], four elements a thread

extern "C" __global__ void axpy(Input x, Input y, Output out, float a,
                                int n) {
  int first = blockIdx.x * blockDim.x * 4 + threadIdx.x;
  for (int k = 0; k < 4; ++k) {
    int i = first + k * blockDim.x;
    if (i < n) out[i] = a * x[i] + y[i];
  }
}
