// Row by row, three passes over each: the first brings the row into the
// cache, where the other two find it. Memory sees every row once.
#include "layer_norm.h"

using mf::i64;

extern "C" void layer_norm(const float* x, const float* weight,
                           const float* bias, float* out, float eps,
                           i64 rows, i64 cols, i64 part, i64 parts) {
  for (i64 row = rows * part / parts; row < rows * (part + 1) / parts;
       ++row) {
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += x[row * cols + c];
    const float mean = sum / cols;
    float squares = 0;
    for (i64 c = 0; c < cols; ++c) {
      const float away = x[row * cols + c] - mean;
      squares += away * away;
    }
    const float scale = mf::inverse_sqrt(squares / cols + eps);
    for (i64 c = 0; c < cols; ++c)
      out[row * cols + c] =
          mf::fma((x[row * cols + c] - mean) * scale, weight[c], bias[c]);
  }
}
