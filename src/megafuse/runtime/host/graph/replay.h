// What the host does around a program that is recorded once and replayed (compiler/replayed.py
// decides; CUDA's graphs record): arguments are compared and copied, results handed out. In C++
// since a model has hundreds of each, and a call should take microseconds.
#pragma once

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>

#include "graph/function.h"
#include "programs/gemm.h"

namespace megafuse::graph {

// A list or tuple of Python's, for as long as its owner holds it.
struct Sequence {
  PyObject* const* items;
  Py_ssize_t size;

  explicit Sequence(PyObject* object) {
    TORCH_CHECK_TYPE(PyList_Check(object) || PyTuple_Check(object),
                     "megafuse: a list or a tuple was expected");
    items = PySequence_Fast_ITEMS(object);
    size = PySequence_Fast_GET_SIZE(object);
  }
  PyObject* const* begin() const { return items; }
  PyObject* const* end() const { return items + size; }
  PyObject* object(Py_ssize_t i) const {
    TORCH_CHECK_INDEX(i >= 0 && i < size, "megafuse: ", i, " of ", size);
    return items[i];
  }
  bool is_tensor(Py_ssize_t i) const { return THPVariable_Check(object(i)); }
  const at::Tensor& tensor(Py_ssize_t i) const {
    TORCH_CHECK_TYPE(is_tensor(i), "megafuse: a tensor was expected");
    return THPVariable_Unpack(items[i]);
  }
  int64_t integer(Py_ssize_t i) const {
    const int64_t value = PyLong_AsLongLong(object(i));
    if (value == -1 && PyErr_Occurred()) throw python_error();
    return value;
  }
};

struct Bytes {
  std::string bytes;
  void put(int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  PyObject* object() const {
    return PyBytes_FromStringAndSize(bytes.data(), Py_ssize_t(bytes.size()));
  }
};

// replay_key(arguments) -> bytes: all that a recording depends on but where tensors lie. None where
// one of the arguments is no plain tensor and no number.
inline PyObject* replay_key(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  Bytes key;
  key.put(int64_t(fp32_products()) << 1 | int64_t(c10::InferenceMode::is_enabled()));
  for (PyObject* object : Sequence(arguments)) {
    if (THPVariable_Check(object)) {
      if (!is_real(object)) Py_RETURN_NONE;
      const at::Tensor& t = THPVariable_Unpack(object);
      key.put(int64_t(t.scalar_type()) << 32 | int64_t(t.dim()) << 16 |
              int64_t(t.device().type()) << 8 | int64_t(uint8_t(t.device().index())));
      for (int64_t size : t.sizes()) key.put(size);
      for (int64_t stride : t.strides()) key.put(stride);
    } else if (PyLong_CheckExact(object)) {
      int overflow = 0;
      key.put(-1);
      key.put(PyLong_AsLongLongAndOverflow(object, &overflow));
      if (overflow) Py_RETURN_NONE;
    } else if (PyFloat_CheckExact(object)) {
      key.put(-2);
      key.put(Slot{.real = PyFloat_AS_DOUBLE(object)}.integer);
    } else {
      Py_RETURN_NONE;
    }
  }
  return key.object();
  END_HANDLE_TH_ERRORS
}

// replay_addresses(arguments, which) -> bytes
inline PyObject* replay_addresses(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *arguments, *which;
  if (!PyArg_ParseTuple(args, "OO", &arguments, &which)) return nullptr;
  const Sequence all(arguments), places(which);
  Bytes found;
  for (Py_ssize_t i = 0; i < places.size; ++i)
    found.put(int64_t(reinterpret_cast<uintptr_t>(all.tensor(places.integer(i)).const_data_ptr())));
  return found.object();
  END_HANDLE_TH_ERRORS
}

// All memory from the first element to the last, where elements overlap or leave gaps.
inline at::Tensor spanned(const at::Tensor& t) {
  if (t.numel() == 0 || t.is_non_overlapping_and_dense()) return t;
  int64_t span = 1;
  for (int64_t dim = 0; dim < t.dim(); ++dim) span += (t.size(dim) - 1) * t.stride(dim);
  return seen_as(t, {span}, {});
}

// replay_fill(static, arguments, which): the contents of these arguments, in one go. A static
// tensor has its argument's dtype, sizes and strides.
inline PyObject* replay_fill(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *statics, *arguments, *which;
  if (!PyArg_ParseTuple(args, "OOO", &statics, &arguments, &which)) return nullptr;
  const Sequence to(statics), all(arguments), places(which);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> written, read;
  for (Py_ssize_t i = 0; i < places.size; ++i) {
    const at::Tensor& from = all.tensor(places.integer(i));
    if (from.numel() == 0 || from.is_same(to.tensor(i))) continue;
    written.push_back(spanned(to.tensor(i)));
    read.push_back(spanned(from));
  }
  if (!written.empty()) at::_foreach_copy_(written, read);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// replay_holders(tensors) -> bytes: how many tensors there are of the memory of each.
inline PyObject* replay_holders(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  const Sequence all(tensors);
  Bytes found;
  for (Py_ssize_t i = 0; i < all.size; ++i) found.put(int64_t(all.tensor(i).storage().use_count()));
  return found.object();
  END_HANDLE_TH_ERRORS
}

// replay_sources(outputs, arguments) -> for each output the first argument whose memory it is, and
// how many elements after that argument's first it begins; None for memory of its own.
inline PyObject* replay_sources(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *outputs, *arguments;
  if (!PyArg_ParseTuple(args, "OO", &outputs, &arguments)) return nullptr;
  const Sequence made(outputs), given(arguments);
  Owned found(PyList_New(made.size));
  for (Py_ssize_t i = 0; i < made.size; ++i) {
    PyObject* source = nullptr;
    for (Py_ssize_t j = 0; made.is_tensor(i) && !source && j < given.size; ++j)
      if (given.is_tensor(j) && made.tensor(i).is_alias_of(given.tensor(j)))
        source = Py_BuildValue(
            "nL", j,
            (long long)(made.tensor(i).storage_offset() - given.tensor(j).storage_offset()));
    PyList_SET_ITEM(found.object, i, source ? source : Py_NewRef(Py_None));
  }
  return Py_NewRef(found.object);
  END_HANDLE_TH_ERRORS
}

// What becomes of an output.
enum Handed : int64_t { kAsItIs = -1, kCopied = -2, kLent = -3 };  // else a view of that argument

// The argument itself, or the view of it that the recorded output was of the recorded argument.
inline PyObject* view_of(PyObject* argument, const at::Tensor& like, int64_t offset) {
  const at::Tensor& t = THPVariable_Unpack(argument);
  if (offset == 0 && t.sizes() == like.sizes() && t.strides() == like.strides())
    return Py_NewRef(argument);
  return THPVariable_Wrap(
      at::as_strided(t, like.sizes(), like.strides(), t.storage_offset() + offset));
}

// replay_outputs(outputs, handed, offsets, arguments) -> a list. `outputs` is static memory, or of
// views of arguments tensors with the same sizes and strides.
inline PyObject* replay_outputs(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *outputs, *handed, *offsets, *arguments;
  if (!PyArg_ParseTuple(args, "OOOO", &outputs, &handed, &offsets, &arguments)) return nullptr;
  const Sequence made(outputs), how(handed), places(offsets), given(arguments);
  Owned found(PyList_New(made.size));
  std::vector<at::Tensor> written, read;
  for (Py_ssize_t i = 0; i < made.size; ++i) {
    const int64_t what = how.integer(i);
    PyObject* item = nullptr;
    if (what == kAsItIs) {
      item = Py_NewRef(made.object(i));
    } else if (what == kLent) {
      item = THPVariable_Wrap(
          seen_as(made.tensor(i), made.tensor(i).sizes(), made.tensor(i).strides()));
    } else if (what == kCopied) {
      const at::Tensor from = spanned(made.tensor(i));
      at::Tensor to = allocate(from.sizes(), from.strides(), from.scalar_type(), from.device());
      if (from.numel() > 0) {
        written.push_back(to);
        read.push_back(from);
      }
      if (from.dim() != made.tensor(i).dim() || from.strides() != made.tensor(i).strides())
        to = seen_as(to, made.tensor(i).sizes(), made.tensor(i).strides());
      item = THPVariable_Wrap(to);
    } else {
      item = view_of(given.object(what), made.tensor(i), places.integer(i));
    }
    if (!item) throw python_error();
    PyList_SET_ITEM(found.object, i, item);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!written.empty()) at::_foreach_copy_(written, read);
  return Py_NewRef(found.object);
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse::graph
