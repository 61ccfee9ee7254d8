// Exercise 15: out[i] = factor * x[i]; a thread for every four floats

extern "C" __global__ void scale(Input x, Output out, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    v.x *= factor;
    v.y *= factor;
    v.z *= factor;
    v.w *= factor;
    reinterpret_cast<float4*>(out)[i] = v;
  } else if (i == n / 4) {
    for (int k = 4 * i; k < n; ++k) out[k] = factor * x[k];
  }
}
