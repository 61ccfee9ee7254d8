// gelu, then scale. Each thread walks a stretch of its own, so neighbouring
// threads are 256 bytes apart: one load of a warp touches 32 places in
// memory, to use 4 bytes of each.
#include "gelu_scale.h"

constexpr int kStretch = 64;

extern "C" __global__ void gelu(const float* x, float* y, long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long first = thread * kStretch;
  for (long long i = first; i < first + kStretch && i < n; ++i)
    y[i] = mf::GeluTanh::value(x[i]);
}

extern "C" __global__ void scale(const float* y, float* out, float factor,
                                 long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long first = thread * kStretch;
  for (long long i = first; i < first + kStretch && i < n; ++i)
    out[i] = y[i] * factor;
}
