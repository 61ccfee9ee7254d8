// A step that launches one generated kernel.
#pragma once

#include "core/pointwise.h"
#include "core/wanted.h"
#include "graph/sums.h"

namespace megafuse::graph {

// A functor that belongs to a program: its kernels are unloaded with the last program that has it.
struct OwnedFunctor {
  Functor functor;
  explicit OwnedFunctor(std::string name) : functor(std::move(name)) {}
  ~OwnedFunctor() { KernelTable::get().drop(functor.number); }
};

struct KernelStep {
  struct Walked {
    int buffer;            // -1: an index, without memory
    at::ScalarType dtype;  // of a sum: its terms'
    char walk;             // 'c' (to be found out), 'w' (one a row), 'r' (a sum), 'i'
    int8_t result;
    int offset;
    Places strides;
    at::ScalarType stored;  // of a sum: in the end
    int source;             // of a sum: the operand whose elements are its terms, or -1
    int parts;              // of a sum of everything: how many the buffer has; 0: the sum itself
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

  // `missing` is told before a kernel is built.
  void run(const Memory& memory, c10::Device device, const Missing& missing) const {
    if (numel(memory) == 0) {
      // Rows without elements have a sum all the same; no driver knows such rows.
      for (const Walked& o : operands) {
        if (o.walk == 'w' && memory.buffers[o.buffer].numel() > 0) throw UseReference{};
        if (o.walk == 'r') memory.buffers[o.buffer].zero_();
      }
      return;
    }
    const OnDevice on(device);
    const Addresses addresses = addresses_in(memory);
    const Signature signature = signature_of(memory, addresses);
    const std::shared_ptr<const Planned> last = last_.load();
    if (C10_LIKELY(last && last->signature == signature)) {
      Launch again = last->launch;
      for (size_t i = 0; i < addresses.size(); ++i) again.words[i] = addresses[i];
      for (size_t i = 0; i < words.size(); ++i) again.words[last->numbers + i] = word(i, memory);
      launch(again, last->way, memory);
      return;
    }
    Given given(functor->functor);
    for (size_t i = 0; i < words.size(); ++i) given.words.push_back(word(i, memory));
    auto planned = std::make_shared<Planned>(plan(memory, device, addresses, given, missing));
    planned->signature = signature;
    planned->numbers = planned->launch.words.size() - words.size();
    launch(planned->launch, planned->way, memory);
    last_.store(std::move(planned));
  }

  // Tells `missing`, which throws OnlyAsked, of the kernel that run() will want, as far as that can
  // be foreseen: what the steps before it allocate is not there yet, and will be aligned.
  void ask(const Memory& memory, c10::Device device, const Missing& missing) const {
    if (numel(memory) == 0) return;
    try {
      plan(memory, device, expected_addresses(memory), Given(functor->functor), missing);
    } catch (const OnlyAsked&) {
    } catch (const UseReference&) {  // run() says the same, if it comes so far
    } catch (const c10::Error&) {
    }
  }

  KernelStep() = default;
  KernelStep(KernelStep&& other) noexcept
      : functor(std::move(other.functor)),
        row_wise(other.row_wise),
        outputs(other.outputs),
        shape(std::move(other.shape)),
        operands(std::move(other.operands)),
        words(std::move(other.words)) {}

 private:
  using Addresses = c10::SmallVector<uint64_t, 16>;
  using Signature = c10::SmallVector<int64_t, 64>;

  // The launch of the last call, for the next one that looks like it.
  struct Planned {
    Launch launch;
    SumWay way = {};
    Signature signature = {};
    size_t numbers = 0;  // where the functor's words begin
  };

  void launch(Launch& made, const SumWay& way, const Memory& memory) const {
    SumList sums;
    for (size_t i = 0; i < size_t(outputs); ++i) {
      const Walked& o = operands[i];
      if (o.walk != 'r') continue;
      const Shape strides = read(o.strides, memory.slots);
      const bool by_segment = row_wise && keeps_segments(read(shape, memory.slots), strides);
      sums.push_back({int(i), o.dtype, memory.buffers[o.buffer], strides,
                      memory.slots[o.offset].integer, by_segment, o.parts > 0});
    }
    if (sums.empty()) return made.run();
    if (way.bare) {
      for (const Sum& sum : sums) {
        const Walked& from = operands[operands[sum.operand].source];
        const at::Tensor& buffer = memory.buffers[from.buffer];
        const int64_t offset = buffer.storage_offset() + memory.slots[from.offset].integer;
        sum_whole(sum, at::as_strided(buffer, read(shape, memory.slots),
                                      read(from.strides, memory.slots), offset));
      }
      return;
    }
    run_summing(made, way, sums, read(shape, memory.slots));
  }

  int64_t numel(const Memory& memory) const {
    int64_t product = 1;
    for (int place : shape) product *= memory.slots[place].integer;
    return product;
  }
  Addresses expected_addresses(const Memory& memory) const {
    Addresses found;
    for (const Walked& o : operands) {
      const bool there = o.buffer < 0 || memory.buffers[o.buffer].defined();
      const int64_t bytes = memory.slots[o.offset].integer * int64_t(c10::elementSize(o.dtype));
      found.push_back(there ? address(o, memory) : uint64_t(bytes));
    }
    return found;
  }
  static uint64_t address(const Walked& o, const Memory& memory) {
    return o.buffer < 0 ? memory.slots[o.offset].word : memory.address(o.buffer, o.offset);
  }
  Addresses addresses_in(const Memory& memory) const {
    Addresses found;
    for (const Walked& o : operands) found.push_back(address(o, memory));
    return found;
  }
  // Everything that a plan depends on: sizes, strides, how addresses are aligned, and whether
  // indices fit into 31 bits.
  Signature signature_of(const Memory& memory, const Addresses& addresses) const {
    Signature found;
    for (int place : shape) found.push_back(memory.slots[place].integer);
    for (size_t i = 0; i < operands.size(); ++i) {
      for (int place : operands[i].strides) found.push_back(memory.slots[place].integer);
      const bool is_index = operands[i].buffer < 0;
      found.push_back(is_index ? is_far_index(addresses[i]) : int64_t(addresses[i] % 16));
      // Two that see one buffer may be a pair (core/space.h), by how far apart they begin.
      for (size_t j = 0; j < i; ++j)
        if (operands[i].buffer >= 0 && operands[j].buffer == operands[i].buffer)
          found.push_back(int64_t(addresses[i] - addresses[j]));
    }
    return found;
  }
  uint64_t word(size_t i, const Memory& memory) const {
    const Word& w = words[i];
    return w.buffer < 0 ? memory.slots[w.slot].word : memory.address(w.buffer, w.slot);
  }

  Planned plan(const Memory& memory, c10::Device device, const Addresses& addresses,
               const Given& given, const Missing& missing) const {
    const Shape sizes = read(shape, memory.slots);
    Space space;
    space.numel = c10::multiply_integers(sizes);
    space.outputs = outputs;
    Request request{given, row_wise ? Family::kRowsForward : Family::kForward, device, at::kFloat,
                    /*use_double=*/false};
    request.generated = true;
    request.missing = &missing;
    bool sums = false;
    c10::SmallVector<Shape, 8> strides, stored;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Walked& o = operands[i];
      Operand& made = space.add(o.dtype, o.walk, nullptr);
      made.word = addresses[i];
      made.result = o.result;
      made.memory = o.buffer;
      strides.push_back(read(o.strides, memory.slots));
      // Elements that share their memory: no driver writes such.
      for (size_t d = 0; o.walk == 'c' && i < size_t(outputs) && d < sizes.size(); ++d)
        if (strides.back()[d] == 0 && sizes[d] > 1) throw UseReference{};
      if (o.buffer >= 0) stored.push_back(strides.back());
      sums |= o.walk == 'r';
      request.use_double |= o.walk == 'r' && o.dtype == at::kDouble;
    }
    if (row_wise) return plan_rows(request, space, sizes, strides);
    // In the order that memory has the dimensions in, as far as operands agree on one.
    const Order order = memory_order(sizes, stored);
    if (sums) return plan_sums(request, space, sizes, strides, order);
    lay_out_in(order, space, sizes, strides);
    set_walks(space);
    return {plan_pointwise(request, space, {})};
  }
  void lay_out_in(const Order& order, Space& space, const Shape& sizes,
                  at::ArrayRef<Shape> strides) const {
    TORCH_CHECK(lay_out(space, sizes, strides, order), "megafuse: ", functor->functor.name,
                " has more than ", kMaxDims, " dimensions");
  }

  static Planned plan_rows(Request& request, Space& space, const Shape& sizes,
                           c10::SmallVector<Shape, 8>& strides) {
    const int64_t segment_rows = rows_of_segments(space, sizes, strides, request.device);
    Order logical(sizes.size());
    std::iota(logical.rbegin(), logical.rend(), 0);
    for (int i = 0; i < space.outputs; ++i) {
      Operand& sum = space.operand[i];
      if (sum.walk != 'r' || !keeps_segments(sizes, strides[i])) continue;
      if (segment_rows) {
        sum.walk = 'g';
        strides[i].assign(sizes.size(), 0);
      } else {  // all terms as they are
        sum.walk = 'c';
        sum.word = 0;  // allocated later, and aligned
        strides[i] = dense_strides(sizes, logical);
      }
    }
    RowPlan rows(request, space, sizes, strides);
    rows.segment_rows = segment_rows;
    Planned made{rows.plan({})};
    made.way = {rows.parts, sizes.back(), sum_dtype(request.device, request.use_double),
                rows.segment_parts, segment_rows ? space.numel / sizes.back() / segment_rows : 0};
    return made;
  }

  // The dtype of all sums, where that is one.
  std::optional<at::ScalarType> stored_sums() const {
    std::optional<at::ScalarType> found;
    for (const Walked& o : operands) {
      if (o.walk != 'r') continue;
      if (found && *found != o.stored) return std::nullopt;
      found = o.stored;
    }
    return found;
  }

  // All have as many (graph/sums.py).
  int64_t parts_of_sums() const {
    int64_t parts = 0;
    for (const Walked& o : operands) parts = std::max<int64_t>(parts, o.parts);
    return parts;
  }

  // Whether it sums what lies in memory already, as a tensor can, and does nothing else.
  bool is_bare(at::ArrayRef<Shape> strides) const {
    for (int i = 0; i < outputs; ++i) {
      if (operands[i].source < 0) return false;
      for (int64_t stride : strides[operands[i].source])
        if (stride < 0) return false;
    }
    return true;
  }

  Planned plan_sums(Request& request, const Space& given, const Shape& sizes,
                    c10::SmallVector<Shape, 8> strides, const Order& order) const {
    Space space = given;
    const at::ScalarType dtype = sum_dtype(request.device, request.use_double);
    for (int i = 0; i < outputs; ++i)
      if (space.operand[i].walk == 'r') space.operand[i].dtype = dtype;
    lay_out_in(order, space, sizes, strides);
    const SumPlan form = plan_sum(space, /*by_segment=*/true);
    if (form.possible && (form.segments == 1 || sums_segments(form, request.device))) {
      Summing made = plan_summing(request, space, form, stored_sums(), parts_of_sums());
      SumWay way{made.parts, made.kept, dtype};
      way.complete = made.complete;
      return {std::move(made.launch), way};
    }
    if (is_bare(strides)) {
      Planned made{Launch{request.device, {}}};
      made.launch.words.resize(operands.size() + words.size());
      made.way.bare = true;
      return made;
    }
    // All terms as they are.
    space = given;
    Order logical(sizes.size());
    std::iota(logical.rbegin(), logical.rend(), 0);
    for (int i = 0; i < outputs; ++i) {
      if (space.operand[i].walk != 'r') continue;
      space.operand[i].walk = 'c';
      space.operand[i].word = 0;  // allocated later, and aligned
      strides[i] = dense_strides(sizes, logical);
    }
    request.use_double = false;
    lay_out_in(order, space, sizes, strides);
    set_walks(space);
    return {plan_pointwise(request, space, {})};
  }

  mutable std::atomic<std::shared_ptr<const Planned>> last_;
};

}  // namespace megafuse::graph
