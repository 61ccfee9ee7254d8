// The CUDA driver for generated row-wise kernels. The threads of a row hold it in registers as it
// is stored, where it fits (GraphCut's whole); else each step reads it again. After a step the
// threads join what they found, in the same order every time.
#pragma once

#include "graph_pieces_cuda.h"

namespace mf {

// Any value of a lane `apart` lanes away.
template <class T>
__device__ __forceinline__ T from_lane(const T& value, int apart) {
  if constexpr (sizeof(T) % 4 == 0) {
    auto words = bits_as<Vector<u32, sizeof(T) / 4>>(value);
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); ++i)
      words.item[i] = __shfl_xor_sync(0xffffffffu, words.item[i], apart);
    return bits_as<T>(words);
  } else {
    return T(__shfl_xor_sync(0xffffffffu, i32(value), apart));
  }
}

// A type as whole words, which blocks of a cluster send each other.
template <class T, bool kIsWords = sizeof(T) % 4 == 0>
struct SentAs {
  using type = T;
};
template <class T>
struct SentAs<T, false> {
  using type = i32;
};

template <class K, int kVector, class Cut, class Index>
struct GraphRowsCuda : GraphPieces<K, kVector, Cut, Index> {
  using Base = GraphPieces<K, kVector, Cut, Index>;
  using Fn = typename K::Functor;
  using Row = typename Fn::Row;
  using Kept = typename Fn::Kept;
  using AllInputs = typename Base::AllInputs;
  using AllValues = typename Base::AllValues;
  using Runs = typename Base::Runs;
  using AllOutputs = typename Base::AllOutputs;
  using Piece = typename Base::Piece;
  using Start = typename Base::Start;
  template <int I>
  using In = typename Base::template In<I>;
  template <int O>
  using Out = typename Base::template Out<O>;
  template <int I>
  using Given = typename Base::template Given<I>;
  using Base::cols;
  using Base::functor;
  using Base::groups;
  using Base::kItems;
  using Base::kShare;
  using Base::kWarps;
  using Base::kWidth;
  using Base::lane;
  using Base::rows;
  using Base::stride;
  using Base::which;
  using Base::words;

  // What this thread has summed over rows (walk 'r' or 'g') of the O-th output, column by column.
  template <int O>
  static constexpr bool is_summed = Out<O>::walk == 'r' || Out<O>::walk == 'g';
  template <class T, bool kHeld>
  struct SumsOf {
    T at[kHeld ? kItems : 1][kHeld ? kVector : 1];
    T edge[1];
  };
  template <class Os>
  struct AllSumsOf;
  template <int... O>
  struct AllSumsOf<Indices<O...>> {
    using type = Tuple<SumsOf<typename Out<O>::T, Cut::whole && is_summed<O>>...>;
    static constexpr bool any = (is_summed<O> || ...);
  };
  static_assert(!AllSumsOf<AllOutputs>::any || Cut::whole || Cut::rows == 1,
                "rows that are read again and summed: one at a time");
  typename AllSumsOf<AllOutputs>::type sums{};
  bool is_first = true;  // row of this block
  int turn = 0;          // of the two buffers through which warps tell each other
  u32 phases = 0;        // of their barriers, a bit each

  __device__ __forceinline__ explicit GraphRowsCuda(const u64* w) : Base(w) {}

  // ---- a step

  template <int S, class G, int... I>  // G is Fn, which may have no steps
  MF_DECLARED static auto terms_of(Indices<I...>)
      -> decltype(some<const G&>().terms(Step<S>(), some<const Row&>(), some<const Kept&>(),
                                         some<Given<I>>()...));
  template <class Terms>
  struct LanesOf;
  template <class... R>
  struct LanesOf<Tuple<R...>> {
    using type = Tuple<typename R::Lane...>;
    static __device__ __forceinline__ type none() { return type(R::none()...); }
  };

  template <class P>
  __device__ __forceinline__ auto values_of(const Start& p, Index column, const P& part) const {
    return Base::values_of(p, column, part, AllInputs(), Runs(), AllValues());
  }
  template <int S, class Found>
  struct Fold {
    const GraphRowsCuda& all;
    const Start& p;
    const Row& row;
    Found& found;
    using Terms = decltype(terms_of<S, Fn>(AllValues()));
    using All = typename MakeIndices<Terms::count>::type;
    template <class P>
    __device__ __forceinline__ void operator()(P& part, Index column, int) const {
      const auto values = all.values_of(p, column, part);
      typename VectorsOf<Terms, P::size>::type vectors;
#pragma unroll
      for (int v = 0; v < P::size; ++v) {
        const Kept kept = all.template kept_of<S>(part, v, row, values);
        const Terms terms = all.template terms_at<S>(row, kept, values, v, AllValues());
        add(terms, i64(column) + v, vectors, v, All());
      }
      add_vectors(vectors, All());
    }
    template <class Vectors, int... T>
    __device__ __forceinline__ void add(const Terms& terms, i64 column, Vectors& vectors, int v,
                                        Indices<T...>) const {
      (fold_one(get<T>(found), get<T>(terms), column, get<T>(vectors), v), ...);
    }
    template <class Vectors, int... T>
    __device__ __forceinline__ void add_vectors(const Vectors& vectors, Indices<T...>) const {
      (fold_vector(get<T>(found), get<T>(vectors)), ...);
    }
  };
  // The numbers of a vector that are folded at once (takes_vectors).
  template <class R, int N>
  struct VectorOf {};
  template <class T, int N>
  struct VectorOf<SoftmaxSum<T>, N> {
    T item[N];
  };
  template <class Terms, int N>
  struct VectorsOf;
  template <class... R, int N>
  struct VectorsOf<Tuple<R...>, N> {
    using type = Tuple<VectorOf<R, N>...>;
  };
  template <int S, class Values, int... I>
  __device__ __forceinline__ auto terms_at(const Row& row, const Kept& kept, const Values& values,
                                           int v, Indices<I...>) const {
    return functor.terms(Step<S>(), row, kept, get<I>(values).item[v]...);
  }
  template <class R, int N>
  __device__ __forceinline__ static void fold_one(typename R::Lane& lane, const R& term, i64 column,
                                                  VectorOf<R, N>& vector, int v) {
    if constexpr (takes_vectors<R>)
      vector.item[v] = term.value;
    else
      lane = R::joined(lane, R::of(term, column));
  }
  template <class R, int N>
  __device__ __forceinline__ static void fold_vector(typename R::Lane& lane,
                                                     const VectorOf<R, N>& vector) {
    if constexpr (takes_vectors<R>) lane = R::with(lane, vector.item);
  }

  // Over all threads of the row: shuffles in a warp, then every warp tells all others of its block,
  // or of its cluster, what it has.
  template <class R>
  __device__ __forceinline__ void join(typename R::Lane& value, u64* shared) const {
#pragma unroll
    for (int apart = kWidth / 2; apart > 0; apart /= 2)
      value = R::joined(value, from_lane(value, apart));
    if constexpr (kWarps > 1) {
      using Sent = typename SentAs<typename R::Lane>::type;
      Sent* const warp = reinterpret_cast<Sent*>(shared) + which * kWarps + lane / 32;
      const int in_warp = threadIdx.x % 32;
      if constexpr (Cut::cluster > 1) {
        if (in_warp < Cut::cluster) store_at(in_warp, warp, Sent(value), arrivals()[turn]);
      } else if (in_warp == 0) {
        *warp = Sent(value);
      }
    }
  }
  template <class R>
  __device__ __forceinline__ void collect(typename R::Lane& value, const u64* shared) const {
    using Lane = typename R::Lane;
    using Sent = typename SentAs<Lane>::type;
    const Sent* const warps = reinterpret_cast<const Sent*>(shared) + which * kWarps;
    const int in_warp = threadIdx.x % 32;
    value = Lane(warps[in_warp % kWarps]);
#pragma unroll
    for (int w = 32; w < kWarps; w += 32) value = R::joined(value, Lane(warps[w + in_warp]));
#pragma unroll
    for (int apart = (kWarps < 32 ? kWarps : 32) / 2; apart > 0; apart /= 2)
      value = R::joined(value, from_lane(value, apart));
  }
  template <class... R, class Found, int... T>
  __device__ __forceinline__ void join_all(const Tuple<R...>*, Found& found, Indices<T...>) {
    constexpr int kPlaces = Cut::rows * kWarps * 2;  // u64 words of a term: a Lane has 16 bytes
    __shared__ alignas(16) u64 shared[2][kWarps > 1 ? sizeof...(R) * kPlaces : 1];
    u64* const mine = shared[turn];
    constexpr int kBytes = kWarps * (int(sizeof(typename SentAs<typename R::Lane>::type)) + ...);
    if constexpr (Cut::cluster > 1)
      if (threadIdx.x == 0) expect_arrivals(arrivals()[turn], kBytes);
    (join<R>(get<T>(found), mine + T * kPlaces), ...);
    if constexpr (kWarps > 1) {
      if constexpr (Cut::cluster > 1) {
        wait_for_arrivals(arrivals()[turn], phases >> turn & 1);
        phases ^= 1u << turn;
      } else {
        __syncthreads();
      }
      (collect<R>(get<T>(found), mine + T * kPlaces), ...);
      turn ^= 1;  // the next step writes to the other one: nobody waits for the last reader
    }
  }
  // A cluster's barriers, for each of the two buffers: they count the bytes that have come.
  __device__ __forceinline__ static u64 (&arrivals())[2] {
    __shared__ u64 arrived[2];
    return arrived;
  }
  template <class... R, class Found, int... T>
  __device__ __forceinline__ static auto totals(const Tuple<R...>*, const Found& found,
                                                Indices<T...>) {
    return Tuple(R::found(get<T>(found))...);
  }

  template <int S>
  __device__ __forceinline__ void step(const Start& p, bool has_row, Row& row, Piece& piece) {
    if constexpr (S > 0) step<S - 1>(p, has_row, row, piece);
    using Terms = decltype(terms_of<S, Fn>(AllValues()));
    using All = typename MakeIndices<Terms::count>::type;
    auto found = LanesOf<Terms>::none();
    this->for_each_part(piece, has_row, Fold<S, decltype(found)>{*this, p, row, found});
    const Terms* const kinds = nullptr;
    join_all(kinds, found, All());
    functor.fold(Step<S>(), row, totals(kinds, found, All()));
  }

  // ---- results

  template <int... O>
  MF_INLINE static constexpr bool any_whole(Indices<O...>) {
    return ((Out<O>::walk == 'c' || Out<O>::walk == 's' || is_summed<O>) || ...);
  }
  template <int... O>
  MF_INLINE static constexpr bool any_once(Indices<O...>) {
    return ((Out<O>::walk == 'w') || ...);
  }
  template <class Values, int... I>
  __device__ __forceinline__ auto results_at(const Row& row, const Kept& kept, const Values& values,
                                             int v, Indices<I...>) const {
    return functor.results(row, kept, get<I>(values).item[v]...);
  }
  struct Finish {
    GraphRowsCuda& all;
    const Start& p;
    const Row& row;
    template <class P>
    __device__ __forceinline__ void operator()(P& part, Index column, int item) const {
      const auto values = all.values_of(p, column, part);
      Results<decltype(all.results_at(row, Kept{}, values, 0, AllValues())), P::size> made;
#pragma unroll
      for (int v = 0; v < P::size; ++v)
        made.item[v] = all.results_at(row, all.template kept_of<Fn::steps>(part, v, row, values),
                                      values, v, AllValues());
      write_all(column, item, made.item, AllOutputs());
    }
    template <class R, int N, int... O>
    __device__ __forceinline__ void write_all(Index column, int item, const R (&made)[N],
                                              Indices<O...>) const {
      (all.template write<O>(p, column, item, made), ...);
    }
  };
  template <int O, class R, int N>
  __device__ __forceinline__ void write(const Start& p, Index column, int item,
                                        const R (&made)[N]) {
    if constexpr (!is_summed<O>) {
      Base::template store<Out<O>, N, 0>(O, p.offset[O] + column * stride(O, 0), made);
    } else {
      using T = typename Out<O>::T;
#pragma unroll
      for (int v = 0; v < N; ++v) {
        const T value = T(pick<Out<O>::result>(made[v]));
        if constexpr (!Cut::whole) {
          T& sum = *partial<O>(column + v);
          sum = is_first ? value : sum + value;
        } else if (N == 1 && item == kItems) {
          get<O>(sums).edge[0] += value;
        } else {
          get<O>(sums).at[item][v] += value;
        }
      }
    }
  }

  // This block's row of partial sums. Several sums of a few hundred blocks with millions of columns
  // each are more than 2^31 numbers, also where the elements themselves are fewer.
  template <int O>
  __device__ __forceinline__ typename Out<O>::T* partial(Index column) const {
    auto* const first = reinterpret_cast<typename Out<O>::T*>(words[O]);
    if constexpr (Out<O>::walk == 'g')
      return first + i64(blockIdx.y) * i64(words[K::stride + O * K::dims + 1]) +
             i64(blockIdx.x) * cols + column;
    else if constexpr (Base::kOfSegments >= 0)
      return first + (i64(blockIdx.y) * gridDim.x + blockIdx.x) * stride(O, 1) + column;
    else
      return first + i64(blockIdx.x / Cut::cluster) * stride(O, 1) + column;
  }
  // The threads of a block's first row get what those of its other rows have summed, in their
  // order.
  template <class T, int N>
  __device__ __forceinline__ void add_slots(T (&sum)[N]) const {
    __shared__ T all[N][Base::kBlock];
    __syncthreads();  // the numbers before these have been read
#pragma unroll
    for (int v = 0; v < N; ++v) all[v][threadIdx.x] = sum[v];
    __syncthreads();
    if (which != 0) return;
    for (int row = 1; row < Cut::rows; ++row)
#pragma unroll
      for (int v = 0; v < N; ++v) sum[v] += all[v][row * Cut::threads + lane];
  }
  template <int... O>
  __device__ __forceinline__ void write_sums(Indices<O...>) {
    (write_sum<O>(), ...);
  }
  template <int O>
  __device__ __forceinline__ void write_sum() {
    if constexpr (is_summed<O> && Cut::whole) {
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const Index group = lane + item * kShare;
        write_part<O>(get<O>(sums).at[item], group < groups, this->column_of(group));
      }
      if constexpr (Cut::shifted)
        write_part<O>(get<O>(sums).edge, lane < this->edges, this->edge_column());
    } else if constexpr (is_summed<O>) {
      if (is_first)  // there was no row
        for (Index column = lane; column < cols; column += kShare)
          *partial<O>(column) = typename Out<O>::T(0);
    }
  }
  template <int O, class T, int N>
  __device__ __forceinline__ void write_part(T (&sum)[N], bool is_there, Index column) const {
    if constexpr (Cut::rows > 1) add_slots(sum);
    if (which != 0 || !is_there) return;
#pragma unroll
    for (int v = 0; v < N; ++v) *partial<O>(column + v) = sum[v];
  }

  template <int... I, int... R, int... O>
  __device__ __forceinline__ void finish_row(const Start& p, const Row& row, Indices<I...>,
                                             Indices<R...>, Indices<O...>) const {
    Tuple<Results<Given<I>, 1>...> first;
    (Base::template convert<In<I>, 1>(K::outputs + I, this->template read<I, 1>(p, 0),
                                      get<I>(first).item),
     ...);
    const auto made = functor.row_results(row, get<I>(first).item[0]...,
                                          functor.load(Run<R>(), 0, get<I>(first).item[0]...)...);
    (write_once<O>(p, made), ...);
  }
  template <int O, class Made>
  __device__ __forceinline__ void write_once(const Start& p, const Made& made) const {
    using T = typename Out<O>::T;
    if constexpr (Out<O>::walk == 'w')
      reinterpret_cast<T*>(words[O])[p.offset[O]] = cast<T>(pick<Out<O>::result>(made));
  }

  __device__ __forceinline__ void run() {
    if constexpr (Cut::cluster > 1) {
      open_arrivals(arrivals(), 1);
      tell_cluster();
    }
    // All threads that meet at barriers, or in shuffles, take the same number of turns.
    constexpr bool kTogether = Cut::rows == 1 || Cut::threads == 32;
    for (Index at = this->first_row(); kTogether ? at < rows : this->block_has_row(at);
         at += Base::rows_ahead()) {
      const bool has_row = kTogether || at < rows;
      const Start p = this->start_of(has_row ? at : 0);
      Piece piece;
      if constexpr (Cut::whole) this->for_each_part(piece, has_row, typename Base::Fetch{*this, p});
      if constexpr (Cut::cluster > 1)
        if (is_first) wait_for_cluster();
      Row row{};
      if constexpr (Fn::steps > 0) step<Fn::steps - 1>(p, has_row, row, piece);
      if constexpr (any_whole(AllOutputs()))
        this->for_each_part(piece, has_row, Finish{*this, p, row});
      if constexpr (any_once(AllOutputs()))
        if (has_row && lane == 0) finish_row(p, row, AllInputs(), Runs(), AllOutputs());
      is_first = false;
    }
    if constexpr (Cut::cluster > 1)
      if (is_first) wait_for_cluster();
    write_sums(AllOutputs());
  }
};

}  // namespace mf
