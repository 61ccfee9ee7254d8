// What this runtime asks of Python: one function that builds kernels, and locks on the way there.
#pragma once

#include <c10/macros/Macros.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/python_stub.h>

namespace megafuse {

// The Python functions that setup() of module.cpp was given.
struct PythonSide {
  PyObject* build = nullptr;        // build(kind, device, *what): compiles one kernel
  PyObject* build_all = nullptr;    // build_all([(kind, device, *what), …]): several, side by side
  PyObject* available = nullptr;    // can kernels be built for this kind of device?
  PyObject* unbuildable = nullptr;  // the exception that says that a kernel cannot be built here
};
inline PythonSide python_side;

struct GilRelease {
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  ~GilRelease() {
    if (state) PyEval_RestoreThread(state);
  }
};
struct GilAcquire {
  PyGILState_STATE state = PyGILState_Ensure();
  ~GilAcquire() { PyGILState_Release(state); }
};

// The call is right but nothing here computes it; the reference does.
struct UseReference {};
// The same, because a kernel cannot be built here.
struct Unbuildable : UseReference {};

// A new reference that is dropped at the end of its scope; null raises Python's error, or takes the
// reference where that error says that a kernel cannot be built.
struct Owned {
  PyObject* object;
  explicit Owned(PyObject* o) : object(o) {
    if (C10_LIKELY(o != nullptr)) return;
    if (!python_side.unbuildable || !PyErr_ExceptionMatches(python_side.unbuildable))
      throw python_error();
    PyErr_Clear();
    throw Unbuildable{};
  }
  Owned(const Owned&) = delete;
  ~Owned() { Py_DECREF(object); }
};

inline PyObject* flag(bool value) { return value ? Py_True : Py_False; }

}  // namespace megafuse
