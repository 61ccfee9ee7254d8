// The numbers of one call: sizes, strides and numbers of its arguments, and what follows from them.
// graph/symbols.py writes the code, one instruction for each slot; it runs once a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

namespace megafuse::graph {

// An int64 or a double, as the instruction that made it says.
union Slot {
  int64_t integer;
  double real;
  uint64_t word;
};
using Slots = c10::SmallVector<Slot, 64>;

// A leaf of the call: a tensor, or a number.
struct Leaf {
  const at::Tensor* tensor = nullptr;
  Slot number = {};
};

// In the order of OPCODES in graph/symbols.py.
enum class Opcode : uint8_t {
  kConstant,  // constants[a]
  kSize,      // of argument a, dimension b
  kStride,
  kOffset,  // of argument a
  kNumber,  // argument a
  kAdd,
  kMultiply,
  kFloorDivide,
  kModulo,
  kMinimum,
  kMaximum,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kAnd,
  kOr,
  kNot,
  kToReal,
  kRealAdd,
  kRealMultiply,
  kRealDivide,
  kRealPower,
  kRealMinimum,
  kRealMaximum,
  kRealEqual,
  kRealNotEqual,
  kRealLess,
  kRealLessEqual,
  kFloor,
  kCount
};

struct Instruction {
  Opcode opcode;
  int32_t a, b;
};

inline int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;  // a size of 0: nothing will be read
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
inline int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

struct Code {
  std::vector<Instruction> instructions;
  std::vector<Slot> constants;

  void run(at::ArrayRef<Leaf> leaves, Slots& slots) const {
    slots.resize(instructions.size());
    for (size_t i = 0; i < instructions.size(); ++i)
      slots[i] = value(instructions[i], leaves, slots);
  }

 private:
  Slot value(const Instruction& at, at::ArrayRef<Leaf> leaves, const Slots& slots) const {
    auto integer = [](int64_t value) { return Slot{.integer = value}; };
    auto real = [](double value) { return Slot{.real = value}; };
    auto a = [&] { return slots[at.a].integer; };
    auto b = [&] { return slots[at.b].integer; };
    auto x = [&] { return slots[at.a].real; };
    auto y = [&] { return slots[at.b].real; };
    switch (at.opcode) {
      case Opcode::kConstant:
        return constants[at.a];
      case Opcode::kSize:
        return integer(leaves[at.a].tensor->size(at.b));
      case Opcode::kStride:
        return integer(leaves[at.a].tensor->stride(at.b));
      case Opcode::kOffset:
        return integer(leaves[at.a].tensor->storage_offset());
      case Opcode::kNumber:
        return leaves[at.a].number;
      case Opcode::kAdd:
        return integer(a() + b());
      case Opcode::kMultiply:
        return integer(a() * b());
      case Opcode::kFloorDivide:
        return integer(floor_divide(a(), b()));
      case Opcode::kModulo:
        return integer(a() - floor_divide(a(), b()) * b());
      case Opcode::kMinimum:
        return integer(std::min(a(), b()));
      case Opcode::kMaximum:
        return integer(std::max(a(), b()));
      case Opcode::kPower:
        return integer(integer_power(a(), b()));
      case Opcode::kEqual:
        return integer(a() == b());
      case Opcode::kNotEqual:
        return integer(a() != b());
      case Opcode::kLess:
        return integer(a() < b());
      case Opcode::kLessEqual:
        return integer(a() <= b());
      case Opcode::kAnd:
        return integer(a() && b());
      case Opcode::kOr:
        return integer(a() || b());
      case Opcode::kNot:
        return integer(!a());
      case Opcode::kToReal:
        return real(double(a()));
      case Opcode::kRealAdd:
        return real(x() + y());
      case Opcode::kRealMultiply:
        return real(x() * y());
      case Opcode::kRealDivide:
        return real(x() / y());
      case Opcode::kRealPower:
        return real(std::pow(x(), y()));
      case Opcode::kRealMinimum:
        return real(std::min(x(), y()));
      case Opcode::kRealMaximum:
        return real(std::max(x(), y()));
      case Opcode::kRealEqual:
        return integer(x() == y());
      case Opcode::kRealNotEqual:
        return integer(x() != y());
      case Opcode::kRealLess:
        return integer(x() < y());
      case Opcode::kRealLessEqual:
        return integer(x() <= y());
      case Opcode::kFloor:
        return integer(int64_t(std::floor(x())));
      case Opcode::kCount:
        break;
    }
    TORCH_INTERNAL_ASSERT(false);
  }
};

}  // namespace megafuse::graph
