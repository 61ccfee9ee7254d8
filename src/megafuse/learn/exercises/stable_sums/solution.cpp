// Exercise 6: the variance of n floats, and a softmax over n floats
#include <cmath>

float variance(Input x, long n) {
  float mean = 0, squares = 0;  // of the elements so far
  for (long i = 0; i < n; ++i) {
    float v = x[i];
    float before = v - mean;
    mean += before / (i + 1);
    squares += before * (v - mean);
  }
  return squares / n;
}

void softmax(Input x, Output out, long n) {
  float largest = -3e38f, sum = 0;  // of exp(x - largest), so far
  for (long i = 0; i < n; ++i) {
    float v = x[i];
    if (v > largest) {
      sum = sum * std::exp(largest - v) + 1;
      largest = v;
    } else {
      sum += std::exp(v - largest);
    }
  }
  for (long i = 0; i < n; ++i) out[i] = std::exp(x[i] - largest) / sum;
}
