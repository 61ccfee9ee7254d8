// The memory of one call: arguments, and what steps allocate, each kept until its last reader.
#pragma once

#include "core/matrix.h"
#include "graph/symbols.h"

namespace megafuse::graph {

using Places = std::vector<int>;  // slots

inline Shape read(const Places& places, const Slots& slots) {
  Shape values;
  for (int place : places) values.push_back(slots[place].integer);
  return values;
}

// What a step allocates: sizes and strides by slot.
struct BufferType {
  at::ScalarType dtype;
  Places sizes, strides;
};

// A buffer seen with sizes, strides and an offset from its first element.
struct View {
  int buffer = -1;
  bool whole = false;  // as it was allocated or came
  Places sizes, strides;
  int offset = -1;

  bool operator==(const View&) const = default;
};

class Memory {
 public:
  Slots slots;
  c10::SmallVector<at::Tensor, 16> buffers;

  void allocate(int buffer, const BufferType& type, c10::Device device) {
    const Shape sizes = read(type.sizes, slots);
    buffers[buffer] = megafuse::allocate(sizes, read(type.strides, slots), type.dtype, device);
  }
  // The address of an element, by its offset from the first.
  uint64_t address(int buffer, int offset) const {
    const at::Tensor& t = buffers[buffer];
    return reinterpret_cast<uint64_t>(t.const_data_ptr()) +
           uint64_t(slots[offset].integer) * t.element_size();
  }
  at::Tensor view(const View& v) const {
    const at::Tensor& t = buffers[v.buffer];
    if (v.whole) return t;
    at::Tensor made = seen_as(t, read(v.sizes, slots), read(v.strides, slots));
    if (const int64_t offset = slots[v.offset].integer)
      made.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset() + offset);
    return made;
  }
};

}  // namespace megafuse::graph
