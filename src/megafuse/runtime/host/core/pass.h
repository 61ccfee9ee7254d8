// One pass of a functor over memory that the caller names: what a composite op does between its
// GEMMs. Nothing is promoted and nothing allocated but sums. An output may be an input too: every
// element is read before it is written, and only by the thread that writes it.
#pragma once

#include "core/sums.h"

namespace megafuse {

// An op that no user calls: `name` is that of its functors in runtime/build.py, `number` tells
// its kernels from others' (0 belongs to sums.h).
inline Op* internal_op(const char* name, int number) {
  auto* made = new Op;
  made->id = 0xffff - number;
  made->name = name;
  return made;
}

inline void add_choice(Op* op, const char* name, std::vector<std::string> choices) {
  Arg arg{};
  arg.name = name;
  arg.kind = choices.empty() ? ArgKind::kFlag : ArgKind::kChoice;
  arg.choices = std::move(choices);
  op->args.push_back(std::move(arg));
}

inline void add_number(Op* op, const char* name) {
  Arg arg{};
  arg.name = name;
  arg.kind = ArgKind::kNumber;
  op->numbers.push_back(int(op->args.size()));
  op->args.push_back(std::move(arg));
}

// Operands are named in the functor's order: first what is written and summed, then what is read.
class Pass {
 public:
  Call call;  // its numbers and choices, to be set before run()

  // Over the index space of `like`, [rows, columns], on its device.
  Pass(const Op& op, Family family, const at::Tensor& like)
      : call{&op},
        family_(family),
        device_(like.device()),
        shape_(like.sizes().begin(), like.sizes().end()) {
    space_.numel = like.numel();
    common_ = like.scalar_type();
  }

  Pass& write(const at::Tensor& out, int result = 0) {
    add(out, out.mutable_data_ptr()).result = int8_t(result);
    ++space_.outputs;
    return *this;
  }

  // The functor's result-th result summed over the rows; run() returns it as `dtype`.
  Pass& sum(at::ScalarType dtype, int result = 0) {
    if (shape_[0] == 1) {  // nothing to add up
      totals_.push_back(allocate({shape_[1]}, {}, dtype, device_));
      return write(totals_.back(), result);
    }
    space_.add(sum_dtype(device_, common_ == at::kDouble), 'r', nullptr).result = int8_t(result);
    strides_.push_back({0, shape_[1] == 1 ? 0 : 1});
    ++space_.outputs;
    dtypes_.push_back(dtype);
    return *this;
  }

  Pass& read(const at::Tensor& in) {
    add(in, in.const_data_ptr());
    return *this;
  }
  Pass& read(double number) {
    space_.add_value(number);
    return *this;
  }

  // Returns the sums, in the order they were asked for.
  std::vector<at::Tensor> run(const RandomState& random = {}) {
    if (space_.numel == 0) {
      for (at::ScalarType dtype : dtypes_)
        totals_.push_back(at::zeros({shape_[1]}, at::TensorOptions(device_).dtype(dtype)));
      return std::move(totals_);
    }
    const Order logical{1, 0};
    TORCH_INTERNAL_ASSERT(lay_out(space_, shape_, strides_, logical));
    const bool use_double = common_ == at::kDouble;
    Request request{call, family_, device_, common_, use_double};
    if (dtypes_.empty()) {
      set_walks(space_);
      megafuse::run(request, space_, random.view(*call.op));
      return std::move(totals_);
    }
    request.common = use_double ? at::kDouble : at::kFloat;  // as Backward asks for its kernels
    const SumPlan plan = plan_sum(space_);
    TORCH_INTERNAL_ASSERT(plan.possible);
    return sum_inside(request, space_, plan, dtypes_);
  }

 private:
  Operand& add(const at::Tensor& t, const void* data) {
    strides_.push_back(strides_in(shape_, t.sizes(), t.strides()));
    return space_.add(t.scalar_type(), 'c', data);
  }

  Family family_;
  c10::Device device_;
  at::ScalarType common_;
  Shape shape_;
  Space space_;
  c10::SmallVector<Shape, 8> strides_;
  c10::SmallVector<at::ScalarType, 4> dtypes_;  // of the sums
  std::vector<at::Tensor> totals_;
};

}  // namespace megafuse
