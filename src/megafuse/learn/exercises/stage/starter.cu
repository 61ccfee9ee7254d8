// Exercise 11: grey[i] = 0.3 red + 0.6 green + 0.1 blue, 128 threads a
// block

extern "C" __global__ void grey(Input rgb, Output grey, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float red = rgb[3 * i];
    float green = rgb[3 * i + 1];
    float blue = rgb[3 * i + 2];
    grey[i] = 0.3f * red + 0.6f * green + 0.1f * blue;
  }
}
