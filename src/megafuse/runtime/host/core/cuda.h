// Launches through the CUDA driver: the current device, its stream, the launch itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

#include "core/driver.h"
#include "core/space.h"

namespace megafuse {

inline std::atomic<int64_t> launches{0};

// A kernel in machine code, and how its builder wants it launched.
struct Compiled {
  void* function = nullptr;
  void* second = nullptr;   // CPU: another function of the same library, if its builder names one
  void* library = nullptr;  // the module or shared object that they are in
  unsigned block = 0;       // CUDA: threads per block
  unsigned unroll = 1;      // CUDA: groups per thread and turn, or rows per block
  unsigned max_grid = 0;    // CUDA: the most blocks of a launch
  unsigned cluster = 1;     // CUDA: blocks that share a row
  unsigned shared = 0;      // CUDA: bytes of shared memory beside what the kernel declares
};

inline int multiprocessors(int device) {
  constexpr int kMultiprocessorCount = 16, kDevices = 64;
  static std::atomic<int> known[kDevices];
  std::atomic<int>& count = known[device % kDevices];
  if (C10_UNLIKELY(count.load(std::memory_order_relaxed) == 0))
    count = Driver::get().attribute(kMultiprocessorCount, device);
  return count.load(std::memory_order_relaxed);
}

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
                        unsigned grid_y, void** params) {
  const Driver& driver = Driver::get();
  launches.fetch_add(1, std::memory_order_relaxed);
  driver.check(driver.LaunchKernel(kernel.function, grid_x, grid_y, 1, kernel.block, 1, 1,
                                   kernel.shared, current_stream(device), params, nullptr),
               "a kernel launch");
}
// The same with a struct as the only argument.
template <class Struct>
void launch_cuda(const Compiled& kernel, c10::Device device, unsigned grid_x, unsigned grid_y,
                 const Struct* argument) {
  void* params[] = {const_cast<Struct*>(argument)};
  launch_cuda(kernel, device, grid_x, grid_y, params);
}
inline void launch_cuda(const Compiled& kernel, c10::Device device, unsigned grid_x,
                        unsigned grid_y, const Words& words) {
  if (C10_UNLIKELY(remember_launches.load(std::memory_order_relaxed)))
    last_launch() = {kernel, grid_x, grid_y, current_stream(device), words};
  launch_cuda(kernel, device, grid_x, grid_y, words.data());
}

}  // namespace megafuse
