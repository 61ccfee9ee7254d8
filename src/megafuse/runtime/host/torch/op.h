// An op as data. Python declares it once (registry/declaration.py); this runtime knows no op by
// name but the composites, whose code programs.h finds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/python_headers.h>

#include "core/functor.h"

namespace megafuse {

constexpr int kMaxArgs = 24;
static_assert(kMaxArgs <= kMaxChoices);

enum class ArgKind : uint8_t {
  kTensor,          // a floating-point tensor
  kAnyTensor,       // a tensor of any real dtype
  kTensorOrNumber,  // a tensor, or a Python number that acts as one
  kNumber,          // a float that the functor holds
  kInteger,         // an int
  kFlag,            // a bool known when the kernel is compiled
  kChoice,          // one of a few strings, known when the kernel is compiled
};

// The shape a tensor must have, such as "...K" or "3EE": letters are sizes that agree within a
// call, a number before one multiplies it, "..." are leading dimensions, which agree too.
struct ShapeRule {
  struct Size {
    int times;
    char letter;
  };
  bool given = false, leading = false;
  c10::SmallVector<Size, 4> sizes;
};

struct Arg {
  std::string name;
  ArgKind kind;
  std::vector<std::string> choices;
  double least, most;  // allowed range of a kNumber or kInteger
  bool optional;       // None: Call::tensor is null, or Call::number NaN
  bool own_dtype;      // may have another dtype than the first tensor
  ShapeRule shape;

  bool is_tensor() const { return kind <= ArgKind::kTensorOrNumber; }
  bool is_number() const { return kind == ArgKind::kNumber || kind == ArgKind::kInteger; }
};

// The gradient of one tensor argument.
struct Grad {
  int arg;
  int result;         // which result of the backward functor it is, unless
  bool passthrough;   // it is the incoming gradient itself
  int saved_at = -1;  // where the argument is among what is saved, if it is
};

enum class OpFamily : uint8_t { kPointwise, kRows, kComposite };

struct Program;

// Destroyed only where registering it failed, with the GIL held: calls refer to it for ever.
struct Op {
  std::string name;
  Functor functor;  // of pointwise and row-wise ops; a composite's passes have their own
  OpFamily family = OpFamily::kPointwise;
  std::shared_ptr<const Program> program;
  std::vector<Arg> args;
  std::vector<int> tensors;          // positions of tensor arguments, in the functor's order
  std::vector<int> numbers;          // positions of kNumber and kInteger arguments, likewise
  std::vector<int> choices;          // positions of kFlag and kChoice arguments, likewise
  int outputs = 1;                   // results that users see
  std::vector<std::string> results;  // names of these, then of those kept for the backward alone
  at::ScalarType fixed_dtype = at::ScalarType::Undefined;  // of the output; else promoted
  int dtype_like = -1;   // the first argument is promoted as if it had this one's dtype
  int laid_out_as = -1;  // the argument whose order of dimensions in memory the output has
  int inverted = -1;     // this argument, given as a number for CUDA, is passed as its reciprocal
  bool random = false;
  int p = -1, training = -1;  // where a random op has the arguments of these names
  // The keys under which autocast casts the arguments, and whether to the dtype that the user
  // chose, which is lower, or to float32.
  c10::DispatchKeySet autocast;
  bool autocast_lowers = false;
  std::vector<int> saved;  // for the backward: an argument, or -1 - r for the r-th result
  std::vector<Grad> grads;
  mutable std::atomic<bool> unbuildable[2] = {};  // on CPU, CUDA: a kernel could not be built

  PyObject* slow = nullptr;       // the same call through the dispatcher
  PyObject* reference = nullptr;  // the unfused twin
  PyObject* explain = nullptr;    // raises the error that says what is wrong with the arguments
  PyObject* vjp = nullptr;        // the backward as differentiable PyTorch, for second derivatives
  PyObject* kept_like = nullptr;  // tensors like the kept results

  Op() = default;
  Op(const Op&) = delete;
  ~Op() {
    for (PyObject* object : {slow, reference, explain, vjp, kept_like}) Py_XDECREF(object);
  }

  // Where the argument of this name is.
  int position(const char* argument) const {
    for (size_t i = 0; i < args.size(); ++i)
      if (args[i].name == argument) return int(i);
    TORCH_CHECK(false, "megafuse.", name, " has no argument ", argument);
  }
  int result(const char* wanted) const {
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i] == wanted) return int(i);
    TORCH_CHECK(false, "megafuse.", name, " has no result ", wanted);
  }
  // Where the backward finds an argument or, as -1 - r, the r-th result; -1: it does not read it.
  int saved_position(int source) const {
    const auto at = std::find(saved.begin(), saved.end(), source);
    return at == saved.end() ? -1 : int(at - saved.begin());
  }
  int gradient_of(int arg) const {
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].arg == arg) return int(i);
    return -1;
  }
  int kept() const { return int(results.size()) - outputs; }
  bool differentiable() const { return !grads.empty(); }
  bool pointwise() const { return family == OpFamily::kPointwise; }
};

// One call's arguments, position by position. Tensors are borrowed.
struct Call {
  const Op* op;
  const at::Tensor* tensor[kMaxArgs] = {};
  double number[kMaxArgs] = {};  // kNumber, kInteger, or a kTensorOrNumber given as a number
  uint8_t choice[kMaxArgs] = {};
};

// What the call gives its op's functor.
inline Given given_of(const Call& call) {
  const Op& op = *call.op;
  Given given(op.functor);
  for (size_t i = 0; i < op.choices.size(); ++i) given.choose(int(i), call.choice[op.choices[i]]);
  for (int arg : op.numbers) given.number(call.number[arg]);
  return given;
}

}  // namespace megafuse
