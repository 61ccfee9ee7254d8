// Exercise 5: out = (x - mean) / sqrt(variance + 1e-5), row by row
#include <cmath>

void layer_norm(Input x, Output out, long rows, long cols) {
  for (long r = 0; r < rows; ++r) {
    Input row = x + r * cols;

    // Around the first element, so that a large mean does not eat digits.
    float first = row[0];
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
    for (long c = 0; c < cols; ++c) {
      float d = row[c] - first;
      sum += d;
      squares += d * d;
    }
    float mean = sum / cols;
    float variance = squares / cols - mean * mean;
    float scale = 1 / std::sqrt(variance + 1e-5f);

    for (long c = 0; c < cols; ++c) {
      out[r * cols + c] = (row[c] - first - mean) * scale;
    }
  }
}
