// Exercise 11: grey[i] = 0.3 red + 0.6 green + 0.1 blue, 128 threads a
// block

extern "C" __global__ void grey(Input rgb, Output grey, int n) {
  __shared__ float pixels[384];
  int first = blockIdx.x * 384;
  for (int k = 0; k < 3; ++k) {
    int at = k * 128 + threadIdx.x;
    if (first + at < 3 * n) pixels[at] = rgb[first + at];
  }
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    int t = 3 * threadIdx.x;
    grey[i] =
        0.3f * pixels[t] + 0.6f * pixels[t + 1] + 0.1f * pixels[t + 2];
  }
}
