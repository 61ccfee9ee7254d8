// The sums of a generated kernel (walk 'r'): their partial sums, and these added up to where the
// program wants them.
#pragma once

#include <ATen/ops/as_strided.h>

#include "core/rows.h"
#include "graph/memory.h"

namespace megafuse::graph {

// One sum: which operand it is, what its terms are, and where it goes.
struct Sum {
  int operand;
  at::ScalarType terms;  // float or double
  at::Tensor out;        // the buffer that has it,
  Shape strides;         // by dimensions of the index space, 0 for what is summed
  int64_t offset;        // in elements, from the buffer's first
};
using SumList = c10::SmallVector<Sum, 2>;

// How a launch sums: in parts, or where no driver walks its layout (parts is 0), by writing all
// terms for the library to add up.
struct SumWay {
  int64_t parts = 0, kept = 0;
  at::ScalarType dtype = at::kFloat;  // of partial sums
};

template <class T>
void add_rows(const double* from, int64_t parts, int64_t apart, int64_t columns, T* to) {
  for (int64_t k = 0; k < columns; ++k) {
    double sum = from[k];
    for (int64_t part = 1; part < parts; ++part) sum += from[part * apart + k];
    to[k] = T(float(sum));
  }
}
template <>
inline void add_rows(const double* from, int64_t parts, int64_t apart, int64_t columns,
                     double* to) {
  for (int64_t k = 0; k < columns; ++k) {
    double sum = from[k];
    for (int64_t part = 1; part < parts; ++part) sum += from[part * apart + k];
    to[k] = sum;
  }
}

// The parts of the n-th sum added up, in their order: the same bits every time. On the CPU there
// are as many as threads, so that a loop here is all it takes.
inline void finish_sum(const Sum& sum, const at::Tensor& partial, int64_t n, int64_t kept) {
  const at::ScalarType dtype = sum.out.scalar_type();
  char* const to =
      static_cast<char*>(sum.out.mutable_data_ptr()) + sum.offset * sum.out.element_size();
  if (partial.is_cuda()) return add_parts(partial, n * kept, kept, to, dtype);
  const double* const from = partial.const_data_ptr<double>() + n * kept;
  const int64_t parts = partial.size(0), apart = partial.size(1);
  if (dtype == at::kDouble)
    add_rows(from, parts, apart, kept, reinterpret_cast<double*>(to));
  else if (dtype == at::kFloat)
    add_rows(from, parts, apart, kept, reinterpret_cast<float*>(to));
  else if (dtype == at::kHalf)
    add_rows(from, parts, apart, kept, reinterpret_cast<at::Half*>(to));
  else
    add_rows(from, parts, apart, kept, reinterpret_cast<at::BFloat16*>(to));
}

// Terms of the whole index space, added up by the library one dimension after another.
inline void sum_whole(const Sum& sum, at::Tensor terms) {
  Shape sizes, strides;
  for (int64_t d = terms.dim() - 1; d >= 0; --d) {
    if (sum.strides[d] == 0 && terms.size(d) != 1) terms = at::sum(terms, {d}, /*keepdim=*/true);
  }
  const at::Tensor to =
      at::as_strided(sum.out, terms.sizes(), sum.strides, sum.out.storage_offset() + sum.offset);
  to.copy_(terms);
}

// Runs a launch whose sums go so.
inline void run_summing(Launch& launch, const SumWay& way, const SumList& sums,
                        at::IntArrayRef shape) {
  if (way.parts == 0) {
    std::vector<at::Tensor> whole;
    for (const Sum& sum : sums) {
      whole.push_back(allocate(shape, {}, sum.terms, launch.device));
      launch.set_address(sum.operand, whole.back().const_data_ptr());
    }
    launch.run();
    for (size_t i = 0; i < sums.size(); ++i) sum_whole(sums[i], std::move(whole[i]));
    return;
  }
  const int64_t count = int64_t(sums.size());
  const at::Tensor partial = partial_sums(way.parts, count, way.kept, way.dtype, launch.device);
  const char* const first = static_cast<const char*>(partial.const_data_ptr());
  for (int64_t n = 0; n < count; ++n)
    launch.set_address(sums[n].operand, first + n * way.kept * partial.element_size());
  launch.run();
  for (int64_t n = 0; n < count; ++n) finish_sum(sums[n], partial, n, way.kept);
}

}  // namespace megafuse::graph
