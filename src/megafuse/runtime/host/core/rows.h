// The program of row-wise ops (kernels/rows.h): one launch forward, one backward, which also sums
// the gradients that rows share. Dimensions keep their logical order, so that an element's place in
// the index space, by which random numbers go, is the same in both; outputs are contiguous.
#pragma once

#include <c10/util/accumulate.h>

#include "core/sums.h"

namespace megafuse {

// The value of an argument that is None: a weight multiplies, all others are added.
inline double absent_value(const Arg& arg) { return arg.name == "weight" ? 1.0 : 0.0; }

inline int position_of(const Op& op, const char* name) {
  for (size_t i = 0; i < op.args.size(); ++i)
    if (op.args[i].name == name) return int(i);
  return -1;
}

inline bool is_causal(const Call& call) {
  const int arg = position_of(*call.op, "causal");
  return arg >= 0 && call.choice[arg];
}

// Whether the CPU does rows side by side (kernels/short_rows_cpu.h, of at most kMost columns).
// Alone, up to 32 columns take up to three times as long, and forward so do more of them that are
// not whole vectors; a backward, which has more tiles to turn, does not.
constexpr bool side_by_side(int64_t cols, Family family) {
  return cols <= 32 || (family == Family::kRowsForward && cols < 64 && cols % 16);
}

// One launch: operands are added in the kernel's order, outputs first.
class RowLaunch {
 public:
  RowLaunch(const Call& call, Family family, at::IntArrayRef shape, c10::Device device)
      : shape_(shape), request_{call, family, device, at::kFloat, false} {
    space_.numel = c10::multiply_integers(shape);
  }

  void write(const at::Tensor& contiguous, int result) {
    add(contiguous.scalar_type(), contiguous.mutable_data_ptr(), contiguous.sizes(),
        contiguous.strides())
        .result = int8_t(result);
    ++space_.outputs;
  }
  // A result of the functor's row_result: one value for each row, so that the last dimension is 1.
  void write_once(const at::Tensor& values, int result) {
    Operand& op = space_.add(values.scalar_type(), 'w', values.mutable_data_ptr());
    op.result = int8_t(result);
    strides_.push_back(strides_in(shape_, values.sizes(), values.strides()));
    ++space_.outputs;
  }
  // A result summed over all rows.
  void sum(int result, at::ScalarType dtype) {
    Operand& op = space_.add(at::kFloat, 'r', nullptr);
    op.result = int8_t(result);
    strides_.emplace_back(shape_.size(), 0);
    sums_.push_back(dtype);
    ++space_.outputs;
  }
  // A tensor that broadcasts into the shape, or the value of one that is absent.
  void read(const at::Tensor* t, double absent) {
    if (!t || !t->defined()) {
      space_.add_value(absent);
      return;
    }
    request_.use_double |= t->scalar_type() == at::kDouble;
    add(t->scalar_type(), t->const_data_ptr(), t->sizes(), t->strides());
  }

  // The sums, in the order they were added. `common` is the dtype that PyTorch would compute in.
  std::vector<at::Tensor> run(at::ScalarType common, at::ArrayRef<uint64_t> random) {
    request_.common = common;
    request_.use_double |= common == at::kDouble;
    lay_out();
    const at::ScalarType sum_in = sum_dtype(request_.device, request_.use_double);
    for (int i = 0; i < space_.outputs; ++i)
      if (space_.operand[i].walk == 'r') space_.operand[i].dtype = sum_in;
    return request_.device.is_cuda() ? on_cuda(sum_in, random) : on_cpu(sum_in, random);
  }

 private:
  Operand& add(at::ScalarType dtype, const void* data, at::IntArrayRef sizes,
               at::IntArrayRef strides) {
    strides_.push_back(strides_in(shape_, sizes, strides));
    return space_.add(dtype, 'c', data);
  }

  // Shorter rows are few accesses even one element at a time.
  static constexpr int64_t kLeastShifted = 64;

  int64_t cols() const { return space_.size[0]; }
  int64_t rows() const { return space_.numel / cols(); }

  // Dimension 0 is the row, the others are merged where all operands allow it; but a causal kernel
  // finds a row's place on the diagonal from dimension 1.
  void lay_out() {
    const bool causal = is_causal(request_.call);
    const int last = int(shape_.size()) - 1;
    space_.dims = 0;
    for (int d = last; d >= 0; --d) {
      const bool is_fixed = d == last || (causal && d == last - 1);
      if (shape_[d] == 1 && !is_fixed) continue;
      if (space_.dims > (causal ? 2 : 1) && !is_fixed && merges(d)) {
        space_.size[space_.dims - 1] *= shape_[d];
        continue;
      }
      if (space_.dims == kMaxDims) throw UseReference{};
      add_dimension(shape_[d], d);
    }
    if (space_.dims == 1) add_dimension(1, -1);
    if (cols() == 1)  // of one element any stride will do
      for (int i = 0; i < space_.operands; ++i) space_.operand[i].stride[0] = 1;
    set_walks(space_);
  }
  // each(operand, its stride along the logical dimension d, or 0 where d < 0)
  template <class Each>
  void for_each_stride(int d, const Each& each) {
    const Shape* strides = strides_.begin();
    for (int i = 0; i < space_.operands; ++i) {
      Operand& op = space_.operand[i];
      const bool is_value = op.walk == 'v';
      each(op, is_value || d < 0 ? 0 : (*strides)[d]);
      if (!is_value) ++strides;
    }
  }
  bool merges(int d) {
    const int outer = space_.dims - 1;
    bool all = true;
    for_each_stride(d, [&](const Operand& op, int64_t stride) {
      all &= stride == op.stride[outer] * space_.size[outer];
    });
    return all;
  }
  void add_dimension(int64_t size, int d) {
    space_.size[space_.dims] = size;
    for_each_stride(d, [&](Operand& op, int64_t stride) { op.stride[space_.dims] = stride; });
    ++space_.dims;
  }

  // Elements in 16 bytes of the narrowest operand: a thread reads so many at once, several times 16
  // bytes of a wider one.
  int most_vector_width() const {
    int64_t narrowest = 16;
    for (int i = 0; i < space_.operands; ++i)
      if (space_.operand[i].walk == 'c') narrowest = std::min(narrowest, space_.operand[i].bytes());
    return int(16 / narrowest);
  }
  // The same, halved until every address and every row allows it.
  int vector_width() const {
    auto fits = [&](int64_t width) {
      if (cols() % width) return false;
      for (int i = 0; i < space_.operands; ++i) {
        const Operand& op = space_.operand[i];
        if (op.walk != 'c') continue;
        const int64_t unit = std::min<int64_t>(width * op.bytes(), 16);
        if (op.word % uint64_t(unit)) return false;
        for (int d = 1; d < space_.dims; ++d)
          if (op.stride[d] * op.bytes() % unit) return false;
      }
      return true;
    };
    int width = most_vector_width();
    while (width > 1 && !fits(width)) width /= 2;
    return width;
  }

  // Cuts rows whose length or addresses allow less than 16 bytes at once at aligned addresses all
  // the same, wherever they start (kernels/row_places_cuda.h). Outputs are contiguous, so their
  // rows say where that is; an input whose rows lie otherwise is read at any address (walk 'u').
  bool shift_rows(int width) {
    if (cols() < kLeastShifted) return false;
    for (int i = 0; i < space_.outputs; ++i)
      if (space_.operand[i].walk == 'c' && space_.operand[i].word % 16) return false;
    for (int i = space_.outputs; i < space_.operands; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk != 'c') continue;
      bool alike = op.word % 16 == 0;
      int64_t dense = cols();
      for (int d = 1; d < space_.dims; dense *= space_.size[d++])
        alike &= space_.size[d] == 1 || (op.stride[d] - dense) % width == 0;
      if (!alike) op.walk = 'u';
    }
    return true;
  }

  // partial[parts, sums]: every block or thread has a row of its own.
  at::Tensor partial_sums(int64_t parts, at::ScalarType sum_in) {
    const int64_t length = int64_t(sums_.size()) * cols();
    at::Tensor partial = allocate({parts, length}, {}, sum_in, request_.device);
    int64_t n = 0;
    for (int i = 0; i < space_.outputs; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk != 'r') continue;
      op.word = reinterpret_cast<uint64_t>(partial.mutable_data_ptr()) +
                uint64_t(n++ * cols() * op.bytes());
      op.stride[1] = length;
    }
    return partial;
  }

  std::vector<at::Tensor> on_cuda(at::ScalarType sum_in, at::ArrayRef<uint64_t> random) {
    CudaScope scope(request_.device);
    request_.vector = vector_width();
    int64_t vectors = cols() / request_.vector;
    if (const int most = most_vector_width(); request_.vector < most && shift_rows(most)) {
      request_.across = true;
      request_.vector = most;
      vectors = cols() / most;
    }
    request_.wide_index = needs_64_bits(space_);
    request_.row_vectors = RowSize(vectors).rounded();
    request_.few_rows = rows() < 2 * multiprocessors(request_.device.index());
    const Compiled kernel = KernelTable::get().find(request_, space_);
    int64_t turns = (rows() + kernel.unroll - 1) / kernel.unroll;
    int64_t most = std::max(1u, kernel.max_grid / kernel.cluster);
    // Blocks in multiples of the vector, whose rows start alike. Not for a single row: beside it
    // weights count as lying alike, which they do not for blocks without a row.
    if (const int64_t apart = request_.vector; request_.across && rows() > 1) {
      turns = (turns + apart - 1) / apart * apart;
      most = std::max(most / apart, int64_t(1)) * apart;
    }
    const int64_t blocks = std::min(turns, most);
    at::Tensor partial;
    if (!sums_.empty()) partial = partial_sums(blocks, sum_in);
    std::array<double, kMaxArgs> storage;
    const Words words = pack(space_, numbers_of(request_.call, storage), random,
                             request_.across ? 1 : request_.vector);
    {
      GilRelease no_gil;
      launch_cuda(kernel, request_.device, unsigned(blocks * kernel.cluster), 1, words);
    }
    return sums_.empty() ? std::vector<at::Tensor>() : totals(partial, sums_);
  }

  std::vector<at::Tensor> on_cpu(at::ScalarType sum_in, at::ArrayRef<uint64_t> random) {
    request_.short_rows = side_by_side(cols(), request_.family);
    const Compiled kernel = KernelTable::get().find(request_, space_);
    const int64_t threads = at::get_num_threads();
    at::Tensor partial;
    if (!sums_.empty()) {
      partial = partial_sums(threads, sum_in);
      std::memset(partial.mutable_data_ptr(), 0, partial.nbytes());  // threads add to their row
    }
    std::array<double, kMaxArgs> storage;
    const Words words = pack(space_, numbers_of(request_.call, storage), random, 1);
    launches.fetch_add(1, std::memory_order_relaxed);
    const auto function = reinterpret_cast<CpuKernel>(kernel.function);
    {
      std::optional<GilRelease> no_gil;
      if (space_.numel > 4096) no_gil.emplace();
      split(rows(), cols(), 1, threads, [&](int64_t begin, int64_t end, int64_t slot) {
        function(words.data(), begin, end, slot);
      });
    }
    return sums_.empty() ? std::vector<at::Tensor>() : totals(partial, sums_);
  }

  at::IntArrayRef shape_;
  Request request_;
  Space space_;
  c10::SmallVector<Shape, 8> strides_;  // one per operand that is not a value
  c10::SmallVector<at::ScalarType, 4> sums_;
};

// A value for each row of a tensor, in the dtype that kernels compute in.
inline at::Tensor one_a_row(const at::Tensor& rows, bool use_double) {
  Shape shape(rows.sizes().begin(), rows.sizes().end());
  shape.back() = 1;
  return allocate(shape, {}, use_double ? at::kDouble : at::kFloat, rows.device());
}

struct Rows : Program {
  // Kept: the results of row_result, one number a row each.
  Results forward(const Call& given, const Agreement& a, const RandomState& random,
                  bool keep) const override {
    const Call call = without_idle_draws(given);
    const Op& op = *call.op;
    const at::Tensor& x = *call.tensor[op.tensors[0]];
    if (is_causal(call) && x.dim() < 2) throw BadArguments{};
    const at::ScalarType dtype = promoted(call);
    Results results;
    for (int i = 0; i < op.outputs; ++i)
      results.push_back(allocate(x.sizes(), {}, dtype, a.device));
    bool use_double = false;
    for (int arg : op.tensors)
      use_double |= call.tensor[arg] && call.tensor[arg]->scalar_type() == at::kDouble;
    for (int i = 0; i < (keep ? op.kept : 0); ++i) results.push_back(one_a_row(x, use_double));
    if (x.numel() == 0) return results;
    RowLaunch launch(call, Family::kRowsForward, x.sizes(), a.device);
    for (int i = 0; i < op.outputs; ++i) launch.write(results[i], i);
    for (size_t i = op.outputs; i < results.size(); ++i)
      launch.write_once(results[i], int(i) - op.outputs);
    for (int arg : op.tensors) launch.read(call.tensor[arg], absent_value(op.args[arg]));
    launch.run(dtype, random.view(op));
    return results;
  }

  // Results of the backward functor are written whole, or summed over rows; those of arguments
  // that are broadcast in any other way are written whole and summed afterwards.
  Gradients backward(const BackwardCall& b) const override {
    const Call call = without_idle_draws(b.call);
    const Op& op = *call.op;
    const at::Tensor& grad = b.grads[0];
    const at::IntArrayRef shape = grad.sizes();
    Gradients gradients(op.grads.size());
    if (grad.numel() == 0) {
      for (size_t i = 0; i < gradients.size(); ++i)
        if (b.wanted[i]) gradients[i] = at::zeros(b.like[i].sizes(), b.like[i].options());
      return gradients;
    }
    RowLaunch launch(call, Family::kRowsBackward, shape, grad.device());
    // Which result of the functor gradient i is. The first two differ by the dropout's factor, so
    // without dropout both are the first.
    auto result = [&](size_t i) {
      const int r = op.grads[i].result;
      return op.random && !call.choice[op.training] && r == 1 ? 0 : r;
    };
    auto is_column_sum = [&](size_t i) {
      const at::Tensor& like = b.like[i];
      return like.sizes() != shape && like.dim() > 0 && like.size(-1) == shape.back() &&
             like.numel() == shape.back();
    };
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!b.wanted[i] || is_column_sum(i)) continue;
      const bool is_whole = b.like[i].sizes() == shape;
      const at::ScalarType dtype =
          is_whole ? b.like[i].scalar_type()
                   : sum_dtype(grad.device(), b.like[i].scalar_type() == at::kDouble);
      // Gradients that are the same result in the same dtype share their memory.
      for (size_t w = 0; w < i && !gradients[i].defined(); ++w)
        if (gradients[w].defined() && result(w) == result(i) && gradients[w].scalar_type() == dtype)
          gradients[i] = gradients[w];
      if (gradients[i].defined()) continue;
      gradients[i] = allocate(shape, {}, dtype, grad.device());
      launch.write(gradients[i], result(i));
    }
    c10::SmallVector<size_t, 4> summed;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!b.wanted[i] || !is_column_sum(i)) continue;
      launch.sum(result(i), b.like[i].scalar_type());
      summed.push_back(i);
    }
    for (const at::Tensor& g : b.grads) launch.read(&g, 0);
    for (size_t i = 0; i < b.saved.size(); ++i)
      launch.read(&b.saved[i], op.saved[i] < 0 ? 0 : absent_value(op.args[op.saved[i]]));
    const auto sums = launch.run(grad.scalar_type(), b.random.view(op));
    for (size_t s = 0; s < summed.size(); ++s)
      gradients[summed[s]] = sums[s].reshape(b.like[summed[s]].sizes());
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined() && gradients[i].sizes() != b.like[i].sizes())
        gradients[i] = sum_by_dimension(gradients[i], b.like[i], gradients[i].scalar_type())
                           .reshape(b.like[i].sizes());
    return gradients;
  }

 private:
  // The dtype that PyTorch would compute in: that of everything added up to make the rows. Weights,
  // which have the shape of one row, do not change it.
  static at::ScalarType promoted(const Call& call) {
    Promotion promotion;
    const at::Tensor& x = *call.tensor[call.op->tensors[0]];
    Shape shape(x.sizes().begin(), x.sizes().end());
    for (int arg : call.op->tensors) {
      const at::Tensor* t = call.tensor[arg];
      const ShapeRule& rule = call.op->args[arg].shape;
      if (!t || (rule.given && !rule.leading)) continue;
      if (!broadcast_into(shape, t->sizes()) || at::IntArrayRef(shape) != x.sizes())
        throw BadArguments{};
      promotion.see(t->scalar_type(), t->dim() > 0);
    }
    return promotion.result();
  }
};

}  // namespace megafuse
