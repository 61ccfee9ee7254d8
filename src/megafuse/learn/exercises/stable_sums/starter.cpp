// Exercise 6: the variance of n floats, and a softmax over n floats
#include <cmath>

float variance(Input x, long n) {
  float sum = 0, squares = 0;
  for (long i = 0; i < n; ++i) {
    float v = x[i];
    sum += v;
    squares += v * v;
  }
  float mean = sum / n;
  return squares / n - mean * mean;
}

void softmax(Input x, Output out, long n) {
  float sum = 0;
  for (long i = 0; i < n; ++i) sum += std::exp(x[i]);
  for (long i = 0; i < n; ++i) out[i] = std::exp(x[i]) / sum;
}
