// A fused function as Python calls it: the variants captured so far, and what to do when none fits.
#pragma once

#include "graph/run.h"
#include "torch/plain.h"

namespace megafuse::graph {

struct Function {
  std::vector<std::shared_ptr<const Variant>> variants;  // the one that fitted last comes first
  PyObject* capture;     // (*leaves): makes a variant for them, adds it, calls again
  PyObject* reference;   // (*leaves): the function itself, unfused
  bool has_run = false;  // of a graph: as a program, so that its kernels can be built

  Function(PyObject* c, PyObject* r) : capture(Py_NewRef(c)), reference(Py_NewRef(r)) {}
  ~Function() {
    Py_DECREF(capture);
    Py_DECREF(reference);
  }
};

inline PyObject* as_python(const Returned& leaf, const std::vector<at::Tensor>& results,
                           const Run& run, const Variant& variant) {
  if (leaf.fixed) return Py_NewRef(leaf.fixed);
  if (results[leaf.result].defined()) return THPVariable_Wrap(results[leaf.result]);
  const Slot number = run.number(leaf.result);
  return variant.forward.outputs[leaf.result].kind == Output::Kind::kReal
             ? PyFloat_FromDouble(number.real)
             : PyLong_FromLongLong(number.integer);
}

inline PyObject* returned(const Variant& variant, const std::vector<at::Tensor>& results,
                          const Run& run) {
  if (variant.structure == Structure::kLeaf)
    return as_python(variant.returned[0], results, run, variant);
  Owned leaves(PyTuple_New(Py_ssize_t(variant.returned.size())));
  for (size_t i = 0; i < variant.returned.size(); ++i)
    PyTuple_SET_ITEM(leaves.object, Py_ssize_t(i),
                     as_python(variant.returned[i], results, run, variant));
  if (variant.structure == Structure::kTuple) return Py_NewRef(leaves.object);
  return PyObject_CallOneArg(variant.unflatten, leaves.object);
}

// Whether a tensor is one with memory, of torch's own class.
inline bool is_real(PyObject* object) {
  if (!THPVariable_CheckTypeExact(Py_TYPE(object))) return false;
  const at::Tensor& t = THPVariable_Unpack(object);
  return is_supported(t) && is_plain(t);
}

// Whether the direct path is for these: plain tensors, with nothing switched on that watches.
inline bool are_plain(PyObject* const* objects, Py_ssize_t n) {
  if (!only_plain_modes() || autocast_is_on(kAutocast)) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!THPVariable_Check(objects[i])) continue;
    if (!is_real(objects[i])) return false;
    const at::Tensor& t = THPVariable_Unpack(objects[i]);
    if (t.is_inference() || t._fw_grad(/*level=*/0).defined()) return false;
  }
  return true;
}

constexpr const char* kCapsule = "megafuse.fused";

inline Function& function_of(PyObject* capsule) {
  return *static_cast<Function*>(PyCapsule_GetPointer(capsule, kCapsule));
}

inline PyObject* call_function(PyObject* self, PyObject* const* leaves, Py_ssize_t n) {
  HANDLE_TH_ERRORS
  Function& function = function_of(self);
  if (!are_plain(leaves, n))
    return PyObject_Vectorcall(function.reference, leaves, size_t(n), nullptr);
  c10::SmallVector<Leaf, 16> found;
  for (size_t i = 0; i < function.variants.size(); ++i) {
    const std::shared_ptr<const Variant> variant = function.variants[i];
    if (!fits(*variant, leaves, n, found)) continue;
    Run run(variant, found);
    if (!run.prepare()) continue;
    if (i > 0) std::swap(function.variants[0], function.variants[i]);
    RECORD_FUNCTION(variant->forward.name, std::vector<c10::IValue>());
    try {
      run.take();
      const std::vector<at::Tensor> results = run.run();
      return returned(*variant, results, run);
    } catch (const UseReference&) {  // a kernel that cannot be built here
      return PyObject_Vectorcall(function.reference, leaves, size_t(n), nullptr);
    }
  }
  return PyObject_Vectorcall(function.capture, leaves, size_t(n), nullptr);
  END_HANDLE_TH_ERRORS
}

// ---- for Python

inline PyMethodDef call_function_def = {
    "fused", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_function)),
    METH_FASTCALL, nullptr};

// graph_function(capture, reference) -> (callable, handle for graph_add)
inline PyObject* new_function(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *capture, *reference;
  if (!PyArg_ParseTuple(args, "OO", &capture, &reference)) return nullptr;
  Owned capsule(PyCapsule_New(new Function(capture, reference), kCapsule,
                              [](PyObject* c) { delete &function_of(c); }));
  Owned made(PyCFunction_New(&call_function_def, capsule.object));
  return PyTuple_Pack(2, made.object, capsule.object);
  END_HANDLE_TH_ERRORS
}

inline Expected parse_expected(Reader r) {
  const std::string kind = r[0].text();
  if (kind == "fixed") {
    Expected expected{Expected::Kind::kFixed};
    expected.fixed = Py_NewRef(r[1].object);
    return expected;
  }
  if (kind != "tensor") return {kind == "real" ? Expected::Kind::kReal : Expected::Kind::kInteger};
  const std::string device = r[2].text();
  return {Expected::Kind::kTensor, r[1].dtype(),
          device.empty() ? std::nullopt : std::optional(c10::Device(device)), r[3].integer(),
          r[4].flag()};
}

// graph_add(handle, description): graph/program.py makes the description.
inline PyObject* add_variant(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *handle, *description;
  if (!PyArg_ParseTuple(args, "OO", &handle, &description)) return nullptr;
  const Reader r{description};
  auto variant = std::make_shared<Variant>();
  variant->leaves = r["leaves"].all(parse_expected);
  variant->forward = parse_program(r["forward"]);
  variant->differentiates = !r["backward"].is_none();
  variant->indifferent = r["indifferent"].integer();
  if (variant->differentiates) variant->backward = parse_program(r["backward"]);
  variant->returned = r["returned"].all([](Reader leaf) {
    const bool fixed = leaf[0].text() == "fixed";
    return fixed ? Returned{Py_NewRef(leaf[1].object), -1} : Returned{nullptr, leaf[1].place()};
  });
  variant->structure = Structure(r["structure"].integer());
  variant->unflatten = Py_NewRef(r["unflatten"].object);
  variant->writes = r["writes"].places();
  variant->results = r["results"].place();
  variant->takes =
      r["takes"].all([](Reader t) { return Taken{t[0].text() == "saved", t[1].place()}; });
  variant->differentiable = r["differentiable"].places();
  variant->in_order = r["in_order"].places();
  variant->gradients = r["gradients"].places();
  variant->kept = r["kept"].places();
  variant->again = Py_NewRef(r["again"].object);
  variant->once = r["once"].text();
  for (const Expected& leaf : variant->leaves)
    if (leaf.kind != Expected::Kind::kFixed) variant->placed.push_back(leaf.kind);
  variant->besides = r["besides"].all([](Reader b) {
    PyObject* key = b[1].is_none() ? nullptr : Py_NewRef(b[1].object);
    return Besides{Py_NewRef(b[0].object), key, Py_NewRef(b[2].object)};
  });
  Function& function = function_of(handle);
  function.variants.insert(function.variants.begin(), std::move(variant));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse::graph
