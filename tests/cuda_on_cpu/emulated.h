// What kernels have of the emulator (driver.cpp): where a thread is, its shared memory, and how it
// waits for others.
#pragma once

#include <stdint.h>

struct Coordinates {
  unsigned x, y, z;
};

extern "C" {
extern Coordinates* emulated_thread;  // that runs just now
extern Coordinates emulated_block, emulated_block_size, emulated_grid_size;
extern void* emulated_shared;  // dynamic shared memory of the block
void emulated_barrier(unsigned number, unsigned threads);
void emulated_whole_barrier();
uint32_t emulated_shuffle(uint32_t mask, uint32_t value, unsigned from);
}
