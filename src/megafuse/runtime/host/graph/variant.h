// One capture of a function: what a call must look like, its program, and that of its backward.
#pragma once

#include "graph/parse.h"

namespace megafuse::graph {

// What a leaf of the call must be.
struct Expected {
  enum class Kind : uint8_t { kTensor, kInteger, kReal, kFixed };
  Kind kind;
  at::ScalarType dtype = at::kFloat;
  std::optional<c10::Device> device;  // none: wherever it is
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

// What the function reads besides its arguments, and was captured with: an entry of a dict (a
// global, an attribute), or where `key` is null what a closure's cell holds.
struct Besides {
  PyObject* owner;
  PyObject* key;
  PyObject* value;
};

struct Taken {
  bool saved;  // else the gradient of a result
  int which;
};

struct Variant {
  std::vector<Expected> leaves;
  std::vector<Besides> besides;
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
  Places kept;                    // of each leaf: which saved value it is, or -1
  PyObject* again = nullptr;      // runs the function itself for its gradients, or None
  std::string once;               // why None
  std::vector<Expected::Kind> placed;  // what each leaf is, without the fixed ones

  bool is_tensor(size_t leaf) const { return placed[leaf] == Expected::Kind::kTensor; }
  bool is_real(size_t leaf) const { return placed[leaf] == Expected::Kind::kReal; }

  Variant() = default;
  Variant(const Variant&) = delete;
  ~Variant() {
    for (const Expected& leaf : leaves) Py_XDECREF(leaf.fixed);
    for (const Returned& leaf : returned) Py_XDECREF(leaf.fixed);
    for (const Besides& each : besides) {
      Py_DECREF(each.owner);
      Py_XDECREF(each.key);
      Py_DECREF(each.value);
    }
    Py_XDECREF(unflatten);
    Py_XDECREF(again);
  }
};

// Of one type and equal; what cannot be compared is not.
inline bool same(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || Py_TYPE(a) != Py_TYPE(b)) return false;
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

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
            (expected.device && t.device() != *expected.device))
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
        if (!same(object, expected.fixed)) return false;
      }
    }
  }
  for (const Besides& each : variant.besides)
    if (!same(each.key ? PyDict_GetItem(each.owner, each.key) : PyCell_GET(each.owner), each.value))
      return false;
  return variant.indifferent || (any_grad && at::GradMode::is_enabled()) == variant.differentiates;
}

}  // namespace megafuse::graph
