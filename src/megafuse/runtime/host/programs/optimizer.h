// An optimizer's step over many tensors, one launch for all of them (kernels/optimizer.h).
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>

#include "core/table.h"
#include "core/threads.h"
#include "torch/plain.h"

namespace megafuse {

// A row of a step: a parameter, its gradient, what the rule keeps for it.
using OptimizerRow = c10::SmallVector<const at::Tensor*, 6>;

// The rows of kernels/optimizer.h's table, for tensors of one dtype and device: one launch.
class OptimizerTable {
 public:
  static constexpr int64_t kPiece = 16384, kRow = 16;
  static constexpr size_t kColumns = 2, kNumbers = 8;  // where they begin; the columns end there

  c10::Device device;
  at::ScalarType dtype;
  std::vector<uint64_t> words;
  std::vector<Py_ssize_t> places;  // of the rows, in the caller's lists
  int64_t pieces = 0, elements = 0;

  OptimizerTable(c10::Device d, at::ScalarType t) : device(d), dtype(t) {}

  void add(Py_ssize_t place, const OptimizerRow& row, PyObject* numbers) {
    words.resize(words.size() + size_t(kRow));
    uint64_t* const to = &words[words.size() - size_t(kRow)];
    const int64_t count = row[0]->numel();
    to[0] = uint64_t(pieces);
    to[1] = uint64_t(count);
    for (size_t c = 0; c < row.size(); ++c) {
      const bool read_only = c == 1;  // the gradient; one that is copied on write stays shared
      to[kColumns + c] = reinterpret_cast<uint64_t>(
          read_only ? const_cast<void*>(row[c]->const_data_ptr()) : row[c]->mutable_data_ptr());
      if (!read_only) written_.push_back(row[c]->unsafeGetTensorImpl());
    }
    if (numbers != last_) read_numbers(numbers);
    std::copy(numbers_.begin(), numbers_.end(), to + kNumbers);
    places.push_back(place);
    pieces += (count + kPiece - 1) / kPiece;
    elements += count;
  }

  // What autograd compares, where it has kept a tensor that is written to.
  void bump_versions() const {
    for (c10::TensorImpl* tensor : written_) tensor->bump_version();
  }

  int64_t rows() const { return int64_t(places.size()); }

 private:
  // Once for all rows that have the same tuple.
  void read_numbers(PyObject* numbers) {
    TORCH_CHECK(PyTuple_Check(numbers) && size_t(PyTuple_GET_SIZE(numbers)) <= numbers_.size(),
                "megafuse: an optimizer's numbers are a tuple of at most ", numbers_.size());
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(numbers); ++n) {
      const double number = PyFloat_AsDouble(PyTuple_GET_ITEM(numbers, n));
      if (PyErr_Occurred()) throw python_error();
      std::memcpy(&numbers_[size_t(n)], &number, sizeof number);
    }
    last_ = numbers;
  }

  std::array<uint64_t, size_t(kRow) - kNumbers> numbers_{};
  PyObject* last_ = nullptr;
  std::vector<c10::TensorImpl*> written_;
};

// The rows of a step, in a table for each dtype and device.
class OptimizerTables {
 public:
  std::vector<OptimizerTable> tables;
  std::vector<Py_ssize_t> unfit;  // places of the rows that no kernel takes

  // `columns` are lists of as many tensors: parameters, gradients, what the rule keeps. `numbers`
  // has the numbers of each row.
  OptimizerTables(PyObject* columns, PyObject* numbers) {
    const Py_ssize_t count = PyList_GET_SIZE(numbers), wide = PyTuple_GET_SIZE(columns);
    TORCH_CHECK(wide >= 2 && OptimizerTable::kColumns + size_t(wide) <= OptimizerTable::kNumbers,
                "megafuse: an optimizer's step has 2 to 6 columns, not ", wide);
    for (Py_ssize_t c = 0; c < wide; ++c) {
      PyObject* const column = PyTuple_GET_ITEM(columns, c);
      TORCH_CHECK(PyList_Check(column) && PyList_GET_SIZE(column) == count,
                  "megafuse: every column of an optimizer's step is a list of ", count, " tensors");
    }
    OptimizerRow row;
    for (Py_ssize_t place = 0; place < count; ++place) {
      if (read(columns, place, row))
        table_of(*row[0]).add(place, row, PyList_GET_ITEM(numbers, place));
      else
        unfit.push_back(place);
    }
  }

 private:
  // Whether a kernel takes the row: plain tensors that lie as their parameter does.
  static bool read(PyObject* columns, Py_ssize_t place, OptimizerRow& row) {
    row.clear();
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(columns); ++c) {
      PyObject* const object = PyList_GET_ITEM(PyTuple_GET_ITEM(columns, c), place);
      if (!THPVariable_CheckTypeExact(Py_TYPE(object))) return false;
      row.push_back(&THPVariable_Unpack(object));
      const at::Tensor &t = *row.back(), &like = *row[0];
      if (!is_plain(t) || t.is_inference() || t.device() != like.device() ||
          t.scalar_type() != like.scalar_type() || !lie_alike(t, like))
        return false;
    }
    return has_kernels(row[0]->scalar_type()) && row[0]->is_non_overlapping_and_dense();
  }

  // In a dimension of one element the stride means nothing: a gradient's may be another.
  static bool lie_alike(const at::Tensor& one, const at::Tensor& other) {
    if (one.layout() != at::kStrided || one.sizes() != other.sizes()) return false;
    const at::IntArrayRef sizes = one.sizes(), strides = one.strides(), others = other.strides();
    for (size_t d = 0; d < sizes.size(); ++d)
      if (sizes[d] != 1 && strides[d] != others[d]) return false;
    return true;
  }

  static bool has_kernels(at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
           dtype == at::kDouble;
  }

  OptimizerTable& table_of(const at::Tensor& parameter) {
    const c10::Device device = parameter.device();
    const at::ScalarType dtype = parameter.scalar_type();
    for (OptimizerTable& table : tables)
      if (table.device == device && table.dtype == dtype) return table;
    return tables.emplace_back(device, dtype);
  }
};

inline void step_on_cpu(const Compiled& kernel, const OptimizerTable& table) {
  using Run = void (*)(const uint64_t* table, int64_t rows, int64_t begin, int64_t end);
  const Run run = reinterpret_cast<Run>(kernel.function);
  launches.fetch_add(1, std::memory_order_relaxed);
  // A second thread is worth it from about 30 µs on.
  const int64_t most = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t threads =
      std::clamp<int64_t>(table.elements / (2 * OptimizerTable::kPiece), 1, most);
  auto work = [&](int64_t thread) {
    run(table.words.data(), table.rows(), table.pieces * thread / threads,
        table.pieces * (thread + 1) / threads);
  };
  if (threads == 1)
    work(0);
  else
    on_torch_threads(threads, work);
}

inline void step_on_cuda(const Compiled& kernel, const OptimizerTable& table) {
  // From pinned memory, which torch keeps until the copy is over, so that the host does not wait.
  const auto kind = at::TensorOptions().dtype(at::kLong);
  const at::Tensor here = at::empty({int64_t(table.words.size())}, kind.pinned_memory(true));
  std::memcpy(here.mutable_data_ptr(), table.words.data(), here.nbytes());
  const at::Tensor there = here.to(kind.device(table.device), /*non_blocking=*/true);
  struct {
    const void* table;
    int64_t rows, pieces;
  } work{there.const_data_ptr(), table.rows(), table.pieces};
  const unsigned grid = unsigned(std::min<int64_t>(table.pieces, kernel.max_grid));
  launch_cuda(kernel, table.device, grid, 1, &work);
}

inline Compiled optimizer_kernel(const char* rule, int number, const OptimizerTable& table) {
  Key key(Kind::kOptimizer, table.device);
  for (int part : {number, int(table.dtype)}) key.put(part);
  std::optional<CudaScope> scope;
  if (table.device.is_cuda()) scope.emplace(table.device);
  return KernelTable::get().find(
      key, table.device, [&] { return Py_BuildValue("(ss)", rule, c10::toString(table.dtype)); });
}

inline void step_on_device(const Compiled& kernel, const OptimizerTable& table) {
  if (table.pieces == 0) return;
  if (table.device.is_cuda()) {
    const CudaScope scope(table.device);
    step_on_cuda(kernel, table);
  } else {
    step_on_cpu(kernel, table);
  }
  table.bump_versions();
}

// optimizer_step(rule, its number, columns, numbers) -> the places of the rows that it cannot do: a
// tensor is none that our kernels take, or a kernel cannot be built here. If there is one, nothing
// was done.
inline PyObject* optimizer_step(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* rule;
  int number;
  PyObject *columns, *numbers;
  if (!PyArg_ParseTuple(args, "siO!O!", &rule, &number, &PyTuple_Type, &columns, &PyList_Type,
                        &numbers))
    return nullptr;
  OptimizerTables work(columns, numbers);
  std::vector<Compiled> kernels;
  for (const OptimizerTable& table : work.tables) {
    try {
      kernels.push_back(optimizer_kernel(rule, number, table));
    } catch (const UseReference&) {
      work.unfit.insert(work.unfit.end(), table.places.begin(), table.places.end());
    }
  }
  if (work.unfit.empty()) {
    RECORD_FUNCTION("megafuse::optimizer_step", std::vector<c10::IValue>());
    const GilRelease no_gil;
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < kernels.size(); ++i) step_on_device(kernels[i], work.tables[i]);
  }
  Owned unfit(PyList_New(Py_ssize_t(work.unfit.size())));
  for (size_t i = 0; i < work.unfit.size(); ++i)
    PyList_SET_ITEM(unfit.object, Py_ssize_t(i), PyLong_FromSsize_t(work.unfit[i]));
  return Py_NewRef(unfit.object);
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse
