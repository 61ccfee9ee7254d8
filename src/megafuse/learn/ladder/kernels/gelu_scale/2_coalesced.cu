// gelu, then scale. Neighbouring threads take neighbouring floats, and then
// all jump ahead by the whole grid: one load of a warp is 128 bytes in a
// row.
#include "gelu_scale.h"

extern "C" __global__ void gelu(const float* x, float* y, long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = thread; i < n; i += threads)
    y[i] = mf::GeluTanh::value(x[i]);
}

extern "C" __global__ void scale(const float* y, float* out, float factor,
                                 long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = thread; i < n; i += threads) out[i] = y[i] * factor;
}
