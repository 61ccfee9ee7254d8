// Tensors seen as matrices. Views are made without a trip through the dispatcher, which takes a
// microsecond or two for each: as long as all else that the host does for a small call.
#pragma once

#include "core/allocate.h"

namespace megafuse {

inline bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

inline at::Tensor new_matrix(int64_t rows, int64_t columns, const at::Tensor& like) {
  return allocate({rows, columns}, {}, like.scalar_type(), like.device());
}

// The same memory with other sizes and strides, for what runs below autograd.
inline at::Tensor seen_as(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor view(t.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
  if (strides.empty())
    view.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  else
    view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return view;
}

inline at::Tensor transposed(const at::Tensor& matrix) {
  return seen_as(matrix, {matrix.size(1), matrix.size(0)}, {matrix.stride(1), matrix.stride(0)});
}

// x of any rank as [rows, columns]: a view wherever strides allow one.
inline at::Tensor as_matrix(const at::Tensor& x) {
  if (x.dim() == 2) return x;
  const int64_t columns = x.size(-1);
  int64_t rows = 1;
  for (int64_t d = 0; d < x.dim() - 1; ++d) rows *= x.size(d);
  return x.is_contiguous() ? seen_as(x, {rows, columns}, {}) : x.reshape({rows, columns});
}

// A contiguous matrix with the leading dimensions that `like` has.
inline at::Tensor with_rows_of(const at::Tensor& like, const at::Tensor& matrix) {
  if (like.dim() == 2) return matrix;
  Shape shape(like.sizes().begin(), like.sizes().end());
  shape.back() = matrix.size(1);
  return seen_as(matrix, shape, {});
}

}  // namespace megafuse
