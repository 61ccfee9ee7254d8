// The graph node of a fused function: runs the backward program, or the function itself again where
// its gradients are to be differentiated.
#pragma once

#include "graph/again.h"
#include "graph/variant.h"

namespace megafuse::graph {

// A gradient laid out as the result it is of, which is how the backward was captured.
inline at::Tensor laid_out(const at::Tensor& gradient, at::IntArrayRef strides) {
  if (gradient.strides() == strides) return gradient;
  return allocate(gradient.sizes(), strides, gradient.scalar_type(), gradient.device())
      .copy_(gradient);
}

struct GraphBackward : Node {
  std::shared_ptr<const Variant> variant;
  std::vector<SavedVariable> saved;
  std::vector<std::optional<Slot>> numbers;  // what is saved and no tensor
  std::vector<Shape> strides;                // of the differentiable results' gradients
  std::vector<Recorded> arguments;           // of each leaf, for `again`
  bool released = false;

  std::string name() const override { return variant->forward.name + "Backward"; }

  variable_list apply(variable_list&& incoming) override {
    TORCH_CHECK(!released, "megafuse: the graph of ", variant->forward.name,
                " was freed by an earlier backward pass; call backward with retain_graph=True to "
                "go through it twice.");
    bool any = false, plain = true;
    for (const at::Tensor& g : incoming) {
      any |= g.defined();
      plain = plain && (!g.defined() || is_plain(g));
    }
    if (!any) return variable_list(variant->gradients.size());
    if (plain && !at::GradMode::is_enabled()) return run(incoming);
    std::string why = variant->once;
    if (why.empty()) {
      const GilAcquire gil;
      const std::vector<PyObject*> leaves = given_again(why);
      if (why.empty()) return python_gradients(variant->again, leaves, incoming, wanted());
    }
    why = "megafuse: " + variant->forward.name + " is fused, and " + why;
    TORCH_CHECK(plain, why);
    variable_list gradients = run(incoming);
    refuse_to_differentiate(gradients, why, next_edges());
    return gradients;
  }

  void release_variables() override {
    released = true;
    for (SavedVariable& s : saved) s.reset_data();
    arguments.clear();
  }

 private:
  std::vector<bool> wanted() const {
    std::vector<bool> found;
    for (size_t i = 0; i < variant->gradients.size(); ++i)
      found.push_back(task_should_compute_output(i));
    return found;
  }

  // The call's tensors and numbers as Python objects, with the gradient edges that they had; or why
  // they are not there.
  std::vector<PyObject*> given_again(std::string& why) {
    std::vector<at::Tensor> tensors(variant->kept.size());
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!variant->is_tensor(i)) continue;
      tensors[i] = variant->kept[i] >= 0 ? saved[variant->kept[i]].unpack(getptr()).detach()
                                         : arguments[i].tensor();
      if (tensors[i].defined()) continue;
      why =
          "its second derivative needs its arguments, of which one is gone or was written to "
          "since; "
          "keep it, or call the function's `.function`, which is not fused.";
      return {};
    }
    for (size_t i = 0; i < variant->gradients.size(); ++i)
      torch::autograd::impl::set_gradient_edge(tensors[variant->gradients[i]], next_edge(i));
    std::vector<PyObject*> leaves;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Slot number = arguments[i].number;
      leaves.push_back(tensors[i].defined()  ? THPVariable_Wrap(tensors[i])
                       : variant->is_real(i) ? PyFloat_FromDouble(number.real)
                                             : PyLong_FromLongLong(number.integer));
    }
    return leaves;
  }

  variable_list run(const variable_list& incoming) {
    const Program& program = *variant->backward;
    std::vector<at::Tensor> tensors;
    tensors.reserve(variant->takes.size());
    c10::SmallVector<Leaf, 16> leaves;
    for (const Taken& taken : variant->takes) {
      if (taken.saved && numbers[taken.which]) {
        leaves.push_back({nullptr, *numbers[taken.which]});
        continue;
      }
      if (taken.saved) {
        tensors.push_back(saved[taken.which].unpack(getptr()));
      } else {
        const at::Tensor& g = incoming[taken.which];
        tensors.push_back(g.defined() ? g : input_metadata(taken.which).zeros_like());
      }
      leaves.push_back({&tensors.back(), {}});
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_autocast(kAutocast);
    const GilRelease no_gil;
    for (size_t i = 0; i < variant->takes.size(); ++i)
      if (!variant->takes[i].saved) {
        auto& t = const_cast<at::Tensor&>(*leaves[i].tensor);
        t = laid_out(t, strides[variant->takes[i].which]);
      }
    Memory memory;
    program.code.run(leaves, memory.slots);
    TORCH_CHECK(program.accepts(memory.slots), "megafuse: the backward of ", program.name,
                " was captured for other layouts. Please report this.");
    program.take(leaves, memory);
    try {
      program.run(memory);
    } catch (const UseReference&) {
      TORCH_CHECK(false, "megafuse: a kernel of ", program.name,
                  " cannot be built or run here; call the function's `.function`, unfused.");
    }
    return program.tensors(memory);
  }
};

}  // namespace megafuse::graph
