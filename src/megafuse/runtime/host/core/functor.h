// The arithmetic of a kernel, as this runtime knows it: a name, by which Python finds its source,
// and what differs between its kernels. An op has one; so has each pass that no user calls, and
// each kernel that the compiler generates. Kernels are looked up by its number, which is never
// given twice.
#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace megafuse {

struct Functor {
  // What is known when a kernel is compiled: one of some words or, without any, a flag.
  struct Choice {
    std::string name;
    std::vector<std::string> values;
  };

  const uint32_t number = next();
  std::string name;
  std::vector<Choice> choices;
  bool random = false;  // draws random numbers

  explicit Functor(std::string n = {}, std::vector<Choice> c = {}, bool draws = false)
      : name(std::move(n)), choices(std::move(c)), random(draws) {}
  Functor(const Functor&) = delete;

 private:
  static uint32_t next() {
    static std::atomic<uint32_t> last{0};
    return ++last;
  }
};

constexpr int kMaxChoices = 24;  // registry/checks.py refuses ops with more arguments

// What one launch gives its functor: choices in their order, and numbers as 64-bit words.
struct Given {
  const Functor* functor;
  uint8_t choice[kMaxChoices] = {};
  c10::SmallVector<uint64_t, 8> words;

  explicit Given(const Functor& f) : functor(&f) {}
  Given& choose(int which, int value) {
    choice[which] = uint8_t(value);
    return *this;
  }
  Given& number(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    words.push_back(bits);
    return *this;
  }
};

}  // namespace megafuse
