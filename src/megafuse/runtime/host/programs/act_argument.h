// The activation of a composite, where one of its arguments names it.
#pragma once

#include "programs/linear_call.h"
#include "torch/named.h"

namespace megafuse {

// "none" and "tanh" are the forms of torch's gelu, the others what our own ops call them.
inline Act act_named(const std::string& name) {
  if (name == "none" || name == "gelu") return Act::kGelu;
  if (name == "tanh" || name == "gelu_tanh") return Act::kGeluTanh;
  TORCH_CHECK(name == "relu", "megafuse: no linear layer knows the activation ", name);
  return Act::kRelu;
}

class ActArgument {
 public:
  ActArgument(const Op& op, const char* name) : arg_(op.position(name)) {
    for (const std::string& choice : op.args[size_t(arg_)].choices)
      acts_.push_back(act_named(choice));
  }
  explicit ActArgument(Act always) : acts_{always} {}

  Act of(const Call& call) const { return acts_[arg_ < 0 ? 0 : call.choice[arg_]]; }

 private:
  int arg_ = -1;
  std::vector<Act> acts_;  // in the order of the argument's choices
};

}  // namespace megafuse
