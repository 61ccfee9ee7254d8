// The first repair: a block fetches a 32 x 32 tile of x and one of weight
// into shared memory, and uses every float 32 times before it fetches the
// next. A 33rd column keeps the 32 threads that read down a tile in 32
// different banks.
#include "math.h"

constexpr int kTile = 32;

extern "C" __global__ void linear_relu(const float* x, const float* weight,
                                       const float* bias, float* out,
                                       long long rows, long long outs,
                                       long long ins) {
  __shared__ float xs[kTile][kTile + 1], ws[kTile][kTile + 1];
  const int across = threadIdx.x, down = threadIdx.y;
  const long long row = (long long)blockIdx.y * kTile + down;
  const long long o = (long long)blockIdx.x * kTile + across;
  // The row of weight that this thread fetches is not the one it
  // multiplies.
  const long long fetched = (long long)blockIdx.x * kTile + down;
  float sum = o < outs ? bias[o] : 0;
  for (long long first = 0; first < ins; first += kTile) {
    const long long i = first + across;
    xs[down][across] = row < rows && i < ins ? x[row * ins + i] : 0;
    ws[down][across] =
        fetched < outs && i < ins ? weight[fetched * ins + i] : 0;
    __syncthreads();
    const int count = ins - first < kTile ? int(ins - first) : kTile;
    for (int k = 0; k < count; ++k)
      sum = mf::fma(xs[down][k], ws[across][k], sum);
    __syncthreads();  // all are done with the tile: the next may come
  }
  if (row < rows && o < outs) out[row * outs + o] = sum < 0 ? 0 : sum;
}
