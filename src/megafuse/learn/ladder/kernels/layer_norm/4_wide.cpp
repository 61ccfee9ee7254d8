// Row by row, in cache, with kLanes sums side by side. One sum alone is a
// chain: each addition waits for the one before, and the compiler may not
// change that order, because it changes the rounding.
#include "layer_norm.h"

using mf::i64;
constexpr int kLanes = 32;

static float total(const float (&lanes)[kLanes]) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

extern "C" void layer_norm(const float* __restrict x,
                           const float* __restrict weight,
                           const float* __restrict bias,
                           float* __restrict out, float eps, i64 rows,
                           i64 cols, i64 part, i64 parts) {
  const i64 whole = cols / kLanes * kLanes;
  for (i64 row = rows * part / parts; row < rows * (part + 1) / parts;
       ++row) {
    float sums[kLanes] = {}, squares[kLanes] = {};
    for (i64 c = 0; c < whole; c += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        sums[lane] += x[row * cols + c + lane];
    for (i64 c = whole; c < cols; ++c) sums[c - whole] += x[row * cols + c];
    const float mean = total(sums) / cols;
    for (i64 c = 0; c < whole; c += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float away = x[row * cols + c + lane] - mean;
        squares[lane] += away * away;
      }
    }
    for (i64 c = whole; c < cols; ++c) {
      const float away = x[row * cols + c] - mean;
      squares[c - whole] += away * away;
    }
    const float scale = mf::inverse_sqrt(total(squares) / cols + eps);
    for (i64 c = 0; c < cols; ++c)
      out[row * cols + c] =
          mf::fma((x[row * cols + c] - mean) * scale, weight[c], bias[c]);
  }
}
