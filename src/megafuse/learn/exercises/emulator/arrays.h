// Arrays of global and of shared memory: bounds, alignment, and who touched each word last.
#pragma once

#include <string.h>

#include "grid.h"

namespace emulator {

struct Stamp {
  int thread = -1;  // none
  uint32_t clock = 0;
  int line = 0, block = 0, number = 0;
  bool atomic = false;
};

// Who wrote a word last, and who has read it since.
struct Word {
  Stamp written;
  std::vector<Stamp> reads;
  uint64_t launch = 0;
  bool known = false;  // somebody wrote it, ever
};

struct Array {
  char* data = nullptr;
  int64_t size = 0;  // words of 4 bytes
  int number = 0;
  bool shared = false, constant = false;
  bool fresh = false;  // of global memory: it holds nothing yet when the launch begins
  std::vector<Word> words;
  std::unordered_map<int64_t, Clock> released;  // by atomics, for those who look there next

  void touch(int64_t word, bool writes, bool atomic, int line, int width) {
    if (word < 0 || word + width > size)
      grid.fail(writes ? kWrittenOutside : kReadOutside, line, number, word);
    if (width > 1 && word % width) grid.fail(kMisaligned, line, number, word);
    if (!atomic) grid.request(line, number, writes, shared, word, width);
    if (constant) return;
    for (int k = 0; k < width; ++k) watch(word + k, writes, atomic, line);
  }

 private:
  static bool ordered(const Stamp& before, bool other_block) {
    const Thread& t = *grid.now;
    if (other_block && !grid.together) return false;
    return t.clock[size_t(before.thread)] >= before.clock;
  }

  void watch(int64_t at, bool writes, bool atomic, int line) {
    if (words.empty()) words.resize(size_t(size));
    Word& word = words[size_t(at)];
    const Thread& t = *grid.now;
    if (word.launch != grid.launches) {  // launches come one after the other
      word.written = Stamp();
      word.reads.clear();
      word.launch = grid.launches;
    }
    if ((shared || fresh) && !writes && !word.known) grid.unwritten(line, number, at, shared);
    const Stamp mine{int(t.id), t.clock[t.id], line, int(t.block), int(t.number), atomic};
    meet(word.written, mine, writes, true, at);
    if (!writes) {
      for (Stamp& read : word.reads)
        if (read.thread == mine.thread && read.block == mine.block) {
          read = mine;
          return;
        }
      word.reads.push_back(mine);
      return;
    }
    for (const Stamp& read : word.reads) meet(read, mine, true, false, at);
    word.reads.clear();
    word.written = mine;
    word.known = true;
  }

  void meet(const Stamp& before, const Stamp& mine, bool writes, bool wrote, int64_t at) {
    if (before.thread < 0 || (before.thread == mine.thread && before.block == mine.block)) return;
    if (before.atomic && mine.atomic) return;
    if (ordered(before, before.block != mine.block)) return;
    Mistake& m = grid.report->mistake;
    if (m.kind == kNone) {
      m.other_line = before.line;
      m.other_block = before.block;
      m.other_thread = before.number;
      m.writes = writes;
      m.other_writes = wrote;
    }
    grid.fail(kRace, mine.line, number, at);
  }
};

// An array that every block has for itself.
class Store {
 public:
  Store(int64_t words, int number) : words_(words), number_(number) {}

  // That of the block that runs now, without what the last one left there.
  Array& here() {
    Block& block = grid.here();
    const size_t slot = grid.now->slot;
    if (arrays_.size() <= slot) {
      arrays_.resize(slot + 1);
      serials_.resize(slot + 1);
      data_.resize(slot + 1);
    }
    if (!arrays_[slot]) arrays_[slot] = std::make_unique<Array>();
    Array& array = *arrays_[slot];
    if (serials_[slot] != block.serial) {
      serials_[slot] = block.serial;
      data_[slot].assign(size_t(words_), 0x7fc00000u);  // NaN
      array.data = reinterpret_cast<char*>(data_[slot].data());
      array.size = words_;
      array.number = number_;
      array.shared = true;
      array.words.assign(size_t(words_), Word());
    }
    return array;
  }

 private:
  int64_t words_;
  int number_;
  std::vector<std::unique_ptr<Array>> arrays_;
  std::vector<uint64_t> serials_;
  std::vector<std::vector<uint32_t>> data_;
};

}  // namespace emulator
