// gelu and scale in one pass: what gelu gives stays in a register.
#include "gelu_scale.h"

using Functor = mf::GeluScale<float, mf::GeluTanh>;

extern "C" __global__ void gelu_scale(const float* x, float* out,
                                      float factor, long long n) {
  const Functor functor(&factor);
  const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long i = thread; i < n / 4; i += threads) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    v.x = functor(v.x);
    v.y = functor(v.y);
    v.z = functor(v.z);
    v.w = functor(v.w);
    reinterpret_cast<float4*>(out)[i] = v;
  }
  const long long rest = n / 4 * 4 + thread;
  if (rest < n) out[rest] = functor(x[rest]);
}
