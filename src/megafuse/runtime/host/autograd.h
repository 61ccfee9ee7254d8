// The graph node of a fused op. It runs the fused backward, directly for plain tensors
// and through the dispatcher for everything else; second derivatives go through PyTorch.
#pragma once

#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "backward.h"
#include "plain.h"
#include "random_state.h"

namespace megafuse {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

Gradients dispatch_backward(const BackwardCall& b);  // dispatch.h
Gradients python_vjp(const BackwardCall& b);         // python.h

struct FusedBackward : Node {
  Call call;  // numbers and choices; the tensors are in `saved` and `like`
  c10::SmallVector<SavedVariable, 4> saved;
  c10::SmallVector<double, 4> saved_value;
  c10::SmallVector<bool, 4> is_number;
  c10::SmallVector<at::Tensor, 4> like;
  RandomState random;
  bool released = false;

  std::string name() const override { return call.op->name + "Backward"; }

  variable_list apply(variable_list&& incoming) override {
    const Op& op = *call.op;
    TORCH_CHECK(!released, "megafuse.", op.name,
                ": the graph was freed by an earlier backward pass; call backward with "
                "retain_graph=True to go through it twice.");
    variable_list gradients(op.grads.size());
    if (!incoming[0].defined()) return gradients;
    BackwardCall b;
    b.call = call;
    b.grad = incoming[0];
    b.saved_value = saved_value;
    b.like = like;
    b.random = random;
    bool plain = is_plain(b.grad) && only_plain_modes();
    bool differentiate = b.grad.requires_grad();
    for (size_t i = 0; i < saved.size(); ++i) {
      b.saved.push_back(is_number[i] ? at::Tensor() : saved[i].unpack(getptr()));
      if (!is_number[i]) {
        plain = plain && is_plain(b.saved.back());
        differentiate |= b.saved.back().requires_grad();
      }
    }
    for (size_t i = 0; i < op.grads.size(); ++i) b.wanted.push_back(task_should_compute_output(i));
    if (plain && random.kept.defined()) b.random = stored_state(random.kept);
    auto run = [plain](const BackwardCall& call) {
      return plain ? backward(call) : dispatch_backward(call);
    };
    if (!differentiate || !at::GradMode::is_enabled()) return run(b);
    if (!op.random) return python_vjp(b);
    // What a random op multiplies its gradient by does not change with its argument.
    const at::Tensor grad = b.grad;
    b.grad = at::ones_like(grad);
    Gradients factors;
    {
      at::NoGradGuard no_grad;
      factors = run(b);
    }
    for (size_t i = 0; i < factors.size(); ++i)
      if (factors[i].defined()) gradients[i] = at::mul(grad, factors[i]);
    return gradients;
  }

  void release_variables() override {
    released = true;
    for (SavedVariable& s : saved) s.reset_data();
    like.clear();
    random.kept.reset();
  }
};

// An edge holds its node by shared_ptr up to some torch release and by intrusive_ptr after it
// (2.13 has the latter); this follows whichever it is.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class Pointer, class N>
std::pair<Pointer, N*> new_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    N* node = new N;
    return {Pointer(node, [](auto* n) { deleteNode(n); }), node};
  } else {
    auto owner = c10::make_intrusive<N>();
    N* node = owner.get();
    return {Pointer(std::move(owner)), node};
  }
}

inline bool wants_grad(const Call& call) {
  if (!call.op->differentiable() || !at::GradMode::is_enabled()) return false;
  for (const Grad& g : call.op->grads)
    if (call.tensor[g.arg] && call.tensor[g.arg]->requires_grad()) return true;
  return false;
}

// Makes `out` remember how it came about.
inline void record(const Call& call, const at::Tensor& out, const RandomState& random) {
  const Op& op = *call.op;
  const auto [owner, node] = new_node<NodePointer, FusedBackward>();
  node->call = call;
  std::fill(std::begin(node->call.tensor), std::end(node->call.tensor), nullptr);
  node->random = random;
  torch::autograd::edge_list edges;
  for (const Grad& g : op.grads) {
    const at::Tensor* t = call.tensor[g.arg];
    edges.push_back(t && t->requires_grad() ? torch::autograd::impl::gradient_edge(*t)
                                            : torch::autograd::Edge());
    const bool differs = t && (t->sizes() != out.sizes() || t->scalar_type() != out.scalar_type());
    node->like.push_back(differs ? t->detach() : at::Tensor());
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(out, owner);
  for (int source : op.saved) {
    const at::Tensor* t = source == kSaveOutput ? &out : call.tensor[source];
    node->is_number.push_back(!t);
    node->saved_value.push_back(t ? 0 : call.number[source]);
    node->saved.push_back(t ? SavedVariable(*t, source == kSaveOutput) : SavedVariable());
  }
}

}  // namespace megafuse
