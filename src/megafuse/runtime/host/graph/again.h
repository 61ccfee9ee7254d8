// The arguments of a call that autograd recorded, to run the function itself again: its second
// derivatives, and gradients of gradients that are no plain tensors, go through PyTorch.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include "graph/symbols.h"
#include "torch/autograd.h"

namespace megafuse::graph {

// A number, or a tensor whose memory is not kept alive: second derivatives are rare, and what is
// saved is decided by bytes. Arguments that the backward saves anyway are not here.
class Recorded {
 public:
  explicit Recorded(Slot number) : number(number) {}
  explicit Recorded(const at::Tensor& t)
      : storage_(t.storage().getWeakStorageImpl()),
        sizes_(t.sizes().begin(), t.sizes().end()),
        strides_(t.strides().begin(), t.strides().end()),
        offset_(t.storage_offset()),
        options_(t.options()),
        version_(t.unsafeGetTensorImpl()->version_counter()),
        written_(version_.current_version()) {}

  // The same elements without history; undefined where the memory is gone or was written to.
  at::Tensor tensor() const {
    const auto storage = storage_->lock();
    if (!storage || version_.current_version() != written_) return {};
    return at::empty({0}, options_.requires_grad(false))
        .set_(c10::Storage(storage), offset_, sizes_, strides_);
  }

  Slot number = {};

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  Shape sizes_, strides_;
  int64_t offset_ = 0;
  at::TensorOptions options_;
  c10::VariableVersion version_;
  uint32_t written_ = 0;
};

// What comes before a gradient that cannot be differentiated again: says why.
struct NoSecondDerivative : Node {
  std::string why;
  std::string name() const override { return "NoSecondDerivative"; }
  variable_list apply(variable_list&&) override { TORCH_CHECK(false, why); }
};

// The same gradients; whoever differentiates them hears why that cannot be.
inline void refuse_to_differentiate(variable_list& gradients, const std::string& why,
                                    torch::autograd::edge_list edges) {
  const auto [owner, node] = new_node<NodePointer, NoSecondDerivative>();
  node->why = why;
  node->set_next_edges(std::move(edges));  // else nobody who wants these would come by
  for (at::Tensor& t : gradients)
    if (t.defined()) {
      t = t.detach();
      torch::autograd::set_history(t, owner);
    }
}

// again(leaves, gradients of results, which are wanted) -> gradients, None where there is none.
inline variable_list python_gradients(PyObject* again, const std::vector<PyObject*>& leaves,
                                      const variable_list& incoming,
                                      const std::vector<bool>& wanted) {
  Owned given(PyList_New(0)), grads(PyList_New(0)), wants(PyList_New(0));
  auto append = [](const Owned& list, PyObject* item) {
    const Owned owned(item);
    PyList_Append(list.object, item);
  };
  for (PyObject* leaf : leaves) append(given, leaf);
  for (const at::Tensor& t : incoming)
    append(grads, t.defined() ? THPVariable_Wrap(t) : Py_NewRef(Py_None));
  for (const bool want : wanted) append(wants, PyBool_FromLong(want));
  const Owned result(
      PyObject_CallFunctionObjArgs(again, given.object, grads.object, wants.object, nullptr));
  variable_list gradients(wanted.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    PyObject* item = PyList_GetItem(result.object, Py_ssize_t(i));
    if (!item) throw python_error();
    if (item != Py_None) gradients[i] = THPVariable_Unpack(item);
  }
  return gradients;
}

}  // namespace megafuse::graph
