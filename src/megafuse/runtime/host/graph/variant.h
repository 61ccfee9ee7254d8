// One capture of a function: what a call must look like, its program, and that of its backward.
#pragma once

#include "graph/parse.h"
#include "torch/autograd.h"

namespace megafuse::graph {

// What a leaf of the call must be.
struct Expected {
  enum class Kind : uint8_t { kTensor, kInteger, kReal, kFixed };
  Kind kind;
  at::ScalarType dtype = at::kFloat;
  c10::Device device{at::kCPU};
  int64_t dim = 0;
  bool requires_grad = false;
  PyObject* fixed = nullptr;
};

// What the function returns: leaves, each a result of the forward program or a fixed object, and
// how they are put together.
struct Returned {
  PyObject* fixed = nullptr;
  int result = -1;
};
enum class Structure : uint8_t { kLeaf, kTuple, kOther };

struct Taken {
  bool saved;  // else the gradient of a result
  int which;
};

struct Variant {
  std::vector<Expected> leaves;
  Program forward;
  std::optional<Program> backward;
  bool differentiates = false;
  bool indifferent = false;  // arguments had gradients when it was captured, but no result has one
  std::vector<Returned> returned;
  Structure structure = Structure::kLeaf;
  PyObject* unflatten = nullptr;  // leaves → what the function returns
  Places writes;                  // leaves whose new contents follow the results
  int results = 0;                // before the writes; what the backward needs comes last
  std::vector<Taken> takes;       // the backward program's leaves
  Places differentiable;          // results with a gradient
  Places in_order;                // of each, whether its gradient is taken in order, not as it lies
  Places gradients;               // the leaves that the backward's results are gradients of

  Variant() = default;
  Variant(const Variant&) = delete;
  ~Variant() {
    for (const Expected& leaf : leaves) Py_XDECREF(leaf.fixed);
    for (const Returned& leaf : returned) Py_XDECREF(leaf.fixed);
    Py_XDECREF(unflatten);
  }
};

// Whether every leaf is what the variant was captured for; fills `found`, without fixed ones.
inline bool fits(const Variant& variant, PyObject* const* objects, Py_ssize_t n,
                 c10::SmallVectorImpl<Leaf>& found) {
  if (size_t(n) != variant.leaves.size()) return false;
  found.clear();
  bool any_grad = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    const Expected& expected = variant.leaves[size_t(i)];
    PyObject* object = objects[i];
    switch (expected.kind) {
      case Expected::Kind::kTensor: {
        if (!THPVariable_CheckTypeExact(Py_TYPE(object))) return false;
        const at::Tensor& t = THPVariable_Unpack(object);
        if (t.scalar_type() != expected.dtype || t.dim() != expected.dim ||
            t.device() != expected.device)
          return false;
        if ((variant.differentiates || variant.indifferent) &&
            t.requires_grad() != expected.requires_grad)
          return false;
        any_grad |= t.requires_grad();
        found.push_back({&t, {}});
        break;
      }
      case Expected::Kind::kInteger:
        if (!PyLong_CheckExact(object)) return false;
        found.push_back({nullptr, {.integer = PyLong_AsLongLong(object)}});
        if (PyErr_Occurred()) {  // too large
          PyErr_Clear();
          return false;
        }
        break;
      case Expected::Kind::kReal:
        if (!PyFloat_CheckExact(object)) return false;
        found.push_back({nullptr, {.real = PyFloat_AS_DOUBLE(object)}});
        break;
      case Expected::Kind::kFixed: {
        if (object == expected.fixed) break;
        if (Py_TYPE(object) != Py_TYPE(expected.fixed)) return false;
        const int same = PyObject_RichCompareBool(object, expected.fixed, Py_EQ);
        if (same < 0) PyErr_Clear();
        if (same != 1) return false;
      }
    }
  }
  return variant.indifferent || (any_grad && at::GradMode::is_enabled()) == variant.differentiates;
}

// A gradient laid out as the result it is of, which is how the backward was captured.
inline at::Tensor laid_out(const at::Tensor& gradient, at::IntArrayRef strides) {
  if (gradient.strides() == strides) return gradient;
  return allocate(gradient.sizes(), strides, gradient.scalar_type(), gradient.device())
      .copy_(gradient);
}

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

struct GraphBackward : Node {
  std::shared_ptr<const Variant> variant;
  std::vector<SavedVariable> saved;
  std::vector<std::optional<Slot>> numbers;  // what is saved and no tensor
  std::vector<Shape> strides;                // of the differentiable results' gradients
  bool released = false;

  std::string name() const override { return variant->forward.name + "Backward"; }

  variable_list apply(variable_list&& incoming) override {
    const Program& program = *variant->backward;
    TORCH_CHECK(!released, "megafuse: the graph of ", variant->forward.name,
                " was freed by an earlier backward pass; call backward with retain_graph=True to "
                "go through it twice.");
    bool any = false, differentiate = false;
    for (const at::Tensor& g : incoming) any |= g.defined();
    if (!any) return variable_list(variant->gradients.size());
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
      differentiate |= tensors.back().requires_grad();
      leaves.push_back({&tensors.back(), {}});
    }
    TORCH_CHECK(!(differentiate && at::GradMode::is_enabled()), "megafuse: ", variant->forward.name,
                " is fused, and a fused function has no second derivative; call it without "
                "create_graph=True, or call its `.function`, which is not fused.");
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
    variable_list gradients;
    for (const Output& output : program.outputs)
      gradients.push_back(output.kind == Output::Kind::kTensor ? memory.view(output.view)
                                                               : at::Tensor());
    return gradients;
  }

  void release_variables() override {
    released = true;
    for (SavedVariable& s : saved) s.reset_data();
  }
};

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
    std::vector<at::Tensor> results;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const c10::impl::ExcludeDispatchKeyGuard below_autocast(kAutocast);
      const GilRelease no_gil;
      program.run(memory_);
    }
    for (const Output& output : program.outputs)
      results.push_back(output.kind == Output::Kind::kTensor ? program.tensor(output, memory_)
                                                             : at::Tensor());
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
