// The graph node of a fused op. It runs the fused backward, directly for plain tensors
// and through the dispatcher for everything else; second derivatives go through PyTorch.
#pragma once

#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "torch/random_state.h"

namespace megafuse {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

Gradients dispatch_backward(const BackwardCall& b);  // dispatch.h

// A gradient's shape and dtype are its argument's. Pointwise ops keep those arguments that differ
// from the output. Other ops save most of theirs anyway and ask the saved one: holding the argument
// as well would keep its memory where a saved-tensor hook moved it to another device.
inline bool like_is_saved(const Op& op, const Grad& grad) {
  return !op.pointwise() && grad.saved_at >= 0;
}

struct FusedBackward : Node {
  Call call;  // numbers and choices; the tensors are in `saved` and `like`
  c10::SmallVector<SavedVariable, 4> saved;
  c10::SmallVector<double, 4> saved_value;
  c10::SmallVector<bool, 4> is_absent;  // saved as a number, or None
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
    bool plain = only_plain_modes(), differentiate = false, any = false;
    auto see = [&](const at::Tensor& t) {
      if (!t.defined()) return;
      plain = plain && is_plain(t);
      differentiate |= t.requires_grad();
    };
    for (const at::Tensor& g : incoming) {
      any |= g.defined();
      see(g);
    }
    if (!any) return gradients;
    if (!incoming[0].defined()) incoming[0] = input_metadata(0).zeros_like();
    BackwardCall b;
    b.call = call;
    b.grads.assign(incoming.begin(), incoming.end());
    b.saved_value = saved_value;
    b.like = like;
    b.random = random;
    for (size_t i = 0; i < saved.size(); ++i) {
      b.saved.push_back(is_absent[i] ? at::Tensor() : saved[i].unpack(getptr()));
      see(b.saved.back());
    }
    for (size_t i = 0; i < op.grads.size(); ++i) {
      b.wanted.push_back(task_should_compute_output(i));
      if (like_is_saved(op, op.grads[i])) b.like[i] = b.saved[op.grads[i].saved_at];
    }
    if (plain && random.kept.defined()) b.random = stored_state(random.kept);
    auto run = [plain](const BackwardCall& call) {
      return plain ? run_backward(call) : dispatch_backward(call);
    };
    if (!differentiate || !at::GradMode::is_enabled()) return run(b);
    if (!op.random || !op.pointwise()) return python_vjp(b);
    // The gradient of a random pointwise op is the incoming one times a factor, 0 or constant, that
    // the fused backward gives for ones: that product is what is differentiated again.
    const at::Tensor grad = b.grads[0];
    b.grads[0] = at::ones_like(grad);
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

// An edge holds its node by shared_ptr in older releases of torch and by intrusive_ptr in newer
// ones (2.13); this makes the one that the headers declare.
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

// Hangs a node for the backward pass on the outputs.
inline void record(const Call& call, const Results& results, const RandomState& random) {
  const Op& op = *call.op;
  const at::Tensor& out = results[0];
  const auto [owner, node] = new_node<NodePointer, FusedBackward>();
  node->call = call;
  std::fill(std::begin(node->call.tensor), std::end(node->call.tensor), nullptr);
  node->random = random;
  torch::autograd::edge_list edges;
  for (const Grad& g : op.grads) {
    const at::Tensor* t = call.tensor[g.arg];
    edges.push_back(t && t->requires_grad() ? torch::autograd::impl::gradient_edge(*t)
                                            : torch::autograd::Edge());
    const bool differs =
        t && !like_is_saved(op, g) &&
        (t->sym_sizes() != out.sym_sizes() || t->scalar_type() != out.scalar_type());
    node->like.push_back(differs ? t->detach() : at::Tensor());
  }
  node->set_next_edges(std::move(edges));
  for (int i = 0; i < op.outputs; ++i) torch::autograd::set_history(results[i], owner);
  for (int source : op.saved) {
    const int result = -1 - source;
    const at::Tensor* t = result >= 0 ? &results[result] : call.tensor[source];
    node->is_absent.push_back(!t);
    node->saved_value.push_back(t ? 0 : call.number[source]);
    node->saved.push_back(t ? SavedVariable(*t, result >= 0 && result < op.outputs)
                            : SavedVariable());
  }
}

}  // namespace megafuse
