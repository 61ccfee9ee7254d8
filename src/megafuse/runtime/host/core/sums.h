// Sums inside a pointwise kernel: the gradients of broadcast arguments.
//
// The index space is recast as (outer A, kept K, inner B): everything summed varies along K alone.
// B == 1 sums columns, else rows are summed. Generated kernels also sum the columns of segments,
// each A rows of K: dimension B, which columns do not need, then counts these. Every block (every
// thread, on the CPU) writes its own row of partial sums, and a second, small launch adds these up
// in a fixed order: the same bits every time, and no full-size temporary.
#pragma once

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "core/allocate.h"
#include "core/launch.h"

namespace megafuse {

// Partial sums on the CPU are in double: a thread adds thousands of blocks to one number, and it
// costs nothing, since blocks themselves are summed in the compute type. A GPU's block writes once.
inline at::ScalarType sum_dtype(c10::Device device, bool use_double) {
  return use_double || !device.is_cuda() ? at::kDouble : at::kFloat;
}

struct SumPlan {
  bool possible = false;
  int64_t outer = 1, kept = 1, inner = 1;
  int64_t segments = 1;

  int64_t results() const { return segments * kept; }
};

// Recasts a laid-out space into exactly three dimensions (inner, kept, outer), if it has that form;
// `by_segment`: or into (segments, kept, outer).
inline SumPlan plan_sum(Space& space, bool by_segment = false) {
  SumPlan plan;
  std::string pattern;  // innermost first: K where the summed outputs vary, R where not
  for (int d = 0; d < space.dims; ++d) {
    char kind = 0;
    for (int i = 0; i < space.outputs; ++i) {
      if (space.operand[i].walk != 'r') continue;
      const char here = space.operand[i].stride[d] ? 'K' : 'R';
      if (kind && kind != here) return plan;
      kind = here;
    }
    pattern += kind;
  }
  struct Form {
    const char* pattern;
    int inner, kept, outer;  // which dimension each is, or -1
  };
  static constexpr Form forms[] = {
      {"R", 0, -1, -1}, {"RK", 0, 1, -1}, {"KR", -1, 0, 1}, {"RKR", 0, 1, 2}, {"KRK", 2, 0, 1}};
  for (const Form& form : forms) {
    if (pattern != form.pattern) continue;
    const bool in_segments = pattern == "KRK";
    if (in_segments && !by_segment) return plan;
    const int from[3] = {form.inner, form.kept, form.outer};
    const Space before = space;
    space.dims = 3;
    for (int d = 0; d < 3; ++d) {
      space.size[d] = from[d] < 0 ? 1 : before.size[from[d]];
      for (int i = 0; i < space.operands; ++i)
        space.operand[i].stride[d] = from[d] < 0 ? 0 : before.operand[i].stride[from[d]];
    }
    for (int i = 0; i < space.outputs; ++i) {
      const Operand& sum = space.operand[i];
      if (sum.walk != 'r' || form.kept < 0) continue;
      if (sum.stride[1] != 1 || (in_segments && sum.stride[0] != space.size[1])) return plan;
    }
    plan = {true, space.size[2], space.size[1], in_segments ? 1 : space.size[0],
            in_segments ? space.size[0] : 1};
  }
  return plan;
}

constexpr int kSumThreads = 256, kSumColumns = 32;  // of kernels/sum_cuda.h
// Rows this short (in vectors) are summed by one warp each, longer ones by a block.
constexpr int64_t kShortRow = 128;

// How a summing kernel's work is cut up. `parts`: how many there are to be, 0 where that is free.
struct SumCut {
  int64_t parts = 1;
  unsigned grid_x = 1, grid_y = 1;
  int64_t rows = 0;  // CPU, of a part of a segment
};

// The rows of a part of a segment on the CPU, where threads get whole parts: several each, so that
// they have nearly as much to do, but no shorter ones than it takes for each to have one.
inline int64_t rows_of_part(int64_t segments, int64_t rows) {
  constexpr int64_t kEach = 4, kLeastRows = 16;
  const int64_t threads = at::get_num_threads();
  const auto of_segment = [&](int64_t n) { return (n + segments - 1) / segments; };
  const int64_t most = std::max(rows / kLeastRows, of_segment(threads));
  const int64_t parts = std::min({of_segment(kEach * threads), most, rows});
  return (rows + parts - 1) / parts;
}

inline SumCut cut(const Request& request, const SumPlan& plan, unsigned max_grid,
                  int64_t parts = 0) {
  SumCut made;
  const bool one_part = parts == 1;
  if (request.family == Family::kSumSegments && !request.device.is_cuda()) {
    made.rows = rows_of_part(plan.segments, plan.outer);
    made.parts = (plan.outer + made.rows - 1) / made.rows;
  } else if (!request.device.is_cuda()) {
    made.parts = one_part ? 1 : at::get_num_threads();
  } else if (request.family == Family::kSumShortSegments) {
    const int64_t vectors = plan.results() / request.vector;
    made.grid_x = unsigned((vectors + kSumThreads - 1) / kSumThreads);
  } else if (request.family == Family::kSumSegments) {
    const int64_t width = kSumColumns * request.vector;
    const int64_t tiles = (plan.kept + width - 1) / width * plan.segments;
    const int64_t most = std::min<int64_t>((plan.outer + 31) / 32, 65535);
    made.parts = std::clamp<int64_t>(max_grid / tiles, 1, most);
    made.grid_x = unsigned(tiles), made.grid_y = unsigned(made.parts);
  } else if (request.family == Family::kSumColumns) {
    const int64_t width = kSumColumns * request.vector;
    const int64_t tiles = (plan.kept + width - 1) / width;
    const int64_t most = std::min<int64_t>((plan.outer + 31) / 32, 65535);
    made.parts = one_part ? 1 : std::clamp<int64_t>(max_grid / tiles, 1, most);
    made.grid_x = unsigned(tiles), made.grid_y = unsigned(made.parts);
  } else {
    const int64_t rows = plan.kept * plan.outer;
    const bool is_short = request.family == Family::kSumShortRows;
    const int64_t per_block = is_short ? kSumThreads / 32 : 1;
    const int64_t turn = int64_t(kSumThreads) * request.vector;
    const int64_t most = std::min<int64_t>((plan.inner + turn - 1) / turn, 65535);
    const int64_t pieces = is_short ? 1
                           : parts  ? parts
                                    : std::clamp<int64_t>(max_grid / rows, 1, most);
    made.parts = plan.outer * pieces;
    made.grid_x = unsigned((rows + per_block - 1) / per_block);
    made.grid_y = unsigned(pieces);
  }
  return made;
}

// A thread of the GPU sums a vector of columns of a segment alone where the rows are few, or
// vectors are many.
inline bool is_short_segment(const SumPlan& plan, int vector) {
  constexpr int64_t kFewRows = 32, kManyVectors = 1 << 17;
  return plan.outer <= kFewRows || plan.results() / vector >= kManyVectors;
}
// Whether kernels of ours sum segments faster than the library does what they would leave to it.
// On the CPU a part takes as long as a few hundred elements, and its sums as long as a few rows; on
// the GPU a block goes through 32 columns side by side.
inline bool sums_segments(const SumPlan& plan, c10::Device device) {
  if (device.is_cuda()) return plan.kept >= 16 || is_short_segment(plan, 1);
  return plan.outer >= 16 && plan.outer * plan.kept >= 512;
}

// Prepares `request` for a summing kernel: which family, how wide.
inline void choose_family(Request& request, Space& space, const SumPlan& plan) {
  const int along = plan.inner == 1 ? 1 : 0;
  set_walks(space, along);
  if (request.device.is_cuda()) {
    request.vector = vector_width(space, along);
    request.wide_index = needs_64_bits(space);
    set_index_walks(space, along);
  }
  if (plan.segments > 1 && request.device.is_cuda() && is_short_segment(plan, request.vector)) {
    request.family = Family::kSumShortSegments;
  } else if (plan.segments > 1) {
    request.family = Family::kSumSegments;
    while (request.vector > 1 && plan.kept < kSumColumns * request.vector) request.vector /= 2;
  } else if (plan.inner == 1) {
    request.family = Family::kSumColumns;
  } else if (request.device.is_cuda() && plan.inner / request.vector <= kShortRow) {
    request.family = Family::kSumShortRows;
  } else {
    request.family = Family::kSumRows;
  }
}

// The launch, when the space has all its addresses.
inline Launch planned(const Request& request, const Space& space, const SumPlan& plan,
                      const Compiled& kernel, const SumCut& how) {
  Launch launch{request.device, kernel};
  pack(launch.words, space, request.given.words, {}, 1);
  launch.grid_x = how.grid_x, launch.grid_y = how.grid_y;
  launch.slots = how.parts;
  if (request.family == Family::kSumColumns) {
    launch.items = plan.outer;
    launch.weight = plan.kept;
  } else if (how.rows) {
    launch.items = plan.segments * how.parts;
    launch.weight = how.rows * plan.kept;
    launch.slots = INT64_MAX;  // each part has a row of its own, whoever sums it
    launch.words[size_t(space.operands + space.dims)] = uint64_t(how.rows);  // a divider's
  } else {
    launch.items = space.numel;
    launch.align = 64;
  }
  return launch;
}

// The sums that one launch adds up (kernels/sum_parts.h).
constexpr size_t kMostTotals = 4;

// Sums of `columns` each that follow each other in partial[parts, …] from `first` on, added up to
// where they go, all as `dtype`. On the CPU `outs` must begin as 0.
inline void add_parts(const at::Tensor& partial, int64_t first, int64_t columns,
                      at::ArrayRef<void*> outs, at::ScalarType dtype) {
  static const Functor* const functor = new Functor("sum_parts", {{"count", {"1", "2", "3", "4"}}});
  TORCH_INTERNAL_ASSERT(outs.size() <= kMostTotals);
  const int64_t parts = partial.size(0), apart = partial.size(1);
  const Given given = Given(*functor).choose(0, int(outs.size()) - 1);
  Request request{given, Family::kSumColumns, partial.device(), partial.scalar_type(),
                  partial.scalar_type() == at::kDouble};
  Space space;
  space.numel = parts * columns;
  space.outputs = int(outs.size());
  space.dims = 3;
  // A few columns are summed as that many long rows, with a stride: as columns they would keep a
  // few threads busy.
  const bool as_rows = columns < 64;
  SumPlan plan{true, as_rows ? 1 : parts, columns, as_rows ? parts : 1};
  const int64_t sizes[] = {plan.inner, plan.kept, plan.outer};
  const int64_t strides[] = {as_rows ? apart : 0, 1, as_rows ? 0 : apart};
  std::copy_n(sizes, 3, space.size);
  for (size_t i = 0; i < outs.size(); ++i) {
    Operand& sum = space.add(dtype, 'r', outs[i]);
    sum.result = int8_t(i);
    for (int d = 0; d < 3; ++d) sum.stride[d] = d == 1;
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    Operand& read = space.add(partial.scalar_type(), 'c', partial.const_data_ptr());
    read.word += uint64_t((first + int64_t(i) * columns) * read.bytes());
    std::copy_n(strides, 3, read.stride);
  }
  choose_family(request, space, plan);
  // A block has 32 vectors of columns: narrower ones where that makes too few blocks. (768
  // columns on an H200: 2.3 us, and 11 in six blocks of 256 threads.)
  constexpr int64_t kBlocks = 64;
  if (request.family == Family::kSumColumns)
    while (request.vector > 1 && columns < kBlocks * kSumColumns * request.vector)
      request.vector /= 2;
  const Compiled kernel = find_kernel(request, space);
  planned(request, space, plan, kernel, cut(request, plan, kernel.max_grid, 1)).run();
}

// partial[parts, columns] summed over parts, as `dtype`.
inline at::Tensor add_parts(const at::Tensor& partial, at::ScalarType dtype) {
  const int64_t columns = partial.size(1);
  at::Tensor out = partial.is_cuda() ? allocate({columns}, {}, dtype, partial.device())
                                     : at::zeros({columns}, partial.options().dtype(dtype));
  void* const to = out.mutable_data_ptr();
  add_parts(partial, 0, columns, to, dtype);
  return out;
}

// partial[parts, several sums of equal length] added up; sum i as dtypes[i].
inline std::vector<at::Tensor> totals(const at::Tensor& partial,
                                      at::ArrayRef<at::ScalarType> dtypes) {
  const bool one_dtype =
      std::all_of(dtypes.begin(), dtypes.end(), [&](at::ScalarType d) { return d == dtypes[0]; });
  const at::ScalarType dtype = one_dtype ? dtypes[0] : partial.scalar_type();
  const at::Tensor total = partial.size(0) == 1 && dtype == partial.scalar_type()
                               ? partial.squeeze(0)
                               : add_parts(partial, dtype);
  const int64_t length = total.size(0) / int64_t(dtypes.size());
  std::vector<at::Tensor> sums;
  for (int64_t i = 0; i < int64_t(dtypes.size()); ++i)
    sums.push_back(total.narrow(0, i * length, length).to(dtypes[i]));
  return sums;
}

// A tensor summed to the shape of `like`, which broadcasts to it, one dimension after the other:
// torch's sum over several dimensions at once was 13 ulp off where these were 1.
inline at::Tensor sum_by_dimension(const at::Tensor& whole, const at::Tensor& like,
                                   at::ScalarType sum_in) {
  const int64_t lead = whole.dim() - like.dim();
  at::Tensor total = whole.to(sum_in);
  for (int64_t d = whole.dim() - 1; d >= 0; --d)
    if (whole.size(d) != 1 && (d < lead || like.size(d - lead) == 1))
      total = at::sum(total, {d}, /*keepdim=*/true);
  return total.to(like.scalar_type());
}

// A launch with partial sums: each of its `parts` writes `kept` numbers for each 'r' output. Where
// it is `complete` it writes the results themselves: there is one part, in their own dtype, or the
// parts are what is wanted.
struct Summing {
  Launch launch;
  int64_t parts, kept;
  bool complete = false;
};

// The launch of a space that has the form of `plan`, but for the addresses of the 'r' outputs.
// `stored` is the dtype of all results, where that is one; `parts`: sums of everything are left in
// so many.
inline Summing plan_summing(Request request, Space& space, const SumPlan& plan,
                            std::optional<at::ScalarType> stored = {}, int64_t parts = 0) {
  choose_family(request, space, plan);
  if (parts) request.family = Family::kSumRows;
  const bool complete = stored && (request.family == Family::kSumShortSegments || parts);
  for (int i = 0; i < space.outputs; ++i)
    if (complete && space.operand[i].walk == 'r') space.operand[i].dtype = *stored;
  int64_t count = 0;
  for (int i = 0; i < space.outputs; ++i) count += space.operand[i].walk == 'r';
  for (int i = 0; i < space.outputs; ++i)  // from one part to the next
    if (space.operand[i].walk == 'r')
      space.operand[i].stride[2] = parts ? 1 : count * plan.results();
  const Compiled kernel = find_kernel(request, space);
  const SumCut how = cut(request, plan, kernel.max_grid, parts);
  return {planned(request, space, plan, kernel, how), how.parts, plan.results(), complete};
}

// Memory for the partial sums of `count` outputs: threads add to their row, blocks write it.
inline at::Tensor partial_sums(int64_t parts, int64_t count, int64_t kept, at::ScalarType dtype,
                               c10::Device device) {
  at::Tensor partial = allocate({parts, count * kept}, {}, dtype, device);
  if (!device.is_cuda()) std::memset(partial.mutable_data_ptr(), 0, partial.nbytes());
  return partial;
}

// Runs the space's kernel and returns its 'r' outputs summed, output i as dtypes[i].
inline std::vector<at::Tensor> sum_inside(const Request& request, Space& space, const SumPlan& plan,
                                          at::ArrayRef<at::ScalarType> dtypes) {
  const OnDevice on(request.device);
  Summing made = plan_summing(request, space, plan);
  const int64_t count = int64_t(dtypes.size());
  const at::ScalarType summed_in = sum_dtype(request.device, request.use_double);
  at::Tensor partial = partial_sums(made.parts, count, plan.kept, summed_in, request.device);
  int64_t n = 0;
  for (int i = 0; i < space.outputs; ++i) {
    if (space.operand[i].walk != 'r') continue;
    made.launch.words[i] = reinterpret_cast<uint64_t>(partial.mutable_data_ptr()) +
                           uint64_t(n++ * plan.kept * space.operand[i].bytes());
  }
  made.launch.run();
  return totals(partial, dtypes);
}

}  // namespace megafuse
