// A step that launches one generated kernel.
#pragma once

#include "core/pointwise.h"
#include "core/rows.h"
#include "graph/memory.h"

namespace megafuse::graph {

// A functor that belongs to a program: its kernels are unloaded with the last program that has it.
struct OwnedFunctor {
  Functor functor;
  explicit OwnedFunctor(std::string name) : functor(std::move(name)) {}
  ~OwnedFunctor() { KernelTable::get().drop(functor.number); }
};

struct KernelStep {
  struct Walked {
    int buffer;  // -1: an index, without memory
    at::ScalarType dtype;
    char walk;  // 'c' (to be found out), 'w' (one a row), 'i'
    int8_t result;
    int offset;
    Places strides;
  };
  struct Word {
    int buffer;  // -1: the slot itself
    int slot;
  };

  std::shared_ptr<OwnedFunctor> functor;
  bool row_wise = false;
  int outputs = 0;
  Places shape;
  std::vector<Walked> operands;
  std::vector<Word> words;

  void run(const Memory& memory, c10::Device device) const {
    const Shape sizes = read(shape, memory.slots);
    Space space;
    space.numel = c10::multiply_integers(sizes);
    if (space.numel == 0) return;
    space.outputs = outputs;
    c10::SmallVector<megafuse::Shape, 8> strides;
    for (const Walked& o : operands) {
      Operand& made = space.add(o.dtype, o.walk, nullptr);
      made.word = o.buffer < 0 ? memory.slots[o.offset].word : memory.address(o.buffer, o.offset);
      made.result = o.result;
      strides.push_back(read(o.strides, memory.slots));
    }
    Given given(functor->functor);
    for (const Word& word : words)
      given.words.push_back(word.buffer < 0 ? memory.slots[word.slot].word
                                            : memory.address(word.buffer, word.slot));
    Request request{given, row_wise ? Family::kRowsForward : Family::kForward, device, at::kFloat,
                    /*use_double=*/false};
    request.generated = true;
    const OnDevice on(device);
    if (row_wise)
      RowPlan(request, space, sizes, strides).plan({}).run();
    else
      plan(request, space, sizes, strides).run();
  }

 private:
  // In the order that memory has the dimensions in, as far as operands agree on one.
  Launch plan(Request& request, Space& space, const Shape& sizes,
              at::ArrayRef<megafuse::Shape> strides) const {
    c10::SmallVector<megafuse::Shape, 8> stored;
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i].buffer >= 0) stored.push_back(strides[i]);
    TORCH_CHECK(lay_out(space, sizes, strides, memory_order(sizes, stored)),
                "megafuse: ", functor->functor.name, " has more than ", kMaxDims, " dimensions");
    set_walks(space);
    return plan_pointwise(request, space, {});
  }
};

}  // namespace megafuse::graph
