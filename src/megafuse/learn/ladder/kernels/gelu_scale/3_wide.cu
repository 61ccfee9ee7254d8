// gelu, then scale. Each load and each store moves 16 bytes, so a quarter
// of the instructions keeps the same bytes in flight. The last one to three
// floats go one by one.
#include "gelu_scale.h"

extern "C" __global__ void gelu(const float* x, float* y, long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = thread; i < n / 4; i += threads) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    v.x = mf::GeluTanh::value(v.x);
    v.y = mf::GeluTanh::value(v.y);
    v.z = mf::GeluTanh::value(v.z);
    v.w = mf::GeluTanh::value(v.w);
    reinterpret_cast<float4*>(y)[i] = v;
  }
  const long long rest = n / 4 * 4 + thread;
  if (rest < n) y[rest] = mf::GeluTanh::value(x[rest]);
}

extern "C" __global__ void scale(const float* y, float* out, float factor,
                                 long long n) {
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = thread; i < n / 4; i += threads) {
    float4 v = reinterpret_cast<const float4*>(y)[i];
    v.x *= factor;
    v.y *= factor;
    v.z *= factor;
    v.w *= factor;
    reinterpret_cast<float4*>(out)[i] = v;
  }
  const long long rest = n / 4 * 4 + thread;
  if (rest < n) out[rest] = y[rest] * factor;
}
