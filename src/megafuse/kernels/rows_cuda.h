// The CUDA driver for rows. kThreads threads of each of kCluster blocks share a row; each holds
// kItems vectors of it in registers, so that memory is read once. What a warp holds is a piece: its
// summary takes shuffles alone, and one barrier a row brings the warps' summaries together.
//
// A block has kRows rows at a time. Where results are summed over rows the grid is small, and a
// block goes on to further rows; with kAhead the next one's loads are then already under way, with
// kRing bytes of shared memory those of several. Rows longer than what the threads hold (kWhole
// false) are read twice.
#pragma once

#include "exchange_cuda.h"
#include "pointwise_cuda.h"
#include "rows.h"

namespace mf {

// N indices from the first on.
template <int First, class Is>
struct ShiftIndices;
template <int First, int... I>
struct ShiftIndices<First, Indices<I...>> {
  using type = Indices<First + I...>;
};

template <class K, int kVector, int kItems, int kThreads, int kRows, int kCluster, bool kWhole,
          bool kAhead, int kRing, class Index>
struct RowsCuda : PointwiseCuda<K, kVector, 1, Index> {
  using Base = PointwiseCuda<K, kVector, 1, Index>;
  using Fn = typename K::Functor;
  using F = typename K::Compute;
  using Kept = Pack<F, Fn::kept>;
  using Total = typename Fn::Total;
  using Row = typename Fn::Row;
  using Place = typename Base::Place;
  using Early = typename MakeIndices<Fn::early>::type;
  using Known = typename MakeIndices<Fn::known>::type;
  static constexpr int kLateAt = Fn::early + Fn::known;
  static constexpr int kLate = K::inputs - kLateAt;
  using Late = typename ShiftIndices<kLateAt, typename MakeIndices<kLate>::type>::type;
  using AllOutputs = typename Base::AllOutputs;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  using Base::functor;
  using Base::stride;
  using Base::words;

  static constexpr int kShare = kThreads * kCluster;            // threads of a row
  static constexpr int kWidth = kThreads < 32 ? kThreads : 32;  // those in one warp
  static constexpr int kWarps = kShare / kWidth;
  static_assert(kCluster == 1 || kRows == 1, "a cluster has one row at a time");

  // How many outputs before the O-th are summed over rows.
  template <int... O>
  static MF_INLINE constexpr int sums_before(int o, Indices<O...>) {
    return ((O < o && Out<O>::walk == 'r') + ... + 0);
  }
  static constexpr int kSums = sums_before(K::outputs, AllOutputs());
  template <int O>
  static constexpr int sum_of = sums_before(O, AllOutputs());
  static constexpr bool kOneTurn = kSums == 0 && kWhole && !kAhead && kRing == 0;
  // Not where a block has one row only: the registers cost more blocks than the wait (4096 columns
  // of bfloat16: 73 % of a copy so, 91 % not).
  static constexpr bool kHoldsLate = kRing == 0 && kWhole && kAhead && kLate > 0;

  using EarlyVectors = Loaded<typename K::Inputs, kVector, Early>;
  using LateVectors = Loaded<typename K::Inputs, kVector, Late>;

  // The ring: the late inputs of this block's columns, then a stage for each of the next rows. A
  // thread's part of it is its own.
  static constexpr int kBlock = kThreads * kRows;
  template <int... I>
  static MF_INLINE constexpr int ring_bytes_before(int input, Indices<I...>) {
    return ((I < input && In<I>::walk == 'c'
                 ? kItems * kBlock * int(sizeof(Vector<typename In<I>::T, kVector>))
                 : 0) +
            ... + 0);
  }
  static constexpr int kStageBytes = ring_bytes_before(K::inputs, Early());
  static constexpr int kMaxStages = 4;
  static constexpr int kLateBytes = ring_bytes_before(K::inputs, Late());
  static constexpr int kFit = kRing > 0 ? (kRing - kLateBytes) / kStageBytes : 2;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  // What is kept of an element need not be, where it is what the ring holds.
  static constexpr bool kInRing =
      kRing > 0 && Fn::keeps_inputs && (!K::random || Fn::draws_late) && !Fn::causal;
  // Rows of the ring that are in use at a time: also the next, where warps wait for each other.
  static constexpr int kInUse = kInRing && kWarps > 1 && kStages > 2 ? 2 : 1;
  static_assert(kStages >= 2 && (kRing == 0 || kWhole), "a row in use and one to come");

  // What is kept of this thread's vectors; with kInRing, of the one at hand.
  struct Piece {
    Kept kept[kInRing ? 1 : kItems][kVector];
    int stage;
  };

  Index groups;  // vectors in a row
  Index rows;
  int lane;                  // this thread among those of its row
  int which;                 // its row among those of the block
  int posted = 0, turn = 0;  // through which part of the exchange summaries go next, and come
  u32 phases = 0;            // of its barriers, a bit each
  F sums[kSums + 1][kItems][kVector] = {};
  LateVectors weights[kHoldsLate ? kItems : 1];

  __device__ __forceinline__ explicit RowsCuda(const u64* w)
      : Base(w), lane(threadIdx.x % kThreads), which(threadIdx.x / kThreads) {
    groups = Index(words[K::size]);
    rows = Index(words[K::numel]) / (groups * kVector);
    if constexpr (kCluster > 1) lane += rank_in_cluster() * kThreads;
  }

  // One row, or (groups == 0) none: such threads only take part in shuffles and barriers.
  struct Position {
    Place start;
    Index row;
    Index groups;
    Index length;  // elements that count: all, or up to the diagonal
    F known[Fn::known + 1];
  };

  __device__ __forceinline__ Position position(Index row) const {
    Position p{};
    p.row = row;
    p.groups = row < rows ? groups : 0;
    p.length = p.groups * kVector;
    Index rest = row < rows ? row : 0;
#pragma unroll
    for (int dim = 1; dim < K::dims; ++dim) {
      Index at = rest;
      if (dim < K::dims - 1) {
        const Index size = Index(words[K::size + dim]);
        if constexpr (sizeof(Index) == 4)
          rest = Index(divide(u32(rest), words[K::divider + dim]));
        else
          rest = rest / size;
        at -= rest * size;
      }
      if (Fn::causal && dim == 1 && at + 1 < p.length) p.length = at + 1;
#pragma unroll
      for (int op = 0; op < K::operands; ++op) p.start.offset[op] += at * stride(op, dim);
    }
    return p;
  }

  // The vector that is this thread's item-th of those from `base` on.
  __device__ __forceinline__ Index group_of(Index base, int item) const {
    return base + item * kShare + lane;
  }

  // ---- a piece

  template <int I>
  __device__ __forceinline__ auto read(const Position& p, Index group) const {
    constexpr int op = K::outputs + I;
    return Base::template load<In<I>, kVector, 0>(
        op, p.start.offset[op] + group * kVector * stride(op, 0));
  }

  // Issues the loads of this thread's vectors from `base` on.
  template <int... I>
  __device__ __forceinline__ void fetch(const Position& p, Index base,
                                        EarlyVectors (&fetched)[kItems], Indices<I...>) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group * kVector < p.length) ((slot<I>(fetched[item]) = read<I>(p, group)), ...);
    }
  }

  // Issues the loads of what is known of the row.
  template <int... I>
  __device__ __forceinline__ void fetch_known(Position& p, Indices<I...>) const {
    (fetch_known<I>(p), ...);
  }
  template <int I>
  __device__ __forceinline__ void fetch_known(Position& p) const {
    F values[kVector];
    Base::template convert<In<Fn::early + I>, kVector>(K::outputs + Fn::early + I,
                                                       read<Fn::early + I>(p, 0), values);
    p.known[I] = values[0];
  }

  // What is kept of one vector.
  template <int... I>
  __device__ __forceinline__ void keep(const Position& p, Index group, const EarlyVectors& fetched,
                                       Kept (&kept)[kVector], Indices<I...>) const {
    constexpr bool draws = K::random && !Fn::draws_late;
    F values[Fn::early][kVector];
    (Base::template convert<In<I>, kVector>(K::outputs + I, slot<I>(fetched), values[I]), ...);
    u32 drawn[kVector] = {};
    if constexpr (draws) Base::draw((u64(p.row) * groups + group) * kVector, drawn);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if constexpr (draws)
        kept[v] = functor.load(values[I][v]..., drawn[v]);
      else
        kept[v] = functor.load(values[I][v]...);
      if constexpr (!Fn::keeps_inputs) {
#pragma unroll
        for (int i = 0; i < Fn::kept; ++i)
          kept[v][i] = Rounded<typename Fn::KeptAs>::to(kept[v][i]);
      }
      if constexpr (Fn::causal)
        if (group * kVector + v >= p.length) kept[v] = functor.left_out();
    }
  }
  __device__ __forceinline__ void load(const Position& p, Index base,
                                       const EarlyVectors (&fetched)[kItems], Piece& piece) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item)
      keep(p, group_of(base, item), fetched[item], piece.kept[item], Early());
  }
  __device__ __forceinline__ auto& kept_of(const Position& p, Index base, Piece& piece,
                                           int item) const {
    if constexpr (kInRing) {
      keep(p, group_of(base, item), from_ring(p, piece.stage, item, Early()), piece.kept[0],
           Early());
      return piece.kept[0];
    } else {
      return piece.kept[item];
    }
  }

  // ---- the ring

  // This thread's item-th vector of input I in a stage; late inputs have one.
  template <int I>
  __device__ __forceinline__ auto* in_ring(int stage, int item) const {
    using V = Vector<typename In<I>::T, kVector>;
    constexpr bool late = I >= kLateAt;
    constexpr int before =
        late ? ring_bytes_before(I, Late()) : kLateBytes + ring_bytes_before(I, Early());
    extern __shared__ uint4 ring[];
    u8* const input = reinterpret_cast<u8*>(ring) + before + (late ? 0 : stage * kStageBytes);
    return reinterpret_cast<V*>(input) + item * kBlock + threadIdx.x;
  }
  template <int I>
  __device__ __forceinline__ void copy(const Position& p, Index group, int stage, int item,
                                       bool wanted) const {
    if constexpr (In<I>::walk == 'c') {
      using V = Vector<typename In<I>::T, kVector>;
      static_assert(sizeof(V) % 16 == 0, "copies are of 16 bytes");
      constexpr int op = K::outputs + I;
      auto* const from = reinterpret_cast<const V*>(
          reinterpret_cast<const typename In<I>::T*>(words[op]) + p.start.offset[op]);
#pragma unroll
      for (int i = 0; i < int(sizeof(V) / 16); ++i)
        copy_16_bytes(reinterpret_cast<uint4*>(in_ring<I>(stage, item)) + i,
                      reinterpret_cast<const uint4*>(from + group) + i, wanted);
    }
  }
  // Starts the copies of a row, or of the late inputs.
  template <int... I>
  __device__ __forceinline__ void copy_row(const Position& p, int stage, Indices<I...>) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(0, item);
      const bool wanted = group * kVector < p.length;
      (copy<I>(p, group, stage, item, wanted), ...);
    }
  }
  template <int I>
  __device__ __forceinline__ auto from_ring(const Position& p, Index group, int stage,
                                            int item) const {
    if constexpr (In<I>::walk == 'c')
      return *in_ring<I>(stage, item);
    else
      return read<I>(p, group);
  }
  template <int... I>
  __device__ __forceinline__ EarlyVectors from_ring(const Position& p, int stage, int item,
                                                    Indices<I...>) const {
    EarlyVectors fetched;
    const Index group = group_of(0, item);
    if (group < p.groups) ((slot<I>(fetched) = from_ring<I>(p, group, stage, item)), ...);
    return fetched;
  }

  // The late inputs of one vector.
  using LateValues = F[kLate + 1][kVector];
  template <int... I>
  __device__ __forceinline__ void read_late(const Position& p, Index group, int item,
                                            LateValues& late, Indices<I...>) const {
    if constexpr (kHoldsLate)
      (Base::template convert<In<I>, kVector>(K::outputs + I, slot<I>(weights[item]),
                                              late[I - kLateAt]),
       ...);
    else if constexpr (kRing > 0)
      (Base::template convert<In<I>, kVector>(K::outputs + I, from_ring<I>(p, group, 0, item),
                                              late[I - kLateAt]),
       ...);
    else
      (Base::template convert<In<I>, kVector>(K::outputs + I, read<I>(p, group), late[I - kLateAt]),
       ...);
  }

  template <int S, int... I>
  __device__ __forceinline__ auto term(Kept& kept, const Total& known, const LateValues& late,
                                       int v, Indices<I...>) const {
    if constexpr (Fn::weighs)
      return functor.template term<S>(kept, known, late[I - kLateAt][v]...);
    else
      return functor.template term<S>(kept, known);
  }

  template <int S>
  __device__ __forceinline__ void step(const Position& p, Index base, Piece& piece,
                                       Total& total) const {
    constexpr bool kMax = Fn::template takes_max<S>;
    using Term =
        decltype(term<S>(piece.kept[0][0], total, *static_cast<LateValues*>(nullptr), 0, Late()));
    Term mine = Neutral<kMax, Term>::value();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group >= p.groups) continue;
      LateValues late;
      if constexpr (Fn::weighs) read_late(p, group, item, late, Late());
      auto& kept = kept_of(p, base, piece, item);
#pragma unroll
      for (int v = 0; v < kVector; ++v)
        mine = joined<kMax>(mine, term<S>(kept[v], total, late, v, Late()));
    }
#pragma unroll
    for (int bit = kWidth / 2; bit > 0; bit /= 2) mine = joined<kMax>(mine, across(mine, bit));
    functor.template fold<S>(total, mine, F(elements_of_warp(p, base)));
  }

  __device__ __forceinline__ Index elements_of_warp(const Position& p, Index base) const {
    Index count = 0;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index left = p.groups - (group_of(base, item) - lane % kWidth);
      count += left < 0 ? 0 : left < kWidth ? left : kWidth;
    }
    return count * kVector;
  }

  template <int S>
  __device__ __forceinline__ void steps(const Position& p, Index base, Piece& piece,
                                        Total& total) const {
    if constexpr (S > 0) steps<S - 1>(p, base, piece, total);
    step<S>(p, base, piece, total);
  }
  template <int... I>
  __device__ __forceinline__ static Total start(const Position& p, Indices<I...>) {
    return Fn::start(p.known[I]...);
  }
  __device__ __forceinline__ Total summary(const Position& p, Index base, Piece& piece) const {
    Total total = start(p, Known());
    steps<Fn::steps - 1>(p, base, piece, total);
    return total;
  }

  // Where the warps of a row, or of several blocks, tell each other what they found. A warp may be
  // a row ahead of one that still reads; with a ring, where it has posted its next row before it
  // collects this one, three.
  static constexpr int kTurns = kRing > 0 ? 4 : 2;
  static constexpr bool kArrives = kWarps > 1 && (kCluster > 1 || kRing > 0);
  struct Exchange {
    Total summaries[kTurns][kRows][kWarps];
    u64 arrived[kTurns * kRows];
  };
  __device__ __forceinline__ static Exchange& shared_exchange() {
    __shared__ Exchange exchange;
    return exchange;
  }
  __device__ __forceinline__ static void open_exchange() {
    if constexpr (kArrives) {
      open_arrivals(shared_exchange().arrived, kCluster > 1 ? 1 : kWarps);
      if constexpr (kCluster > 1)
        tell_cluster();
      else
        __syncthreads();
    }
  }

  // Tells all warps of the row what this one found.
  __device__ __forceinline__ void post(const Total& local) {
    if constexpr (kWarps == 1) return;
    Exchange& exchange = shared_exchange();
    Total(&there)[kWarps] = exchange.summaries[posted][which];
    u64& arrived = exchange.arrived[posted * kRows + which];
    const int in_warp = threadIdx.x % 32, warp = lane / 32;
    if constexpr (kCluster > 1) {
      if (threadIdx.x == 0) expect_arrivals(arrived, int(sizeof(Total)) * kWarps);
      if (in_warp < kCluster) store_at(in_warp, &there[warp], local, arrived);
    } else if (in_warp == 0) {
      there[warp] = local;
      if constexpr (kArrives) arrive(arrived);
    }
    posted = (posted + 1) % kTurns;
  }

  // The total of all warps of the row, of which this one found `local`.
  __device__ __forceinline__ Total collect(const Total& local) {
    if constexpr (kWarps == 1) return local;
    Exchange& exchange = shared_exchange();
    Total(&here)[kWarps] = exchange.summaries[turn][which];
    if constexpr (kArrives) {
      wait_for_arrivals(exchange.arrived[turn * kRows + which], phases >> turn & 1);
      phases ^= 1u << turn;
    } else if constexpr (kRows == 1) {
      __syncthreads();
    } else {
      wait_for(which + 1, kThreads);
    }
    turn = (turn + 1) % kTurns;
    const int in_warp = threadIdx.x % 32;
    Total total = here[in_warp % kWarps];
#pragma unroll
    for (int w = 32; w < kWarps; w += 32) total = functor.merged(total, here[w + in_warp]);
#pragma unroll
    for (int bit = (kWarps < 32 ? kWarps : 32) / 2; bit > 0; bit /= 2)
      total = functor.merged(total, across(total, bit));
    return total;
  }

  // ---- results

  template <int... I>
  __device__ __forceinline__ auto result_of(const Kept& kept, const Row& row,
                                            const LateValues& late, int v, u32 drawn,
                                            Indices<I...>) const {
    if constexpr (K::random && Fn::draws_late)
      return functor.result(kept, row, late[I - kLateAt][v]..., drawn);
    else
      return functor.result(kept, row, late[I - kLateAt][v]...);
  }

  template <int... O>
  __device__ __forceinline__ void finish(const Position& p, Index base, Piece& piece,
                                         const Row& row, Indices<O...>) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group >= p.groups) continue;
      LateValues late;
      read_late(p, group, item, late, Late());
      u32 drawn[kVector] = {};
      if constexpr (K::random && Fn::draws_late)
        Base::draw((u64(p.row) * groups + group) * kVector, drawn);
      auto& kept = kept_of(p, base, piece, item);
      Results<decltype(result_of(kept[0], row, late, 0, 0u, Late())), kVector> made;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        made.item[v] = result_of(kept[v], row, late, v, drawn[v], Late());
        if constexpr (Fn::causal)
          if (group * kVector + v >= p.length) made.item[v] = functor.left_out_result(row);
      }
      (write<O>(p, group, item, made.item), ...);
    }
    if (base == 0 && lane == 0 && p.groups > 0) (write_once<O>(p, row), ...);
  }

  template <int O, class R>
  __device__ __forceinline__ void write(const Position& p, Index group, int item,
                                        const R (&results)[kVector]) {
    if constexpr (Out<O>::walk == 'r') {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const F value = result(results[v], Out<O>::result);
        if constexpr (kWhole) {
          sums[sum_of<O>][item][v] += value;
        } else {
          auto& sum = partial<O>(group)[v];
          sum = cast<typename Out<O>::T>(p.row == first_row() ? value : sum + value);
        }
      }
    } else {
      Base::template store<Out<O>, kVector, 0>(
          O, p.start.offset[O] + group * kVector * stride(O, 0), results);
    }
  }

  template <int O>
  __device__ __forceinline__ void write_once(const Position& p, const Row& row) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      reinterpret_cast<T*>(words[O])[p.start.offset[O]] =
          cast<T>(result(functor.row_result(row), Out<O>::result));
  }

  // ---- sums over rows

  // This block's share of the columns of one vector.
  template <int O>
  __device__ __forceinline__ typename Out<O>::T* partial(Index group) const {
    return reinterpret_cast<typename Out<O>::T*>(words[O]) +
           Index(blockIdx.x / kCluster) * stride(O, 1) + group * kVector;
  }

  template <int... O>
  __device__ __forceinline__ void write_sums(Indices<O...>) {
    (write_sum<O>(), ...);
  }
  template <int O>
  __device__ __forceinline__ void write_sum() {
    if constexpr (Out<O>::walk == 'r') {
      auto& mine = sums[sum_of<O>];
      if constexpr (kRing > 0 && kRows > 1) return write_sum_of_rows<O>(mine);
      add_up_rows(mine);
      if (int(threadIdx.x) / kOnce != kTimes - 1 || int(threadIdx.x) % kOnce >= kThreads) return;
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const Index group = group_of(0, item);
        if (group >= groups) continue;
        Vector<typename Out<O>::T, kVector> packed;
        narrow(mine[item], packed);
        *reinterpret_cast<Vector<typename Out<O>::T, kVector>*>(partial<O>(group)) = packed;
      }
    }
  }

  // The sums of all rows of the block, in its last kOnce threads. They join in the same order every
  // time: the rows of one warp by shuffles, then kOnce threads after the other.
  static constexpr int kOnce = kThreads < 32 ? 32 : kThreads;
  static constexpr int kTimes = kThreads * kRows / kOnce;
  __device__ __forceinline__ void add_up_rows(F (&mine)[kItems][kVector]) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
#pragma unroll
        for (int bit = 16; bit >= kWidth; bit /= 2) mine[item][v] += across(mine[item][v], bit);
      }
    }
    if constexpr (kTimes > 1) {
      __shared__ F so_far[kItems][kVector][kOnce];
      const int at = threadIdx.x % kOnce;
#pragma unroll 1
      for (int time = 0; time < kTimes; ++time) {
        __syncthreads();
        if (time != int(threadIdx.x) / kOnce) continue;
#pragma unroll
        for (int item = 0; item < kItems; ++item) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            if (time > 0) mine[item][v] += so_far[item][v][at];
            so_far[item][v][at] = mine[item][v];
          }
        }
      }
    }
  }

  // The same through the ring's memory, which is no longer needed, by all threads at once.
  template <int O>
  __device__ __forceinline__ void write_sum_of_rows(const F (&mine)[kItems][kVector]) const {
    using V = Vector<F, kVector>;
    constexpr int vectors = kItems * kThreads;
    static_assert(kRows * vectors * int(sizeof(V)) <= kRing);
    extern __shared__ uint4 ring[];
    V* const all = reinterpret_cast<V*>(ring);
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      V one;
#pragma unroll
      for (int v = 0; v < kVector; ++v) one.item[v] = mine[item][v];
      all[(which * kItems + item) * kThreads + lane] = one;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < vectors && i < groups; i += kBlock) {
      F total[kVector] = {};
      for (int row = 0; row < kRows; ++row) {
        const V one = all[row * vectors + i];
#pragma unroll
        for (int v = 0; v < kVector; ++v) total[v] += one.item[v];
      }
      Vector<typename Out<O>::T, kVector> packed;
      narrow(total, packed);
      *reinterpret_cast<Vector<typename Out<O>::T, kVector>*>(partial<O>(i)) = packed;
    }
  }

  // ---- rows

  __device__ __forceinline__ Index first_row() const {
    return Index(blockIdx.x / kCluster) * kRows + which;
  }

  __device__ __forceinline__ void whole_row(const Position& p, Piece& piece) {
    const Total local = summary(p, 0, piece);
    post(local);
    finish(p, 0, piece, functor.row(collect(local), local, F(groups * kVector)), AllOutputs());
  }

  __device__ __forceinline__ void long_row(Position p) {
    fetch_known(p, Known());
    constexpr Index kPiece = Index(kItems) * kShare;
    EarlyVectors fetched[kItems];
    Piece piece;
    Total total = start(p, Known());
    for (Index base = 0; base < groups; base += kPiece) {
      fetch(p, base, fetched, Early());
      load(p, base, fetched, piece);
      total = functor.merged(total, summary(p, base, piece));
    }
    post(total);
    total = collect(total);
    for (Index base = 0; base < groups; base += kPiece) {
      fetch(p, base, fetched, Early());
      load(p, base, fetched, piece);
      const Total local = summary(p, base, piece);
      finish(p, base, piece, functor.row(total, local, F(groups * kVector)), AllOutputs());
    }
  }

  template <int... I>
  __device__ __forceinline__ void hold_late(Indices<I...>) {
    const Position p = position(0);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(0, item);
      if (group < groups) ((slot<I>(weights[item]) = read<I>(p, group)), ...);
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (K::random) {
      this->random = Random::read(words + K::rng);
      if (blockIdx.x == 0 && threadIdx.x == 0) this->random.remember(words + K::rng);
    }
    open_exchange();
    if constexpr (kRing > 0) return run_ring();
    Position p = position(first_row());
    EarlyVectors fetched[kItems];
    if constexpr (kWhole) fetch_known(p, Known()), fetch(p, 0, fetched, Early());
    if constexpr (kHoldsLate) hold_late(Late());
    if constexpr (kCluster > 1) wait_for_cluster();
    if constexpr (kOneTurn) {
      Piece piece;
      load(p, 0, fetched, piece);
      whole_row(p, piece);
    } else {
      // All threads of a block take the same number of turns.
      const Index ahead = Index(gridDim.x / kCluster) * kRows;
      Index at = first_row();
      if constexpr (kWhole) {
        for (; at - which < rows; at += ahead) {
          Piece piece;
          load(p, 0, fetched, piece);
          const Position now = p;
          p = position(at + ahead);
          fetch_known(p, Known());
          if constexpr (kAhead) fetch(p, 0, fetched, Early());
          whole_row(now, piece);
          if constexpr (!kAhead) fetch(p, 0, fetched, Early());
        }
        write_sums(AllOutputs());
      } else {
        for (; at - which < rows; at += ahead) long_row(position(at));
      }
    }
  }

  // A row is summarised while the one before it is still on its way between the warps.
  __device__ __forceinline__ void run_ring() {
    const Index ahead = Index(gridDim.x / kCluster) * kRows;
    Index at = first_row();
    copy_row(position(0), 0, Late());
#pragma unroll
    for (int s = 0; s < kStages - kInUse; ++s) {
      copy_row(position(at + s * ahead), s, Early());
      end_group_of_copies();
    }
    Position p = position(at), next = position(at + ahead);
    fetch_known(p, Known());
    fetch_known(next, Known());
    if constexpr (kCluster > 1) wait_for_cluster();
    int stage = 0;
    Total local{};
    Piece piece;
    if constexpr (kInUse == 2) {
      copy_ahead(at, ahead, stage);
      local = begun(p, stage, piece);
    }
    for (; at - which < rows; at += ahead) {
      const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
      if constexpr (kInUse == 2) {
        Total next_local{};
        copy_ahead(at + ahead, ahead, next_stage);
        if (at + ahead - which < rows) next_local = begun(next, next_stage, piece);
        piece.stage = stage;
        const Row row = functor.row(collect(local), local, F(groups * kVector));
        finish(p, 0, piece, row, AllOutputs());
        local = next_local;
      } else {
        copy_ahead(at, ahead, stage);
        local = begun(p, stage, piece);
        if constexpr (kInRing) asm volatile("" ::: "memory");  // read again: registers are few
        const Row row = functor.row(collect(local), local, F(groups * kVector));
        finish(p, 0, piece, row, AllOutputs());
      }
      stage = next_stage;
      p = next;
      next = position(at + 2 * ahead);
      fetch_known(next, Known());
    }
    wait_for_copies<0>();
    write_sums(AllOutputs());
  }
  // With the row at `at` in its stage, starts the copies of the last row that will fit: into the
  // stage of a row that this thread has done with.
  __device__ __forceinline__ void copy_ahead(Index at, Index ahead, int stage) const {
    wait_for_copies<kStages - kInUse - 1>();
    const int free = (stage + kStages - kInUse) % kStages;
    copy_row(position(at + (kStages - kInUse) * ahead), free, Early());
    end_group_of_copies();
  }
  __device__ __forceinline__ Total begun(const Position& p, int stage, Piece& piece) {
    piece.stage = stage;
    if constexpr (!kInRing) {
#pragma unroll
      for (int item = 0; item < kItems; ++item)
        keep(p, group_of(0, item), from_ring(p, stage, item, Early()), piece.kept[item], Early());
    }
    const Total local = summary(p, 0, piece);
    post(local);
    return local;
  }
};

}  // namespace mf
