// One pass of a functor over memory that the caller names: what every program launches. Nothing is
// promoted and nothing allocated but sums. An output may be an input too: every element is read
// before it is written, and only by the thread that writes it.
#pragma once

#include "core/pointwise.h"
#include "core/rows.h"

namespace megafuse {

// Operands are named in the functor's order: first what is written and summed, then what is read.
class Pass {
 public:
  Given given;  // numbers and choices, to be set before run()

  // Over the index space of this shape, which must outlive it.
  Pass(const Functor& functor, Family family, at::IntArrayRef shape, c10::Device device)
      : given(functor), family_(family), device_(device), shape_(shape) {
    space_.numel = c10::multiply_integers(shape);
  }
  Pass(Given g, Family family, at::IntArrayRef shape, c10::Device device)
      : given(std::move(g)), family_(family), device_(device), shape_(shape) {
    space_.numel = c10::multiply_integers(shape);
  }

  // The order of the dimensions in memory, innermost first; logical unless told (not row-wise).
  Pass& in_order(Order order) {
    order_ = std::move(order);
    return *this;
  }

  Pass& write(const at::Tensor& out, int result = 0) {
    return write(out.mutable_data_ptr(), out, 'c', result);
  }
  // A result of a row-wise functor's row_result: one value for each row, so that the last dimension
  // is 1.
  Pass& write_once(const at::Tensor& values, int result) {
    return write(values.mutable_data_ptr(), values, 'w', result);
  }

  // The functor's result-th result, summed over all dimensions but the last, or over those that
  // `strides` has zeros for (not row-wise); run() returns it as `dtype`, flat.
  Pass& sum(at::ScalarType dtype, int result = 0) {
    Shape strides(shape_.size(), 0);
    if (!is_row_wise(family_)) strides.back() = shape_.back() == 1 ? 0 : 1;
    return sum(dtype, result, std::move(strides));
  }
  Pass& sum(at::ScalarType dtype, int result, Shape strides) {
    const bool one_row =
        space_.numel == shape_.back() && (space_.numel == 1 || strides.back() != 0);
    if (!is_row_wise(family_) && one_row) {  // nothing to add up
      written_.push_back(allocate({shape_.back()}, {}, dtype, device_));
      return write(written_.back(), result);
    }
    Operand& op = space_.add(at::kFloat, 'r', nullptr);
    op.result = int8_t(result);
    strides_.push_back(std::move(strides));
    ++space_.outputs;
    sums_.push_back(dtype);
    return *this;
  }

  Pass& read(const at::Tensor& in) {
    any_double_ |= in.scalar_type() == at::kDouble;
    strides_.push_back(strides_in(shape_, in.sizes(), in.strides()));
    space_.add(in.scalar_type(), 'c', in.const_data_ptr());
    return *this;
  }
  Pass& read(double number) {
    space_.add_value(number);
    return *this;
  }
  // A tensor, or a number in place of one that is absent.
  Pass& read(const at::Tensor* in, double absent) {
    return in && in->defined() ? read(*in) : read(absent);
  }
  Pass& read(const at::Tensor& in, double absent) { return read(&in, absent); }

  using Sums = std::vector<at::Tensor>;

  // The sums, in the order they were asked for. `common` is the dtype PyTorch would compute in.
  Sums run(at::ScalarType common, at::ArrayRef<uint64_t> random = {}) {
    std::optional<Sums> sums = try_run(common, random);
    if (!sums) throw UseReference{};
    return std::move(*sums);
  }
  // Nothing where no kernel walks the operands' layout, or sums along it; nothing is launched then.
  std::optional<Sums> try_run(at::ScalarType common, at::ArrayRef<uint64_t> random = {}) {
    if (space_.numel == 0) return zeros();
    const bool use_double = common == at::kDouble || (is_row_wise(family_) && any_double_);
    Request request{given, family_, device_, common, use_double};
    if (is_row_wise(family_)) return run_rows(request, random);
    if (!lay_out()) return std::nullopt;
    if (sums_.empty()) {
      set_walks(space_);
      run_pointwise(request, space_, random);
      return std::move(written_);
    }
    // As a backward asks for its kernels, so that they are shared.
    request.common = use_double ? at::kDouble : at::kFloat;
    for (int i = 0; i < space_.outputs; ++i)
      if (space_.operand[i].walk == 'r') space_.operand[i].dtype = sum_dtype(device_, use_double);
    const SumPlan plan = plan_sum(space_);
    if (!plan.possible) return std::nullopt;
    return sum_inside(request, space_, plan, sums_);
  }

 private:
  Pass& write(void* data, const at::Tensor& out, char walk, int result) {
    strides_.push_back(strides_in(shape_, out.sizes(), out.strides()));
    space_.add(out.scalar_type(), walk, data).result = int8_t(result);
    ++space_.outputs;
    return *this;
  }

  Sums zeros() const {
    Sums made;
    for (at::ScalarType dtype : sums_)
      made.push_back(at::zeros({shape_.back()}, at::TensorOptions(device_).dtype(dtype)));
    return made;
  }

  bool lay_out() {
    if (order_.empty()) {
      order_.resize(shape_.size());
      std::iota(order_.rbegin(), order_.rend(), 0);
    }
    return megafuse::lay_out(space_, shape_, strides_, order_);
  }

  Sums run_rows(Request& request, at::ArrayRef<uint64_t> random) {
    const OnDevice on(device_);
    RowPlan plan(request, space_, shape_, strides_);
    plan.plan(random).run();
    return sums_.empty() ? Sums() : totals(plan.partial, sums_);
  }

  Family family_;
  c10::Device device_;
  at::IntArrayRef shape_;
  bool any_double_ = false;
  Space space_;
  Order order_;
  c10::SmallVector<Shape, 8> strides_;        // one per operand that is not a value
  c10::SmallVector<at::ScalarType, 4> sums_;  // their dtypes
  Sums written_;                              // sums of one row, which are written as they are
};

}  // namespace megafuse
