// One call of a fused function: its program, and what autograd records.
#pragma once

#include "graph/backward.h"

namespace megafuse::graph {

// A tensor of its own with the same sizes, strides and elements: also where elements overlap.
inline at::Tensor copied(const at::Tensor& t) {
  if (t.numel() == 0 || t.is_non_overlapping_and_dense()) return t.detach().clone();
  int64_t span = 1;
  for (int64_t dim = 0; dim < t.dim(); ++dim) span += (t.size(dim) - 1) * t.stride(dim);
  const at::Tensor flat = t.detach().as_strided({span}, {1}, t.storage_offset()).clone();
  return flat.as_strided(t.sizes(), t.strides(), 0);
}

// How a result's gradient lies: as the result does, or in order, as the backward was captured.
inline Shape gradient_strides(const at::Tensor& result, bool in_order) {
  if (!in_order) return {result.strides().begin(), result.strides().end()};
  Shape strides(result.dim(), 1);
  for (int64_t dim = result.dim() - 2; dim >= 0; --dim)
    strides[dim] = strides[dim + 1] * std::max<int64_t>(result.size(dim + 1), 1);
  return strides;
}

// One call of a variant that fits: results and the new contents of written leaves.
class Run {
 public:
  Run(const std::shared_ptr<const Variant>& variant, at::ArrayRef<Leaf> leaves)
      : variant_(variant), leaves_(leaves) {}

  // False: sizes or numbers are not those that it was captured for.
  bool prepare() {
    variant_->forward.code.run(leaves_, memory_.slots);
    return variant_->forward.accepts(memory_.slots);
  }

  // The arguments, which the caller may let go of after this where nothing is recorded.
  void take() { variant_->forward.take(leaves_, memory_); }

  // The results, by their place among the forward program's outputs; undefined for numbers.
  std::vector<at::Tensor> run() {
    const Program& program = variant_->forward;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const c10::impl::ExcludeDispatchKeyGuard below_autocast(kAutocast);
      const GilRelease no_gil;
      program.run(memory_);
    }
    std::vector<at::Tensor> results = program.tensors(memory_);
    if (variant_->differentiates) record(results);
    write_back(results);
    return results;
  }
  Slot number(int result) const { return memory_.slots[variant_->forward.outputs[result].slot]; }

 private:
  void record(std::vector<at::Tensor>& results) {
    const auto [owner, node] = new_node<NodePointer, GraphBackward>();
    node->variant = variant_;
    torch::autograd::edge_list edges;
    for (int leaf : variant_->gradients)
      edges.push_back(torch::autograd::impl::gradient_edge(*leaves_[leaf].tensor));
    node->set_next_edges(std::move(edges));
    for (size_t i = 0; i < variant_->differentiable.size(); ++i) {
      at::Tensor& t = results[variant_->differentiable[i]];
      if (t.requires_grad()) t = copied(t);  // an argument, or a view of one
      torch::autograd::set_history(t, owner);
      node->strides.push_back(gradient_strides(t, variant_->in_order[i]));
    }
    const size_t first = size_t(variant_->results) + variant_->writes.size();
    for (size_t i = first; i < results.size(); ++i) {
      const at::Tensor& t = results[i];
      node->numbers.push_back(t.defined() ? std::nullopt : std::optional(number(int(i))));
      bool is_output = false;
      for (int result : variant_->differentiable) is_output |= results[result].is_same(t);
      node->saved.push_back(t.defined() ? SavedVariable(t, is_output) : SavedVariable());
    }
    for (size_t i = 0; variant_->once.empty() && i < leaves_.size(); ++i) {
      const Leaf& leaf = leaves_[i];
      const bool held = leaf.tensor && variant_->kept[i] < 0;
      node->arguments.push_back(held ? Recorded(*leaf.tensor) : Recorded(leaf.number));
    }
  }

  void write_back(const std::vector<at::Tensor>& results) {
    for (size_t i = 0; i < variant_->writes.size(); ++i)
      leaves_[variant_->writes[i]].tensor->copy_(results[size_t(variant_->results) + i]);
  }

  const std::shared_ptr<const Variant>& variant_;
  at::ArrayRef<Leaf> leaves_;
  Memory memory_;
};

}  // namespace megafuse::graph
