// Decoders of four threads at once, each with a pool of three: launches that are waited for, and
// launches that are stopped after some of their tokens. For ThreadSanitizer (test_pool.py).
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "decode_cpu.h"

using mf::i64;
using mf::u32;
using mf::u64;
using namespace mf::decode;

// Phases of two kinds: every thread reads what the first wrote, the first reads what all wrote.
struct Adding {
  static constexpr i64 kRows = 1;
  const Step& s;
  const i64 thread;
  Adding(const Step& step, i64 index) : s(step), thread(index) {}

  void run() const {
    Barrier& barrier = *at<Barrier>(s.barrier);
    i64* const sums = at<i64>(s.x);
    for (i64 token = 0; token < i64(s.steps); ++token) {
      sums[1 + thread] = sums[0] + thread;
      if (!all_here(barrier, u32(s.parties), s.watchdog)) return;
      if (thread == 0) {
        i64 all = 0;
        for (u64 i = 0; i < s.threads; ++i) all += sums[1 + i];
        sums[0] = all % 1000003;
        __atomic_store_n(at<i64>(s.out) + token, sums[0], __ATOMIC_RELEASE);
      }
      if (thread == i64(s.threads) - 1)
        barrier.halted = __atomic_load_n(at<const i64>(s.halt), __ATOMIC_RELAXED) != 0;
      if (!all_here(barrier, u32(s.parties), s.watchdog)) return;
      if (thread == 0) at<Pool>(s.pool)->tell();
      if (barrier.halted) return;
    }
  }
};
using Launches = Region<Adding>;

void expect(bool right) {
  if (!right) abort();
}

void take(const Step& step, const i64* out, i64* halt, int tokens) {
  expect(Launches::launch(step, false) == kDone);
  for (int i = 0; i < tokens; ++i)
    while (__atomic_load_n(out + i, __ATOMIC_ACQUIRE) == kNotYet)
      if (!Launches::wait(step, i, 1000000)) break;
  __atomic_store_n(halt, 1, __ATOMIC_RELAXED);
  while (Launches::wait(step, -1, 1000000)) {
  }
  expect(Launches::outcome(step) == kDone);
}

void decode(int seed) {
  constexpr int kSteps = 8;
  Step step{};
  Barrier barrier{};
  i64 sums[4] = {}, out[kSteps], halt = 0;
  step.barrier = u64(&barrier), step.x = u64(sums), step.out = u64(out), step.halt = u64(&halt);
  step.threads = step.parties = 3, step.steps = step.out_pitch = kSteps;
  step.watchdog = 60000000000u, step.pool = u64(Pool::open());
  for (int n = 0; n < 200; ++n) {
    for (i64& each : out) each = kNotYet;
    halt = 0;
    if (n % 3)
      take(step, out, &halt, (7 * n + seed) % (kSteps + 1));
    else
      expect(Launches::launch(step, true) == kDone);
    if (n % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they fall asleep
  }
  Pool::close(at<Pool>(step.pool));
}

int main() {
  std::vector<std::thread> users;
  for (int seed = 0; seed < 4; ++seed) users.emplace_back(decode, seed);
  for (std::thread& user : users) user.join();
  std::puts("done");
}
