// Exercise 3: out[r][c] = x[r][c] * scale[c]

void scale_columns(Input x, Input scale, Output out, long rows, long cols) {
  for (long c = 0; c < cols; ++c) {
    for (long r = 0; r < rows; ++r) {
      out[r * cols + c] = x[r * cols + c] * scale[c];
    }
  }
}
