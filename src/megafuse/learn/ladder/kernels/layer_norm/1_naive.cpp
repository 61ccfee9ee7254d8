// Three sweeps over all rows, each down the columns: every step lands a
// whole row further on, and of the 64 bytes that arrive it uses 4. Mean and
// scale of the rows wait in arrays.
#include "layer_norm.h"

using mf::i64;

extern "C" void layer_norm(const float* x, const float* weight,
                           const float* bias, float* mean, float* scale,
                           float* out, float eps, i64 rows, i64 cols,
                           i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  for (i64 row = first; row < last; ++row) mean[row] = scale[row] = 0;
  for (i64 c = 0; c < cols; ++c)
    for (i64 row = first; row < last; ++row) mean[row] += x[row * cols + c];
  for (i64 row = first; row < last; ++row) mean[row] /= cols;
  for (i64 c = 0; c < cols; ++c) {
    for (i64 row = first; row < last; ++row) {
      const float away = x[row * cols + c] - mean[row];
      scale[row] += away * away;
    }
  }
  for (i64 row = first; row < last; ++row)
    scale[row] = mf::inverse_sqrt(scale[row] / cols + eps);
  for (i64 c = 0; c < cols; ++c)
    for (i64 row = first; row < last; ++row)
      out[row * cols + c] = mf::fma(
          (x[row * cols + c] - mean[row]) * scale[row], weight[c], bias[c]);
}
