// One block of a CUDA launch: its threads take turns, and wait for each other at barriers and
// shuffles. What a GPU leaves undefined is an error here.
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "../../src/megafuse/learn/exercises/emulator/fiber.h"
#include "emulated.h"

namespace emulator {

struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order : int { kForward, kReverse, kRandom };

class Block {
 public:
  using Entry = void (*)(void** params);

  // Runs all threads to their ends; throws a Mistake where they get stuck.
  void run(Entry entry, void** params, unsigned threads, Order order) {
    entry_ = entry;
    params_ = params;
    count_ = threads;
    copies_are_late_ = order != Order::kForward;
    while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
    barriers_ = {};
    late_.clear();
    warps_.assign((threads + 31) / 32, {});
    for (unsigned i = 0; i < threads; ++i) {
      Thread& t = *threads_[i];
      t.index = {i, 0, 0};
      t.state = State::kReady;
      t.gathers = 0;
      t.copies.clear();
      t.fiber.start(&body, this);
    }
    mistake_.clear();
    std::vector<unsigned> turns(threads);
    std::iota(turns.begin(), turns.end(), 0u);
    if (order == Order::kReverse) std::reverse(turns.begin(), turns.end());
    unsigned rounds = 0;  // since the last progress
    for (bool any = true; any;) {
      if (order == Order::kRandom) std::shuffle(turns.begin(), turns.end(), random_);
      any = false;
      for (unsigned i : turns) {
        if (threads_[i]->state != State::kReady) continue;
        any = true;
        current_ = threads_[i].get();
        emulated_thread = &current_->index;
        current_->fiber.enter();
        if (!mistake_.empty()) throw Mistake(mistake_);
      }
      rounds = progress_ ? 0 : rounds + 1;
      progress_ = false;
      if (rounds > kPatience) throw Mistake(stuck() + "; the others wait in shared memory in vain");
    }
    for (unsigned i = 0; i < threads; ++i)
      if (threads_[i]->state != State::kDone) throw Mistake(stuck());
  }

  // ---- called by the threads

  // Waits until `expected` threads wait at the barrier of this number.
  void barrier(unsigned number, unsigned expected) {
    Barrier& b = barriers_[number];
    if (b.waiting > 0 && b.expected != expected)
      return fail("threads wait at barrier " + std::to_string(number) + " for " +
                  std::to_string(b.expected) + " and for " + std::to_string(expected));
    b.expected = expected;
    current_->barrier = number;
    if (++b.waiting < expected) return wait(State::kAtBarrier);
    b.waiting = 0;
    progress_ = true;
    for (unsigned i = 0; i < count_; ++i)
      if (threads_[i]->state == State::kAtBarrier && threads_[i]->barrier == number)
        threads_[i]->state = State::kReady;
  }
  void whole_barrier() { barrier(0, count_); }

  // Gives 32 bits to the lanes of `mask` and takes those of lane `from`.
  uint32_t shuffle(uint32_t mask, uint32_t value, unsigned from) {
    const unsigned thread = current_->index.x, lane = thread % 32, first = thread - lane;
    Warp& warp = warps_[thread / 32];
    // A last warp that is not whole names all its lanes, as on a GPU: those count as ended.
    if (count_ - first < 32) mask &= (1u << (count_ - first)) - 1;
    if (!(mask >> lane & 1) || !(mask >> from & 1)) {
      fail("a shuffle by or from a lane that is not in its mask");
      return 0;
    }
    for (unsigned l = 0; l < 32; ++l)
      if (mask >> l & 1 && threads_[first + l]->state == State::kDone) {
        fail("a shuffle waits for lane " + std::to_string(l) + " of its warp, which has ended");
        return 0;
      }
    if (warp.waiting && warp.mask != mask) {
      fail("lanes of a warp shuffle with different masks");
      return 0;
    }
    warp.mask = mask;
    warp.given[lane] = value;
    warp.from[lane] = from;
    warp.waiting |= 1u << lane;
    if (warp.waiting != mask) {
      wait(State::kAtShuffle);
      return warp.taken[lane];
    }
    warp.waiting = 0;
    for (unsigned l = 0; l < 32; ++l)
      if (mask >> l & 1) {
        warp.taken[l] = warp.given[warp.from[l]];
        threads_[first + l]->state = State::kReady;
      }
    return warp.taken[lane];
  }

  // Gives up to kGathered words and has those of all 32 lanes, lane by lane, until it comes here
  // for the second time from now: a lane may be one call ahead of another.
  const uint32_t* gather(const uint32_t* words, unsigned count) {
    Warp& warp = warps_[current_->index.x / 32];
    auto& mine = warp.gathered[current_->gathers++ % 2];
    std::copy(words, words + count, mine[current_->index.x % 32]);
    shuffle(0xffffffffu, 0, current_->index.x % 32);
    return mine[0];
  }

  // An asynchronous copy arrives at once, or as late as it may: both ends of what a GPU does.
  void copy(void* to, const void* from, size_t bytes) {
    if (copies_are_late_)
      current_->copies.push_back({to, from, bytes});
    else
      std::memcpy(to, from, bytes);
  }

  // Barriers in shared memory: in the word itself are the threads that it waits for, those that are
  // still to come, and how often it has passed.
  void open(uint64_t* at, unsigned threads) { *at = uint64_t(threads) << 16 | threads; }
  void arrive(uint64_t* at) {
    const uint64_t threads = *at >> 16 & 0xffff;
    progress_ = true;
    if ((*at & 0xffff) == 0) return fail("more threads arrive at a barrier than it was opened for");
    if ((--*at & 0xffff) == 0) *at = ((*at >> 32) + 1) << 32 | threads << 16 | threads;
  }
  void copies_arrive_at(uint64_t* at) {
    std::vector<Copy>& mine = current_->copies;
    if (!copies_are_late_) return arrive(at);
    std::vector<Copy>& theirs = late_[at];
    theirs.insert(theirs.end(), mine.begin(), mine.end());
    theirs.push_back({});  // the thread itself
    mine.clear();
  }
  // Whether the last pass of this parity was; where not, the others have their turn.
  bool passed(uint64_t* at, unsigned parity) {
    if (const auto found = late_.find(at); found != late_.end()) {
      const std::vector<Copy> theirs = std::move(found->second);
      late_.erase(found);
      for (const Copy& each : theirs)
        if (each.to)
          std::memcpy(each.to, each.from, each.bytes);
        else
          arrive(at);
    }
    const bool done = (*at >> 32 & 1) != parity;
    if (!done) current_->fiber.leave();
    return done;
  }

  // For a word of another block, which may come yet: the threads of this one go on meanwhile.
  void look() {
    if (++looks_ % 64) return;
    sched_yield();
    progress_ = true;
    current_->fiber.leave();
  }

  std::string where() const {
    return "thread " + std::to_string(current_->index.x) + " of block (" +
           std::to_string(emulated_block.x) + ", " + std::to_string(emulated_block.y) + ")";
  }

  static constexpr unsigned kGathered = 8;

 private:
  enum class State { kReady, kAtBarrier, kAtShuffle, kDone };
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Thread {
    std::vector<Copy> copies;  // that did not arrive yet
    Fiber fiber;
    Coordinates index;
    State state;
    unsigned barrier, gathers;
  };
  struct Barrier {
    unsigned waiting = 0, expected = 0;
  };
  struct Warp {
    uint32_t mask = 0, waiting = 0;
    uint32_t given[32], taken[32];
    unsigned from[32];
    uint32_t gathered[2][32][kGathered];
  };

  static void body(void* self) {
    Block& block = *static_cast<Block*>(self);
    block.entry_(block.params_);
    block.current_->state = State::kDone;
    block.progress_ = true;
  }
  void wait(State state) {
    Thread& mine = *current_;
    mine.state = state;
    mine.fiber.leave();
  }
  // Ends the launch; a thread of a GPU has no way back from here either.
  void fail(const std::string& what) {
    mistake_ = where() + ": " + what;
    current_->fiber.leave();
  }
  std::string stuck() const {
    unsigned done = 0, at_shuffle = 0, at_barrier[kBarriers] = {};
    for (unsigned i = 0; i < count_; ++i) {
      done += threads_[i]->state == State::kDone;
      at_shuffle += threads_[i]->state == State::kAtShuffle;
      if (threads_[i]->state == State::kAtBarrier) ++at_barrier[threads_[i]->barrier];
    }
    std::string text = "block (" + std::to_string(emulated_block.x) + ", " +
                       std::to_string(emulated_block.y) + ") is stuck: " + std::to_string(done) +
                       " threads have ended";
    if (at_shuffle) text += ", " + std::to_string(at_shuffle) + " wait at a shuffle";
    for (unsigned b = 0; b < kBarriers; ++b)
      if (at_barrier[b])
        text += ", " + std::to_string(at_barrier[b]) + " wait at barrier " + std::to_string(b) +
                " for " + std::to_string(barriers_[b].expected);
    return text;
  }

  static constexpr unsigned kBarriers = 16;
  // After so many rounds of all threads without progress (seconds) there will be none. Progress is
  // an arrival, an end, or a look at another block's word; a shuffle is none, since those who wait
  // in vain shuffle, too.
  static constexpr unsigned kPatience = 100'000;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::array<Barrier, kBarriers> barriers_;
  std::vector<Warp> warps_;
  std::map<uint64_t*, std::vector<Copy>> late_;  // copies that arrive when somebody waits there
  std::mt19937 random_{1};
  Entry entry_ = nullptr;
  void** params_ = nullptr;
  unsigned count_ = 0, looks_ = 0;
  bool copies_are_late_ = false, progress_ = false;
  Thread* current_ = nullptr;
  std::string mistake_;
};

}  // namespace emulator
