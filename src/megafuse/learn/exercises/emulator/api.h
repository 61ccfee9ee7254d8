// Between the learner's kernel and the emulator: what each calls of the other. The emulator is
// compiled once and the kernel at every change, so that only these few lines lie between.
#pragma once

#include <stdint.h>

#include "report.h"

namespace emulator {

struct Index {
  unsigned x, y, z;
};

// What threadIdx and the others are for the thread that runs now.
struct Places {
  Index thread, block, block_size, grid;
};

struct Array;

struct Core {
  void (*run)(Places*, unsigned at_once, void (*kernel)(void*), void* argument);
  // Where the word lies; there is no return from an access that is a mistake.
  char* (*touch)(Array*, int64_t word, int writes, int line, int width);
  char* (*atomic)(Array*, int64_t word, int line);
  void (*changed)(int is_new);  // after an atomic: others may run
  void (*outside)(Array*, int64_t index, int line);
  void* (*declare)(int64_t words, int number);  // of shared memory
  Array* (*shared)(void* declared);
  void (*barrier)(int line);
  uint64_t (*shuffle)(uint32_t mask, uint64_t value, int from, int line);
  void (*fence)();
  void (*look)();  // at what others change: they may run
  int (*lane)();
  int (*line)();  // of the last access
};

}  // namespace emulator
