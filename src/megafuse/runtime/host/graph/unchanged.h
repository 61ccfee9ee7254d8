// Whether anything changed that Dynamo's guards read from a model (compiler/unchanged.py collects
// it): if not, they pass again. A dict has a version that every change renews, so a model of 1,800
// dicts takes microseconds; where one has a new version, its items are compared with a copy.
// Pointers are borrowed: Python's side holds what they point to, where its collector can see it.
#pragma once

#include "graph/replay.h"

namespace megafuse::graph {

// Up to Python 3.12 a dict carries its version. Later ones have watchers instead: not used yet.
constexpr bool kVersions = PY_VERSION_HEX < 0x030D0000;

inline uint64_t version_of(PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
#else
  return 0;
#endif
}

inline PyObject* dict_of(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);  // the type holds it
  return dict;
#else
  return type->tp_dict;
#endif
}

inline PyObject* dict_of(PyObject* object) {
#if PY_VERSION_HEX < 0x030D0000
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
#else
  return nullptr;
#endif
}

struct SeenDict {
  PyObject* dict;
  mutable uint64_t version;
  PyObject* copy;  // of all items, or of those that are read
  bool whole;

  bool same() const {
    if (version_of(dict) == version) return true;
    if (!(whole ? same_items() : same_read())) return false;
    version = version_of(dict);  // as after train() and eval() and train() again
    return true;
  }

 private:
  bool same_items() const {
    if (PyDict_GET_SIZE(dict) != PyDict_GET_SIZE(copy)) return false;
    Py_ssize_t at = 0, before = 0;
    PyObject *key, *value, *old_key, *old_value;
    while (PyDict_Next(dict, &at, &key, &value)) {
      if (!PyDict_Next(copy, &before, &old_key, &old_value)) return false;
      if (key != old_key || value != old_value) return false;
    }
    return true;
  }
  bool same_read() const {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(copy, &at, &key, &value))
      if (PyDict_GetItemWithError(dict, key) != value) return false;
    return true;
  }
};

struct SeenType {  // a class: its attributes, and whom it inherits from
  PyTypeObject* type;
  PyObject* mro;
  SeenDict attributes;

  bool same() const { return type->tp_mro == mro && attributes.same(); }
};

struct SeenObject {  // its class, and which dict has its attributes
  PyObject* object;
  PyTypeObject* type;
  PyObject* dict;

  bool same() const { return Py_TYPE(object) == type && dict_of(object) == dict; }
};

struct SeenFunction {
  PyObject *function, *code, *defaults, *keyword_defaults, *closure;

  explicit SeenFunction(PyObject* f)
      : function(f),
        code(PyFunction_GET_CODE(f)),
        defaults(PyFunction_GET_DEFAULTS(f)),
        keyword_defaults(PyFunction_GET_KW_DEFAULTS(f)),
        closure(PyFunction_GET_CLOSURE(f)) {}
  bool same() const {
    return PyFunction_GET_CODE(function) == code && PyFunction_GET_DEFAULTS(function) == defaults &&
           PyFunction_GET_KW_DEFAULTS(function) == keyword_defaults &&
           PyFunction_GET_CLOSURE(function) == closure;
  }
};

struct SeenCell {  // a variable of a closure
  PyObject *cell, *contents;

  bool same() const { return PyCell_GET(cell) == contents; }
};

struct SeenList {
  PyObject *list, *copy;

  bool same() const {
    const Py_ssize_t n = PyTuple_GET_SIZE(copy);
    if (PyList_GET_SIZE(list) != n) return false;
    for (Py_ssize_t i = 0; i < n; ++i)
      if (PyList_GET_ITEM(list, i) != PyTuple_GET_ITEM(copy, i)) return false;
    return true;
  }
};

struct SeenTensor {  // all that is compiled in: a tensor may change in place, by .data or to()
  PyObject* object;
  PyTypeObject* type;
  const c10::TensorImpl* impl;  // read at once with the rest, not after `object`
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  c10::SmallVector<int64_t, 4> sizes, strides;

  explicit SeenTensor(PyObject* o) : SeenTensor(o, impl_of(o)) {}
  SeenTensor(PyObject* o, const c10::TensorImpl* t)
      : object(o),
        type(Py_TYPE(o)),
        impl(t),
        keys(t->key_set()),
        dtype(t->dtype()),
        device(t->device()),
        requires_grad(t->requires_grad()),
        sizes(t->sizes().begin(), t->sizes().end()),
        strides(t->strides().begin(), t->strides().end()) {}
  bool same() const {
    if (Py_TYPE(object) != type || impl_of(object) != impl || impl->key_set() != keys) return false;
    return impl->dtype() == dtype && impl->device() == device &&
           impl->requires_grad() == requires_grad && same_as(sizes, impl->sizes()) &&
           same_as(strides, impl->strides());
  }

 private:
  static const c10::TensorImpl* impl_of(PyObject* o) {
    return THPVariable_Unpack(o).unsafeGetTensorImpl();
  }
  static bool same_as(const c10::SmallVector<int64_t, 4>& before, c10::IntArrayRef now) {
    if (before.size() != now.size()) return false;
    for (size_t i = 0; i < now.size(); ++i)
      if (before[i] != now[i]) return false;
    return true;
  }
};

struct Modes {  // what TENSOR_MATCH of Dynamo's takes from the thread
  c10::DispatchKeySet included, excluded;
  bool grad, inference;

  static Modes now() {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    return {local.included_, local.excluded_, at::GradMode::is_enabled(),
            c10::InferenceMode::is_enabled()};
  }
  bool operator==(const Modes& other) const {
    return included == other.included && excluded == other.excluded && grad == other.grad &&
           inference == other.inference;
  }
};

// Of hundreds of dicts: versions side by side, and elsewhere what is needed when one is new.
class SeenDicts {
 public:
  explicit SeenDicts(std::vector<SeenDict> all = {}) : all_(std::move(all)) {
    // In the order of memory, which is how they were made.
    std::sort(all_.begin(), all_.end(),
              [](const SeenDict& a, const SeenDict& b) { return a.dict < b.dict; });
    for (const SeenDict& each : all_) versions_.push_back({each.dict, each.version});
  }
  bool same() const {
    for (size_t i = 0; i < versions_.size(); ++i) {
      if (C10_LIKELY(version_of(versions_[i].first) == versions_[i].second)) continue;
      if (!all_[i].same()) return false;
      versions_[i].second = all_[i].version;
    }
    return true;
  }

 private:
  std::vector<SeenDict> all_;
  mutable std::vector<std::pair<PyObject*, uint64_t>> versions_;
};

struct Unchanged {
  std::optional<Modes> modes;
  std::vector<SeenObject> objects;
  SeenDicts dicts;
  std::vector<SeenTensor> tensors;
  std::vector<SeenType> types;
  std::vector<SeenFunction> functions;
  std::vector<SeenCell> cells;
  std::vector<SeenList> lists;

  bool holds() const {
    return (!modes || *modes == Modes::now()) && all(objects) && dicts.same() && all(tensors) &&
           all(types) && all(functions) && all(cells) && all(lists);
  }

 private:
  template <class Seen>
  static bool all(const std::vector<Seen>& seen) {
    for (const Seen& each : seen)
      if (!each.same()) return false;
    return true;
  }
};

constexpr const char* kUnchanged = "megafuse.unchanged";

inline Unchanged& unchanged_of(PyObject* capsule) {
  return *static_cast<Unchanged*>(PyCapsule_GetPointer(capsule, kUnchanged));
}

// unchanged_new({kind: sequence}) -> handle; None where this Python's dicts have no versions.
// dicts (dict, copy, whole), types (type, copy of its dict), objects (object, its dict or None),
// functions, cells, lists (list, tuple of its items), tensors; modes: whether those of the thread
// should stay as well.
inline PyObject* unchanged_new(PyObject*, PyObject* description) {
  HANDLE_TH_ERRORS
  if (!kVersions) Py_RETURN_NONE;
  const Reader r{description};
  auto seen = std::make_unique<Unchanged>();
  if (r["modes"].flag()) seen->modes = Modes::now();
  const auto seen_dict = [](PyObject* dict, PyObject* copy, bool whole) {
    return SeenDict{dict, version_of(dict), copy, whole};
  };
  seen->dicts = SeenDicts(
      r["dicts"].all([&](Reader d) { return seen_dict(d[0].object, d[1].object, d[2].flag()); }));
  seen->types = r["types"].all([&](Reader t) {
    auto* type = reinterpret_cast<PyTypeObject*>(t[0].object);
    return SeenType{type, type->tp_mro, seen_dict(dict_of(type), t[1].object, true)};
  });
  seen->objects = r["objects"].all([](Reader o) {
    PyObject* dict = o[1].is_none() ? nullptr : o[1].object;
    return SeenObject{o[0].object, Py_TYPE(o[0].object), dict};
  });
  seen->functions = r["functions"].all([](Reader f) { return SeenFunction(f.object); });
  seen->cells = r["cells"].all([](Reader c) { return SeenCell{c.object, PyCell_GET(c.object)}; });
  seen->lists = r["lists"].all([](Reader l) { return SeenList{l[0].object, l[1].object}; });
  seen->tensors = r["tensors"].all([](Reader t) { return SeenTensor(t.object); });
  return PyCapsule_New(seen.release(), kUnchanged, [](PyObject* c) { delete &unchanged_of(c); });
  END_HANDLE_TH_ERRORS
}

// unchanged_holds(handle) -> bool
inline PyObject* unchanged_holds(PyObject*, PyObject* handle) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(unchanged_of(handle).holds());
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse::graph
