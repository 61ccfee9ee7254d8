// What an op's signature names, found by its name once, when the op is registered: no program
// depends on the order in which Python declares arguments, choices, gradients or kept results.
#pragma once

#include "torch/program.h"

namespace megafuse {

// A tensor argument, in a call, among what the backward reads, and its gradient.
class Argument {
 public:
  Argument(const Op& op, const char* name)
      : arg_(op.position(name)), saved_(op.saved_position(arg_)), gradient_(op.gradient_of(arg_)) {}

  // Undefined where it was not given.
  const at::Tensor& of(const Call& call) const {
    static const at::Tensor absent;
    return call.tensor[arg_] ? *call.tensor[arg_] : absent;
  }
  const at::Tensor& of(const BackwardCall& b) const { return b.saved[size_t(saved_)]; }
  at::Tensor& of(Gradients& gradients) const { return gradients[size_t(gradient_)]; }

  bool wanted(const BackwardCall& b) const { return b.wanted[size_t(gradient_)]; }
  // What its gradient looks like; undefined where that is not wanted.
  at::Tensor like(const BackwardCall& b) const {
    return wanted(b) ? b.like[size_t(gradient_)] : at::Tensor();
  }

 private:
  int arg_;
  int saved_, gradient_;  // -1: there is none
};

// A layer's parameters.
struct WeightAndBias {
  at::Tensor weight, bias;
};
struct Layer {
  Argument weight, bias;

  template <class Holder>
  WeightAndBias of(const Holder& holder) const {
    return {weight.of(holder), bias.of(holder)};
  }
  bool wanted(const BackwardCall& b) const { return weight.wanted(b) || bias.wanted(b); }
};

// A result, which users see or which is kept for the backward.
class Result {
 public:
  Result(const Op& op, const char* name)
      : result_(op.result(name)), saved_(op.saved_position(-1 - result_)) {}

  const at::Tensor& of(const BackwardCall& b) const { return b.saved[size_t(saved_)]; }
  at::Tensor& of(Results& results) const { return results[size_t(result_)]; }

 private:
  int result_, saved_;
};

// As many as a forward returns, to be filled in.
inline Results results_of(const Op& op, bool keep) {
  return Results(size_t(op.outputs + (keep ? op.kept() : 0)));
}

class Number {
 public:
  Number(const Op& op, const char* name) : arg_(op.position(name)) {}
  double of(const Call& call) const { return call.number[arg_]; }

 private:
  int arg_;
};

class Flag {
 public:
  Flag(const Op& op, const char* name) : arg_(op.position(name)) {}
  bool of(const Call& call) const { return call.choice[arg_] != 0; }

 private:
  int arg_;
};

}  // namespace megafuse
