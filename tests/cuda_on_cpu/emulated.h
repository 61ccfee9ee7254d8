// What kernels have of the emulator (driver.cpp): where a thread is, its shared memory, and how it
// waits for others.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct Coordinates {
  unsigned x, y, z;
};

extern "C" {
// Blocks of a cooperative launch run at once, each in a thread of the system's own.
extern __thread Coordinates* emulated_thread;  // that runs just now
extern __thread Coordinates emulated_block, emulated_block_size, emulated_grid_size;
extern __thread void* emulated_shared;  // dynamic shared memory of the block
void emulated_barrier(unsigned number, unsigned threads);
void emulated_whole_barrier();
uint32_t emulated_shuffle(uint32_t mask, uint32_t value, unsigned from);
// Of all lanes of the warp, lane by lane in steps of 8.
const uint32_t* emulated_gather(const uint32_t* words, unsigned count);
void emulated_copy(void* to, const void* from, size_t bytes);  // arrives now or when waited for
// Barriers in shared memory (mbarrier), which pass when so many threads have arrived. A thread's
// copies arrive at one, and with them the thread, now or when somebody waits there.
void emulated_open(uint64_t* at, unsigned threads);
void emulated_arrive(uint64_t* at);
void emulated_copies_arrive_at(uint64_t* at);
unsigned emulated_passed(uint64_t* at, unsigned parity);
void emulated_look();  // at what another block writes: the others have their turn, now and then
}
