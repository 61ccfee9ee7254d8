// gelu, then scale. x is seen as a matrix of 4096 columns and walked down
// its columns: each step is 16 KiB away from the last and uses 4 bytes of
// the 64 that memory delivers.
#include "gelu_scale.h"

using mf::i64;
constexpr i64 kColumns = 4096;

extern "C" void gelu(const float* x, float* y, i64 n, i64 part, i64 parts) {
  const i64 first = kColumns * part / parts,
            last = kColumns * (part + 1) / parts;
  for (i64 column = first; column < last; ++column)
    for (i64 i = column; i < n; i += kColumns)
      y[i] = mf::GeluTanh::value(x[i]);
}

extern "C" void scale(const float* y, float* out, float factor, i64 n,
                      i64 part, i64 parts) {
  const i64 first = kColumns * part / parts,
            last = kColumns * (part + 1) / parts;
  for (i64 column = first; column < last; ++column)
    for (i64 i = column; i < n; i += kColumns) out[i] = y[i] * factor;
}
