// The CUDA driver for rows. kThreads threads of each of kCluster blocks share a row; each holds
// kItems vectors of it in registers, so that memory is read once. What a warp holds is a piece: its
// summary takes shuffles alone, and one barrier a row brings the warps' summaries together.
//
// A block has kRows rows at a time. Where results are summed over rows the grid is small, and a
// block goes on to further rows; with kAhead the next one's loads are then already under way.
// Rows longer than what the threads hold (kWhole false) are read twice.
#pragma once

#include "pointwise_cuda.h"
#include "rows.h"

namespace mf {

// ---- between the threads of a row

// The value of the thread whose index differs in `bit`, whatever its type.
template <class T>
__device__ __forceinline__ T across(const T& value, int bit) {
  static_assert(sizeof(T) % 4 == 0, "words are exchanged");
  auto words = bits_as<Pack<u32, sizeof(T) / 4>>(value);
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / 4); ++i)
    words[i] = __shfl_xor_sync(0xffffffffu, words[i], bit);
  return bits_as<T>(words);
}

// Waits for `threads` threads of the block, those that name the same barrier.
__device__ __forceinline__ void wait_for(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Between the blocks of a cluster: a block writes into another's shared memory with stores that
// count down a barrier there. A cluster barrier that orders ordinary stores (arrive.release) would
// do too, but is a fence for the whole GPU, about 1 us.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 shared_word(const void* shared) {
  return u32(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ int rank_in_cluster() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}
// Two barriers, and the news of them to the other blocks: arrive, and before the first store wait.
__device__ __forceinline__ void open_arrivals(u64 (&arrived)[2]) {
  if (threadIdx.x == 0) {
    for (u64& barrier : arrived)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_word(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void expect_arrivals(u64& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_word(&barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void wait_for_arrivals(u64& barrier, u32 phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_word(&barrier)),
      "r"(phase)
      : "memory");
}
// Writes a value where block `rank` of the cluster has `shared`, and tells its `barrier`.
template <class T>
__device__ __forceinline__ void store_at(int rank, T* shared, const T& value, u64& barrier) {
  const auto words = bits_as<Pack<u32, sizeof(T) / 4>>(value);
  u32 address, there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_word(shared)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_word(&barrier)), "r"(rank));
#pragma unroll
  for (int i = 0; i < int(sizeof(T) / 4); ++i)
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
            address + 4 * i),
        "r"(words[i]), "r"(there)
        : "memory");
}
#else
__device__ __forceinline__ int rank_in_cluster() { return 0; }
__device__ __forceinline__ void open_arrivals(u64 (&)[2]) {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ void expect_arrivals(u64&, int) {}
__device__ __forceinline__ void wait_for_arrivals(u64&, u32) {}
template <class T>
__device__ __forceinline__ void store_at(int, T*, const T&, u64&) {}
#endif

// N indices from the first on.
template <int First, class Is>
struct ShiftIndices;
template <int First, int... I>
struct ShiftIndices<First, Indices<I...>> {
  using type = Indices<First + I...>;
};

template <class K, int kVector, int kItems, int kThreads, int kRows, int kCluster, bool kWhole,
          bool kAhead, class Index>
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
  static constexpr bool kOneTurn = kSums == 0 && kWhole && !kAhead;
  // Not where a block has one row only: the registers cost more blocks than the wait (4096 columns
  // of bfloat16: 73 % of a copy so, 91 % not).
  static constexpr bool kHoldsLate = kWhole && kLate > 0 && kAhead;

  using EarlyVectors = Loaded<typename K::Inputs, kVector, Early>;
  using LateVectors = Loaded<typename K::Inputs, kVector, Late>;
  using Piece = Kept[kItems][kVector];

  Index groups;  // vectors in a row
  Index rows;
  int lane;        // this thread among those of its row
  int which;       // its row among those of the block
  int turn = 0;    // which half of the shared memory summaries are exchanged through
  u32 phases = 0;  // of its two barriers, a bit each
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

  template <int... I>
  __device__ __forceinline__ void load(const Position& p, Index base,
                                       const EarlyVectors (&fetched)[kItems], Piece& piece,
                                       Indices<I...>) const {
    constexpr bool draws = K::random && !Fn::draws_late;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      F values[Fn::early][kVector];
      (Base::template convert<In<I>, kVector>(K::outputs + I, slot<I>(fetched[item]), values[I]),
       ...);
      u32 drawn[kVector] = {};
      if constexpr (draws) Base::draw((u64(p.row) * groups + group) * kVector, drawn);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        Kept& kept = piece[item][v];
        if constexpr (draws)
          kept = functor.load(values[I][v]..., drawn[v]);
        else
          kept = functor.load(values[I][v]...);
        if constexpr (!Fn::keeps_inputs) {
#pragma unroll
          for (int i = 0; i < Fn::kept; ++i) kept[i] = Rounded<typename Fn::KeptAs>::to(kept[i]);
        }
        if constexpr (Fn::causal)
          if (group * kVector + v >= p.length) kept = functor.left_out();
      }
    }
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
        decltype(term<S>(piece[0][0], total, *static_cast<LateValues*>(nullptr), 0, Late()));
    Term mine = Neutral<kMax, Term>::value();
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = group_of(base, item);
      if (group >= p.groups) continue;
      LateValues late;
      if constexpr (Fn::weighs) read_late(p, group, item, late, Late());
#pragma unroll
      for (int v = 0; v < kVector; ++v)
        mine = joined<kMax>(mine, term<S>(piece[item][v], total, late, v, Late()));
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

  // Two halves: a warp may be a row ahead of one that still reads.
  struct Exchange {
    Total summaries[2][kRows][kWarps];
    u64 arrived[2];
  };
  __device__ __forceinline__ static Exchange& shared_exchange() {
    __shared__ Exchange exchange;
    return exchange;
  }

  // The total of all warps of the row.
  __device__ __forceinline__ Total merge_warps(const Total& local) {
    if constexpr (kWarps == 1) return local;
    Exchange& exchange = shared_exchange();
    Total(&here)[kWarps] = exchange.summaries[turn][which];
    const int in_warp = threadIdx.x % 32, warp = lane / 32;
    if constexpr (kCluster > 1) {
      u64& arrived = exchange.arrived[turn];
      if (threadIdx.x == 0) expect_arrivals(arrived, int(sizeof(Total)) * kWarps);
      if (in_warp < kCluster) store_at(in_warp, &here[warp], local, arrived);
      wait_for_arrivals(arrived, phases >> turn & 1);
      phases ^= 1u << turn;
    } else {
      if (in_warp == 0) here[warp] = local;
      if constexpr (kRows == 1)
        __syncthreads();
      else
        wait_for(which + 1, kThreads);
    }
    turn ^= 1;
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
  __device__ __forceinline__ void finish(const Position& p, Index base, const Piece& piece,
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
      Results<decltype(result_of(piece[0][0], row, late, 0, 0u, Late())), kVector> made;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        made.item[v] = result_of(piece[item][v], row, late, v, drawn[v], Late());
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

  // ---- rows

  __device__ __forceinline__ Index first_row() const {
    return Index(blockIdx.x / kCluster) * kRows + which;
  }

  __device__ __forceinline__ void whole_row(const Position& p, Piece& piece) {
    const Total local = summary(p, 0, piece);
    const Total total = merge_warps(local);
    finish(p, 0, piece, functor.row(total, local, F(groups * kVector)), AllOutputs());
  }

  __device__ __forceinline__ void long_row(Position p) {
    fetch_known(p, Known());
    constexpr Index kPiece = Index(kItems) * kShare;
    EarlyVectors fetched[kItems];
    Piece piece;
    Total total = start(p, Known());
    for (Index base = 0; base < groups; base += kPiece) {
      fetch(p, base, fetched, Early());
      load(p, base, fetched, piece, Early());
      total = functor.merged(total, summary(p, base, piece));
    }
    total = merge_warps(total);
    for (Index base = 0; base < groups; base += kPiece) {
      fetch(p, base, fetched, Early());
      load(p, base, fetched, piece, Early());
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
    if constexpr (kCluster > 1) open_arrivals(shared_exchange().arrived);
    Position p = position(first_row());
    EarlyVectors fetched[kItems];
    if constexpr (kWhole) fetch_known(p, Known()), fetch(p, 0, fetched, Early());
    if constexpr (kHoldsLate) hold_late(Late());
    if constexpr (kCluster > 1) wait_for_cluster();
    if constexpr (kOneTurn) {
      Piece piece;
      load(p, 0, fetched, piece, Early());
      whole_row(p, piece);
    } else {
      // All threads of a block take the same number of turns.
      const Index ahead = Index(gridDim.x / kCluster) * kRows;
      Index at = first_row();
      if constexpr (kWhole) {
        for (; at - which < rows; at += ahead) {
          Piece piece;
          load(p, 0, fetched, piece, Early());
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
};

}  // namespace mf
