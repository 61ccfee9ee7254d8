// An op as data. Python declares it once (registry/__init__.py); nothing in this runtime
// knows an op by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/python_stub.h>

#include <string>
#include <vector>

namespace megafuse {

constexpr int kMaxArgs = 12;

enum class ArgKind : uint8_t {
  kTensor,          // a floating-point tensor
  kAnyTensor,       // a tensor of any real dtype
  kTensorOrNumber,  // a tensor, or a Python number that acts as one
  kNumber,          // a float that the functor holds
  kFlag,            // a bool known when the kernel is compiled
  kChoice,          // one of a few strings, known when the kernel is compiled
};

struct Arg {
  std::string name;
  ArgKind kind;
  std::vector<std::string> choices;
  double least, most;  // allowed range of a kNumber

  bool is_tensor() const { return kind <= ArgKind::kTensorOrNumber; }
};

// The gradient of one tensor argument.
struct Grad {
  int arg;
  int result;        // which result of the backward functor it is
  bool passthrough;  // it is the incoming gradient itself
};

// What the backward functor reads besides the incoming gradient: an argument, or
// the op's output.
constexpr int kSaveOutput = -1;

struct Op {
  int id;
  std::string name;
  std::vector<Arg> args;
  std::vector<int> tensors;  // positions of tensor arguments, in the functor's order
  std::vector<int> numbers;  // positions of kNumber arguments, likewise
  at::ScalarType fixed_dtype = at::ScalarType::Undefined;  // of the output; else promoted
  int dtype_like = -1;  // the first argument is promoted as if it had this one's dtype
  int inverted = -1;    // this argument, given as a number for CUDA, is passed as its reciprocal
  bool random = false;
  bool autocast_float = false;  // under CUDA autocast the output is float32
  std::vector<int> saved;
  std::vector<Grad> grads;

  PyObject* slow = nullptr;       // the same call through the dispatcher
  PyObject* reference = nullptr;  // the unfused twin
  PyObject* explain = nullptr;    // raises the error that says what is wrong with the arguments
  PyObject* vjp = nullptr;        // the backward as differentiable PyTorch, for second derivatives

  bool differentiable() const { return !grads.empty(); }
};

// One call's arguments, position by position. Tensors are borrowed.
struct Call {
  const Op* op;
  const at::Tensor* tensor[kMaxArgs] = {};
  double number[kMaxArgs] = {};  // kNumber, or a kTensorOrNumber given as a number
  uint8_t choice[kMaxArgs] = {};
};

}  // namespace megafuse
