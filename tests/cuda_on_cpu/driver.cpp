// libcuda.so.1 of a machine without a GPU: as much of the CUDA driver as the host runtime calls
// (runtime/host/core/driver.h). A module is the path of a shared object, and a launch runs its
// blocks one after another.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>

#include <mutex>

#include "block.h"
#include "memory.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

Coordinates* emulated_thread = nullptr;
Coordinates emulated_block{}, emulated_block_size{}, emulated_grid_size{};
void* emulated_shared = nullptr;

extern "C" void* __tls_get_addr(void* module_and_offset);  // of ld.so

namespace emulator {
namespace {

// Errors as the driver numbers them.
constexpr int kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719;

struct Loaded {
  void* library;
  Block::Entry entry = nullptr;
  size_t bytes = 0;  // of its argument
};

// Which blocks of a launch run: where there are millions, the first and the last, or none.
enum class Share : int { kAll, kEdges, kNone };

struct Settings {
  Order order = Order::kForward;
  int multiprocessors = 4;
  unsigned most_shared = 48 << 10;  // bytes that a block may have
  Share share = Share::kAll;
};
Settings settings;
std::string last_mistake;
std::mutex one_launch;
Block* running = nullptr;

// ---- shared memory

struct Piece {
  void* data = nullptr;
  size_t bytes = 0;
};

// What the kernels of a library declare __shared__: its thread-local memory, in this thread.
Piece declared_shared(void* library) {
  struct {
    unsigned long module = 0, offset = 0;
  } place;
  if (dlinfo(library, RTLD_DI_TLS_MODID, &place.module) != 0 || !place.module) return {};
  struct Search {
    size_t module, bytes = 0;
  } search{place.module};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        if (info->dlpi_tls_modid != s.module) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) s.bytes = size_t(info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      &search);
  return {__tls_get_addr(&place), search.bytes};
}

// Another filler in every order, so that what depends on it differs.
void poison(const Piece& piece) {
  static constexpr unsigned char kFillers[] = {0xff, 0x7f, 0xcd};
  if (piece.data) std::memset(piece.data, kFillers[int(settings.order)], piece.bytes);
}

// ---- accesses outside of tensors

sigjmp_buf after_fault;
volatile sig_atomic_t fault_signal = 0;
void* volatile fault_address = nullptr;

void on_fault(int signal, siginfo_t* info, void*) {
  fault_signal = signal;
  fault_address = info->si_addr;
  siglongjmp(after_fault, 1);
}

// Catches faults of this thread while it lives, on a stack of its own.
class Faults {
 public:
  Faults() {
    stack_t mine{};
    mine.ss_sp = stack_;
    mine.ss_size = sizeof stack_;
    sigaltstack(&mine, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t i = 0; i < kSignals; ++i) sigaction(signals_[i], &action, &old_[i]);
  }
  ~Faults() {
    for (size_t i = 0; i < kSignals; ++i) sigaction(signals_[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  static constexpr size_t kSignals = 4;
  static constexpr int signals_[kSignals] = {SIGSEGV, SIGBUS, SIGTRAP, SIGILL};
  struct sigaction old_[kSignals];
  stack_t old_stack_{};
  alignas(16) char stack_[64 << 10];
};

std::string fault_text() {
  if (fault_signal == SIGTRAP || fault_signal == SIGILL)
    return "a misaligned access, an index outside of its array or an integer overflow";
  return Memory::get().place_of(fault_address);
}

// A word of the argument that is the address of host memory, which a GPU does not reach.
std::string host_address(const Loaded& kernel, const void* argument) {
  const auto page = uint64_t(sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < kernel.bytes / sizeof(uint64_t); ++i) {
    const uint64_t word = static_cast<const uint64_t*>(argument)[i];
    constexpr uint64_t kLeast = uint64_t(1) << 40, kMost = uint64_t(1) << 48;  // of addresses
    if (word < kLeast || word >= kMost || Memory::get().has(reinterpret_cast<void*>(word)))
      continue;
    unsigned char resident;
    if (mincore(reinterpret_cast<void*>(word / page * page), 1, &resident) == 0)
      return "word " + std::to_string(i) + " of the argument is an address on the host";
  }
  return {};
}

void run_blocks(Block& block, const Loaded& kernel, unsigned gx, unsigned gy, unsigned threads,
                const Piece& dynamic, void** params) {
  const Piece declared = declared_shared(kernel.library);
  for (emulated_block.y = 0; emulated_block.y < gy; ++emulated_block.y)
    for (emulated_block.x = 0; emulated_block.x < gx; ++emulated_block.x) {
      if (settings.share == Share::kEdges && emulated_block.x == 1) emulated_block.x = gx - 1;
      poison(declared);
      poison(dynamic);
      block.run(kernel.entry, params, threads, settings.order);
    }
}

int launch(const Loaded& kernel, unsigned gx, unsigned gy, unsigned threads, unsigned shared,
           void** params) {
  static Block* const block = new Block;
  const std::lock_guard<std::mutex> lock(one_launch);
  emulated_grid_size = {gx, gy, 1};
  emulated_block_size = {threads, 1, 1};
  constexpr size_t kDeclared = 48 << 10;
  const size_t declared = declared_shared(kernel.library).bytes;
  if (declared > kDeclared || declared + shared > settings.most_shared) {
    last_mistake = "too much shared memory: " + std::to_string(declared) + " bytes are declared, " +
                   std::to_string(shared) + " asked for";
    return kInvalidValue;
  }
  last_mistake = host_address(kernel, params[0]);
  if (!last_mistake.empty()) return kLaunchFailed;
  if (settings.share == Share::kNone) return 0;
  const Piece dynamic{shared ? Memory::get().allocate(shared) : nullptr, shared};
  emulated_shared = dynamic.data;
  running = block;
  last_mistake.clear();
  {
    const Faults faults;
    if (sigsetjmp(after_fault, 1) == 0) {
      try {
        run_blocks(*block, kernel, gx, gy, threads, dynamic, params);
      } catch (const Mistake& mistake) {
        last_mistake = mistake.what();
      }
    } else {
      last_mistake = block->where() + ": " + fault_text();
    }
  }
  running = nullptr;
  if (dynamic.data) Memory::get().free(dynamic.data);
  if (last_mistake.empty()) last_mistake = Memory::get().damage();
  return last_mistake.empty() ? 0 : kLaunchFailed;
}

}  // namespace
}  // namespace emulator

using namespace emulator;

// ---- for kernels

EXPORTED void emulated_barrier(unsigned number, unsigned threads) {
  running->barrier(number, threads);
}
EXPORTED void emulated_whole_barrier() { running->whole_barrier(); }
EXPORTED uint32_t emulated_shuffle(uint32_t mask, uint32_t value, unsigned from) {
  return running->shuffle(mask, value, from);
}

// ---- for device.cpp and gpu.py

EXPORTED void* emulated_allocate(size_t bytes) { return Memory::get().allocate(bytes); }
EXPORTED void emulated_free(void* data) { Memory::get().free(data); }
EXPORTED void emulated_machine(int multiprocessors, unsigned most_shared) {
  settings.multiprocessors = multiprocessors;
  settings.most_shared = most_shared;
}
EXPORTED void emulated_order(int order) { settings.order = Order(order); }
EXPORTED void emulated_share(int share) { settings.share = Share(share); }

// ---- the driver's functions

EXPORTED int cuModuleLoadData(void** module, const void* image) {
  void* const library = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  last_mistake = library ? "" : dlerror();
  *module = library ? new Loaded{library} : nullptr;
  return library ? 0 : kNotFound;
}
EXPORTED int cuModuleUnload(void* module) {
  Loaded* const loaded = static_cast<Loaded*>(module);
  dlclose(loaded->library);
  delete loaded;
  return 0;
}
EXPORTED int cuModuleGetFunction(void** function, void* module, const char* name) {
  Loaded* const loaded = static_cast<Loaded*>(module);
  const std::string entry = std::string("emulated_") + name;
  loaded->entry = reinterpret_cast<Block::Entry>(dlsym(loaded->library, entry.c_str()));
  const void* const bytes = dlsym(loaded->library, (std::string("emulated_size_") + name).c_str());
  if (bytes) loaded->bytes = *static_cast<const size_t*>(bytes);
  *function = loaded;
  return loaded->entry ? 0 : kNotFound;
}
EXPORTED int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, void*, void** params,
                            void**) {
  const char* wrong = nullptr;
  if (gx == 0 || gy == 0 || gz != 1 || gx > INT32_MAX || gy > 65535) wrong = "no such grid";
  if (bx == 0 || bx > 1024 || by != 1 || bz != 1) wrong = "no such block";
  if (wrong) {
    last_mistake = wrong;
    return kInvalidValue;
  }
  return launch(*static_cast<Loaded*>(function), gx, gy, bx, shared, params);
}
// Blocks run one after the other, so one that waits for the others waits in vain.
EXPORTED int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       void* stream, void** params) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, nullptr);
}
EXPORTED int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return 0;
}
EXPORTED int cuMemsetD2D16Async(uint64_t address, size_t pitch, unsigned short value, size_t width,
                                size_t height, void*) {
  for (size_t row = 0; row < height; ++row)
    std::fill_n(reinterpret_cast<unsigned short*>(address + row * pitch), width, value);
  return 0;
}
EXPORTED int cuCtxGetCurrent(void** context) {
  *context = &settings;
  return 0;
}
EXPORTED int cuCtxSetCurrent(void*) { return 0; }
EXPORTED int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORTED int cuDevicePrimaryCtxRetain(void** context, int) { return cuCtxGetCurrent(context); }
EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMultiprocessorCount = 16;
  if (attribute != kMultiprocessorCount) return kInvalidValue;
  *value = settings.multiprocessors;
  return 0;
}
EXPORTED int cuFuncSetAttribute(void*, int, int) { return 0; }
EXPORTED int cuGetErrorString(int, const char** text) {
  *text = last_mistake.c_str();
  return 0;
}
