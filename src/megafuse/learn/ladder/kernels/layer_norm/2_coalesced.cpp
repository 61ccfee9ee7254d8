// Three sweeps over all rows, each straight through memory: every byte that
// arrives is used, but by the time a sweep ends, the first rows have left
// the cache again.
#include "layer_norm.h"

using mf::i64;

extern "C" void layer_norm(const float* x, const float* weight,
                           const float* bias, float* mean, float* scale,
                           float* out, float eps, i64 rows, i64 cols,
                           i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  for (i64 row = first; row < last; ++row) {
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += x[row * cols + c];
    mean[row] = sum / cols;
  }
  for (i64 row = first; row < last; ++row) {
    float squares = 0;
    for (i64 c = 0; c < cols; ++c) {
      const float away = x[row * cols + c] - mean[row];
      squares += away * away;
    }
    scale[row] = mf::inverse_sqrt(squares / cols + eps);
  }
  for (i64 row = first; row < last; ++row)
    for (i64 c = 0; c < cols; ++c)
      out[row * cols + c] = mf::fma(
          (x[row * cols + c] - mean[row]) * scale[row], weight[c], bias[c]);
}
