// Threads of a CUDA block as fibers on one CPU thread: a fiber runs until it waits for others. Of
// the exercises, and of the emulator that tests the shipped kernels (tests/cuda_on_cpu).
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace emulator {

// Switched by _setjmp and _longjmp, which call no kernel of the system's; ucontext only starts one.
class Fiber {
 public:
  using Body = void (*)(void* argument);

  Fiber() = default;
  Fiber(const Fiber&) = delete;

  void start(Body body, void* argument) {
    if (!stack_) stack_ = new_stack();
    body_ = body;
    argument_ = argument;
    is_new_ = true;
  }
  // From the scheduler: runs until the fiber calls leave() or ends.
  void enter() {
    if (_setjmp(scheduler_)) return;
    if (!is_new_) _longjmp(here_, 1);
    is_new_ = false;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_;
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&context, reinterpret_cast<void (*)()>(&run), 2, unsigned(self >> 32),
                unsigned(self));
    setcontext(&context);
  }
  // From the fiber: back to the scheduler.
  void leave() {
    if (!_setjmp(here_)) _longjmp(scheduler_, 1);
  }

 private:
  static constexpr size_t kStack = 256 << 10;

  static void run(unsigned high, unsigned low) {
    Fiber& self = *reinterpret_cast<Fiber*>(uintptr_t(high) << 32 | low);
    self.body_(self.argument_);
    _longjmp(self.scheduler_, 1);
  }
  static void* new_stack() {
    void* made = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) abort();
    return made;  // never freed: the next block has as many threads
  }

  jmp_buf here_, scheduler_;
  void* stack_ = nullptr;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  bool is_new_ = false;
};

}  // namespace emulator
