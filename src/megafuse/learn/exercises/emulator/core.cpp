// The emulator, compiled once: run.py hands its table of functions to each learner's kernel.
#include "arrays.h"

namespace emulator {

static void run(Places* places, unsigned at_once, void (*kernel)(void*), void* argument) {
  grid.run(places, at_once, kernel, argument);
}
static char* touch(Array* array, int64_t word, int writes, int line, int width) {
  array->touch(word, writes != 0, false, line, width);
  return array->data + word * 4;
}
static char* atomic(Array* array, int64_t word, int line) {
  ++grid.at(line).atomics;
  grid.report->line = line;
  array->touch(word, true, true, line, 1);
  Thread& t = *grid.now;
  Clock& released = array->released[word];
  if (released.size() != t.clock.size()) released.assign(t.clock.size(), 0);
  join(t.clock, released);
  join(released, t.fenced);
  return array->data + word * 4;
}
static void changed(int is_new) {
  if (grid.together) grid.look(is_new != 0);
}
static void outside(Array* array, int64_t index, int line) {
  grid.fail(kReadOutside, line, array->number, index);
}
static void* declare(int64_t words, int number) { return new Store(words, number); }
static Array* shared(void* declared) { return &static_cast<Store*>(declared)->here(); }
static void barrier(int line) { grid.barrier(line); }
static uint64_t shuffle(uint32_t mask, uint64_t value, int from, int line) {
  return grid.shuffle(mask, value, from, line);
}
static void fence() { grid.fence(); }
static void look() {
  if (grid.together) grid.look(false);
}
static int lane() { return int(grid.now->lane); }
static int line() { return int(grid.report->line); }

}  // namespace emulator

extern "C" const emulator::Core* emulator_core(emulator::Report* report) {
  using namespace emulator;
  static const Core core = {run,     touch,   atomic, changed, outside, declare, shared,
                            barrier, shuffle, fence,  look,    lane,    line};
  grid.report = report;
  return &core;
}
// `sizes` in words of 4 bytes; `kinds`: 1 for those that the kernel only reads, 2 for those that
// hold nothing yet.
extern "C" emulator::Array* emulator_arrays(char** data, const int64_t* sizes, const int* kinds,
                                            int count) {
  auto* made = new emulator::Array[size_t(count)];
  for (int i = 0; i < count; ++i) {
    made[i].data = data[i];
    made[i].size = sizes[i];
    made[i].number = i;
    made[i].constant = kinds[i] == 1;
    made[i].fresh = kinds[i] == 2;
  }
  return made;
}
extern "C" emulator::Array* emulator_array(emulator::Array* made, int i) { return made + i; }
extern "C" void emulator_forget(emulator::Array* made) { delete[] made; }
