// What a thread of the GPU has of a row, for generated kernels: where its vectors are, how they are
// read and held, and what is kept of their elements between steps.
#pragma once

#include "graph_rows.h"
#include "pointwise_cuda.h"

namespace mf {

// `threads` threads have a row, `items` vectors each, and a block has `rows` of them at a time
// (codegen/row_launch.py decides).
template <int kItems, int kThreads, int kRows, bool kWhole>
struct GraphCut {
  static constexpr int items = kItems, threads = kThreads, rows = kRows;
  static constexpr bool whole = kWhole;
};

template <class K, int kVector, class Cut, class Index>
struct GraphPieces : PointwiseCuda<K, kVector, 1, Index> {
  using Base = PointwiseCuda<K, kVector, 1, Index>;
  using Fn = typename K::Functor;
  using Row = typename Fn::Row;
  using Kept = typename Fn::Kept;
  using AllInputs = typename Base::AllInputs;
  using AllOutputs = typename Base::AllOutputs;
  using Group = typename Base::Group;
  using Place = typename Base::Place;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  template <class Op>
  using Value = typename Base::template Value<Op>;
  using Base::functor;
  using Base::stride;
  using Base::words;

  // Functors take the inputs of an element, then the loads that are the same for a run of elements.
  using Runs = typename MakeIndices<Fn::runs>::type;
  using AllValues = typename MakeIndices<K::inputs + Fn::runs>::type;
  template <class G, int R, int... I>  // G is Fn, which may have no loads
  MF_DECLARED static auto loaded(Indices<I...>)
      -> decltype(some<const G&>().load(Run<R>(), some<Value<In<I>>>()...));
  template <int R>
  using Loaded = decltype(loaded<Fn, R>(AllInputs()));
  template <int I, bool kRun>
  struct GivenOf {
    using type = Value<In<I>>;
  };
  template <int I>
  struct GivenOf<I, true> {
    using type = Loaded<I - K::inputs>;
  };
  template <int I>
  using Given = typename GivenOf<I, (I >= K::inputs)>::type;

  static constexpr int kItems = Cut::items;
  static constexpr bool kHasKept = keeps_before<Fn>(Fn::steps);
  template <int I>
  static constexpr bool is_held = Cut::whole && (Fn::held >> I & 1);

  // What a thread has of a row.
  struct Piece {
    Group fetched[Cut::whole ? kItems : 1];
    Kept kept[Cut::whole && kHasKept ? kItems : 1][Cut::whole && kHasKept ? kVector : 1];
  };

  Index groups, rows;  // vectors in a row; rows
  int lane, which;     // this thread among those of its row; its row among those of the block

  __device__ __forceinline__ explicit GraphPieces(const u64* w)
      : Base(w), lane(threadIdx.x % Cut::threads), which(threadIdx.x / Cut::threads) {
    groups = Index(words[K::size]);
    rows = Index(words[K::numel]) / (groups * kVector);
  }

  // ---- places

  __device__ __forceinline__ Place start_of(Index row) const {
    Place p{};
    Index rest = row;
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
#pragma unroll
      for (int op = 0; op < K::operands; ++op) p.offset[op] += at * stride(op, dim);
    }
    return p;
  }
  __device__ __forceinline__ Index offset(const Place& p, int operand, Index column) const {
    return p.offset[operand] + column * stride(operand, 0);
  }

  // ---- elements

  template <int I, int N>
  __device__ __forceinline__ auto read(const Place& p, Index column) const {
    constexpr int operand = K::outputs + I;
    return Base::template load<In<I>, N, 0>(operand, offset(p, operand, column));
  }
  template <int... I>
  __device__ __forceinline__ void fetch(const Place& p, Index mine, Piece& piece,
                                        Indices<I...>) const {
    if constexpr (Cut::whole) {
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const Index group = lane + item * Cut::threads;
        if (group < mine) (fetch_one<I>(p, group, piece.fetched[item]), ...);
      }
    }
  }
  template <int I>
  __device__ __forceinline__ void fetch_one(const Place& p, Index group, Group& fetched) const {
    if constexpr (is_held<I>) slot<I>(fetched) = read<I, kVector>(p, group * kVector);
  }

  // The inputs of a vector as numbers to compute with, and its loads in runs.
  __device__ __forceinline__ auto values_of(const Place& p, Index group,
                                            const Group& fetched) const {
    return values_of(p, group, fetched, AllInputs(), Runs(), AllValues());
  }
  template <int... I, int... R, int... G>
  __device__ __forceinline__ auto values_of(const Place& p, Index group, const Group& fetched,
                                            Indices<I...> inputs, Indices<R...>,
                                            Indices<G...>) const {
    Tuple<Results<Given<G>, kVector>...> values;
    (convert_one<I>(p, group, fetched, get<I>(values).item), ...);
    (load_run<R>(values, inputs), ...);
    return values;
  }
  // One load where the run has the whole vector.
  template <int R, class Values, int... I>
  __device__ __forceinline__ void load_run(Values& values, Indices<I...>) const {
    auto& all = get<K::inputs + R>(values).item;
    const Loaded<R> first = functor.load(Run<R>(), get<I>(values).item[0]...);
    const bool is_whole = functor.left(Run<R>(), get<I>(values).item[0]...) >= kVector;
#pragma unroll
    for (int v = 0; v < kVector; ++v) all[v] = first;
    if (is_whole) return;
#pragma unroll
    for (int v = 1; v < kVector; ++v) all[v] = functor.load(Run<R>(), get<I>(values).item[v]...);
  }
  template <int I>
  __device__ __forceinline__ void convert_one(const Place& p, Index group, const Group& fetched,
                                              Value<In<I>> (&values)[kVector]) const {
    if constexpr (is_held<I>)
      Base::template convert<In<I>, kVector>(K::outputs + I, slot<I>(fetched), values);
    else
      Base::template convert<In<I>, kVector>(K::outputs + I, read<I, kVector>(p, group * kVector),
                                             values);
  }

  // What is kept of an element for phase S: from its registers, or computed again.
  template <int S, int kFrom, class Values, int... I>
  __device__ __forceinline__ void keep(Kept& kept, const Row& row, const Values& values, int v,
                                       Indices<I...> all) const {
    if constexpr (S > kFrom) keep<S - 1, kFrom>(kept, row, values, v, all);
    if constexpr (S < Fn::steps)
      if constexpr (Fn::keeps(S)) functor.keep(Step<S>(), kept, row, get<I>(values).item[v]...);
  }
  template <int S, class Values>
  __device__ __forceinline__ Kept kept_of(Piece& piece, int item, int v, const Row& row,
                                          const Values& values) const {
    Kept kept{};
    if constexpr (kHasKept && Cut::whole) {
      kept = piece.kept[item][v];
      keep<S, S>(kept, row, values, v, AllValues());
      piece.kept[item][v] = kept;
    } else if constexpr (kHasKept) {
      keep<S, 0>(kept, row, values, v, AllValues());
    }
    return kept;
  }
};

}  // namespace mf
