// What Python calls: the arrays by their place, and the launch that run.py writes below.
#pragma once

#include "cuda.h"

struct Arrays {
  emulator::Array** array;
  Input input(int i) const { return {array[i], 0}; }
  Output output(int i) const { return {array[i], 0}; }
  Counter counter(int i) const { return {array[i], 0}; }
};

struct Launched {
  Arrays arrays;
  const long long* numbers;
  const float* reals;
};
void exercise(void* launched);

extern "C" void exercise_run(const emulator::Core* core, emulator::Array** arrays,
                             const unsigned* shape, unsigned at_once, const long long* numbers,
                             const float* reals, emulator::Report* report) {
  using namespace emulator;
  emulator::core = core;
  places.grid = {shape[0], shape[1], 1};
  places.block_size = {shape[2], shape[3], 1};
  Launched launched{{arrays}, numbers, reals};
  core->run(&places, at_once, exercise, &launched);
  memcpy(report->shared_names, shared_names, sizeof report->shared_names);
}
