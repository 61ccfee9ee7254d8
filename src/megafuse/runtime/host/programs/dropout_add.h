// dropout_add: residual + dropout(x), and the pass of it that ends ffn and swiglu_ffn.
//
// Not a pointwise op: those broadcast, and an x that does would draw once for all its copies. Here
// shapes are equal, random numbers go by the place of an element in the contiguous result, and
// nothing but the random state is saved.
#pragma once

#include "programs/linear.h"
#include "torch/named.h"

namespace megafuse {

struct Dropout {
  double p;
  bool training;
  bool does_something() const { return training && p > 0; }

  Given given() const {
    static const Functor* const functor =
        new Functor("dropout_add", {{"training", {}}}, /*draws=*/true);
    return Given(*functor).choose(0, training).number(p);
  }
};

// out = residual + dropout(x), all of them matrices; no residual where it is undefined.
inline void dropout_add(const at::Tensor& x, const at::Tensor& residual, Dropout dropout,
                        const RandomState& random, const at::Tensor& out) {
  Pass pass(dropout.given(), Family::kForward, out.sizes(), out.device());
  pass.write(out).read(x).read(residual, 0.0);
  pass.run(out.scalar_type(), random.view(*pass.given.functor));
}

// The gradient of x, which has this dtype, from that of the result.
inline at::Tensor dropout_grad(const at::Tensor& dy, at::ScalarType dtype, Dropout dropout,
                               const RandomState& random) {
  at::Tensor dx = allocate(dy.sizes(), {}, dtype, dy.device());
  Pass pass(dropout.given(), Family::kBackward, dx.sizes(), dx.device());
  pass.write(dx).read(dy).run(dx.scalar_type(), random.view(*pass.given.functor));
  return dx;
}

// Memory for x + residual, a matrix like x.
inline at::Tensor like_sum(const at::Tensor& x, const at::Tensor& residual) {
  const auto dtype = c10::promoteTypes(x.scalar_type(), residual.scalar_type());
  return allocate(x.sizes(), {}, dtype, x.device());
}

// The gradient of an argument that was merely added.
inline at::Tensor as_added(const BackwardCall& b, const Argument& argument) {
  return b.grads[0].to(argument.like(b).scalar_type()).contiguous();
}

inline Dropout dropout_of(const Call& call) {
  return {call.number[call.op->p], call.choice[call.op->training] != 0};
}

class DropoutAdd : public Program {
 public:
  explicit DropoutAdd(const Op& op) : x_(op, "x"), residual_(op, "residual") {}

  Results forward(const Call& call, const Agreement&, const RandomState& random,
                  bool) const override {
    const at::Tensor x = as_matrix(x_.of(call)), residual = as_matrix(residual_.of(call));
    const at::Tensor out = like_sum(x, residual);
    const Dropout dropout = dropout_of(call);
    if (dropout.does_something())
      dropout_add(x, residual, dropout, random, out);
    else
      finish(x, {}, Act::kNone, residual, out, {});
    return {seen_as(out, x_.of(call).sizes(), {})};
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& dy = b.grads[0];
    Gradients gradients(b.wanted.size());
    const Dropout dropout = dropout_of(b.call);
    if (x_.wanted(b) && dropout.does_something()) {
      const at::ScalarType dtype = x_.like(b).scalar_type();
      const at::Tensor dx = dropout_grad(as_matrix(dy), dtype, dropout, b.random);
      x_.of(gradients) = seen_as(dx, dy.sizes(), {});
    } else if (x_.wanted(b)) {
      x_.of(gradients) = as_added(b, x_);
    }
    if (residual_.wanted(b)) residual_.of(gradients) = as_added(b, residual_);
    return gradients;
  }

 private:
  Argument x_, residual_;
};

}  // namespace megafuse
