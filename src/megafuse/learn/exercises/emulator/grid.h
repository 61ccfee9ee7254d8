// The threads of a launch: they take turns, and wait for each other at barriers and shuffles.
//
// Every thread has a vector clock: what of every other thread has certainly happened. Barriers and
// shuffles bring clocks together, __threadfence with an atomic after it hands one on. Two accesses
// that no clock orders are a race, whichever way the turns fell this time.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "fiber.h"

namespace emulator {

using Clock = std::vector<uint32_t>;

inline void join(Clock& into, const Clock& other) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

enum class State { kReady, kAtBarrier, kAtShuffle, kDone };

// One instruction of a warp: the lanes that run it at the same time.
struct Request {
  int line, array, width;
  bool writes, shared;
  uint32_t mask = 0;
  int64_t at[32];
};

struct Warp {
  uint32_t lanes = 0, mask = 0, waiting = 0;
  uint64_t given[32], taken[32];
  int from[32];
  std::unordered_map<uint64_t, Request> requests;
};

struct Thread {
  Fiber fiber;
  Index index;
  unsigned block = 0, slot = 0, number = 0, id = 0, lane = 0;
  State state = State::kDone;
  int line = 0;         // where it waits
  uint32_t spun = 0;    // reads of a counter that had not changed, in a row
  Clock clock, fenced;  // fenced: as it was at the last __threadfence
  std::vector<std::pair<uint32_t, uint32_t>> met;  // of each place in the file, how often
  Warp* warp = nullptr;

  uint32_t& own() { return clock[id]; }
  uint32_t occurrence(uint32_t place) {
    for (auto& [known, times] : met)
      if (known == place) return times++;
    met.emplace_back(place, 1);
    return 0;
  }
};

struct Block {
  unsigned number = 0;
  uint64_t serial = 0;  // of all blocks ever: shared memory begins anew with each
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  unsigned left = 0;
  bool first = false;
};

class Grid {
 public:
  Report* report = nullptr;
  Thread* now = nullptr;
  std::vector<std::unique_ptr<Block>> slots;  // those that run at the same time
  uint64_t launches = 0, serials = 0;
  bool together = false;

  // `at_once`: how many blocks run at the same time; 0 for kernels whose blocks do not meet, which
  // run one after the other.
  void run(Places* places, unsigned at_once, void (*kernel)(void*), void* argument) {
    places_ = places;
    kernel_ = kernel;
    argument_ = argument;
    const Index grid = places->grid, block = places->block_size;
    ++launches;
    blocks_ = grid.x * grid.y * grid.z;
    size_ = block.x * block.y * block.z;
    together = at_once > 0;
    const unsigned count = std::min(std::max(at_once, 1u), blocks_);
    while (slots.size() < count) slots.push_back(std::make_unique<Block>());
    live_ = count;
    next_ = 0;
    unwritten_ = Mistake();
    for (unsigned s = 0; s < count; ++s) begin(s);
    turns(count);
    if (!failed() && unwritten_.kind != kNone) report->mistake = unwritten_;
  }

  Block& here() { return *slots[now->slot]; }
  bool failed() const { return report->mistake.kind != kNone; }

  // ---- called by the threads

  void barrier(int line) {
    report->line = line;
    wait(State::kAtBarrier, line);
  }

  uint64_t shuffle(uint32_t mask, uint64_t value, int from, int line) {
    Warp& warp = *now->warp;
    report->line = line;
    mask &= warp.lanes;  // a last warp that is not whole may name all 32
    if (!(mask >> now->lane & 1)) fail(kShuffleMask, line);
    warp.mask = mask;
    warp.given[now->lane] = value;
    warp.from[now->lane] = from;
    warp.waiting |= 1u << now->lane;
    wait(State::kAtShuffle, line);
    return warp.taken[now->lane];
  }

  void fence() {
    now->fenced = now->clock;
    ++now->own();
  }

  // A look at a counter that others change: lets them run first.
  void look(bool changed) {
    if (changed) {
      now->spun = 0;
      ++changes_;
    } else {
      ++now->spun;
    }
    now->fiber.leave();
  }

  // A place was read that nobody has written. If another thread writes it unordered, that is a race
  // and told as one; what is left at the end was never filled.
  void unwritten(int line, int array, int64_t index, bool shared) {
    if (unwritten_.kind != kNone) return;
    Mistake& m = unwritten_;
    m.kind = kNeverWritten, m.line = line, m.array = array, m.index = index;
    m.block = now->block, m.thread = now->number;
    ends_with_block_ = shared;
  }

  // Ends the launch; a thread of a GPU has no way back from here either.
  void fail(Kind kind, int line, int array = 0, int64_t index = 0) {
    Mistake& m = report->mistake;
    if (m.kind == kNone && unwritten_.kind != kNone && kind != kRace) {
      m = unwritten_;  // what was read there led to this
    } else if (m.kind == kNone) {
      m.kind = kind;
      m.line = line;
      m.array = array;
      m.index = index;
      m.block = now->block;
      m.thread = now->number;
    }
    now->fiber.leave();
  }

  Line& at(int line) { return report->lines[std::min(std::max(line, 0), kLines - 1)]; }

  void request(int line, int array, bool writes, bool shared, int64_t place, int width) {
    report->line = line;
    const auto site = uint32_t(line) << 9 | uint32_t(array) << 1 | uint32_t(writes);
    const uint64_t key = uint64_t(site) << 32 | now->occurrence(site);
    auto [found, fresh] = now->warp->requests.try_emplace(key);
    Request& r = found->second;
    if (fresh) {
      r.line = line, r.array = array, r.width = width, r.writes = writes, r.shared = shared;
      std::fill(std::begin(r.at), std::end(r.at), -1);
    }
    r.mask |= 1u << now->lane;
    r.at[now->lane] = place;
  }

 private:
  static Index split(unsigned i, Index sizes) {
    return {i % sizes.x, i / sizes.x % sizes.y, i / (sizes.x * sizes.y)};
  }

  void begin(unsigned s) {
    Block& block = *slots[s];
    block.number = next_++;
    block.serial = ++serials;
    block.first = block.number == 0;
    block.left = size_;
    while (block.threads.size() < size_) block.threads.push_back(std::make_unique<Thread>());
    block.warps.assign((size_ + 31) / 32, Warp());
    const size_t all = size_t(size_) * live_;
    for (unsigned i = 0; i < size_; ++i) {
      Thread& t = *block.threads[i];
      t.index = split(i, places_->block_size);
      t.block = block.number, t.slot = s, t.number = i, t.id = s * size_ + i, t.lane = i % 32;
      t.state = State::kReady;
      t.spun = 0;
      // A block that takes another's place comes after it.
      if (t.clock.size() != all || !together) t.clock.assign(all, 0);
      t.own() += 1;
      t.fenced.assign(all, 0);
      t.met.clear();
      t.warp = &block.warps[i / 32];
      t.warp->lanes |= 1u << t.lane;
      t.fiber.start(&body, this);
    }
  }

  static void body(void* self) {
    Grid& grid = *static_cast<Grid*>(self);
    grid.kernel_(grid.argument_);
    grid.now->state = State::kDone;
  }

  // A block runs only while none before it gets on: so the last one is as late as it can be, and
  // who does not wait for it is found out.
  void turns(unsigned count) {
    for (unsigned idle = 0; idle < 3;) {
      const uint64_t before = changes_;
      bool any = false;
      for (unsigned s = 0; s < count && changes_ == before; ++s) {
        Block& block = *slots[s];
        if (block.left == 0) continue;
        any = true;
        turn(block);
        if (failed()) return;
        if (block.left == 0 && next_ < blocks_) begin(s);
      }
      if (!any) return;
      idle = changes_ == before ? idle + 1 : 0;
    }
    stuck(count);
  }

  void turn(Block& block) {
    for (unsigned i = 0; i < size_; ++i) {
      Thread& t = *block.threads[i];
      if (t.state != State::kReady) continue;
      now = &t;
      places_->thread = t.index;
      places_->block = split(t.block, places_->grid);
      t.fiber.enter();
      if (failed()) return;
      if (t.state == State::kDone) {
        ++changes_;
        if (--block.left == 0) end(block);
      }
    }
    for (Warp& warp : block.warps) meet(block, warp);
    meet(block);
  }

  void end(Block& block) {
    count(block);
    if (unwritten_.kind != kNone && ends_with_block_) report->mistake = unwritten_;
  }

  // Shuffles: all lanes of the mask are there.
  void meet(Block& block, Warp& warp) {
    if (!warp.waiting || (warp.waiting & warp.mask) != warp.mask) return;
    ++changes_;
    ++at(block.threads[size_t(&warp - block.warps.data()) * 32 + __builtin_ctz(warp.mask)]->line)
          .shuffles;
    const size_t first = size_t(&warp - block.warps.data()) * 32;
    Clock all = block.threads[first + __builtin_ctz(warp.mask)]->clock;
    for (unsigned l = 0; l < 32; ++l)
      if (warp.mask >> l & 1) join(all, block.threads[first + l]->clock);
    for (unsigned l = 0; l < 32; ++l) {
      if (!(warp.mask >> l & 1)) continue;
      Thread& t = *block.threads[first + l];
      const int from = warp.from[l];
      const bool there = from >= 0 && from < 32 && warp.mask >> from & 1;
      warp.taken[l] = warp.given[there ? from : int(l)];
      t.clock = all;
      ++t.own();
      t.state = State::kReady;
    }
    warp.waiting = 0;
  }

  // The barrier: all threads of the block that have not ended are there.
  void meet(Block& block) {
    unsigned there = 0;
    Thread* one = nullptr;
    for (unsigned i = 0; i < size_; ++i)
      if (block.threads[i]->state == State::kAtBarrier) {
        ++there;
        if (one == nullptr) one = block.threads[i].get();
      }
    if (there < block.left || one == nullptr) return;
    now = one;
    for (unsigned i = 0; i < size_; ++i) {
      Thread& t = *block.threads[i];
      if (t.state == State::kAtBarrier && t.line != one->line) {
        note(kBarriersMixed, *one, there, size_ - block.left);
        report->mistake.other_line = t.line;
        report->mistake.other_thread = t.number;
        return;
      }
    }
    if (there < size_) return note(kBarrierMissed, *one, there, size_ - block.left);
    ++changes_;
    at(one->line).barriers += int64_t(block.warps.size());
    Clock all = one->clock;
    for (unsigned i = 0; i < size_; ++i) join(all, block.threads[i]->clock);
    for (unsigned i = 0; i < size_; ++i) {
      Thread& t = *block.threads[i];
      t.clock = all;
      ++t.own();
      t.state = State::kReady;
    }
    count(block);
  }

  // What the warps asked for since the last barrier.
  void count(Block& block) {
    for (Warp& warp : block.warps) {
      const bool show = block.first && &warp == &block.warps[0];
      for (auto& [key, request] : warp.requests) {
        count(request);
        if (show && (key & 0xffffffff) == 0) shown(request);
      }
      warp.requests.clear();
    }
    for (auto& thread : block.threads) thread->met.clear();
  }

  void count(const Request& r) {
    Line& line = at(r.line);
    const int lanes = __builtin_popcount(r.mask);
    if (r.shared) {
      ++line.shared_requests;
      line.shared_lanes += lanes;
      line.passes += passes(r);
      return;
    }
    ++line.requests;
    line.lanes += lanes;
    std::vector<int64_t> sectors;
    for (int64_t place : r.at)
      if (place >= 0) sectors.push_back(place / 8);
    std::sort(sectors.begin(), sectors.end());
    line.sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
  }

  // A bank gives one word at a time, to all lanes that want that one.
  static int passes(const Request& r) {
    std::vector<int64_t> words;
    for (int64_t place : r.at)
      if (place >= 0) words.push_back(place);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    int in_bank[32] = {}, most = 0;
    for (int64_t word : words) most = std::max(most, ++in_bank[word % 32]);
    return most;
  }

  void shown(const Request& r) {
    for (int64_t i = 0; i < report->shown_count; ++i) {
      const Shown& s = report->shown[i];
      if (s.line == r.line && s.array == r.array && s.writes == r.writes) return;
    }
    if (report->shown_count == kShown) return;
    Shown& s = report->shown[report->shown_count++];
    s.line = r.line, s.array = r.array, s.writes = r.writes, s.width = r.width;
    std::copy(std::begin(r.at), std::end(r.at), s.at);
  }

  void wait(State state, int line) {
    now->state = state;
    now->line = line;
    now->fiber.leave();
  }

  void note(Kind kind, const Thread& t, unsigned waiting, unsigned ended) {
    Mistake& m = report->mistake;
    m.kind = kind, m.line = t.line, m.block = t.block, m.thread = t.number;
    m.waiting = waiting, m.ended = ended;
  }

  // Nobody gets on: who waits, and for what?
  void stuck(unsigned count) {
    unsigned ended = 0, spinning = 0;
    const Thread *shuffles = nullptr, *waits = nullptr, *spins = nullptr;
    unsigned at_barrier = 0, at_shuffle = 0;
    for (unsigned s = 0; s < count; ++s) {
      Block& block = *slots[s];
      ended += block.left == 0 ? size_ : size_ - block.left;
      if (block.left == 0) continue;
      for (unsigned i = 0; i < size_; ++i) {
        const Thread& t = *block.threads[i];
        if (t.state == State::kAtShuffle) ++at_shuffle, shuffles = shuffles ? shuffles : &t;
        if (t.state == State::kAtBarrier) ++at_barrier, waits = waits ? waits : &t;
        if (t.state == State::kReady) ++spinning, spins = spins ? spins : &t;
      }
    }
    if (spins != nullptr) {
      note(kDeadlock, *spins, spinning, ended);
      report->mistake.line = report->line;
      report->mistake.index = blocks_ - next_;
    } else if (shuffles != nullptr) {
      note(kShuffleMissed, *shuffles, at_shuffle, ended);
      report->mistake.other_line = waits != nullptr ? waits->line : 0;
    } else if (waits != nullptr) {
      note(kBarrierMissed, *waits, at_barrier, ended);
    }
  }

  Places* places_ = nullptr;
  void (*kernel_)(void*) = nullptr;
  void* argument_ = nullptr;
  unsigned blocks_ = 0, size_ = 0, live_ = 0, next_ = 0;
  uint64_t changes_ = 0;
  Mistake unwritten_ = Mistake();
  bool ends_with_block_ = false;  // what it is about is shared memory
};

static Grid grid;

}  // namespace emulator
