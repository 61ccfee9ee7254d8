// What a thread of the GPU has of a row, for generated kernels: where its vectors are, how they are
// read and held, and what is kept of their elements between steps.
#pragma once

#include "cluster_cuda.h"
#include "graph_rows.h"
#include "row_share_cuda.h"

namespace mf {

// How rows are shared out: codegen/row_launch.py decides.
template <int kItems, int kThreads, int kRows, int kCluster, bool kWhole, bool kShifted, bool kFull,
          bool kKeeps>
struct GraphCut {
  static constexpr int items = kItems, threads = kThreads, rows = kRows, cluster = kCluster;
  static constexpr bool whole = kWhole;      // the threads hold all of a row: it is read once
  static constexpr bool shifted = kShifted;  // rows start anywhere in a vector
  static constexpr bool full = kFull;        // a row has a vector for every item of every thread
  static constexpr bool keeps = kWhole && kKeeps;  // also what is kept of elements between steps
  static_assert(cluster == 1 || rows == 1, "a cluster has one row at a time");
};

// Divides columns by the length of a run, which is the same in all of a launch: of 32 bits with a
// product, exactly, since a column is below 2^31 then, as is a length that matters.
template <class Index, int kBytes = sizeof(Index)>
struct RunLength {
  u64 reciprocal;
  RunLength() = default;
  __device__ __forceinline__ RunLength(i64 length)
      : reciprocal(~u64(0) / u64(length < 1           ? 1
                                 : length < 1ll << 31 ? length
                                                      : 1ll << 31)) {}
  __device__ __forceinline__ i64 number_at(Index column) const {
    const u64 next = u64(column) + 1;
    return i64((reciprocal >> 32) * next + (u64(u32(reciprocal)) * next >> 32) >> 32);
  }
};
template <class Index>
struct RunLength<Index, 8> {
  i64 length;
  RunLength() = default;
  __device__ __forceinline__ RunLength(i64 n) : length(n < 1 ? 1 : n) {}
  __device__ __forceinline__ i64 number_at(Index column) const { return column / length; }
};

template <class K, int kVector, class Cut, class Index>
struct GraphPieces : RowShare<K, kVector, Cut, Index> {
  using Base = RowShare<K, kVector, Cut, Index>;
  using Fn = typename K::Functor;
  using Row = typename Fn::Row;
  using Kept = typename Fn::Kept;
  using AllInputs = typename Base::AllInputs;
  using AllOutputs = typename Base::AllOutputs;
  using Place = typename Base::Place;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  template <class Op>
  using Value = typename Base::template Value<Op>;
  using Base::functor;
  using Base::groups;
  using Base::kItems;
  using Base::kShare;
  using Base::lane;

  // Functors take the inputs of an element, then the loads that are the same for a run of elements.
  using Runs = typename MakeIndices<Fn::runs>::type;
  using AllValues = typename MakeIndices<K::inputs + Fn::runs>::type;
  template <class G, int R, int... I>  // G is Fn, which may have no loads
  MF_DECLARED static auto loaded(Indices<I...>)
      -> decltype(some<const G&>().load(Run<R>(), i64(), some<Value<In<I>>>()...));
  template <int R>
  using RunOf = decltype(loaded<Fn, R>(AllInputs()));
  template <int I, bool kRun>
  struct GivenOf {
    using type = Value<In<I>>;
  };
  template <int I>
  struct GivenOf<I, true> {
    using type = RunOf<I - K::inputs>;
  };
  template <int I>
  using Given = typename GivenOf<I, (I >= K::inputs)>::type;

  static constexpr bool kHasKept = keeps_before<Fn>(Fn::steps);
  template <int I>
  static constexpr bool is_held =
      Cut::whole && (Fn::held >> I & 1) && In<I>::walk != 'b' && !is_index(In<I>::walk);

  // What a thread has of a row: vectors, and an edge (row_share_cuda.h).
  template <int N>
  struct Part {
    static constexpr int size = N;
    Loaded<typename K::Inputs, N, AllInputs> fetched;
    Kept kept[Cut::keeps && kHasKept ? N : 1];
  };
  struct Piece {
    Part<kVector> part[Cut::whole ? kItems : 1];
    Part<1> edge;
  };
  // Where a row starts, and what is the same all along it (walk 'b').
  struct Start : Place {
    Loaded<typename K::Inputs, 1, AllInputs> beside;
  };

  // The run that a column is in, of each kind of run; the columns of one that is not its kind's
  // first are asked for by nobody.
  struct RunsAt {
    i64 run[Fn::runs > 0 ? Fn::runs : 1];
  };
  template <int... R>
  __device__ __forceinline__ RunsAt runs_at(Index column, Indices<R...>) const {
    return {{run_at<R>(column)...}};
  }
  template <int R>
  __device__ __forceinline__ i64 run_at(Index column) const {
    if constexpr (Fn::run_like[R] == R) return lengths[R].number_at(column);
    return 0;
  }
  RunLength<Index> lengths[Fn::runs > 0 ? Fn::runs : 1];

  __device__ __forceinline__ explicit GraphPieces(const u64* w) : Base(w) {
    set_lengths(Runs());
    if constexpr (Cut::cluster > 1) lane += rank_in_cluster() * Cut::threads;
  }

  template <int... R>
  __device__ __forceinline__ void set_lengths(Indices<R...>) {
    ((Fn::run_like[R] == R ? void(lengths[R] = {functor.length(Run<R>())}) : void()), ...);
  }

  // each(part, column, item) of this thread's parts of a row; the edge is item kItems.
  template <class Each>
  __device__ __forceinline__ void for_each_part(Piece& piece, bool has_row,
                                                const Each& each) const {
    const Index mine = has_row ? groups : 0;
    if constexpr (Cut::whole) {
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const Index group = lane + item * kShare;
        if (Cut::full ? has_row : group < mine)
          each(piece.part[item], this->column_of(group), item);
      }
    } else {
#pragma unroll kAtOnce
      for (Index group = lane; group < mine; group += kShare)
        each(piece.part[0], this->column_of(group), 0);
    }
    if constexpr (Cut::shifted)
      if (has_row && lane < this->edges) each(piece.edge, this->edge_column(), kItems);
  }
  // Vectors under way where a row is read again, and more of them where they are single elements.
  static constexpr int kAtOnce = kVector > 1 ? 4 : 8;

  // ---- elements

  __device__ __forceinline__ Start start_of(Index row) const {
    Start p{Base::start_of(row), {}};
    fetch_beside(p, AllInputs());
    return p;
  }
  template <int... I>
  __device__ __forceinline__ void fetch_beside(Start& p, Indices<I...>) const {
    (fetch_one_beside<I>(p), ...);
  }
  template <int I>
  __device__ __forceinline__ void fetch_one_beside(Start& p) const {
    if constexpr (In<I>::walk == 'b') slot<I>(p.beside) = this->template read<I, 1>(p, 0);
  }

  struct Fetch {
    const GraphPieces& all;
    const Start& p;
    template <class P>
    __device__ __forceinline__ void operator()(P& part, Index column, int) const {
      every(part, column, AllInputs());
    }
    template <class P, int... I>
    __device__ __forceinline__ void every(P& part, Index column, Indices<I...>) const {
      (one<I>(part, column), ...);
    }
    template <int I, class P>
    __device__ __forceinline__ void one(P& part, Index column) const {
      if constexpr (is_held<I>) slot<I>(part.fetched) = all.template read<I, P::size>(p, column);
    }
  };

  // The inputs of a part as numbers to compute with, and its loads in runs.
  template <class P, int... I, int... R, int... G>
  __device__ __forceinline__ auto values_of(const Start& p, Index column, const P& part,
                                            Indices<I...> inputs, Indices<R...>,
                                            Indices<G...>) const {
    Tuple<Results<Given<G>, P::size>...> values;
    (convert_one<I>(p, column, part, get<I>(values).item), ...);
    const RunsAt at = runs_at(column, Runs());
    (load_run<R, P::size>(column, at, values, inputs), ...);
    return values;
  }
  // One load where the run has the whole vector, else one for each run in it, in a loop: code for
  // each element would cost registers that all vectors lack.
  template <int R, int N, class Values, int... I>
  __device__ __forceinline__ void load_run(Index column, const RunsAt& at, Values& values,
                                           Indices<I...>) const {
    const auto load = [&](i64 run) {
      return functor.load(Run<R>(), run, get<I>(values).item[0]...);
    };
    auto& all = get<K::inputs + R>(values).item;
    i64 run = at.run[Fn::run_like[R]];
    const RunOf<R> first = load(run);
#pragma unroll
    for (int v = 0; v < N; ++v) all[v] = first;
    if constexpr (N > 1) {
      const i64 length = functor.length(Run<R>());
#pragma unroll 1
      for (i64 known = ++run * length - column; known < N; ++run, known += length) {
        const RunOf<R> next = load(run);
#pragma unroll
        for (int v = 1; v < N; ++v) all[v] = v < known ? all[v] : next;
      }
    }
  }
  template <int I, class P>
  __device__ __forceinline__ void convert_one(const Start& p, Index column, const P& part,
                                              Value<In<I>> (&values)[P::size]) const {
    constexpr int operand = K::outputs + I;
    if constexpr (is_held<I>)
      Base::template convert<In<I>, P::size>(operand, slot<I>(part.fetched), values);
    else if constexpr (In<I>::walk == 'b')
      Base::template convert<In<I>, P::size>(
          operand, Vector<typename In<I>::T, P::size>{slot<I>(p.beside).item[0]}, values);
    else
      Base::template convert<In<I>, P::size>(operand, this->template read<I, P::size>(p, column),
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
  template <int S, class P, class Values>
  __device__ __forceinline__ Kept kept_of(P& part, int v, const Row& row,
                                          const Values& values) const {
    Kept kept{};
    if constexpr (kHasKept && Cut::keeps) {
      kept = part.kept[v];
      keep<S, S>(kept, row, values, v, AllValues());
      part.kept[v] = kept;
    } else if constexpr (kHasKept) {
      keep<S, 0>(kept, row, values, v, AllValues());
    }
    return kept;
  }
};

}  // namespace mf
