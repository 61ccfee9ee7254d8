// Calls back into Python: the reference twin, the words of an error, second derivatives.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include "torch/autograd.h"

namespace megafuse {

// A boxed call's arguments as a Python tuple.
inline PyObject* to_tuple(const Op& op, at::ArrayRef<c10::IValue> args) {
  PyObject* tuple = PyTuple_New(Py_ssize_t(op.args.size()));
  for (size_t i = 0; i < op.args.size(); ++i) {
    PyObject* item;
    if (args[i].isNone()) {
      PyTuple_SET_ITEM(tuple, Py_ssize_t(i), Py_NewRef(Py_None));
      continue;
    }
    switch (op.args[i].kind) {
      case ArgKind::kNumber:
        item = PyFloat_FromDouble(args[i].toDouble());
        break;
      case ArgKind::kInteger:
        item = PyLong_FromLongLong(args[i].toInt());
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

// One tensor, or a sequence of them, of Python's.
inline Results to_results(PyObject* object) {
  if (THPVariable_Check(object)) return {THPVariable_Unpack(object)};
  Owned fast(PySequence_Fast(object, "megafuse: a tensor or a sequence of them was expected"));
  Results results;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.object); ++i)
    results.push_back(THPVariable_Unpack(PySequence_Fast_GET_ITEM(fast.object, i)));
  return results;
}

// What the fused op would return; the contents of kept results do not matter, as its backward
// takes the reference too (run_backward).
inline Results call_reference(const Op& op, at::ArrayRef<c10::IValue> args, bool keep) {
  GilAcquire gil;
  Owned tuple(to_tuple(op, args));
  Owned outputs(PyObject_CallObject(op.reference, tuple.object));
  Results results = to_results(outputs.object);
  if (!op.pointwise())
    for (at::Tensor& t : results)
      t = op.laid_out_as < 0 ? t.contiguous() : laid_out_as(args[op.laid_out_as].toTensor(), t);
  if (keep && op.kept()) {
    Owned kept(PyObject_CallObject(op.kept_like, tuple.object));
    for (at::Tensor& t : to_results(kept.object)) results.push_back(std::move(t));
  }
  return results;
}

// vjp(grads, saved, like, args, wanted) -> list of gradients; `args` are the numbers and
// choices by position, None for tensors.
inline Gradients python_vjp(const BackwardCall& b) {
  GilAcquire gil;
  const Op& op = *b.call.op;
  Owned grads(PyList_New(0)), saved(PyList_New(0)), like(PyList_New(0)), args(PyList_New(0)),
      wanted(PyList_New(0));
  auto append = [](const Owned& list, PyObject* item) {
    Owned owned(item);
    PyList_Append(list.object, item);
  };
  auto wrap = [](const at::Tensor& t) {
    return t.defined() ? THPVariable_Wrap(t) : Py_NewRef(Py_None);
  };
  for (const at::Tensor& t : b.grads) append(grads, wrap(t));
  for (size_t i = 0; i < b.saved.size(); ++i) {
    const bool number = op.saved[i] >= 0 && op.args[op.saved[i]].kind == ArgKind::kTensorOrNumber;
    append(saved, number && !b.saved[i].defined() ? PyFloat_FromDouble(b.saved_value[i])
                                                  : wrap(b.saved[i]));
  }
  for (const at::Tensor& t : b.like) append(like, wrap(t));
  for (size_t i = 0; i < op.args.size(); ++i) {
    const Arg& arg = op.args[i];
    const double number = b.call.number[i];
    if (arg.kind == ArgKind::kFlag)
      append(args, PyBool_FromLong(b.call.choice[i]));
    else if (arg.kind == ArgKind::kChoice)
      append(args, PyUnicode_FromString(arg.choices[b.call.choice[i]].c_str()));
    else if (!arg.is_number() || (arg.optional && std::isnan(number)))
      append(args, Py_NewRef(Py_None));
    else
      append(args, arg.kind == ArgKind::kInteger ? PyLong_FromDouble(number)
                                                 : PyFloat_FromDouble(number));
  }
  for (bool w : b.wanted) append(wanted, PyBool_FromLong(w));
  Owned result(PyObject_CallFunctionObjArgs(op.vjp, grads.object, saved.object, like.object,
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
