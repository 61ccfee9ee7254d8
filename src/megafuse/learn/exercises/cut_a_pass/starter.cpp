// Exercise 5: out = (x - mean) / sqrt(variance + 1e-5), row by row
#include <cmath>

void layer_norm(Input x, Output out, long rows, long cols) {
  for (long r = 0; r < rows; ++r) {
    Input row = x + r * cols;

    float sum = 0;
    for (long c = 0; c < cols; ++c) sum += row[c];
    float mean = sum / cols;

    float squares = 0;
    for (long c = 0; c < cols; ++c) {
      float d = row[c] - mean;
      squares += d * d;
    }
    float scale = 1 / std::sqrt(squares / cols + 1e-5f);

    for (long c = 0; c < cols; ++c) {
      out[r * cols + c] = (row[c] - mean) * scale;
    }
  }
}
