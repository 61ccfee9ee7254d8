// dropout_add: residual + dropout(x), and the pass of it that ends ffn and swiglu_ffn.
//
// Not a pointwise op: those broadcast, and an x that does would draw once for all its copies. Here
// shapes are equal, random numbers go by the place of an element in the contiguous result, and
// nothing but the random state is saved.
#pragma once

#include "programs/linear.h"

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

// The gradient of the i-th argument, which was merely added.
inline at::Tensor as_added(const BackwardCall& b, int i) {
  return b.grads[0].to(b.like[i].scalar_type()).contiguous();
}

struct DropoutAdd : Program {
  // (x, residual, p, training) → out
  Results forward(const Call& call, const Agreement&, const RandomState& random,
                  bool) const override {
    const at::Tensor x = as_matrix(*call.tensor[0]);
    const at::Tensor residual = as_matrix(*call.tensor[1]), out = like_sum(x, residual);
    const Dropout dropout = dropout_of(call);
    if (dropout.does_something())
      dropout_add(x, residual, dropout, random, out);
    else
      finish(x, {}, Act::kNone, residual, out, {});
    return {seen_as(out, call.tensor[0]->sizes(), {})};
  }

  Gradients backward(const BackwardCall& b) const override {
    const at::Tensor& dy = b.grads[0];
    Gradients gradients(2);
    const Dropout dropout = dropout_of(b.call);
    if (b.wanted[0] && dropout.does_something()) {
      const at::ScalarType dtype = b.like[0].scalar_type();
      const at::Tensor dx = dropout_grad(as_matrix(dy), dtype, dropout, b.random);
      gradients[0] = seen_as(dx, dy.sizes(), {});
    } else if (b.wanted[0]) {
      gradients[0] = as_added(b, 0);
    }
    if (b.wanted[1]) gradients[1] = as_added(b, 1);
    return gradients;
  }

 private:
  static Dropout dropout_of(const Call& call) { return {call.number[2], call.choice[3] != 0}; }
};

}  // namespace megafuse
