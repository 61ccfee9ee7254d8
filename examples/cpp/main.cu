// y = gelu(x) * scale from C++, with the functor and the driver that the Python package ships.
//
// A kernel is a type (what to compute, how each operand is stored and walked), and a call is an
// array of 64-bit words (addresses, sizes, strides, scalars); pointwise.h has their order.
// The result is checked against the same functor in double on the CPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "megafuse/kernels/gelu_scale.h"
#include "megafuse/kernels/pointwise_cuda.h"

template <class F>
using Functor = mf::GeluScale<F, mf::GeluTanh>;

using Floats = mf::Operands<mf::Operand<float, 'c'>>;  // one operand of consecutive floats
using Kernel = mf::Kernel<Functor<float>, float, /*dims=*/1, /*outputs=*/Floats, /*inputs=*/Floats>;

constexpr int kThreads = 256;
constexpr int kVector = 4;  // floats in one 16-byte access
constexpr int kUnroll = 2;  // accesses in flight per thread
constexpr int kNoGpu = 77;  // CMakeLists.txt has ctest read this as "skipped"

__global__ void __launch_bounds__(kThreads)
    gelu_scale(__grid_constant__ const mf::Words<Kernel::words> call) {
  mf::PointwiseCuda<Kernel, kVector, kUnroll, int>(call.word).run();
}

void launch(float* y, const float* x, int n, double scale) {
  mf::Words<Kernel::words> call = {};
  call.word[0] = reinterpret_cast<mf::u64>(y);
  call.word[1] = reinterpret_cast<mf::u64>(x);
  call.word[Kernel::numel] = mf::u64(n);
  call.word[Kernel::stride + 0] = 1;
  call.word[Kernel::stride + 1] = 1;
  call.word[Kernel::scalar] = mf::bits_as<mf::u64>(scale);
  const int per_block = kThreads * kVector * kUnroll;
  gelu_scale<<<(n + per_block - 1) / per_block, kThreads>>>(call);
}

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

int main() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("no NVIDIA GPU here: compiled, not run");
    return kNoGpu;
  }

  const int n = (1 << 20) + 3;  // not a multiple of the vector: the last three go one by one
  const double scale = 1.7;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = 16.0f * float(i) / float(n) - 8.0f;

  float *x_gpu = nullptr, *y_gpu = nullptr;
  require(cudaMalloc(&x_gpu, n * sizeof(float)), "cudaMalloc");
  require(cudaMalloc(&y_gpu, n * sizeof(float)), "cudaMalloc");
  require(cudaMemcpy(x_gpu, x.data(), n * sizeof(float), cudaMemcpyHostToDevice), "copy in");
  launch(y_gpu, x_gpu, n, scale);
  require(cudaGetLastError(), "launch");
  require(cudaMemcpy(y.data(), y_gpu, n * sizeof(float), cudaMemcpyDeviceToHost), "copy out");
  cudaFree(x_gpu);
  cudaFree(y_gpu);

  const Functor<double> exact(&scale);
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    const double expected = exact(double(x[i]));
    worst = std::fmax(worst, std::fabs(y[i] - expected) / (1.0 + std::fabs(expected)));
  }
  const bool right = worst < 1e-6;  // eight units in fp32's last place, at 1
  std::printf("gelu_scale of %d floats: largest error %.2e: %s\n", n, worst,
              right ? "ok" : "WRONG");
  return right ? 0 : 1;
}
