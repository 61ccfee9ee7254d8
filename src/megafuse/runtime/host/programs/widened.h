// Products of 16-bit matrices on a CPU without instructions for them: both matrices are widened to
// float32 by a pass of ours and multiplied by PyTorch's float32 GEMM. Whatever follows reads the
// float32 product, so that a result is rounded once.
//
// 256x768x3072 on two cores of a Neoverse-N1, relu(linear): eager 6.0 s in float16 and 4.8 s in
// bfloat16, this 18 ms. There a bfloat16 product of PyTorch's first fails inside oneDNN, with a
// warning, and PyTorch then switches oneDNN off for the whole process.
#pragma once

#include <ATen/ops/mm.h>

#include "programs/epilogue.h"

namespace megafuse {

// A matrix in float32, its rows or columns contiguous as before. PyTorch's own conversion from
// float16 takes five times as long.
inline at::Tensor widened(const at::Tensor& matrix) {
  const bool turned = matrix.stride(0) == 1 && matrix.stride(1) != 1;
  const at::Tensor from = turned ? transposed(matrix) : matrix;
  const at::Tensor wide = allocate({from.size(0), from.size(1)}, {}, at::kFloat, matrix.device());
  finish(from, {}, Act::kNone, {}, wide, {});
  return turned ? transposed(wide) : wide;
}

// Some rows and columns of a product.
struct ProductBlock {
  int64_t row, rows, column, columns;

  // These of a matrix of the product's size, or of one number a column.
  at::Tensor of(const at::Tensor& t) const {
    if (!t.defined()) return t;
    at::Tensor part = t;
    if (columns != t.size(-1)) part = part.narrow(-1, column, columns);
    if (t.dim() == 2 && rows != t.size(0)) part = part.narrow(0, row, rows);
    return part;
  }
};

// How many of `count` vectors of `length` numbers are widened at once: 16 MiB of them. In blocks of
// 1 MiB products took 1.1 to 1.7 times as long on two cores of a Neoverse-N1 (512x4096x1024 in
// bfloat16 106 ms, in blocks of 16 MiB 70; float32's own product 64). At most 4096, so that the
// product of two such blocks has 64 MiB.
inline int64_t widened_at_once(int64_t count, int64_t length) {
  constexpr int64_t kNumbers = int64_t(4) << 20, kLeast = 256, kMost = 4096;
  const int64_t fit = std::clamp(kNumbers / std::max<int64_t>(length, 1), kLeast, kMost);
  return std::max<int64_t>(std::min(count, fit), 1);
}

// use(product, block) for each block of a·b, in float32. The memory taken beside the result does
// not grow with the matrices: blocks of columns, and within them of rows.
template <class Use>
void for_widened_product(const at::Tensor& a, const at::Tensor& b, const Use& use) {
  const int64_t rows = a.size(0), columns = b.size(1), k = a.size(1);
  const int64_t row_step = widened_at_once(rows, k);
  const int64_t column_step = widened_at_once(columns, k);
  const bool one = row_step >= rows;
  at::Tensor left = one ? widened(a) : at::Tensor();
  for (int64_t column = 0; column < columns; column += column_step) {
    const int64_t across = std::min(column_step, columns - column);
    const at::Tensor right = widened(across == columns ? b : b.narrow(1, column, across));
    for (int64_t row = 0; row < rows; row += row_step) {
      const int64_t down = std::min(row_step, rows - row);
      if (!one) left = widened(a.narrow(0, row, down));
      at::Tensor product = allocate({down, across}, {}, at::kFloat, a.device());
      at::mm_out(product, left, right);
      use(product, ProductBlock{row, down, column, across});
    }
  }
}

// ---- products of a few rows, which read the matrix where it lies, once for four of them

// A functor of the kernels below for 1 to 4 rows.
class FewRows {
 public:
  static constexpr int64_t together = 4;
  explicit FewRows(const char* name) : functor_(name, {{"count", {"1", "2", "3", "4"}}}) {}
  Given of(int64_t count) const { return Given(functor_).choose(0, int(count) - 1); }

 private:
  Functor functor_;
};

// use(first, count) for the rows of a, so many at a time.
template <class Use>
void for_few_rows(int64_t rows, const Use& use) {
  for (int64_t first = 0; first < rows; first += FewRows::together)
    use(first, std::min(FewRows::together, rows - first));
}

// Whether a·b is of a few rows with a large matrix whose columns, or rows, are contiguous.
// 11008 x 4096 in bfloat16 on two cores of an Intel Xeon without instructions for it: 5 ms up to
// four rows, and widened 50; 16 rows 20 and 80. (eager: 7, 30 and 54.)
inline bool is_few_rows(const at::Tensor& a, const at::Tensor& b, int64_t most) {
  constexpr int64_t kLeast = 64;
  return a.size(0) <= most && a.size(1) >= kLeast && b.numel() > 0;
}
inline bool is_row_dots(const at::Tensor& a, const at::Tensor& b) {
  return is_few_rows(a, b, 32) && b.stride(0) == 1;
}
inline bool is_column_dots(const at::Tensor& a, const at::Tensor& b) {
  return is_few_rows(a, b, 16) && b.stride(1) == 1 && b.size(1) >= 64;
}

// a·b in float32, where b's columns are contiguous: products of its columns.
inline at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  static const auto* const functor = new FewRows("row_dots");
  const at::Tensor left = widened(a), right = transposed(b);
  const at::Tensor product = allocate({a.size(0), b.size(1)}, {}, at::kFloat, a.device());
  for_few_rows(a.size(0), [&](int64_t first, int64_t count) {
    Pass pass(functor->of(count), Family::kRowsForward, right.sizes(), a.device());
    for (int64_t i = 0; i < count; ++i)
      pass.write_once(transposed(product.narrow(0, first + i, 1)), int(i));
    pass.read(right);
    for (int64_t i = 0; i < count; ++i) pass.read(left.narrow(0, first + i, 1));
    pass.run(at::kFloat);
  });
  return product;
}

// The same where its rows are: rows of b, each times a number, added up.
inline at::Tensor column_dots(const at::Tensor& a, const at::Tensor& b) {
  static const auto* const functor = new FewRows("column_dots");
  const at::Tensor left = widened(a);
  const at::Tensor product = allocate({a.size(0), b.size(1)}, {}, at::kFloat, a.device());
  for_few_rows(a.size(0), [&](int64_t first, int64_t count) {
    Pass pass(functor->of(count), Family::kBackward, b.sizes(), a.device());
    for (int64_t i = 0; i < count; ++i) pass.sum(at::kFloat, int(i));
    pass.read(b);
    for (int64_t i = 0; i < count; ++i) pass.read(transposed(left.narrow(0, first + i, 1)));
    const Pass::Sums sums = pass.run(at::kFloat);
    for (int64_t i = 0; i < count; ++i) product.select(0, first + i).copy_(sums[i]);
  });
  return product;
}

// out = a·b, where a has up to four columns: one pass that writes.
inline bool is_outer_sum(const at::Tensor& a, const at::Tensor& b) {
  return a.size(1) >= 1 && a.size(1) <= FewRows::together && b.stride(1) == 1;
}
inline void outer_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  static const auto* const functor = new FewRows("outer_sum");
  const int64_t count = a.size(1);
  Pass pass(functor->of(count), Family::kForward, out.sizes(), out.device());
  pass.write(out);
  for (int64_t i = 0; i < count; ++i) pass.read(a.narrow(1, i, 1));
  for (int64_t i = 0; i < count; ++i) pass.read(b.narrow(0, i, 1));
  pass.run(out.scalar_type());
}

// use(product, block) for a·b in float32, whichever way it is found.
template <class Use>
void for_float_product(const at::Tensor& a, const at::Tensor& b, const Use& use) {
  const ProductBlock whole{0, a.size(0), 0, b.size(1)};
  if (is_row_dots(a, b))
    use(row_dots(a, b), whole);
  else if (is_column_dots(a, b))
    use(column_dots(a, b), whole);
  else
    for_widened_product(a, b, use);
}

// out = a·b, or out += a·b, rounded once.
inline void multiply_widened(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                             bool add) {
  if (!add && is_outer_sum(a, b)) return outer_sum(a, b, out);
  for_float_product(a, b, [&](const at::Tensor& product, const ProductBlock& block) {
    const at::Tensor to = block.of(out);
    finish(product, {}, Act::kNone, add ? to : at::Tensor(), to, {});
  });
}

}  // namespace megafuse
