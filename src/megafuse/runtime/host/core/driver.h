// The CUDA driver, found at run time: no CUDA header or library is needed to build
// this file, and a machine without a GPU never looks for one.
#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>

namespace megafuse {

// CUlaunchConfig, without attributes.
struct LaunchConfig {
  unsigned grid[3], block[3], shared = 0;
  void *stream = nullptr, *attributes = nullptr;
  unsigned attribute_count = 0;
};

struct Driver {
  int (*ModuleLoadData)(void** module, const void* image);
  int (*ModuleUnload)(void* module);
  int (*ModuleGetFunction)(void** function, void* module, const char* name);
  int (*LaunchKernel)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, void* stream, void** params,
                      void** extra);
  int (*MemsetD8Async)(uint64_t address, unsigned char value, size_t bytes, void* stream);
  int (*MemsetD2D16Async)(uint64_t address, size_t pitch, unsigned short value, size_t width,
                          size_t height, void* stream);
  int (*CtxGetCurrent)(void** context);
  int (*CtxSetCurrent)(void* context);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DevicePrimaryCtxRetain)(void** context, int device);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*GetErrorString)(int error, const char** text);
  // Of newer drivers; null where there is none.
  int (*FuncSetAttribute)(void* function, int attribute, int value);
  int (*OccupancyMaxActiveClusters)(int* clusters, void* function, const LaunchConfig* config);
  int (*TensorMapEncodeTiled)(void* map, int dtype, uint32_t rank, void* address,
                              const uint64_t* size, const uint64_t* stride, const uint32_t* box,
                              const uint32_t* step, int interleave, int swizzle, int promotion,
                              int outside);

  static const Driver& get() {
    static const Driver driver = open();
    return driver;
  }

  void check(int error, const char* what) const {
    if (C10_LIKELY(error == 0)) return;
    const char* text = nullptr;
    GetErrorString(error, &text);
    TORCH_CHECK(false, "megafuse: ", what, " failed: ", text ? text : "unknown CUDA error", " (",
                error, ")");
  }

  // The kernel `symbol` of a compiled image, loaded into the current context as `module`.
  void* load(const void* image, const char* symbol, void** module) const {
    void* function;
    check(ModuleLoadData(module, image), "loading a kernel (cuModuleLoadData)");
    check(ModuleGetFunction(&function, *module, symbol), "finding a kernel (cuModuleGetFunction)");
    return function;
  }
  // Where the process is about to end the driver may be gone: nothing is to be done then.
  void unload(void* module) const { ModuleUnload(module); }

  // Lets launches of a kernel ask for this much dynamic shared memory.
  void allow_shared(void* function, int bytes) const {
    constexpr int kMaxDynamicSharedBytes = 8;
    TORCH_CHECK(FuncSetAttribute, "megafuse: the CUDA driver has no cuFuncSetAttribute");
    check(FuncSetAttribute(function, kMaxDynamicSharedBytes, bytes), "cuFuncSetAttribute");
  }

  // Lets a kernel have clusters of more than the eight blocks that every GPU with clusters takes.
  void allow_large_cluster(void* function) const {
    constexpr int kNonPortableClusterSizeAllowed = 14;
    TORCH_CHECK(FuncSetAttribute, "megafuse: the CUDA driver has no cuFuncSetAttribute");
    check(FuncSetAttribute(function, kNonPortableClusterSizeAllowed, 1), "cuFuncSetAttribute");
  }

  int attribute(int which, int device) const {
    int handle = 0, value = 0;
    check(DeviceGet(&handle, device), "cuDeviceGet");
    check(DeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
    return value;
  }

 private:
  static Driver open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(library,
                "megafuse: the CUDA driver library libcuda.so.1 cannot be opened: ", dlerror(),
                ". Install an NVIDIA driver, or keep tensors on the CPU.");
    Driver d;
    auto find = [&](auto& slot, const char* name) {
      void* symbol = dlsym(library, name);
      TORCH_CHECK(symbol, "megafuse: the CUDA driver has no ", name,
                  "; install a newer NVIDIA driver.");
      slot = reinterpret_cast<std::decay_t<decltype(slot)>>(symbol);
    };
    find(d.ModuleLoadData, "cuModuleLoadData");
    find(d.ModuleUnload, "cuModuleUnload");
    find(d.ModuleGetFunction, "cuModuleGetFunction");
    find(d.LaunchKernel, "cuLaunchKernel");
    find(d.MemsetD8Async, "cuMemsetD8Async");
    find(d.MemsetD2D16Async, "cuMemsetD2D16Async");
    find(d.CtxGetCurrent, "cuCtxGetCurrent");
    find(d.CtxSetCurrent, "cuCtxSetCurrent");
    find(d.DeviceGet, "cuDeviceGet");
    find(d.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(d.DeviceGetAttribute, "cuDeviceGetAttribute");
    find(d.GetErrorString, "cuGetErrorString");
    auto look_for = [&](auto& slot, const char* name) {
      slot = reinterpret_cast<std::decay_t<decltype(slot)>>(dlsym(library, name));
    };
    look_for(d.FuncSetAttribute, "cuFuncSetAttribute");
    look_for(d.OccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters");
    look_for(d.TensorMapEncodeTiled, "cuTensorMapEncodeTiled");
    return d;
  }
};

}  // namespace megafuse
