// The one table of compiled kernels, filled through Python on the first miss.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "core/cuda.h"
#include "core/fork.h"
#include "core/python_side.h"

namespace megafuse {

// Who builds a kernel: a kind of runtime/build.py.
enum class Kind : uint8_t { kFunctor, kAttention, kGemmSm90, kWorker, kOptimizer };
inline const char* name_of(Kind kind) {
  static const char* const names[] = {"functor", "attention", "gemm_sm90", "worker", "optimizer"};
  return names[int(kind)];
}

// Everything a kernel is compiled for, as bytes; it begins with the kind and the device.
struct Key {
  static constexpr size_t kMost = 176;
  size_t length = 0;
  uint8_t byte[kMost] = {};  // zeros behind the last
  Key(Kind kind, c10::Device device) {
    put(int(kind));
    put(int(device.type()));
    put(device.index());
  }
  void put(int value) {
    TORCH_INTERNAL_ASSERT(length < kMost);
    byte[length++] = uint8_t(value);
  }
  void put_number(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) put(int(value >> shift & 0xff));
  }
  bool operator==(const Key& other) const {
    return length == other.length && std::memcmp(byte, other.byte, length) == 0;
  }
  // Whether it is of the functor of this number, which kernels of functors put first.
  bool is_of(uint32_t functor) const {
    uint32_t number = 0;
    for (int i = 0; i < 4; ++i) number |= uint32_t(byte[3 + i]) << 8 * i;
    return byte[0] == int(Kind::kFunctor) && number == functor;
  }
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.length;
    for (size_t i = 0; i < key.length; i += sizeof hash) {  // eight bytes at once
      uint64_t eight;
      std::memcpy(&eight, key.byte + i, sizeof eight);
      hash = (hash ^ eight) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

class KernelTable {
 public:
  static KernelTable& get() {
    static KernelTable* table = new KernelTable;  // never destroyed: threads may outlive main
    return *table;
  }

  // Nothing where it was not built yet.
  std::optional<Compiled> known(const Key& key) {
    std::shared_lock<Mutex> lock(mutex_);
    const auto it = table_.find(key);
    if (C10_UNLIKELY(it == table_.end())) return std::nullopt;
    return usable(it->second);
  }

  // describe() makes a tuple of what Python's build() takes after kind and device. It is called on
  // the first miss, with the GIL.
  template <class Describe>
  Compiled find(const Key& key, c10::Device device, const Describe& describe) {
    if (const std::optional<Compiled> found = known(key)) return *found;
    Compiled compiled;  // stays empty where it cannot be built, so that nobody tries again
    try {
      GilAcquire gil;
      Owned what(describe());
      Owned all(all_arguments(key, device, what.object));
      Owned built(PyObject_CallObject(python_side.build, all.object));
      compiled = load(built.object, device);
    } catch (const Unbuildable&) {
    }
    return keep(key, compiled);
  }

  // Several kernels for the current device, built side by side; `asked` are the arguments of
  // build() for each. One that cannot be built is left out: find() then tries again, and says why.
  // With the GIL.
  void build_all(at::ArrayRef<Key> keys, c10::Device device, PyObject* asked) {
    Owned built(PyObject_CallOneArg(python_side.build_all, asked));
    for (size_t i = 0; i < keys.size(); ++i) {
      PyObject* const each = PyList_GetItem(built.object, Py_ssize_t(i));
      if (!each) throw python_error();
      if (each != Py_None) keep(keys[i], load(each, device));
    }
  }

  // A new tuple: what build() takes for a kernel that `what` describes.
  static PyObject* all_arguments(const Key& key, c10::Device device, PyObject* what) {
    Owned head(Py_BuildValue("(si)", name_of(Kind(key.byte[0])),
                             device.is_cuda() ? int(device.index()) : -1));
    return PySequence_Concat(head.object, what);
  }

  // Everything, so that Python is asked again (for tuning). What was loaded stays loaded.
  void forget() {
    std::unique_lock<Mutex> lock(mutex_);
    table_.clear();
  }

  // The kernels of a functor that nobody will launch again, unloaded.
  void drop(uint32_t functor) {
    std::vector<std::pair<Key, Compiled>> dropped;
    {
      std::unique_lock<Mutex> lock(mutex_);
      for (auto it = table_.begin(); it != table_.end();) {
        if (it->first.is_of(functor)) {
          dropped.emplace_back(*it);
          it = table_.erase(it);
        } else {
          ++it;
        }
      }
    }
    for (const auto& [key, compiled] : dropped) {
      if (!compiled.library) continue;
      if (c10::DeviceType(int8_t(key.byte[1])) == at::kCPU)
        dlclose(compiled.library);
      else
        Driver::get().unload(compiled.library);
    }
  }

 private:
  static const Compiled& usable(const Compiled& compiled) {
    if (C10_UNLIKELY(!compiled.function)) throw Unbuildable{};
    return compiled;
  }
  Compiled keep(const Key& key, const Compiled& compiled) {
    std::unique_lock<Mutex> lock(mutex_);
    return usable(table_.emplace(key, compiled).first->second);
  }

  static Compiled load(PyObject* built, c10::Device device) {
    return device.is_cuda() ? load_cuda(built, device.index()) : load_cpu(built);
  }

  // `built` is (path, symbol), or with the symbol of a second function.
  static Compiled load_cpu(PyObject* built) {
    const char *path, *symbol, *second = nullptr;
    if (!PyArg_ParseTuple(built, "ss|s", &path, &symbol, &second)) throw python_error();
    Compiled compiled;
    compiled.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(compiled.library, "megafuse: cannot load the compiled kernel ", path, ": ",
                dlerror());
    auto find = [&](const char* name) {
      void* function = dlsym(compiled.library, name);
      TORCH_CHECK(function, "megafuse: no symbol ", name, " in ", path);
      return function;
    };
    compiled.function = find(symbol);
    if (second) compiled.second = find(second);
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
    compiled.function = driver.load(PyBytes_AS_STRING(cubin), symbol, &compiled.library);
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

}  // namespace megafuse
