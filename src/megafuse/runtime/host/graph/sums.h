// The sums of a generated kernel (walk 'r', or 'g' of segments): their partial sums, and these
// added up to where the program wants them.
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
  bool by_segment;       // over the rows of each segment, not over all
  bool in_parts;         // `out` has room for its parts, of which some may be 0
};
using SumList = c10::SmallVector<Sum, 2>;

// How a launch sums: in parts, or where no driver walks its layout (parts is 0), by writing all
// terms for the library to add up. Sums of a row-wise kernel that keep outer dimensions are over
// the rows of each segment, and have parts of their own: partial[segment_parts, sums, segments,
// kept].
struct SumWay {
  int64_t parts = 0, kept = 0;
  at::ScalarType dtype = at::kFloat;  // of partial sums
  int64_t segment_parts = 0, segments = 0;
  bool complete = false;  // the kernel writes the results themselves
  bool bare = false;      // there is no kernel: the library sums what lies in memory

  int64_t parts_of(bool by_segment) const { return by_segment ? segment_parts : parts; }
  int64_t kept_of(bool by_segment) const { return by_segment ? segments * kept : kept; }
};

// Whether a row-wise kernel's sum keeps more than the row. Sizes of 1 keep nothing.
inline bool keeps_segments(at::IntArrayRef shape, at::IntArrayRef strides) {
  for (size_t d = 0; d + 1 < shape.size(); ++d)
    if (shape[d] != 1 && strides[d] != 0) return true;
  return false;
}

// How many rows each number of such a sum is over, where outer dimensions are kept and inner ones
// summed, and the result is dense; else 0.
inline int64_t rows_of_segment(at::IntArrayRef shape, at::IntArrayRef strides) {
  const size_t last = shape.size() - 1;
  int64_t rows = 1, dense = shape[last];
  if (shape[last] != 1 && strides[last] != 1) return 0;
  for (size_t d = last; d-- > 0;) {
    if (shape[d] == 1) continue;
    if (strides[d] == 0 && dense == shape[last]) {
      rows *= shape[d];
    } else {
      if (strides[d] != dense) return 0;
      dense *= shape[d];
    }
  }
  return rows;
}

// The same of all such sums of a kernel; 0 where one of them has to be added up by the library.
inline int64_t rows_of_segments(const Space& space, at::IntArrayRef shape,
                                at::ArrayRef<Shape> strides, c10::Device device) {
  // Shorter segments would leave most threads of a block without a row, or of a CPU's vector of
  // short rows; and on the CPU their sums take as long as a few rows. (ada_layer_norm of 2048 x 2 x
  // 512 on two ARM cores, against eager: 0.7 in segments, 0.36 so; of 256 x 16 x 512 0.45 and
  // 0.62.)
  constexpr int64_t kLeastOfSegment = 2048;  // elements
  const int64_t least_rows = device.is_cuda() ? 1 : 8;
  int64_t found = 0;
  for (int i = 0; i < space.outputs; ++i) {
    if (space.operand[i].walk != 'r' || !keeps_segments(shape, strides[i])) continue;
    const int64_t rows = rows_of_segment(shape, strides[i]);
    if (rows < least_rows || rows * shape.back() < kLeastOfSegment) return 0;
    if (found && found != rows) return 0;
    found = rows;
  }
  return found;
}

// Partial sums as the result has them: rounded once. Halves go by way of float, as torch's do.
template <class T>
T total_as(double sum) {
  return T(float(sum));
}
template <>
inline double total_as(double sum) {
  return sum;
}

template <class T>
void add_rows(const double* from, int64_t parts, int64_t apart, int64_t columns, T* to) {
  constexpr int64_t kLine = 64;  // columns of different threads lie in different cache lines
  split(columns, parts, kLine, INT64_MAX, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t k = begin; k < end; ++k) {
      double sum = from[k];
      for (int64_t part = 1; part < parts; ++part) sum += from[part * apart + k];
      to[k] = total_as<T>(sum);
    }
  });
}

inline char* address(const Sum& sum) {
  return static_cast<char*>(sum.out.mutable_data_ptr()) + sum.offset * sum.out.element_size();
}

// The parts of the n-th sum added up, in their order: the same bits every time. On the CPU there
// are about as many as threads, so that a loop here is all it takes.
inline void finish_sum(const Sum& sum, const at::Tensor& partial, int64_t n, int64_t kept) {
  const at::ScalarType dtype = sum.out.scalar_type();
  char* const to = address(sum);
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

// The same of all that have parts here. On CUDA those of one dtype that follow each other are one
// launch: the gradients of a norm's weight and bias, and of the bias before it. (768 columns each
// on an H200: 5.0 us for three together, 3.4 for one and 1.2 until the next.)
inline void finish_sums(at::ArrayRef<const Sum*> sums, const at::Tensor& partial, int64_t kept) {
  if (sums.empty()) return;
  if (!partial.is_cuda()) {
    for (size_t n = 0; n < sums.size(); ++n) finish_sum(*sums[n], partial, int64_t(n), kept);
    return;
  }
  for (size_t first = 0, next = 0; first < sums.size(); first = next) {
    const at::ScalarType dtype = sums[first]->out.scalar_type();
    const auto goes_with = [&](const Sum& sum) { return sum.out.scalar_type() == dtype; };
    c10::SmallVector<void*, kMostTotals> outs;
    while (next < sums.size() && outs.size() < kMostTotals && goes_with(*sums[next]))
      outs.push_back(address(*sums[next++]));
    add_parts(partial, int64_t(first) * kept, kept, outs, dtype);
  }
}

// Terms of the whole index space, added up by the library one dimension after another.
inline void sum_whole(const Sum& sum, at::Tensor terms) {
  if (sum.in_parts) at::Tensor(sum.out).zero_();
  Order dims;
  Shape left(terms.sizes());
  for (int64_t d = terms.dim() - 1; d >= 0; --d) {
    if (sum.strides[d] != 0 || terms.size(d) == 1) continue;
    dims.push_back(d);
    left[d] = 1;
  }
  at::Tensor to = at::as_strided(sum.out, left, sum.strides, sum.out.storage_offset() + sum.offset);
  // The last one right to where it goes, unless it is rounded on the way.
  const bool rounds = to.scalar_type() != sum.terms;
  for (size_t i = 0; i + !rounds < dims.size(); ++i)
    terms = at::sum(terms, {dims[i]}, /*keepdim=*/true, sum.terms);
  if (rounds || dims.empty())
    to.copy_(terms);
  else
    at::sum_out(to, terms, {dims.back()}, /*keepdim=*/true, sum.terms);
}

// Runs a launch whose sums go so.
inline void run_summing(Launch& launch, const SumWay& way, const SumList& sums,
                        at::IntArrayRef shape) {
  if (way.complete) {
    for (const Sum& sum : sums) launch.set_address(sum.operand, address(sum));
    return launch.run();
  }
  int64_t count[] = {0, 0};  // of sums in parts: over all rows, over those of segments
  for (const Sum& sum : sums) count[sum.by_segment] += way.parts_of(sum.by_segment) != 0;
  at::Tensor partial[2];
  if (count[false])
    partial[false] = partial_sums(way.parts, count[false], way.kept, way.dtype, launch.device);
  if (count[true])  // whoever has a part of a segment writes all of its sums
    partial[true] = allocate({way.segment_parts, count[true] * way.kept_of(true)}, {}, way.dtype,
                             launch.device);
  std::vector<at::Tensor> whole(sums.size());
  int64_t next[] = {0, 0};
  for (size_t i = 0; i < sums.size(); ++i) {
    const bool by_segment = sums[i].by_segment;
    if (!partial[by_segment].defined()) {
      whole[i] = allocate(shape, {}, sums[i].terms, launch.device);
      launch.set_address(sums[i].operand, whole[i].const_data_ptr());
      continue;
    }
    const at::Tensor& parts = partial[by_segment];
    const int64_t first = next[by_segment]++ * way.kept_of(by_segment);
    launch.set_address(sums[i].operand, static_cast<const char*>(parts.const_data_ptr()) +
                                            first * parts.element_size());
  }
  launch.run();
  c10::SmallVector<const Sum*, 4> in_parts[2];
  for (size_t i = 0; i < sums.size(); ++i)
    if (whole[i].defined())
      sum_whole(sums[i], std::move(whole[i]));
    else
      in_parts[sums[i].by_segment].push_back(&sums[i]);
  for (const bool by_segment : {false, true})
    finish_sums(in_parts[by_segment], partial[by_segment], way.kept_of(by_segment));
}

}  // namespace megafuse::graph
