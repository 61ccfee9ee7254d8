// x + bias, then relu, each down the columns: every step lands a whole row
// further on, and of the 64 bytes that arrive it uses 4.
#include "bias_act.h"

using mf::i64;

extern "C" void add(const float* x, const float* bias, float* y, i64 rows,
                    i64 cols, i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  for (i64 c = 0; c < cols; ++c)
    for (i64 row = first; row < last; ++row)
      y[row * cols + c] = x[row * cols + c] + bias[c];
}

extern "C" void relu(const float* y, float* out, i64 rows, i64 cols,
                     i64 part, i64 parts) {
  const i64 first = rows * part / parts, last = rows * (part + 1) / parts;
  for (i64 c = 0; c < cols; ++c)
    for (i64 row = first; row < last; ++row)
      out[row * cols + c] = mf::Relu::value(y[row * cols + c]);
}
