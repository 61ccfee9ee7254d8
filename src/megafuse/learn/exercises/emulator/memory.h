// Memory that watches: pointers and shared arrays that look like CUDA's, and note who touches what.
//
//   Pointer<float>     float*, of global memory or of a shared array
//   Shared<float, 32>  __shared__ float name[32]; emulated.py writes it where the learner wrote
//   that
//
// An access outside an array, one that is not aligned, a race, and a read of what nobody wrote end
// the run. What a warp's lanes touch together is counted (grid.h).
#pragma once

#include <string.h>

#include <type_traits>

#include "api.h"

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

static const Core* core;
static Places places;

// A value that knows the line it was written in: a default argument is made where the call is.
struct Place {
  int64_t i;
  int line;
  template <class Integer>
  Place(Integer n, int l = __builtin_LINE()) : i(int64_t(n)), line(l) {}
};

template <class T>
struct Pointer;

// p[i] on either side of an assignment.
template <class T>
struct Cell {
  Array* array;  // null: a number that is in no array, `given`
  int64_t word;
  int line;
  T given{};

  T read() const {
    if (array == nullptr) return given;
    // A loop that looks at a counter this way must not keep the others from running.
    if (std::is_same_v<T, unsigned>) core->look();
    T value;
    memcpy(&value, core->touch(array, word, 0, line, sizeof(T) / 4), sizeof value);
    return value;
  }
  void write(const T& value) const {
    memcpy(core->touch(array, word, 1, line, sizeof(T) / 4), &value, sizeof value);
  }
  // Without asking, a cell becomes a T, and another kind of number becomes a cell: else the
  // compiler would make an int of the float in `here ? cell : 0`.
  template <class U>
  static constexpr bool kOther = std::is_arithmetic_v<U> && !std::is_same_v<U, T>;
  template <class U, class = std::enable_if_t<std::is_same_v<U, T>>>
  operator U() const {
    return read();
  }
  template <class U, std::enable_if_t<kOther<U>, int> = 0>
  explicit operator U() const {
    return U(read());
  }
  template <class U, std::enable_if_t<kOther<U>, int> = 0>
  Cell(U number) : array(nullptr), word(0), line(0), given(T(number)) {}
  const Cell& operator=(const T& value) const {
    write(value);
    return *this;
  }
  const Cell& operator=(const Cell& other) const { return *this = other.read(); }
  Cell(const Cell&) = default;
  Cell(Array* a, int64_t w, int l) : array(a), word(w), line(l) {}
  const Cell& operator+=(const T& v) const { return *this = T(read() + v); }
  const Cell& operator-=(const T& v) const { return *this = T(read() - v); }
  const Cell& operator*=(const T& v) const { return *this = T(read() * v); }
  const Cell& operator/=(const T& v) const { return *this = T(read() / v); }
  T operator++() const { return *this += T(1); }
  T operator++(int) const {
    const T before = read();
    write(before + T(1));
    return before;
  }
  Pointer<T> operator&() const;
};

// Two cells, or a cell and a number: as their values.
template <class T>
struct IsCell : std::false_type {};
template <class T>
struct IsCell<Cell<T>> : std::true_type {};
template <class T>
const T& value(const T& number) {
  return number;
}
template <class T>
T value(const Cell<T>& cell) {
  return cell.read();
}
template <class A>
constexpr bool kNumber = IsCell<A>::value || std::is_arithmetic_v<A>;
template <class A, class B>
using IfCells =
    std::enable_if_t<(IsCell<A>::value || IsCell<B>::value) && kNumber<A> && kNumber<B>>;
template <class A, class B, class = IfCells<A, B>>
auto operator+(const A& a, const B& b) {
  return value(a) + value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator-(const A& a, const B& b) {
  return value(a) - value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator*(const A& a, const B& b) {
  return value(a) * value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator/(const A& a, const B& b) {
  return value(a) / value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator<(const A& a, const B& b) {
  return value(a) < value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator<=(const A& a, const B& b) {
  return value(a) <= value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator>(const A& a, const B& b) {
  return value(a) > value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator>=(const A& a, const B& b) {
  return value(a) >= value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator==(const A& a, const B& b) {
  return value(a) == value(b);
}
template <class A, class B, class = IfCells<A, B>>
auto operator!=(const A& a, const B& b) {
  return value(a) != value(b);
}
template <class A, class T, class = std::enable_if_t<std::is_arithmetic_v<A>>>
A& operator+=(A& a, const Cell<T>& b) {
  return a += b.read();
}
template <class A, class T, class = std::enable_if_t<std::is_arithmetic_v<A>>>
A& operator-=(A& a, const Cell<T>& b) {
  return a -= b.read();
}
template <class A, class T, class = std::enable_if_t<std::is_arithmetic_v<A>>>
A& operator*=(A& a, const Cell<T>& b) {
  return a *= b.read();
}
template <class A, class T, class = std::enable_if_t<std::is_arithmetic_v<A>>>
A& operator/=(A& a, const Cell<T>& b) {
  return a /= b.read();
}
template <class T>
T operator-(const Cell<T>& cell) {
  return -cell.read();
}

// const T: the value itself; T: a cell, which can be written.
template <class T>
struct Pointer {
  using Value = std::remove_const_t<T>;
  using Element = std::conditional_t<std::is_const_v<T>, Value, Cell<Value>>;
  static constexpr int64_t kWords = sizeof(Value) / 4;

  Array* array = nullptr;
  int64_t at = 0;  // words

  Pointer() = default;
  Pointer(Array* a, int64_t w) : array(a), at(w) {}
  template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>>
  Pointer(const Pointer<U>& other) : array(other.array), at(other.at) {}

  Element operator[](Place p) const { return Cell<Value>(array, at + p.i * kWords, p.line); }
  Element operator*() const { return Cell<Value>(array, at, core->line()); }
  Pointer operator+(int64_t n) const { return {array, at + n * kWords}; }
  Pointer operator-(int64_t n) const { return {array, at - n * kWords}; }
  Pointer& operator+=(int64_t n) { return at += n * kWords, *this; }
  Pointer& operator++() { return *this += 1; }
  Pointer operator++(int) {
    Pointer before = *this;
    *this += 1;
    return before;
  }
  explicit operator bool() const { return array != nullptr; }
};
template <class T>
Pointer<T> operator+(int64_t n, const Pointer<T>& p) {
  return p + n;
}
template <class T>
Pointer<T> Cell<T>::operator&() const {
  return {array, word};
}

// (float4*)p, reinterpret_cast<float4*>(p) and the same with const or volatile: emulated.py writes
// `emulator::Cast<float4>() ->*` for them, an operator that binds as tightly as a cast nearly does.
template <class To>
struct Cast {
  template <class T>
  Pointer<To> operator()(const Pointer<T>& p) const {
    return {p.array, p.at};
  }
  template <class From>
  auto operator->*(const From& from) const {
    return (*this)(from);
  }
};
// *(float4*)p, with the line that a plain * does not know.
template <class To>
struct Taken {
  int line;
  template <class From>
  auto operator()(const From& from) const {
    return Cast<To>()(from)[Place(0, line)];
  }
  template <class From>
  auto operator->*(const From& from) const {
    return (*this)(from);
  }
};

// ---- shared memory

// Of this file alone: as members they would be one for all files that a process has loaded.
static int shared_count;
static char shared_names[kNames][32];

class SharedStore {
 public:
  SharedStore(const char* name, int64_t words) {
    const int number = shared_count++;
    if (number < kNames) strncpy(shared_names[number], name, 31);
    store_ = core->declare(words, kFirstShared + number);
  }
  Array* here() const { return core->shared(store_); }

 private:
  void* store_;
};

// tile[r] of tile[32][33]: an index outside its own dimension is outside.
template <class T, int64_t... kRest>
struct Row;
template <class T, int64_t kSize>
struct Row<T, kSize> {
  Array* array;
  int64_t at;
  Cell<T> operator[](Place p) const {
    if (p.i < 0 || p.i >= kSize) core->outside(array, p.i, p.line);
    return {array, at + p.i, p.line};
  }
  operator Pointer<T>() const { return {array, at}; }
  operator Pointer<const T>() const { return {array, at}; }
  Pointer<T> operator+(int64_t n) const { return {array, at + n}; }
};
template <class T, int64_t kSize, int64_t kNext, int64_t... kRest>
struct Row<T, kSize, kNext, kRest...> {
  static constexpr int64_t kStride = (kNext * ... * kRest);
  Array* array;
  int64_t at;
  Row<T, kNext, kRest...> operator[](Place p) const {
    if (p.i < 0 || p.i >= kSize) core->outside(array, p.i, p.line);
    return {array, at + p.i * kStride};
  }
};

template <class T, int64_t... kSizes>
class Shared {
 public:
  explicit Shared(const char* name) : store_(name, (kSizes * ...)) {}
  auto operator[](Place p) { return Row<T, kSizes...>{store_.here(), 0}[p]; }
  operator Pointer<T>() { return {store_.here(), 0}; }
  operator Pointer<const T>() { return {store_.here(), 0}; }
  Pointer<T> operator+(int64_t n) { return {store_.here(), n}; }

 private:
  SharedStore store_;
};

// A single value. Where it is read has no line of its own: the last one that is known stands for
// it.
template <class T>
class Shared<T> {
 public:
  explicit Shared(const char* name) : store_(name, 1) {}
  operator T() { return Cell<T>(store_.here(), 0, core->line()); }
  struct Given {
    T value;
    int line;
    template <class From>
    Given(From v, int l = __builtin_LINE()) : value(T(v)), line(l) {}
  };
  Shared& operator=(Given given) {
    Cell<T>(store_.here(), 0, given.line).write(given.value);
    return *this;
  }
  Pointer<T> operator&() { return {store_.here(), 0}; }

 private:
  SharedStore store_;
};

// ---- atomics, and looking at what others change

template <class T, class Change>
T exchange(int line, const Pointer<T>& p, Change change) {
  T before, after;
  char* place = core->atomic(p.array, p.at, line);
  memcpy(&before, place, sizeof before);
  after = change(before);
  memcpy(place, &after, sizeof after);
  core->changed(before != after);
  return before;
}
template <class T, class V>
T atomic_add(int line, const Pointer<T>& p, V value) {
  return exchange<T>(line, p, [&](T now) { return T(now + T(value)); });
}
template <class T, class V>
T atomic_exchange(int line, const Pointer<T>& p, V value) {
  return exchange<T>(line, p, [&](T) { return T(value); });
}
template <class T, class V>
T atomic_max(int line, const Pointer<T>& p, V value) {
  return exchange<T>(line, p, [&](T now) { return now < T(value) ? T(value) : now; });
}

// volatile T*: read from memory at every turn, and others get theirs in between.
template <class T>
struct Pointer<volatile T> {
  Array* array = nullptr;
  int64_t at = 0;
  Pointer() = default;
  Pointer(Array* a, int64_t w) : array(a), at(w) {}
  Pointer(const Pointer<T>& p) : array(p.array), at(p.at) {}
  T operator*() const {
    return exchange<T>(core->line(), {array, at}, [](T now) { return now; });
  }
  T operator[](Place p) const {
    return exchange<T>(p.line, {array, at + p.i}, [](T now) { return now; });
  }
};

}  // namespace emulator
