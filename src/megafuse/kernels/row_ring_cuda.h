// Rows to come, in shared memory: the late inputs of a block's columns (unless registers hold
// them), then a stage for each of the next rows. A thread copies what it will read itself, so it
// needs no barrier to read it.
#pragma once

#include "row_places_cuda.h"

namespace mf {

template <class K, int kVector, class Cut, class Index>
struct RowRing : RowPlaces<K, kVector, Cut, Index> {
  using Base = RowPlaces<K, kVector, Cut, Index>;
  using typename Base::Early;
  using typename Base::Fn;
  using typename Base::Late;
  using typename Base::Position;
  template <int I>
  using In = typename Base::template In<I>;
  using Base::kBlock;
  using Base::kItems;
  using Base::kLateAt;
  using Base::kWarps;
  using Base::words;
  using EarlyVectors = Loaded<typename K::Inputs, kVector, Early>;

  // Whether an input waits in the ring: whole vectors of a row; late inputs wherever they start.
  template <int I>
  static constexpr bool in_ring =
      I < kLateAt ? In<I>::walk == 'c' : !Cut::ahead && (In<I>::walk == 'c' || In<I>::walk == 'u');
  template <int... I>
  static MF_INLINE constexpr int bytes_before(int input, Indices<I...>) {
    return ((I < input && in_ring<I>
                 ? kItems * kBlock * int(sizeof(Vector<typename In<I>::T, kVector>))
                 : 0) +
            ... + 0);
  }
  static constexpr int kStageBytes = bytes_before(K::inputs, Early());
  static constexpr int kLateBytes = bytes_before(K::inputs, Late());
  static constexpr int kMaxStages = 4;
  static constexpr int kFit =
      Cut::ring > 0 && kStageBytes > 0 ? (Cut::ring - kLateBytes) / kStageBytes : 2;
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  // What is kept of an element need not be, where it is what the ring holds.
  static constexpr bool kInRing = Cut::ring > 0 && Cut::again&& Fn::keeps_inputs &&
                                  (!K::random || Fn::draws_late) && !Fn::causal;
  // Rows of the ring that are in use at a time: also the next, where warps wait for each other.
  static constexpr int kInUse = kInRing && kWarps > 1 && kStages > 2 ? 2 : 1;
  static_assert(kStages >= 2 && (Cut::ring == 0 || Cut::whole), "a row in use and one to come");

  __device__ __forceinline__ explicit RowRing(const u64* w) : Base(w) {}

  // This thread's item-th vector of input I in a stage; late inputs have one.
  template <int I>
  __device__ __forceinline__ auto* slot_in_ring(int stage, int item) const {
    using V = Vector<typename In<I>::T, kVector>;
    constexpr bool late = I >= kLateAt;
    constexpr int before = late ? bytes_before(I, Late()) : kLateBytes + bytes_before(I, Early());
    extern __shared__ uint4 ring[];
    u8* const input = reinterpret_cast<u8*>(ring) + before + (late ? 0 : stage * kStageBytes);
    return reinterpret_cast<V*>(input) + item * kBlock + threadIdx.x;
  }

  // Starts the copies of a row, or of the late inputs.
  template <int... I>
  __device__ __forceinline__ void copy_row(const Position& p, int stage, Indices<I...>) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const Index group = this->group_of(0, item);
      const bool wanted = this->is_wanted(p, group);
      (copy<I>(p, group, stage, item, wanted), ...);
    }
  }

  // With the row at `at` in its stage, starts the copies of the last row that will fit: into the
  // stage of a row that this thread has done with.
  __device__ __forceinline__ void copy_ahead(Index at, Index ahead, int stage) const {
    wait_for_copies<kStages - kInUse - 1>();
    const int free = (stage + kStages - kInUse) % kStages;
    copy_row(this->position(at + (kStages - kInUse) * ahead), free, Early());
    end_group_of_copies();
  }

  template <int I>
  __device__ __forceinline__ auto from_ring(const Position& p, Index group, int stage,
                                            int item) const {
    if constexpr (in_ring<I>)
      return *slot_in_ring<I>(stage, item);
    else
      return this->template read<I>(p, group);
  }
  template <int... I>
  __device__ __forceinline__ EarlyVectors from_ring(const Position& p, int stage, int item,
                                                    Indices<I...>) const {
    EarlyVectors fetched;
    const Index group = this->group_of(0, item);
    if (group < p.groups) ((slot<I>(fetched) = from_ring<I>(p, group, stage, item)), ...);
    return fetched;
  }

 private:
  template <int I>
  __device__ __forceinline__ void copy(const Position& p, Index group, int stage, int item,
                                       bool wanted) const {
    using V = Vector<typename In<I>::T, kVector>;
    if constexpr (In<I>::walk == 'c') {
      static_assert(sizeof(V) % 16 == 0, "copies are of 16 bytes");
      constexpr int op = K::outputs + I;
      auto* const from =
          reinterpret_cast<const uint4*>(reinterpret_cast<const typename In<I>::T*>(words[op]) +
                                         p.start.offset[op] + this->column_of(group));
#pragma unroll
      for (int i = 0; i < int(sizeof(V) / 16); ++i)
        copy_16_bytes(reinterpret_cast<uint4*>(slot_in_ring<I>(stage, item)) + i, from + i, wanted);
    } else if constexpr (in_ring<I>) {
      if (wanted) *slot_in_ring<I>(stage, item) = this->template read<I>(p, group);
    }
  }
};

}  // namespace mf
