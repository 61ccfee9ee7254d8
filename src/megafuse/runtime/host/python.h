// Calls back into Python: the reference twin, the words of an error, second derivatives.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include "autograd.h"

namespace megafuse {

// A boxed call's arguments as a Python tuple.
inline PyObject* to_tuple(const Op& op, at::ArrayRef<c10::IValue> args) {
  PyObject* tuple = PyTuple_New(Py_ssize_t(op.args.size()));
  for (size_t i = 0; i < op.args.size(); ++i) {
    PyObject* item;
    switch (op.args[i].kind) {
      case ArgKind::kNumber:
        item = PyFloat_FromDouble(args[i].toDouble());
        break;
      case ArgKind::kFlag:
        item = PyBool_FromLong(args[i].toBool());
        break;
      case ArgKind::kChoice:
        item = PyUnicode_FromString(args[i].toStringRef().c_str());
        break;
      default:
        item = THPVariable_Wrap(args[i].toTensor());
    }
    PyTuple_SET_ITEM(tuple, Py_ssize_t(i), item);
  }
  return tuple;
}

// Raises the Python error that names the argument, what was expected and what came.
[[noreturn]] inline void explain(const Op& op, PyObject* args) {
  Owned none(PyObject_CallObject(op.explain, args));
  TORCH_CHECK(false, "megafuse.", op.name,
              ": these arguments are not supported, and no check says why. Please report this.");
}

[[noreturn]] inline void explain(const Op& op, at::ArrayRef<c10::IValue> args) {
  GilAcquire gil;
  Owned tuple(to_tuple(op, args));
  explain(op, tuple.object);
}

inline at::Tensor call_reference(const Op& op, at::ArrayRef<c10::IValue> args) {
  GilAcquire gil;
  Owned tuple(to_tuple(op, args));
  Owned result(PyObject_CallObject(op.reference, tuple.object));
  return THPVariable_Unpack(result.object);
}

// vjp(grad, saved, args, wanted) -> list of gradients; `args` are the numbers and choices
// by position, None for tensors.
inline Gradients python_vjp(const BackwardCall& b) {
  GilAcquire gil;
  const Op& op = *b.call.op;
  Owned saved(PyList_New(0)), like(PyList_New(0)), args(PyList_New(0)), wanted(PyList_New(0));
  auto append = [](const Owned& list, PyObject* item) {
    Owned owned(item);
    PyList_Append(list.object, item);
  };
  auto wrap = [](const at::Tensor& t) {
    return t.defined() ? THPVariable_Wrap(t) : Py_NewRef(Py_None);
  };
  for (size_t i = 0; i < b.saved.size(); ++i)
    append(saved, b.saved[i].defined() ? wrap(b.saved[i]) : PyFloat_FromDouble(b.saved_value[i]));
  for (const at::Tensor& t : b.like) append(like, wrap(t));
  for (size_t i = 0; i < op.args.size(); ++i) {
    const Arg& arg = op.args[i];
    if (arg.kind == ArgKind::kNumber)
      append(args, PyFloat_FromDouble(b.call.number[i]));
    else if (arg.kind == ArgKind::kFlag)
      append(args, PyBool_FromLong(b.call.choice[i]));
    else if (arg.kind == ArgKind::kChoice)
      append(args, PyUnicode_FromString(arg.choices[b.call.choice[i]].c_str()));
    else
      append(args, Py_NewRef(Py_None));
  }
  for (bool w : b.wanted) append(wanted, PyBool_FromLong(w));
  Owned grad(THPVariable_Wrap(b.grad));
  Owned result(PyObject_CallFunctionObjArgs(op.vjp, grad.object, saved.object, like.object,
                                            args.object, wanted.object, nullptr));
  Gradients gradients(op.grads.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    PyObject* item = PyList_GetItem(result.object, Py_ssize_t(i));
    if (!item) throw python_error();
    if (item != Py_None) gradients[i] = THPVariable_Unpack(item);
  }
  return gradients;
}

}  // namespace megafuse
