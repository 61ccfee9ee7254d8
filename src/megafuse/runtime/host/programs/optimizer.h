// An optimizer's step over many tensors, one launch for all of them (kernels/optimizer.h).
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include "core/table.h"
#include "core/threads.h"
#include "torch/plain.h"

namespace megafuse {

// The rows of kernels/optimizer.h's table, for tensors of one dtype and device.
class OptimizerTable {
 public:
  static constexpr int64_t kPiece = 16384, kRow = 16;
  static constexpr size_t kColumns = 2, kNumbers = 8;  // where they begin; the columns end there

  std::vector<uint64_t> words;
  int64_t pieces = 0, elements = 0;

  // `columns` are sequences of as many tensors: parameters, gradients, what the rule keeps.
  // `numbers` has the numbers of each.
  OptimizerTable(PyObject* columns, PyObject* numbers) {
    const Py_ssize_t count = length(numbers), wide = length(columns);
    TORCH_CHECK(wide >= 2 && kColumns + size_t(wide) <= kNumbers,
                "megafuse: an optimizer's step has 2 to 6 columns, not ", wide);
    words.assign(size_t(count * kRow), 0);
    for (Py_ssize_t c = 0; c < wide; ++c) {
      PyObject* const column = PyTuple_GET_ITEM(columns, c);
      TORCH_CHECK(PyList_Check(column) && PyList_GET_SIZE(column) == count,
                  "megafuse: every column of an optimizer's step is a list of ", count, " tensors");
      PyObject* const parameters = PyTuple_GET_ITEM(columns, 0);
      for (Py_ssize_t r = 0; r < count; ++r)
        put(PyList_GET_ITEM(column, r), PyList_GET_ITEM(parameters, r), r, size_t(c));
    }
    for (Py_ssize_t r = 0; r < count; ++r) {
      PyObject* const own = PyList_GET_ITEM(numbers, r);
      TORCH_CHECK(PyTuple_Check(own) && size_t(PyTuple_GET_SIZE(own)) <= size_t(kRow) - kNumbers,
                  "megafuse: an optimizer's numbers are a tuple of at most ", kRow - kNumbers);
      for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(own); ++n) {
        const double number = PyFloat_AsDouble(PyTuple_GET_ITEM(own, n));
        if (PyErr_Occurred()) throw python_error();
        std::memcpy(&row(r)[kNumbers + size_t(n)], &number, sizeof number);
      }
    }
  }

  // What autograd compares, where it has kept a tensor that is written to.
  void bump_versions() const {
    for (c10::TensorImpl* tensor : written_) tensor->bump_version();
  }

  int64_t rows() const { return int64_t(words.size()) / kRow; }
  c10::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  uint64_t* row(Py_ssize_t r) { return words.data() + r * kRow; }

  static Py_ssize_t length(PyObject* sequence) {
    TORCH_CHECK(PyTuple_Check(sequence) || PyList_Check(sequence),
                "megafuse: an optimizer's step takes a tuple of columns and a list of numbers");
    return PySequence_Fast_GET_SIZE(sequence);
  }

  // Throws UseReference where a tensor is no plain one, or lies otherwise than its parameter.
  void put(PyObject* object, PyObject* parameter, Py_ssize_t r, size_t column) {
    if (!THPVariable_CheckTypeExact(Py_TYPE(object))) throw UseReference{};
    const at::Tensor &t = THPVariable_Unpack(object), &like = THPVariable_Unpack(parameter);
    if (r == 0 && column == 0) device_ = t.device(), dtype_ = t.scalar_type();
    const bool plain = t.layout() == at::kStrided && t.device() == device_ &&
                       t.scalar_type() == dtype_ && is_plain(t) && !t.is_inference();
    if (!plain || !t.is_non_overlapping_and_dense() || t.sizes() != like.sizes() ||
        t.strides() != like.strides())
      throw UseReference{};
    if (column == 0) {
      row(r)[0] = uint64_t(pieces);
      row(r)[1] = uint64_t(t.numel());
      pieces += (t.numel() + kPiece - 1) / kPiece;
      elements += t.numel();
    }
    const bool read_only = column == 1;  // the gradient; one that is copied on write stays shared
    row(r)[kColumns + column] = reinterpret_cast<uint64_t>(
        read_only ? const_cast<void*>(t.const_data_ptr()) : t.mutable_data_ptr());
    if (!read_only) written_.push_back(t.unsafeGetTensorImpl());
  }

  std::vector<c10::TensorImpl*> written_;
  c10::Device device_{at::kCPU};
  at::ScalarType dtype_ = at::kFloat;
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
  const at::Tensor there = here.to(kind.device(table.device()), /*non_blocking=*/true);
  struct {
    const void* table;
    int64_t rows, pieces;
  } work{there.const_data_ptr(), table.rows(), table.pieces};
  const unsigned grid = unsigned(std::min<int64_t>(table.pieces, kernel.max_grid));
  launch_cuda(kernel, table.device(), grid, 1, &work);
}

// optimizer_step(rule, its number, columns, numbers) -> whether it was done. If not, nothing was: a
// tensor is none that our kernels take, or a kernel cannot be built here.
inline PyObject* optimizer_step(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* rule;
  int number;
  PyObject *columns, *numbers;
  if (!PyArg_ParseTuple(args, "siO!O!", &rule, &number, &PyTuple_Type, &columns, &PyList_Type,
                        &numbers))
    return nullptr;
  try {
    const OptimizerTable table(columns, numbers);
    if (table.pieces == 0) Py_RETURN_TRUE;
    const c10::Device device = table.device();
    Key key(Kind::kOptimizer, device);
    for (int part : {number, int(table.dtype())}) key.put(part);
    std::optional<CudaScope> scope;
    if (device.is_cuda()) scope.emplace(device);
    const Compiled kernel = KernelTable::get().find(
        key, device, [&] { return Py_BuildValue("(ss)", rule, c10::toString(table.dtype())); });
    RECORD_FUNCTION("megafuse::optimizer_step", std::vector<c10::IValue>());
    const GilRelease no_gil;
    const at::AutoDispatchBelowADInplaceOrView below;
    device.is_cuda() ? step_on_cuda(kernel, table) : step_on_cpu(kernel, table);
    table.bump_versions();
  } catch (const UseReference&) {
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace megafuse
