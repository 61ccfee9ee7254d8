// The memory of an exercise. A learner's C++ file is compiled twice with
// this in front of it:
//
//   plain      Input is const float*, Output is float*: as fast as it gets
//   counted    they are types that look the same and note every element
//   that is touched, so
//              what moves between memory and processor is counted, not
//              guessed
//
// Counted, a read or write outside an array ends the run with its place,
// not with a crash. Bytes are those of 64-byte lines through a cache of 32
// KiB, in which the line unused for longest makes room. A written line goes
// to memory when it leaves the cache.
//
// The harness behind the learner's file defines exercise(); native.py calls
// exercise_run().

struct Counts {
  long long line;  // of the learner's file, of the last access
  long long read_elements, written_elements;
  long long read_lines,
      written_lines;  // of 64 bytes, between cache and memory
  long long fault, fault_array,
      fault_index;  // 1: read outside an array, 2: written, 3: read
                    // before anybody has written it
};

#if defined(MF_COUNTED)

namespace counted {

constexpr int kLine = 16;  // floats
constexpr int kLines = 512;

struct Fault {};

// As patterns.py fills what nobody has written yet.
inline bool is_blank(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits == 0x7fc00badu;
}

// An index that knows the line it was written in: a default argument is
// made where the call is.
struct Place {
  long long i;
  int line;
  template <class Integer>
  Place(Integer n, int l = __builtin_LINE()) : i((long long)(n)), line(l) {}
};

// Lines in the order of their last use, as a ring of slots: the one after
// `newest` is the oldest.
struct Cache {
  struct Slot {
    int* place =
        nullptr;  // where the array notes which slot its line has, plus 1
    bool dirty = false;
    int newer = 0, older = 0;
  };
  Slot slots[kLines];
  int newest = 0;
  Counts* counts;

  explicit Cache(Counts* c) : counts(c) {
    for (int i = 0; i < kLines; ++i) {
      slots[i].newer = (i + 1) % kLines;
      slots[i].older = (i + kLines - 1) % kLines;
    }
    newest = kLines - 1;
  }

  void use(int* place, bool writes) {
    if (*place == 0) {
      const int oldest = slots[newest].newer;  // the ring closes there
      leave(slots[oldest]);
      slots[oldest].place = place;
      *place = oldest + 1;
      newest = oldest;
      if (!writes) ++counts->read_lines;
    } else {
      move_to_front(*place - 1);
    }
    slots[newest].dirty |= writes;
  }

  void move_to_front(int i) {
    if (i == newest) return;
    Slot& slot = slots[i];
    slots[slot.older].newer = slot.newer;
    slots[slot.newer].older = slot.older;
    const int oldest = slots[newest].newer;
    slot.older = newest;
    slot.newer = oldest;
    slots[newest].newer = i;
    slots[oldest].older = i;
    newest = i;
  }

  void leave(Slot& slot) {
    if (slot.place == nullptr) return;
    *slot.place = 0;
    if (slot.dirty) ++counts->written_lines;
    slot.dirty = false;
    slot.place = nullptr;
  }

  void flush() {
    for (Slot& slot : slots) leave(slot);
  }
};

struct Machine {
  Counts* counts;
  Cache cache;
};

struct Array {
  float* data;
  long long size, number;
  int* places;  // a slot for each line
  Machine* machine;

  void stop(int fault, long long i) {
    machine->counts->fault = fault;
    machine->counts->fault_array = number;
    machine->counts->fault_index = i;
    throw Fault();
  }
  void touch(long long i, bool writes) {
    Counts* counts = machine->counts;
    if (i < 0 || i >= size) stop(writes ? 2 : 1, i);
    ++(writes ? counts->written_elements : counts->read_elements);
    machine->cache.use(places + i / kLine, writes);
  }
  float read(long long i) {
    touch(i, false);
    if (is_blank(data[i])) stop(3, i);
    return data[i];
  }
  void write(long long i, float value) {
    touch(i, true);
    data[i] = value;
  }
};

// out[i] on either side of an assignment.
struct Cell {
  Array* array;
  long long i;
  operator float() const { return array->read(i); }
  Cell& operator=(float value) {
    array->write(i, value);
    return *this;
  }
  Cell& operator=(const Cell& other) { return *this = float(other); }
  Cell& operator+=(float value) { return *this = float(*this) + value; }
  Cell& operator-=(float value) { return *this = float(*this) - value; }
  Cell& operator*=(float value) { return *this = float(*this) * value; }
  Cell& operator/=(float value) { return *this = float(*this) / value; }
};

// What both kinds of pointer can do: p[i], *p, p + n, p += n, ++p.
template <class Self, class Element>
struct Pointer {
  Array* array = nullptr;
  long long at = 0;
  Element operator[](Place p) const {
    array->machine->counts->line = p.line;
    return Self::element(array, at + p.i);
  }
  Element operator*() const { return Self::element(array, at); }
  Self operator+(long long n) const {
    Self moved = static_cast<const Self&>(*this);
    moved.at += n;
    return moved;
  }
  Self operator-(long long n) const { return *this + -n; }
  Self& operator+=(long long n) {
    at += n;
    return static_cast<Self&>(*this);
  }
  Self& operator++() { return *this += 1; }
  Self operator++(int) {
    Self before = static_cast<const Self&>(*this);
    at += 1;
    return before;
  }
};
struct Input : Pointer<Input, float> {
  static float element(Array* array, long long i) { return array->read(i); }
};
struct Output : Pointer<Output, Cell> {
  static Cell element(Array* array, long long i) { return {array, i}; }
};

}  // namespace counted

using Input = counted::Input;
using Output = counted::Output;

struct Arrays {
  counted::Array* array;
  counted::Machine* machine;
  template <class Pointer>
  Pointer at(int i) const {
    Pointer p;
    p.array = array + i;
    return p;
  }
  Input input(int i) const { return at<Input>(i); }
  Output output(int i) const { return at<Output>(i); }
};

#else

using Input = const float*;
using Output = float*;

struct Arrays {
  float** data;
  Input input(int i) const { return data[i]; }
  Output output(int i) const { return data[i]; }
};

#endif

void exercise(const Arrays& arrays, const long long* numbers);

extern "C" void exercise_run(float** data, const long long* sizes,
                             int count, const long long* numbers,
                             [[maybe_unused]] Counts* counts) {
#if defined(MF_COUNTED)
  using namespace counted;
  auto* machine = new Machine{counts, Cache(counts)};
  auto* array = new Array[count];
  for (int i = 0; i < count; ++i)
    array[i] = {data[i], sizes[i], i, new int[sizes[i] / kLine + 1](),
                machine};
  try {
    exercise({array, machine}, numbers);
  } catch (Fault) {
  }
  machine->cache.flush();
  for (int i = 0; i < count; ++i) delete[] array[i].places;
  delete[] array;
  delete machine;
#else
  (void)sizes, (void)count;
  exercise({data}, numbers);
#endif
}
