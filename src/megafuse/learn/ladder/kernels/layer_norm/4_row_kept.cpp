// Row by row, three passes over each: the first brings the row into the
// nearest cache, where the other two find it. Memory sees every row once. A
// core has too few registers for a row of 1024 floats (512 bytes on ARM,
// 512 to 2048 on x86), but a cache needs no length compiled in.
#include "layer_norm.h"

using mf::i64;
constexpr int kLanes = 32;

// The sum of (x[c] - mean) to the power, 1 or 2.
template <int power>
static float row_sum(const float* x, float mean, i64 cols) {
  float lanes[kLanes] = {};
  auto add = [&](i64 c, i64 lane) {
    const float away = x[c] - mean;
    lanes[lane] += power == 1 ? away : away * away;
  };
  const i64 whole = cols / kLanes * kLanes;
  for (i64 c = 0; c < whole; c += kLanes)
    for (i64 lane = 0; lane < kLanes; ++lane) add(c + lane, lane);
  for (i64 c = whole; c < cols; ++c) add(c, c - whole);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

extern "C" void layer_norm(const float* __restrict x,
                           const float* __restrict weight,
                           const float* __restrict bias,
                           float* __restrict out, float eps, i64 rows,
                           i64 cols, i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  for (i64 row = first; row < last; ++row) {
    const float mean = row_sum<1>(x + row * cols, 0, cols) / cols;
    const float squares = row_sum<2>(x + row * cols, mean, cols);
    const float scale = mf::inverse_sqrt(squares / cols + eps);
    for (i64 c = 0; c < cols; ++c)
      out[row * cols + c] =
          mf::fma((x[row * cols + c] - mean) * scale, weight[c], bias[c]);
  }
}
