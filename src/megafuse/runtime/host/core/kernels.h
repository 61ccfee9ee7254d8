// From a space to running machine code: a table of compiled kernels, filled through
// Python on the first miss, and the two ways to launch one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/python_stub.h>

#include <atomic>
#include <unordered_map>

#include "core/driver.h"
#include "core/fork.h"
#include "torch/op.h"
#include "core/space.h"
#include "core/threads.h"

namespace megafuse {

enum class Family : uint8_t {
  kForward,
  kBackward,
  kSumColumns,
  kSumRows,
  kSumShortRows,
  kRowsForward,
  kRowsBackward,
};

struct Compiled {
  void* function = nullptr;
  unsigned block = 0;     // CUDA: threads per block
  unsigned unroll = 1;    // CUDA: groups per thread and turn, or rows per block
  unsigned max_grid = 0;  // CUDA: the most blocks of a launch
  unsigned cluster = 1;   // CUDA: blocks that share a row
  unsigned shared = 0;    // CUDA: bytes of shared memory beside what the kernel declares
};

using CpuKernel = void (*)(const uint64_t* words, int64_t begin, int64_t end, int64_t slot);

// Everything a kernel is compiled for, as bytes: the key of the table and, through
// Python, of the cache on disk.
struct Key {
  uint8_t length = 0;
  uint8_t byte[95];
  void put(int value) {
    TORCH_INTERNAL_ASSERT(length < sizeof byte);
    byte[length++] = uint8_t(value);
  }
  bool operator==(const Key& other) const {
    return length == other.length && std::memcmp(byte, other.byte, length) == 0;
  }
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < key.length; ++i) hash = (hash ^ key.byte[i]) * 0x100000001b3u;
    return hash;
  }
};

// The Python functions that setup() of module.cpp was given.
struct PythonSide {
  PyObject* build = nullptr;        // compiles one kernel
  PyObject* available = nullptr;    // can kernels be built for this kind of device?
  PyObject* unbuildable = nullptr;  // the exception that says that a kernel cannot be built here
};
inline PythonSide python_side;
inline std::atomic<int64_t> launches{0};

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

inline at::ArrayRef<double> numbers_of(const Call& call, std::array<double, kMaxArgs>& storage) {
  size_t n = 0;
  for (int arg : call.op->numbers) storage[n++] = call.number[arg];
  return {storage.data(), n};
}

struct Request {
  const Call& call;
  Family family;
  c10::Device device;
  at::ScalarType common;  // the dtype PyTorch would compute in
  bool use_double;
  int vector = 1;
  bool wide_index = false;
  int row_vectors = 0;      // row-wise on CUDA: vectors in a row, or a few more (RowSize)
  bool few_rows = false;    // so few that a row should have many threads
  bool across = false;      // vectors are cut across rows (space.h, kernels/row_places_cuda.h)
  bool short_rows = false;  // row-wise on the CPU: so short that many are done side by side
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
  Key key;
  key.put(int(request.device.type()));
  key.put(request.device.index());
  key.put(request.call.op->id & 0xff);
  key.put(request.call.op->id >> 8);
  key.put(int(request.family));
  key.put(int(request.common));
  key.put(request.use_double | (request.wide_index << 1) | (request.few_rows << 2) |
          (request.short_rows << 3) | (request.across << 4));
  key.put(request.row_vectors ? RowSize(request.row_vectors).code() : 0);
  key.put(request.vector);
  key.put(space.dims);
  key.put(space.outputs);
  for (size_t i = 0; i < request.call.op->args.size(); ++i) {
    const ArgKind kind = request.call.op->args[i].kind;
    if (kind == ArgKind::kChoice || kind == ArgKind::kFlag) key.put(request.call.choice[i]);
  }
  for (int i = 0; i < space.operands; ++i) {
    key.put(int(space.operand[i].dtype));
    key.put(space.operand[i].walk);
    if (i < space.outputs) key.put(space.operand[i].result);
  }
  return key;
}

inline int multiprocessors(int device) {
  constexpr int kMultiprocessorCount = 16, kDevices = 64;
  static std::atomic<int> known[kDevices];
  std::atomic<int>& count = known[device % kDevices];
  if (C10_UNLIKELY(count.load(std::memory_order_relaxed) == 0))
    count = Driver::get().attribute(kMultiprocessorCount, device);
  return count.load(std::memory_order_relaxed);
}

class KernelTable {
 public:
  static KernelTable& get() {
    static KernelTable* table = new KernelTable;  // never destroyed: threads may outlive main
    return *table;
  }

  Compiled find(const Request& request, const Space& space) {
    const Key key = key_of(request, space);
    {
      std::shared_lock<Mutex> lock(mutex_);
      auto it = table_.find(key);
      if (C10_LIKELY(it != table_.end())) return usable(it->second);
    }
    Compiled compiled;  // stays empty where it cannot be built, so that nobody tries again
    try {
      compiled = build(request, space);
    } catch (const Unbuildable&) {
    }
    std::unique_lock<Mutex> lock(mutex_);
    return usable(table_.emplace(key, compiled).first->second);
  }

  void forget() {
    std::unique_lock<Mutex> lock(mutex_);
    table_.clear();
  }

 private:
  static const Compiled& usable(const Compiled& compiled) {
    if (C10_UNLIKELY(!compiled.function)) throw Unbuildable{};
    return compiled;
  }

  static Compiled build(const Request& request, const Space& space) {
    GilAcquire gil;
    const Op& op = *request.call.op;
    Owned choices(PyDict_New());
    for (size_t i = 0; i < op.args.size(); ++i) {
      const Arg& arg = op.args[i];
      if (arg.kind == ArgKind::kChoice) {
        Owned value(PyUnicode_FromString(arg.choices[request.call.choice[i]].c_str()));
        PyDict_SetItemString(choices.object, arg.name.c_str(), value.object);
      } else if (arg.kind == ArgKind::kFlag) {
        PyDict_SetItemString(choices.object, arg.name.c_str(),
                             request.call.choice[i] ? Py_True : Py_False);
      }
    }
    Owned operands(PyTuple_New(space.operands));
    for (int i = 0; i < space.operands; ++i) {
      const Operand& operand = space.operand[i];
      PyTuple_SET_ITEM(
          operands.object, i,
          Py_BuildValue("(sCi)", c10::toString(operand.dtype), operand.walk, int(operand.result)));
    }
    static const char* const families[] = {"forward",      "backward",       "sum_columns",
                                           "sum_rows",     "sum_short_rows", "rows_forward",
                                           "rows_backward"};
    const bool cuda = request.device.is_cuda();
    Owned built(PyObject_CallFunction(
        python_side.build, "ssOsisOiiOiOiOOO", op.name.c_str(), families[int(request.family)],
        choices.object, cuda ? "cuda" : "cpu", int(request.device.index()),
        c10::toString(request.common), request.use_double ? Py_True : Py_False, space.dims,
        request.vector, request.wide_index ? Py_True : Py_False, space.outputs, operands.object,
        request.row_vectors, request.few_rows ? Py_True : Py_False,
        request.across ? Py_True : Py_False, request.short_rows ? Py_True : Py_False));
    return cuda ? load_cuda(built.object, request.device.index()) : load_cpu(built.object);
  }

  // `built` is (path, symbol).
  static Compiled load_cpu(PyObject* built) {
    const char *path, *symbol;
    if (!PyArg_ParseTuple(built, "ss", &path, &symbol)) throw python_error();
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, "megafuse: cannot load the compiled kernel ", path, ": ", dlerror());
    Compiled compiled;
    compiled.function = dlsym(library, symbol);
    TORCH_CHECK(compiled.function, "megafuse: no symbol ", symbol, " in ", path);
    return compiled;
  }

  // `built` is (cubin, symbol, threads per block, unroll, blocks per multiprocessor, cluster,
  // bytes of shared memory).
  static Compiled load_cuda(PyObject* built, int device) {
    PyObject* cubin;
    const char* symbol;
    int block, unroll, per_processor, cluster, shared;
    if (!PyArg_ParseTuple(built, "Ssiiiii", &cubin, &symbol, &block, &unroll, &per_processor,
                          &cluster, &shared))
      throw python_error();
    const Driver& driver = Driver::get();
    Compiled compiled;
    compiled.function = driver.load(PyBytes_AS_STRING(cubin), symbol);
    if (shared) driver.allow_shared(compiled.function, shared);
    if (cluster > 8) driver.allow_large_cluster(compiled.function);
    compiled.shared = unsigned(shared);
    compiled.block = unsigned(block);
    compiled.unroll = unsigned(unroll);
    compiled.cluster = unsigned(cluster);
    const int64_t grid = int64_t(per_processor) * multiprocessors(device);
    compiled.max_grid = unsigned(std::min<int64_t>(grid, INT32_MAX));
    if (cluster > 1 && per_processor <= kResident) limit_to_resident(compiled);
    return compiled;
  }

  // Where each cluster does one row after another, all of them must be resident: one that starts
  // when the others end doubles the time. How many fit depends on how the GPU groups its
  // multiprocessors, so the driver is asked.
  static constexpr int kResident = 32;
  static void limit_to_resident(Compiled& compiled) {
    const Driver& driver = Driver::get();
    int clusters = 0;
    const LaunchConfig config{{compiled.cluster, 1, 1}, {compiled.block, 1, 1}, compiled.shared};
    if (!driver.OccupancyMaxActiveClusters ||
        driver.OccupancyMaxActiveClusters(&clusters, compiled.function, &config) != 0 ||
        clusters < 1)
      return;
    compiled.max_grid = std::min(compiled.max_grid, unsigned(clusters) * compiled.cluster);
  }

  Mutex mutex_;
  std::unordered_map<Key, Compiled, KeyHash> table_;
};

// Makes `device` current for driver calls: torch's runtime does that lazily, and a fresh
// thread may have no context at all.
class CudaScope {
 public:
  explicit CudaScope(c10::Device device) : impl_(c10::DeviceType::CUDA) {
    previous_ = impl_.exchangeDevice(device);
    const Driver& driver = Driver::get();
    void* current = nullptr;
    driver.CtxGetCurrent(&current);
    if (C10_UNLIKELY(!current)) {
      int handle;
      driver.check(driver.DeviceGet(&handle, device.index()), "cuDeviceGet");
      driver.check(driver.DevicePrimaryCtxRetain(&current, handle), "cuDevicePrimaryCtxRetain");
      driver.check(driver.CtxSetCurrent(current), "cuCtxSetCurrent");
    }
  }
  ~CudaScope() {
    if (previous_.index() >= 0) impl_.uncheckedSetDevice(previous_);
  }
  CudaScope(const CudaScope&) = delete;

 private:
  c10::impl::VirtualGuardImpl impl_;
  c10::Device previous_{c10::DeviceType::CUDA, -1};
};

inline void* current_stream(c10::Device device) {
  c10::impl::VirtualGuardImpl impl(c10::DeviceType::CUDA);
  const c10::Stream stream = impl.getStream(device);
#if MF_TORCH >= 211
  return impl.getStreamNativeHandle(stream);
#else
  // Before 2.11 only libc10_cuda knows the handle: CUDAStream is a Stream with a method.
  using Method = void* (*)(const c10::Stream*);
  static const Method method = [] {
    void* symbol = dlsym(RTLD_DEFAULT, "_ZNK3c104cuda10CUDAStream6streamEv");
    if (!symbol)
      if (void* library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD))
        symbol = dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv");
    TORCH_CHECK(symbol,
                "megafuse: libc10_cuda.so has no CUDAStream::stream(); use torch 2.11 or newer.");
    return reinterpret_cast<Method>(symbol);
  }();
  return method(&stream);
#endif
}

// The last launch of this thread, for bare_launch (module.cpp) to repeat.
struct LastLaunch {
  Compiled kernel;
  unsigned grid_x = 0, grid_y = 0;
  void* stream = nullptr;
  Words words;
};
inline LastLaunch& last_launch() {
  thread_local LastLaunch last;
  return last;
}
inline std::atomic<bool> remember_launches{false};

inline void launch_cuda(const Compiled& kernel, c10::Device device, unsigned grid_x,
                        unsigned grid_y, const Words& words) {
  const Driver& driver = Driver::get();
  void* params[] = {const_cast<uint64_t*>(words.data())};
  void* stream = current_stream(device);
  if (C10_UNLIKELY(remember_launches.load(std::memory_order_relaxed)))
    last_launch() = {kernel, grid_x, grid_y, stream, words};
  launches.fetch_add(1, std::memory_order_relaxed);
  driver.check(driver.LaunchKernel(kernel.function, grid_x, grid_y, 1, kernel.block, 1, 1,
                                   kernel.shared, stream, params, nullptr),
               "a kernel launch");
}

// Elements a thread must have before work is shared out: torch's own ops use a second thread
// from 32 K elements on, and waking one sooner cost more than it saved when cores were busy.
constexpr int64_t kGrain = 16384;

// Splits [0, n) over torch's threads in multiples of `align`; run(begin, end, slot).
template <class Run>
void split(int64_t n, int64_t weight, int64_t align, int64_t max_slots, const Run& run) {
  const int64_t pieces = (n + align - 1) / align;  // a single long row wakes nobody
  int64_t slots =
      std::min<int64_t>({at::get_num_threads(), max_slots, n * weight / kGrain, pieces});
  if (slots <= 1 || at::in_parallel_region()) return run(0, n, 0);
  const int64_t each = ((n + slots - 1) / slots + align - 1) / align * align;
  on_torch_threads(slots, [&](int64_t slot) {
    const int64_t begin = slot * each, end = std::min(n, begin + each);
    if (begin < end) run(begin, end, slot);
  });
}

// Runs a forward or backward kernel over the whole space.
inline void launch(const Request& request, const Space& space, at::ArrayRef<uint64_t> random) {
  std::array<double, kMaxArgs> storage;
  const auto numbers = numbers_of(request.call, storage);
  const Compiled kernel = KernelTable::get().find(request, space);
  const Words words = pack(space, numbers, random, request.across ? 1 : request.vector);
  if (request.device.is_cuda()) {
    const int64_t groups = std::max<int64_t>(space.numel / request.vector, 1);
    const int64_t per_block = int64_t(kernel.block) * kernel.unroll;
    const int64_t grid = std::min<int64_t>((groups + per_block - 1) / per_block, kernel.max_grid);
    launch_cuda(kernel, request.device, unsigned(grid), 1, words);
    return;
  }
  launches.fetch_add(1, std::memory_order_relaxed);
  const auto function = reinterpret_cast<CpuKernel>(kernel.function);
  split(space.numel, 1, 64, INT64_MAX, [&](int64_t begin, int64_t end, int64_t slot) {
    function(words.data(), begin, end, slot);
  });
}

}  // namespace megafuse
