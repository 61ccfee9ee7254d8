// libcuda.so.1 of a machine without a GPU: as much of the CUDA driver as the host runtime calls
// (runtime/host/core/driver.h). A module is the path of a shared object. A launch runs its blocks
// one after another; a cooperative one all at once, each in a thread of its own.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>

#include <mutex>
#include <thread>

#include "block.h"
#include "memory.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

__thread Coordinates* emulated_thread = nullptr;
__thread Coordinates emulated_block, emulated_block_size, emulated_grid_size;
__thread void* emulated_shared = nullptr;

extern "C" void* __tls_get_addr(void* module_and_offset);  // of ld.so

namespace emulator {
namespace {

// Errors as the driver numbers them.
constexpr int kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719, kTooLarge = 720;

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
thread_local Block* running = nullptr;

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

thread_local sigjmp_buf after_fault;
thread_local volatile sig_atomic_t fault_signal = 0;
thread_local void* volatile fault_address = nullptr;

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

struct Launch {
  const Loaded& kernel;
  unsigned gx, gy, threads, shared;
  void** params;
};

// Blocks [first, end) of each row of the grid, in this thread; what went wrong, or nothing.
std::string run_blocks(Block& block, const Launch& launch, unsigned first, unsigned end) {
  emulated_grid_size = {launch.gx, launch.gy, 1};
  emulated_block_size = {launch.threads, 1, 1};
  const unsigned shared = launch.shared;
  const Piece dynamic{shared ? Memory::get().allocate(shared) : nullptr, shared};
  const Piece declared = declared_shared(launch.kernel.library);
  emulated_shared = dynamic.data;
  running = &block;
  std::string mistake;
  {
    const Faults faults;
    if (sigsetjmp(after_fault, 1) == 0) {
      try {
        for (emulated_block.y = 0; emulated_block.y < launch.gy; ++emulated_block.y)
          for (emulated_block.x = first; emulated_block.x < end; ++emulated_block.x) {
            if (settings.share == Share::kEdges && emulated_block.x == 1)
              emulated_block.x = end - 1;
            poison(declared);
            poison(dynamic);
            block.run(launch.kernel.entry, launch.params, launch.threads, settings.order);
          }
      } catch (const Mistake& error) {
        mistake = error.what();
      }
    } else {
      mistake = block.where() + ": " + fault_text();
    }
  }
  running = nullptr;
  if (dynamic.data) Memory::get().free(dynamic.data);
  return mistake;
}

// All blocks at once. Handlers of faults are the process's: they stay until all blocks are done.
std::string run_together(const Launch& launch) {
  static std::vector<std::unique_ptr<Block>>& blocks = *new std::vector<std::unique_ptr<Block>>;
  while (blocks.size() < launch.gx) blocks.push_back(std::make_unique<Block>());
  const Faults faults;
  std::vector<std::string> said(launch.gx);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < launch.gx; ++i)
    threads.emplace_back([&, i] { said[i] = run_blocks(*blocks[i], launch, i, i + 1); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : said)
    if (!each.empty()) return each;
  return {};
}

int run(const Launch& launch, bool together) {
  static Block* const block = new Block;
  const std::lock_guard<std::mutex> lock(one_launch);
  const Loaded& kernel = launch.kernel;
  const unsigned shared = launch.shared;
  constexpr size_t kDeclared = 48 << 10;
  const size_t declared = declared_shared(kernel.library).bytes;
  if (declared > kDeclared || declared + shared > settings.most_shared) {
    last_mistake = "too much shared memory: " + std::to_string(declared) + " bytes are declared, " +
                   std::to_string(shared) + " asked for";
    return kInvalidValue;
  }
  last_mistake = host_address(kernel, launch.params[0]);
  if (!last_mistake.empty()) return kLaunchFailed;
  if (settings.share == Share::kNone) return 0;
  last_mistake = together ? run_together(launch) : run_blocks(*block, launch, 0, launch.gx);
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
EXPORTED const uint32_t* emulated_gather(const uint32_t* words, unsigned count) {
  return running->gather(words, count);
}
EXPORTED void emulated_copy(void* to, const void* from, size_t bytes) {
  running->copy(to, from, bytes);
}
EXPORTED void emulated_open(uint64_t* at, unsigned threads) { running->open(at, threads); }
EXPORTED void emulated_arrive(uint64_t* at) { running->arrive(at); }
EXPORTED void emulated_copies_arrive_at(uint64_t* at) { running->copies_arrive_at(at); }
EXPORTED unsigned emulated_passed(uint64_t* at, unsigned parity) {
  return running->passed(at, parity);
}
EXPORTED void emulated_look() { running->look(); }

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
namespace {
int checked_and_run(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void** params, bool together) {
  const char* wrong = nullptr;
  if (gx == 0 || gy == 0 || gz != 1 || gx > INT32_MAX || gy > 65535) wrong = "no such grid";
  if (bx == 0 || bx > 1024 || by != 1 || bz != 1) wrong = "no such block";
  if (wrong) {
    last_mistake = wrong;
    return kInvalidValue;
  }
  return run({*static_cast<Loaded*>(function), gx, gy, bx, shared, params}, together);
}
}  // namespace
EXPORTED int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, void*, void** params,
                            void**) {
  return checked_and_run(function, gx, gy, gz, bx, by, bz, shared, params, false);
}
EXPORTED int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       void*, void** params) {
  // One block a multiprocessor: more could not all run at once.
  if (gx > unsigned(settings.multiprocessors) || gy != 1) {
    last_mistake = "a cooperative launch of more blocks than run at once";
    return kTooLarge;
  }
  return checked_and_run(function, gx, gy, gz, bx, by, bz, shared, params, true);
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
