// Exercise 9: out[i] = a * x[i] + y[i], four elements a thread

extern "C" __global__ void axpy(Input x, Input y, Output out, float a,
                                int n) {
  for (int k = 0; k < 4; ++k) {
    int i = threadIdx.x * 4 + k;
    out[i] = a * x[i] + y[i];
  }
}
