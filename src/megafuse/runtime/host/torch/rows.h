// The program of row-wise ops (kernels/rows.h): one launch forward, one backward, which also sums
// the gradients that rows share.
#pragma once

#include "torch/program.h"

namespace megafuse {

// The value of an argument that is None: a weight multiplies, all others are added.
inline double absent_value(const Arg& arg) { return arg.name == "weight" ? 1.0 : 0.0; }

// A value for each row of a tensor, in the dtype that kernels compute in.
inline at::Tensor one_a_row(const at::Tensor& rows, bool use_double) {
  Shape shape(rows.sizes().begin(), rows.sizes().end());
  shape.back() = 1;
  return allocate(shape, {}, use_double ? at::kDouble : at::kFloat, rows.device());
}

struct Rows : Program {
  explicit Rows(const Op&) {}

  // Kept: the results of row_result, one number a row each.
  Results forward(const Call& given, const Agreement& a, const RandomState& random,
                  bool keep) const override {
    const Call call = without_idle_draws(given);
    const Op& op = *call.op;
    const at::Tensor& x = *call.tensor[op.tensors[0]];
    const Given to_functor = given_of(call);
    if (is_causal(to_functor) && x.dim() < 2) throw BadArguments{};
    const at::ScalarType dtype = promoted(call);
    Results results;
    for (int i = 0; i < op.outputs; ++i)
      results.push_back(allocate(x.sizes(), {}, dtype, a.device));
    bool use_double = false;
    for (int arg : op.tensors)
      use_double |= call.tensor[arg] && call.tensor[arg]->scalar_type() == at::kDouble;
    for (int i = 0; i < (keep ? op.kept() : 0); ++i) results.push_back(one_a_row(x, use_double));
    if (x.numel() == 0) return results;
    Pass pass(to_functor, Family::kRowsForward, x.sizes(), a.device);
    for (int i = 0; i < op.outputs; ++i) pass.write(results[i], i);
    for (size_t i = op.outputs; i < results.size(); ++i)
      pass.write_once(results[i], int(i) - op.outputs);
    for (int arg : op.tensors) pass.read(call.tensor[arg], absent_value(op.args[arg]));
    pass.run(dtype, random.view(op.functor));
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
    Pass pass(given_of(call), Family::kRowsBackward, shape, grad.device());
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
      pass.write(gradients[i], result(i));
    }
    c10::SmallVector<size_t, 4> summed;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!b.wanted[i] || !is_column_sum(i)) continue;
      pass.sum(b.like[i].scalar_type(), result(i));
      summed.push_back(i);
    }
    for (const at::Tensor& g : b.grads) pass.read(g, 0);
    for (size_t i = 0; i < b.saved.size(); ++i)
      pass.read(b.saved[i], op.saved[i] < 0 ? 0 : absent_value(op.args[op.saved[i]]));
    const auto sums = pass.run(grad.scalar_type(), b.random.view(op.functor));
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
