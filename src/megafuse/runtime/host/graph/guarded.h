// A graph that torch.compile guards (compiler/backend.py): one program, called with a list that is
// emptied at once, so that an argument is freed after the last step that reads it.
#pragma once

#include "graph/function.h"

namespace megafuse::graph {

inline PyObject* call_guarded(PyObject* self, PyObject* list) {
  HANDLE_TH_ERRORS
  Function& function = function_of(self);
  TORCH_CHECK_TYPE(PyList_CheckExact(list), "megafuse: a compiled graph takes a list");
  std::optional<Owned> leaves(PyList_AsTuple(list));
  PyObject* const* objects = PySequence_Fast_ITEMS(leaves->object);
  const Py_ssize_t n = PyTuple_GET_SIZE(leaves->object);
  const std::shared_ptr<const Variant> variant = function.variants.front();
  c10::SmallVector<Leaf, 64> found;
  // Dynamo has seen to modes and autocast: only stand-ins must not come here.
  for (Py_ssize_t i = 0; i < n; ++i)
    if (THPVariable_Check(objects[i]) && !is_real(objects[i]))
      return PyObject_CallObject(function.reference, leaves->object);
  if (!fits(*variant, objects, n, found))
    return PyObject_CallObject(function.capture, leaves->object);
  Run run(variant, found);
  if (!run.prepare()) return PyObject_CallObject(function.capture, leaves->object);
  RECORD_FUNCTION(variant->forward.name, std::vector<c10::IValue>());
  run.take();
  if (PyList_SetSlice(list, 0, n, nullptr) < 0) throw python_error();
  if (function.has_run) leaves.reset();
  try {
    const std::vector<at::Tensor> results = run.run();
    function.has_run = true;
    return returned(*variant, results, run);
  } catch (const UseReference&) {  // a kernel that cannot be built here
    TORCH_CHECK(leaves, "megafuse: ", variant->forward.name,
                " ran before, and cannot run with these arguments. Please report this.");
    return PyObject_CallObject(function.reference, leaves->object);
  }
  END_HANDLE_TH_ERRORS
}

inline PyMethodDef call_guarded_def = {"compiled", call_guarded, METH_O, nullptr};

// graph_guarded(handle of a graph_function) -> a callable of a list
inline PyObject* guarded(PyObject*, PyObject* handle) {
  return PyCFunction_New(&call_guarded_def, handle);
}

}  // namespace megafuse::graph
