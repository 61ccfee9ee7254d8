// The index space of a pointwise kernel: broadcasting, the order of dimensions, and
// how each operand walks through it.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace megafuse {

constexpr int kMaxOperands = 24;  // registry/checks.py refuses ops with more
constexpr int kMaxDims = 16;

struct Operand {
  uint64_t word;  // address, or the value's bits (walk 'v')
  at::ScalarType dtype;
  char walk = 'c';
  int8_t result = 0;
  int memory = -1;  // which: operands of one may be pairs (set_pairs). -1: nobody asks
  int64_t stride[kMaxDims];

  int64_t bytes() const { return int64_t(c10::elementSize(dtype)); }
};

struct Space {
  int dims = 1;
  int64_t numel = 0;
  int64_t size[kMaxDims];  // innermost first, as all dimensions below
  int outputs = 0, operands = 0;
  Operand operand[kMaxOperands];

  Operand& add(at::ScalarType dtype, char walk, const void* data) {
    TORCH_CHECK(operands < kMaxOperands, "megafuse: a kernel of more than ", kMaxOperands,
                " operands");
    Operand& op = operand[operands++];
    op.dtype = dtype;
    op.walk = walk;
    op.word = reinterpret_cast<uint64_t>(data);
    return op;
  }
  Operand& add_value(double value) {
    Operand& op = add(at::kDouble, 'v', nullptr);
    std::memcpy(&op.word, &value, sizeof value);
    return op;
  }
};

using Shape = c10::SmallVector<int64_t, 8>;
using Order = c10::SmallVector<int64_t, 8>;  // dimensions, innermost first

// Widens `shape` so that `sizes` broadcasts into it; false where it cannot.
inline bool broadcast_into(Shape& shape, at::IntArrayRef sizes) {
  if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
  for (size_t back = 1; back <= sizes.size(); ++back) {
    int64_t& have = shape[shape.size() - back];
    int64_t want = sizes[sizes.size() - back];
    if (have == want || want == 1) continue;
    if (have != 1) return false;
    have = want;
  }
  return true;
}

// Strides of a tensor seen in `shape`: 0 along dimensions it is broadcast over.
inline Shape strides_in(at::IntArrayRef shape, at::IntArrayRef sizes, at::IntArrayRef strides) {
  Shape result(shape.size(), 0);
  const size_t lead = shape.size() - sizes.size();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] == shape[d + lead]) result[d + lead] = strides[d];
  return result;
}

// The order of dimensions in memory, as PyTorch's own iterator picks it, so that outputs get the
// strides PyTorch would give them: sorted by stride. Two dimensions are compared by the first
// operand that is broadcast along neither and tells them apart; else they keep the logical order.
inline Order memory_order(at::IntArrayRef shape, at::ArrayRef<Shape> strides) {
  const int n = int(shape.size());
  Order order(n);
  std::iota(order.rbegin(), order.rend(), 0);
  auto compare = [&](int64_t inner, int64_t outer) {
    for (const Shape& s : strides) {
      const int64_t a = s[inner], b = s[outer];
      if (a == 0 || b == 0) continue;
      if (a != b) return a < b ? -1 : 1;
      if (shape[inner] > shape[outer]) return 1;
    }
    return 0;
  };
  for (int i = 1; i < n; ++i) {
    int at = i;
    for (int j = i - 1; j >= 0; --j) {
      const int c = compare(order[j], order[at]);
      if (c < 0) break;
      if (c > 0) {
        std::swap(order[j], order[at]);
        at = j;
      }
    }
  }
  return order;
}

inline bool is_logical(const Order& order) { return std::is_sorted(order.rbegin(), order.rend()); }

// Dense strides with the dimensions laid out in `order`.
inline Shape dense_strides(at::IntArrayRef shape, const Order& order) {
  Shape strides(shape.size());
  int64_t next = 1;
  for (int64_t d : order) {
    strides[d] = next;
    next *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

// Fills the space's dimensions from logical strides (one per operand that is not a
// value), dropping those of size 1 and merging neighbours that every operand crosses
// evenly. False when more than kMaxDims are left.
inline bool lay_out(Space& space, at::IntArrayRef shape, at::ArrayRef<Shape> strides,
                    const Order& order) {
  space.dims = 0;
  for (int64_t d : order) {
    if (shape[d] == 1) continue;
    bool merged = false;
    if (space.dims > 0) {
      const int last = space.dims - 1;
      merged = true;
      for (int i = 0, s = 0; i < space.operands; ++i) {
        const Operand& op = space.operand[i];
        if (op.walk == 'v') continue;
        merged &= strides[s++][d] == op.stride[last] * space.size[last];
      }
      if (merged) space.size[last] *= shape[d];
    }
    if (merged) continue;
    if (space.dims == kMaxDims) return false;
    space.size[space.dims] = shape[d];
    for (int i = 0, s = 0; i < space.operands; ++i) {
      Operand& op = space.operand[i];
      op.stride[space.dims] = op.walk == 'v' ? 0 : strides[s++][d];
    }
    ++space.dims;
  }
  if (space.dims == 0) {  // one element
    space.dims = 1;
    space.size[0] = 1;
    for (int i = 0; i < space.operands; ++i) space.operand[i].stride[0] = 1;
  }
  return true;
}

// How each operand moves along dimension `dim`. Values, sums, indices and outputs of one number a
// row keep the walk they were added with.
inline void set_walks(Space& space, int dim = 0) {
  for (int i = 0; i < space.operands; ++i) {
    Operand& op = space.operand[i];
    if (std::strchr("vnrgwi", op.walk)) continue;
    op.walk = op.stride[dim] == 1 ? 'c' : op.stride[dim] == 0 ? 'b' : 's';
  }
}

// Tells a kernel of the GPU how its indices move along dimension `dim`, where that is by 0 or 1.
inline void set_index_walks(Space& space, int dim = 0) {
  for (int i = 0; i < space.operands; ++i) {
    Operand& op = space.operand[i];
    if (op.walk == 'i') op.walk = op.stride[dim] == 1 ? 'k' : op.stride[dim] == 0 ? 'j' : 'i';
  }
}

// Pairs of operands that take turns in memory (kernels/pointwise.h): x[..., ::2] and x[..., 1::2].
constexpr int kMaxPairs = 12;
inline bool is_first(const Operand& op) { return op.walk >= 'A' && op.walk < 'A' + kMaxPairs; }
inline bool is_second(const Operand& op) {
  return op.walk >= 'A' + kMaxPairs && op.walk < 'A' + 2 * kMaxPairs;
}

// Whether `second` has the elements after those of `first`, and two at once are aligned.
inline bool takes_turns(const Operand& first, const Operand& second, int dims) {
  const uint64_t bytes = uint64_t(first.bytes());
  if (first.memory < 0 || first.memory != second.memory || first.dtype != second.dtype)
    return false;
  if (second.word != first.word + bytes || first.word % (2 * bytes)) return false;
  for (int d = 0; d < dims; ++d)
    if (first.stride[d] != second.stride[d] || first.stride[d] % 2) return false;
  return true;
}

// Finds the pairs among outputs and among inputs, after set_walks.
inline void set_pairs(Space& space) {
  int pairs = 0;
  auto free = [](const Operand& op) { return op.walk == 's' && op.stride[0] == 2; };
  for (int i = 0; i < space.operands; ++i) {
    const int end = i < space.outputs ? space.outputs : space.operands;
    for (int j = i + 1; j < end && pairs < kMaxPairs && free(space.operand[i]); ++j) {
      Operand *first = &space.operand[i], *second = &space.operand[j];
      if (!free(*second)) continue;
      if (!takes_turns(*first, *second, space.dims)) std::swap(first, second);
      if (!takes_turns(*first, *second, space.dims)) continue;
      first->walk = char('A' + pairs);
      second->walk = char('A' + kMaxPairs + pairs);
      ++pairs;
    }
  }
}

// Elements of memory from one element to the next, of operands that are moved in vectors: 1, of
// pairs 2, which have one vector for both. 0: others.
inline int64_t pitch_of(const Operand& op) {
  return op.walk == 'c' ? 1 : is_first(op) || is_second(op) ? 2 : 0;
}

// Elements per thread along dimension `dim`: as many as 16 bytes of the widest operand hold (32
// where the output is narrower: int8 from bfloat16 ran 3 % faster so on an H200), halved until
// every address and every row allows it.
inline int most_vector_width(const Space& space) {
  int64_t widest = 1;
  for (int i = 0; i < space.operands; ++i)
    widest = std::max(widest, space.operand[i].bytes() * pitch_of(space.operand[i]));
  const Operand& out = space.operand[0];
  const int64_t own = out.bytes() * std::max<int64_t>(pitch_of(out), 1);
  return int((own < widest ? 32 : 16) / widest);
}
inline int vector_width(const Space& space, int dim = 0) {
  int64_t width = most_vector_width(space);
  auto fits = [&](int64_t w) {
    if (space.dims > 1 && space.size[dim] % w) return false;
    for (int i = 0; i < space.operands; ++i) {
      const Operand& op = space.operand[i];
      const int64_t elements = w * pitch_of(op);
      if (elements == 0 || is_second(op)) continue;
      if (op.word % uint64_t(std::min<int64_t>(elements * op.bytes(), 16))) return false;
      for (int d = 0; d < space.dims; ++d)
        if (d != dim && op.stride[d] % elements) return false;
    }
    return true;
  };
  while (width > 1 && !fits(width)) width /= 2;
  return int(width);
}

// Prepares a space for vectors that are cut across rows: outputs must be dense, and inputs that do
// not lie as they do, or start at an odd address, are read element by element (walk 'e'). A pair is
// dense where both together are.
inline bool cut_across(Space& space, int width) {
  auto lies_dense = [&](const Operand& op) {
    int64_t next = std::max<int64_t>(pitch_of(op), 1);
    // The second of a pair is aligned if the first is.
    const uint64_t start = is_second(op) ? op.word - uint64_t(op.bytes()) : op.word;
    bool dense = start % uint64_t(std::min<int64_t>(width * next * op.bytes(), 16)) == 0;
    for (int d = 0; d < space.dims; next *= space.size[d++]) dense &= op.stride[d] == next;
    return dense;
  };
  for (int i = 0; i < space.outputs; ++i)
    if (pitch_of(space.operand[i]) == 0 || !lies_dense(space.operand[i])) return false;
  for (int i = space.outputs; i < space.operands; ++i)
    if (!std::strchr("vi", space.operand[i].walk) && !lies_dense(space.operand[i]))
      space.operand[i].walk = 'e';
  return true;
}

// Whether an index that starts there may not fit into 32 bits, though its offsets do.
inline bool is_far_index(uint64_t start) { return std::abs(int64_t(start)) >= int64_t(1) << 24; }

// Whether an offset or index does not fit into 31 bits. `turns`: what the threads of the whole grid
// count, groups of elements or rows. A thread adds the grid's size, which may be as many again, to
// its place before it sees that this is past the end.
inline bool needs_64_bits(const Space& space, int64_t turns = 0) {
  constexpr int64_t limit = (int64_t(1) << 31) - (int64_t(1) << 25);
  if (turns >= limit / 2) return true;
  if (space.numel >= limit) return true;
  for (int i = 0; i < space.operands; ++i) {
    const Operand& op = space.operand[i];
    int64_t last = 0;
    if (op.walk == 'v') continue;
    for (int d = 0; d < space.dims; ++d) last += (space.size[d] - 1) * std::abs(op.stride[d]);
    if (last >= limit || (op.walk == 'i' && is_far_index(op.word))) return true;
  }
  return false;
}

// n / d == (umulhi(n, magic) + n) >> shift for all n < 2^31 (Granlund and Montgomery 1994).
inline uint64_t division_magic(uint64_t d) {
  if (d >= (uint64_t(1) << 31)) return 0;
  uint64_t shift = 0;
  while ((uint64_t(1) << shift) < d) ++shift;
  const uint64_t magic = ((uint64_t(1) << 32) * ((uint64_t(1) << shift) - d)) / d + 1;
  return magic | (shift << 32);
}

using Words = c10::SmallVector<uint64_t, 64>;

// Appends the words of kernels/pointwise.h. `vector` divides the innermost size (GPU).
inline void pack(Words& words, const Space& space, at::ArrayRef<uint64_t> numbers,
                 at::ArrayRef<uint64_t> random, int vector) {
  for (int i = 0; i < space.operands; ++i) words.push_back(space.operand[i].word);
  words.push_back(uint64_t(space.numel));
  for (int d = 0; d + 1 < space.dims; ++d)
    words.push_back(uint64_t(d == 0 ? space.size[0] / vector : space.size[d]));
  for (int d = 0; d + 1 < space.dims; ++d)
    words.push_back(division_magic(uint64_t(d == 0 ? space.size[0] / vector : space.size[d])));
  for (int i = 0; i < space.operands; ++i)
    for (int d = 0; d < space.dims; ++d) words.push_back(uint64_t(space.operand[i].stride[d]));
  words.append(numbers.begin(), numbers.end());
  words.append(random.begin(), random.end());
}

}  // namespace megafuse
