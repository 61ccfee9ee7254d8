// What a run leaves for Python (emulated.py mirrors it): the first mistake, and counts by line of
// the learner's file.
#pragma once

#include <stdint.h>

namespace emulator {

constexpr int kLines = 256;                    // longer files are counted in the last line
constexpr int kShown = 24;                     // requests that are kept for a picture
constexpr int kNames = 8, kFirstShared = 100;  // shared arrays are numbered from there on

enum Kind : int64_t {
  kNone,
  kReadOutside,
  kWrittenOutside,
  kMisaligned,
  kRace,
  kNeverWritten,
  kBarrierMissed,
  kBarriersMixed,
  kShuffleMissed,
  kShuffleMask,
  kDeadlock,
};

struct Mistake {
  int64_t kind, line, array, index, block, thread;
  int64_t other_line, other_block, other_thread;
  int64_t waiting, ended;  // threads
  int64_t writes, other_writes;
};

struct Line {
  int64_t requests, lanes, sectors;  // of global memory: by warps, threads in them, 32 bytes each
  int64_t shared_requests, shared_lanes, passes;  // of shared memory; as many passes as banks take
  int64_t barriers, shuffles, atomics;            // by warps, atomics by threads
};

// The first of its line by the first warp of the first block: what each of its lanes touched.
struct Shown {
  int64_t line, array, writes, width;
  int64_t at[32];  // floats from the array's beginning, or -1
};

struct Report {
  int64_t line;  // of the last access: first, so that it is found when nothing comes back
  Mistake mistake;
  Line lines[kLines];
  int64_t shown_count;
  Shown shown[kShown];
  char shared_names[kNames][32];
};

}  // namespace emulator
