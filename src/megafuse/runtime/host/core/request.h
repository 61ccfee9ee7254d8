// What a kernel of a functor is compiled for, and the way from there to its machine code.
#pragma once

#include <c10/util/FunctionRef.h>

#include "core/functor.h"
#include "core/space.h"
#include "core/table.h"

namespace megafuse {

enum class Family : uint8_t {
  kForward,
  kBackward,
  kSumColumns,
  kSumRows,
  kSumShortRows,
  kRowsForward,
  kRowsBackward,
  kSumSegments,
  kSumShortSegments,
};
inline const char* name_of(Family family) {
  static const char* const names[] = {"forward",       "backward",       "sum_columns",
                                      "sum_rows",      "sum_short_rows", "rows_forward",
                                      "rows_backward", "sum_segments",   "sum_short_segments"};
  return names[int(family)];
}

struct Request;
// Is told of a kernel before it is built, and may see to it that it is there.
using Missing = c10::function_ref<void(const Request&, const Space&)>;

struct Request {
  const Given& given;
  Family family;
  c10::Device device;
  at::ScalarType common;  // the dtype PyTorch would compute in
  bool use_double;
  int vector = 1;
  bool wide_index = false;
  int row_vectors = 0;      // row-wise on CUDA: vectors in a row, or a few more (RowSize)
  bool exact = false;       // generated ones: no more than that
  bool few = false;         // few rows, or elements: a thread should have little of them
  bool across = false;      // vectors are cut across rows (space.h, kernels/row_share_cuda.h)
  bool short_rows = false;  // row-wise on the CPU: so short that many are done side by side
  bool long_rows = false;   // generated ones: so long that more elements are folded side by side
  bool generated = false;   // its functor is the compiler's: typed, and rows by graph_rows_*.h
  const Missing* missing = nullptr;
};

// The vectors of a row, rounded up so that there are four kernels for each doubling: an exponent
// and a multiple of that power of two, in one byte.
struct RowSize {
  int exponent = 0, multiple;
  explicit RowSize(int64_t vectors) {
    while (vectors >> exponent >= 8) ++exponent;
    multiple = int((vectors + (int64_t(1) << exponent) - 1) >> exponent);
  }
  int rounded() const { return multiple << exponent; }
  int code() const { return exponent << 3 | (multiple - 1); }
};

inline Key key_of(const Request& request, const Space& space) {
  Key key(Kind::kFunctor, request.device);
  const Functor& functor = *request.given.functor;
  key.put_number(functor.number);
  key.put(int(request.family));
  key.put(int(request.common));
  key.put(request.use_double | (request.wide_index << 1) | (request.few << 2) |
          (request.short_rows << 3) | (request.across << 4) | (request.long_rows << 5) |
          (request.exact << 6));
  key.put(request.row_vectors ? RowSize(request.row_vectors).code() : 0);
  key.put(request.vector);
  key.put(space.dims);
  key.put(space.outputs);
  for (size_t i = 0; i < functor.choices.size(); ++i) key.put(request.given.choice[i]);
  for (int i = 0; i < space.operands; ++i) {
    key.put(int(space.operand[i].dtype));
    key.put(space.operand[i].walk);
    if (i < space.outputs) key.put(space.operand[i].result);
  }
  return key;
}

// The same for Python: the parameters of `kernel` in runtime/build.py.
inline PyObject* description_of(const Request& request, const Space& space) {
  const Functor& functor = *request.given.functor;
  Owned choices(PyDict_New());
  for (size_t i = 0; i < functor.choices.size(); ++i) {
    const auto& [name, values] = functor.choices[i];
    const uint8_t chosen = request.given.choice[i];
    Owned value(values.empty() ? Py_NewRef(flag(chosen))
                               : PyUnicode_FromString(values[chosen].c_str()));
    PyDict_SetItemString(choices.object, name.c_str(), value.object);
  }
  Owned operands(PyTuple_New(space.operands));
  for (int i = 0; i < space.operands; ++i) {
    const Operand& operand = space.operand[i];
    PyTuple_SET_ITEM(
        operands.object, i,
        Py_BuildValue("(sCi)", c10::toString(operand.dtype), operand.walk, int(operand.result)));
  }
  return Py_BuildValue("(ssOsOiiOiOiOOOOO)", functor.name.c_str(), name_of(request.family),
                       choices.object, c10::toString(request.common), flag(request.use_double),
                       space.dims, request.vector, flag(request.wide_index), space.outputs,
                       operands.object, request.row_vectors, flag(request.few),
                       flag(request.across), flag(request.short_rows), flag(request.long_rows),
                       flag(request.exact));
}

inline Compiled find_kernel(const Request& request, const Space& space) {
  const Key key = key_of(request, space);
  KernelTable& table = KernelTable::get();
  if (const std::optional<Compiled> known = table.known(key)) return *known;
  if (request.missing) (*request.missing)(request, space);
  return table.find(key, request.device, [&] { return description_of(request, space); });
}

}  // namespace megafuse
