// What an optimizer has for its parameters, collected for every step anew: gradients come and go,
// and anybody may replace a tensor. In Python this took longer than the step itself on a GPU.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include "core/python_side.h"
#include "torch/plain.h"

namespace megafuse {

// What container[name] is, or nothing where it is not there or no tensor.
inline PyObject* tensor_in(PyObject* container, PyObject* name) {
  PyObject* const found = PyObject_GetItem(container, name);
  if (!found && !PyErr_ExceptionMatches(PyExc_KeyError)) throw python_error();
  PyErr_Clear();
  if (found && THPVariable_Check(found)) return found;
  Py_XDECREF(found);
  return nullptr;
}

// What state[parameter] is, for one parameter of a group after another. A look into a dict calls
// the tensor's __hash__, which is Python. So as long as they come in the dict's own order, as they
// nearly always do, its entries are gone through instead; of those before the group's, or of
// parameters that have no gradient now, up to twice as many as the group has.
class StatesInOrder {
 public:
  StatesInOrder(PyObject* state, Py_ssize_t parameters)
      : state_(state), entries_left_(PyDict_Check(state) ? 3 * parameters : 0) {}

  PyObject* operator[](PyObject* parameter) {
    PyObject *key, *own;
    while (entries_left_ > 0) {
      --entries_left_;
      if (!PyDict_Next(state_, &entry_, &key, &own))
        entries_left_ = 0;
      else if (key == parameter)
        return Py_NewRef(own);
    }
    return PyObject_GetItem(state_, parameter);
  }

 private:
  PyObject* state_;
  Py_ssize_t entry_ = 0, entries_left_;
};

// optimizer_columns(parameters, state, names) -> a list of the parameters that have gradients, one
// of these gradients, and for each name one of what state[parameter] has under it. None where
// something of that is missing, or a gradient is sparse.
inline PyObject* optimizer_columns(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  static PyObject* const grad = PyUnicode_InternFromString("grad");
  PyObject *parameters, *of_parameters, *names;
  if (!PyArg_ParseTuple(args, "OOO!", &parameters, &of_parameters, &PyTuple_Type, &names))
    return nullptr;
  const Py_ssize_t kept = PyTuple_GET_SIZE(names);
  Owned columns(PyTuple_New(2 + kept)), each(PyObject_GetIter(parameters));
  for (Py_ssize_t c = 0; c < 2 + kept; ++c)
    PyTuple_SET_ITEM(columns.object, c, Py_NewRef(Owned(PyList_New(0)).object));
  auto put = [&](Py_ssize_t c, PyObject* tensor) {
    if (PyList_Append(PyTuple_GET_ITEM(columns.object, c), tensor)) throw python_error();
  };
  StatesInOrder state(of_parameters, PyObject_LengthHint(parameters, 0));
  while (PyObject* const next = PyIter_Next(each.object)) {
    const Owned parameter(next), gradient(PyObject_GetAttr(next, grad));
    if (gradient.object == Py_None) continue;
    const bool dense = THPVariable_Check(gradient.object) &&
                       THPVariable_Unpack(gradient.object).layout() == at::kStrided;
    if (!dense) Py_RETURN_NONE;
    put(0, parameter.object);
    put(1, gradient.object);
    if (kept == 0) continue;
    const Owned own(state[parameter.object]);
    for (Py_ssize_t c = 0; c < kept; ++c) {
      PyObject* const found = tensor_in(own.object, PyTuple_GET_ITEM(names, c));
      if (!found) Py_RETURN_NONE;
      put(2 + c, Owned(found).object);
    }
  }
  if (PyErr_Occurred()) return nullptr;
  return Py_NewRef(columns.object);
  END_HANDLE_TH_ERRORS
}

// Where a count of steps stands, as torch keeps it: one float or double on the CPU. Null where it
// is another kind of tensor.
inline void* place_of_count(PyObject* object) {
  if (!THPVariable_CheckTypeExact(Py_TYPE(object))) return nullptr;
  const at::Tensor& t = THPVariable_Unpack(object);
  const bool number = t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble;
  const bool known = number && t.device().is_cpu() && is_plain(t) && !t.is_inference();
  return known && t.numel() == 1 ? t.mutable_data_ptr() : nullptr;
}

// optimizer_counts(steps, more) -> what these counts of steps are, as a list, with `more` added to
// each of them. None, and nothing is added, where one is no such tensor as torch keeps them in.
inline PyObject* optimizer_counts(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* steps;
  int more;
  if (!PyArg_ParseTuple(args, "O!i", &PyList_Type, &steps, &more)) return nullptr;
  const Py_ssize_t count = PyList_GET_SIZE(steps);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!place_of_count(PyList_GET_ITEM(steps, i))) Py_RETURN_NONE;
  Owned counts(PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const at::Tensor& step = THPVariable_Unpack(PyList_GET_ITEM(steps, i));
    void* const place = place_of_count(PyList_GET_ITEM(steps, i));
    const double now = step.scalar_type() == at::kDouble
                           ? *static_cast<double*>(place) += more
                           : double(*static_cast<float*>(place) += float(more));
    if (more) step.unsafeGetTensorImpl()->bump_version();
    PyList_SET_ITEM(counts.object, i, PyFloat_FromDouble(now));
  }
  return Py_NewRef(counts.object);
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse
