// Plans of row-wise kernels (kernels/rows.h). Dimensions keep their logical order, so that an
// element's place in the index space, by which random numbers go, is the same in the forward and in
// the backward; an op's outputs are contiguous, those of a pass of ours may have rows apart.
#pragma once

#include "core/sums.h"

namespace megafuse {

inline bool is_causal(const Given& given) {
  const auto& choices = given.functor->choices;
  for (size_t i = 0; i < choices.size(); ++i)
    if (choices[i].name == "causal") return given.choice[i];
  return false;
}

inline bool is_row_wise(Family family) {
  return family == Family::kRowsForward || family == Family::kRowsBackward;
}

// Whether the CPU does rows side by side (kernels/short_rows_cpu.h, of at most kMost columns).
// Alone, up to 32 columns take up to three times as long, and forward so do more of them that are
// not whole vectors; a backward, which has more tiles to turn, does not.
constexpr bool side_by_side(int64_t cols, Family family) {
  return cols <= 32 || (family == Family::kRowsForward && cols < 64 && cols % 16);
}

class RowPlan {
 public:
  at::Tensor partial;  // for what is summed over rows: each block or thread has a row of it
  // Generated kernels allocate theirs at each launch: rows of `partial` there would be, and those
  // for each segment's sums.
  int64_t parts = 0, segment_parts = 0;
  // Rows that a sum with walk 'g' is over: those of one segment. All segments are as long, and
  // follow each other.
  int64_t segment_rows = 0;

  // The space has its operands, with walk 'r' or 'g' for sums; their strides are by logical
  // dimension.
  RowPlan(Request& request, Space& space, at::IntArrayRef shape, at::ArrayRef<Shape> strides)
      : request_(request), space_(space), shape_(shape), strides_(strides) {}

  Launch plan(at::ArrayRef<uint64_t> random) {
    lay_out();
    for (int i = 0; i < space_.outputs; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk != 'r' && op.walk != 'g') continue;
      op.dtype = sum_dtype(request_.device, request_.use_double);
      ++(op.walk == 'r' ? sums_ : segment_sums_);
    }
    return request_.device.is_cuda() ? on_cuda(random) : on_cpu(random);
  }

 private:
  // Shorter rows are few accesses even one element at a time.
  static constexpr int64_t kLeastShifted = 64;

  int64_t cols() const { return space_.size[0]; }
  int64_t rows() const { return space_.numel / cols(); }
  int64_t segments() const { return rows() / segment_rows; }

  // Dimension 0 is the row, the others are merged where all operands allow it; but a causal kernel
  // finds a row's place on the diagonal from dimension 1.
  void lay_out() {
    const bool causal = is_causal(request_.given);
    const int last = int(shape_.size()) - 1;
    space_.dims = 0;
    for (int d = last; d >= 0; --d) {
      const bool is_fixed = d == last || (causal && d == last - 1);
      if (shape_[d] == 1 && !is_fixed) continue;
      if (space_.dims > (causal ? 2 : 1) && !is_fixed && merges(d)) {
        space_.size[space_.dims - 1] *= shape_[d];
        continue;
      }
      if (space_.dims == kMaxDims) throw UseReference{};
      add_dimension(shape_[d], d);
    }
    if (space_.dims == 1) add_dimension(1, -1);
    if (cols() == 1)  // of one element any stride will do
      for (int i = 0; i < space_.operands; ++i) space_.operand[i].stride[0] = 1;
    set_walks(space_);
  }
  // each(operand, its stride along the logical dimension d, or 0 where d < 0)
  template <class Each>
  void for_each_stride(int d, const Each& each) {
    const Shape* strides = strides_.begin();
    for (int i = 0; i < space_.operands; ++i) {
      Operand& op = space_.operand[i];
      const bool is_value = op.walk == 'v';
      each(op, is_value || d < 0 ? 0 : (*strides)[d]);
      if (!is_value) ++strides;
    }
  }
  bool merges(int d) {
    const int outer = space_.dims - 1;
    bool all = true;
    for_each_stride(d, [&](const Operand& op, int64_t stride) {
      all &= stride == op.stride[outer] * space_.size[outer];
    });
    return all;
  }
  void add_dimension(int64_t size, int d) {
    space_.size[space_.dims] = size;
    for_each_stride(d, [&](Operand& op, int64_t stride) { op.stride[space_.dims] = stride; });
    ++space_.dims;
  }

  // Elements in 16 bytes of the narrowest operand: a thread reads so many at once, several times 16
  // bytes of a wider one. Generated kernels hold them all as floats: bytes beside wider operands,
  // such as a mask, are read and written eight at a time there.
  int most_vector_width() const {
    int64_t narrowest = 16, widest = 1;
    for (int i = 0; i < space_.operands; ++i) {
      const Operand& op = space_.operand[i];
      if (op.walk != 'c') continue;
      narrowest = std::min(narrowest, op.bytes());
      widest = std::max(widest, op.bytes());
    }
    if (request_.generated && narrowest == 1 && widest > 1) narrowest = 2;
    return int(16 / narrowest);
  }
  // The same, halved until every address and every row allows it.
  int vector_width() const {
    auto fits = [&](int64_t width) {
      if (cols() % width) return false;
      for (int i = 0; i < space_.operands; ++i) {
        const Operand& op = space_.operand[i];
        if (op.walk != 'c') continue;
        const int64_t unit = std::min<int64_t>(width * op.bytes(), 16);
        if (op.word % uint64_t(unit)) return false;
        for (int d = 1; d < space_.dims; ++d)
          if (op.stride[d] * op.bytes() % unit) return false;
      }
      return true;
    };
    int width = most_vector_width();
    while (width > 1 && !fits(width)) width /= 2;
    return width;
  }

  // Whether each row starts `pitch` elements further on in a vector than the one before, the first
  // at an aligned address.
  bool is_pitched(const Operand& op, int64_t pitch, int width) const {
    bool fits = op.word % 16 == 0;
    for (int d = 1; d < space_.dims; pitch *= space_.size[d++])
      fits &= space_.size[d] == 1 || (op.stride[d] - pitch) % width == 0;
    return fits;
  }
  // How many operands' vectors lie at aligned addresses then; none if an output's do not.
  int count_pitched(int64_t pitch, int width) const {
    int count = 1;
    for (int i = 0; i < space_.operands; ++i) {
      const Operand& op = space_.operand[i];
      if (op.walk != 'c') continue;
      const bool fits = is_pitched(op, pitch, width);
      if (!fits && i < space_.outputs) return 0;
      count += fits;
    }
    return count;
  }

  // Cuts rows whose length or addresses allow less than 16 bytes at once at aligned addresses all
  // the same, wherever they start (kernels/row_share_cuda.h): as dense rows do, or all alike, as
  // those of a product whose rows are padded. An input whose rows lie otherwise is read at any
  // address (walk 'u').
  bool shift_rows(int width) {
    if (cols() < kLeastShifted) return false;
    const int dense = count_pitched(cols(), width), alike = count_pitched(0, width);
    if (dense == 0 && alike == 0) return false;
    pitch_ = alike > dense ? 0 : cols();
    for (int i = space_.outputs; i < space_.operands; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk == 'c' && !is_pitched(op, pitch_, width)) op.walk = 'u';
    }
    return true;
  }

  // partial[parts, sums]: every block or thread has a row of its own.
  void partial_sums() {
    if (!sums_) return;
    const int64_t length = int64_t(sums_) * cols();
    for (int i = 0; i < space_.outputs; ++i)
      if (space_.operand[i].walk == 'r') space_.operand[i].stride[1] = length;
    if (request_.generated) return;
    const at::ScalarType dtype = sum_dtype(request_.device, request_.use_double);
    partial = allocate({parts, length}, {}, dtype, request_.device);
    int64_t n = 0;
    for (int i = 0; i < space_.outputs; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk == 'r')
        op.word = reinterpret_cast<uint64_t>(partial.mutable_data_ptr()) +
                  uint64_t(n++ * cols() * op.bytes());
    }
  }
  // partial[segment_parts, sums, segments, cols]: what one launch of add_parts adds up. Kernels
  // find the length of a segment in stride 0, which sums have no other use for.
  void partial_sums_of_segments() {
    for (int i = 0; i < space_.outputs; ++i) {
      Operand& op = space_.operand[i];
      if (op.walk != 'g') continue;
      op.stride[0] = segment_rows;
      op.stride[1] = int64_t(segment_sums_) * segments() * cols();
    }
  }

  // Into how many parts the blocks of the GPU cut a segment, each of which has one: `turns` are
  // what a block would take alone, `most` the blocks that run at once, and a part takes one turn
  // more for its sums. Parts of shifted rows come in multiples of the vector.
  int64_t cut_segment(int64_t turns, int64_t most, int64_t least_turns) const {
    const int64_t apart = request_.across ? request_.vector : 1;
    const int64_t waves = 4;  // more blocks than so many times `most` even out nothing
    const int64_t enough = (multiprocessors(request_.device.index()) + segments() - 1) / segments();
    const int64_t limit =
        std::min<int64_t>({turns, std::max(turns / least_turns, enough), 65535});  // of grid_y
    int64_t best = apart, least = INT64_MAX;
    for (int64_t n = apart; n <= std::max(limit, apart); n += apart) {
      const int64_t blocks = n * segments();
      if (n > apart && blocks > waves * most) break;
      const int64_t taken = (blocks + most - 1) / most * ((turns + n - 1) / n + 1);
      if (taken < least) best = n, least = taken;
    }
    return best;
  }

  Launch on_cuda(at::ArrayRef<uint64_t> random) {
    request_.vector = vector_width();
    int64_t vectors = cols() / request_.vector;
    const int widest = most_vector_width();
    // A segment of shifted rows is cut into as many parts as a vector has elements, at least.
    const bool too_short = segment_sums_ && segment_rows < widest;
    if (request_.vector < widest && !too_short && shift_rows(widest)) {
      request_.across = true;
      request_.vector = widest;
      vectors = cols() / widest;
    }
    request_.wide_index = needs_64_bits(space_, rows());
    set_index_walks(space_);
    request_.row_vectors = RowSize(vectors).rounded();
    request_.exact = request_.generated && !request_.across && request_.row_vectors == vectors;
    request_.few = !request_.generated && rows() < 2 * multiprocessors(request_.device.index());
    const Compiled kernel = find_kernel(request_, space_);
    int64_t turns = (rows() + kernel.unroll - 1) / kernel.unroll;
    int64_t most = std::max(1u, kernel.max_grid / kernel.cluster);
    // Where there are rows enough, a generated kernel's blocks have eight at least: their partial
    // sums are then an eighth of what they read, or less.
    constexpr int64_t kLeastRows = 8;
    if (request_.generated && sums_)
      most = std::min(
          most, std::max<int64_t>(rows() / kLeastRows, multiprocessors(request_.device.index())));
    // Blocks in multiples of the vector, whose rows start alike. Not for a single row: beside it
    // weights count as lying alike, which they do not for blocks without a row.
    if (const int64_t apart = request_.vector; request_.across && rows() > 1) {
      turns = (turns + apart - 1) / apart * apart;
      most = std::max(most / apart, int64_t(1)) * apart;
    }
    int64_t blocks = std::min(turns, most);
    if (segment_sums_) {
      const int64_t each = (segment_rows + kernel.unroll - 1) / kernel.unroll;
      const int64_t least_turns = std::max<int64_t>(kLeastRows / kernel.unroll, 1);
      segment_parts = cut_segment(each, kernel.max_grid, least_turns);
      blocks = segment_parts * segments();
    }
    parts = blocks;
    partial_sums();
    partial_sums_of_segments();
    Launch launch{request_.device, kernel};
    pack(launch.words, space_, request_.given.words, random, request_.across ? 1 : request_.vector);
    if (request_.across)  // the divider of dimension 0, which rows do not need
      launch.words[size_t(space_.operands + space_.dims)] = uint64_t(pitch_);
    launch.grid_x = unsigned(segment_parts ? segments() : blocks * kernel.cluster);
    launch.grid_y = unsigned(segment_parts ? segment_parts : 1);
    return launch;
  }

  Launch on_cpu(at::ArrayRef<uint64_t> random) {
    // Generated ones have a driver of their own for short rows (kernels/graph_short_rows_cpu.h).
    constexpr int64_t kMostGenerated = 63, kLeastLong = 256;
    request_.short_rows =
        request_.generated ? cols() <= kMostGenerated : side_by_side(cols(), request_.family);
    request_.long_rows = request_.generated && cols() >= kLeastLong;
    const Compiled kernel = find_kernel(request_, space_);
    const int64_t threads = at::get_num_threads();
    parts = threads;
    partial_sums();
    partial_sums_of_segments();
    if (partial.defined())  // threads add to their row
      std::memset(partial.mutable_data_ptr(), 0, partial.nbytes());
    Launch launch{request_.device, kernel};
    pack(launch.words, space_, request_.given.words, random, 1);
    launch.items = rows();
    launch.weight = cols();
    if (sums_) launch.slots = threads;
    if (segment_sums_) {
      const int64_t together = rows_of_part(segments(), segment_rows);
      segment_parts = (segment_rows + together - 1) / together;
      launch.words[size_t(space_.operands + space_.dims)] = uint64_t(together);  // a divider's
      launch.items = segments() * segment_parts;
      launch.weight = together * cols();
    }
    return launch;
  }

  Request& request_;
  Space& space_;
  at::IntArrayRef shape_;
  at::ArrayRef<Shape> strides_;  // one per operand that is not a value
  size_t sums_ = 0, segment_sums_ = 0;
  int64_t pitch_ = 0;
};

}  // namespace megafuse
