// The decode megakernel's weights on their way into shared memory. Two warps of a block, the
// senders, walk the list of phases ahead of the others and send for everything that the block will
// need, in the order in which it will be used, as far as there are slots for it. They know no
// tokens and wait for no other block, so memory works on while the rest of the block waits, norms
// or attends.
//
// The others, the workers, are two groups, each with a sender and slots of its own, to which items
// go by turns. An item is a piece of 16 rows, 2 KB of each where there are 8 workers, and every
// worker of the group takes 512 bytes of each row, or a little more where rows are then two pieces;
// of int8 both are half. Shorter pieces are slower: sending for one takes 40 ns, however short it
// is, and for the same reason one sender is too slow. Slots are a group's own because copies arrive
// in any order: a slot tells only whether its last fill was an even or odd one, which says all to
// those who saw the fill before.
#pragma once

#include "decode.h"
#include "decode_memory_cuda.h"

namespace mf::decode {

// A product, for one block. What is shared out are rows; a tile is those that a slot has: 16, or of
// gate and up 8 of each.
struct Plan {
  // Of three matrices: the addresses as if each began with row 0 of this block's share.
  u64 weight[3], scale[3], bias[3];
  int until[2];  // the rows of the share at which the second and the third matrix begin
  int first, share, cols;
  int row;           // bytes of a row of weights
  int tiles, parts;  // a tile has so many pieces; none where rows are not of 16 bytes
  int both;          // gate and up, of which a row is one row of what is shared out
  __device__ __forceinline__ int matrix(int number, int beside) const {
    return (both ? beside : 0) + (number >= until[0]) + (number >= until[1]);
  }
  __device__ __forceinline__ int rows() const { return both ? 8 : 16; }  // of a tile
};

// kMine: bytes of a row that a worker takes. kTogether: rows that are not shared out to two blocks.
template <class W, bool kGated, int kWorkers, int kSlots, int kMine, int kTogether>
struct Stream {
  static constexpr int kGroup = kWorkers / 2;    // warps that use a slot together
  static constexpr int kPiece = kMine * kGroup;  // bytes of a row in a slot
  static constexpr int kPitch = kPiece + 16;     // from row to row: 8 rows are in different banks
  static constexpr int kSlot = 16 * kPitch;
  static constexpr u32 kOwn = kSlots / 2;  // slots of a group
  static constexpr u32 kNear = 8;  // phases that are at hand: the last one, this one, the next six
  static constexpr u32 kAll = 0xffffffffu;
  static_assert(kSlots % 2 == 0, "as many for each group");

  struct Shared {
    Phase near[kNear];
    Plan plans[kNear];
    u64 full[kSlots], empty[kSlots];
    u64 told[kNear];  // the phase is in `near`, with its plan
    u64 free[kNear];  // nobody needs it any more
    u64 over;         // nothing more is needed
  };

  Shared& here;
  char* const slots;
  const u32 block, blocks;
  const int lane;
  u32 items = 0;  // of a sender: how many it has sent

  __device__ __forceinline__ int begin(u64 n) const { return int(u32(n) * block / blocks); }
  __device__ __forceinline__ int end(u64 n) const { return int(u32(n) * (block + 1) / blocks); }
  __device__ __forceinline__ int first_row(u64 n) const {
    return kTogether * begin((n + kTogether - 1) / kTogether);
  }
  __device__ __forceinline__ int end_row(u64 n) const {
    const int found = kTogether * end((n + kTogether - 1) / kTogether);
    return found < int(n) ? found : int(n);
  }

  // By one thread, before all others come.
  __device__ __forceinline__ void open() const {
    for (int i = 0; i < kSlots; ++i) {
      open_arrival(&here.full[i], kCopiesArriveOnce ? 1 : 32);
      open_arrival(&here.empty[i], 32 * kGroup);
    }
    for (u32 i = 0; i < kNear; ++i) {
      open_arrival(&here.told[i], 32);
      open_arrival(&here.free[i], 32 * (kWorkers + 1));  // by the workers and the second sender
    }
    open_arrival(&here.over, 1);
    arrivals_are_open();
  }

  // ---- for workers

  __device__ __forceinline__ const Phase& near(u32 number) const {
    return here.near[number % kNear];
  }
  __device__ __forceinline__ const Plan& plan(u32 number) const {
    return here.plans[number % kNear];
  }
  // By every worker's thread. Phase `number` is done: the one before it, which it may have read, is
  // not needed any more.
  __device__ __forceinline__ void pass(u32 number) const {
    if (number > 0) arrive(&here.free[(number - 1) % kNear]);
  }
  __device__ __forceinline__ bool is_told(u32 number) const {
    return passed(&here.told[number % kNear], number / kNear & 1);
  }
  __device__ __forceinline__ void wait_for(u32 number) const {
    while (!is_told(number)) {
    }
  }
  __device__ __forceinline__ void end_all() const { arrive(&here.over); }

  // Item `number` of a group, once it is there, as an address in shared memory.
  __device__ __forceinline__ static u32 slot_of(u32 group, u32 number) {
    return group * kOwn + number % kOwn;
  }
  __device__ __forceinline__ u64 take(u32 group, u32 number) const {
    const u32 slot = slot_of(group, number);
    while (!passed(&here.full[slot], number / kOwn & 1)) {
    }
    __syncwarp();
    return __cvta_generic_to_shared(slots + slot * kSlot);
  }
  __device__ __forceinline__ void give_back(u32 group, u32 number) const {
    arrive(&here.empty[slot_of(group, number)]);
  }

  // ---- for senders

  __device__ __forceinline__ static bool is_product(const Phase& p) {
    return p.kind != kEmbed && p.kind != kAttend && p.kind != kSample;
  }

  // Lane m is for matrix m.
  __device__ __forceinline__ void make_plan(const Phase& p, Plan& plan) const {
    const int first = first_row(p.rows), share = end_row(p.rows) - first, cols = int(p.cols);
    const int row = cols * int(sizeof(W));
    const bool both = kGated && p.kind == kGateUp;
    const bool vectors = row % 16 == 0 && (p.weight0 | p.weight1 | p.weight2) % 16 == 0;
    const int second = int(p.rows0), third = second + int(p.rows1);  // where these matrices begin
    const u64 weight = lane == 0 ? p.weight0 : lane == 1 ? p.weight1 : p.weight2;
    const u64 scale = lane == 0 ? p.scale0 : lane == 1 ? p.scale1 : p.scale2;
    const u64 bias = lane == 0 ? p.bias0 : lane == 1 ? p.bias1 : p.bias2;
    const i64 shift = first - (lane == 0 || both ? 0 : lane == 1 ? second : third);
    if (lane < 3) {
      plan.weight[lane] = weight + u64(shift * row);
      plan.scale[lane] = scale ? scale + u64(4 * shift) : 0;
      plan.bias[lane] = bias ? bias + u64(4 * shift) : 0;
    }
    if (lane) return;
    plan.until[0] = both ? share : second - first, plan.until[1] = both ? share : third - first;
    plan.first = first, plan.share = share, plan.cols = cols, plan.row = row, plan.both = both;
    plan.tiles = (share + plan.rows() - 1) / plan.rows();
    plan.parts = vectors ? (row + kPiece - 1) / kPiece : 0;
  }

  // A piece of each row into a slot. Lane r has row r, from `from` on, or 0.
  __device__ __forceinline__ void copy(int slot, u64 from, int rows, int bytes) const {
    char* const to = slots + slot * kSlot;
    if constexpr (kCopiesArriveOnce) {
      if (lane == 0) expect(&here.full[slot], u32(rows * bytes));
      __syncwarp();
      if (from && lane < 16)
        send(to + lane * kPitch, at<const char>(from), u32(bytes), &here.full[slot]);
    } else {
#pragma unroll 1
      for (int r = 0; r < 16; ++r) {
        const u64 row = __shfl_sync(kAll, from, r);
        for (int i = 16 * lane; i < bytes && row; i += 16 * 32)
          fetch(to + r * kPitch + i, at<const char>(row) + i);
      }
      arrive_after_fetches(&here.full[slot]);
    }
  }

  // Waits; false where nothing more is needed. As lane 0 sees it, so that the lanes stay together.
  template <class Ready>
  __device__ __forceinline__ bool wanted(Ready ready) const {
    for (;;) {
      const bool now = ready();
      const u32 what = __shfl_sync(kAll, now ? 1u : passed_by_now(&here.over, 0) ? 2u : 0u, 0);
      if (what) return what == 1;
    }
  }

  // Where the row of this lane begins in a tile, or 0.
  __device__ __forceinline__ u64 row_of(const Plan& plan, int tile) const {
    const int r = lane % 16, number = plan.both ? tile * 8 + r % 8 : tile * 16 + r;
    if (number >= plan.share) return 0;
    return plan.weight[plan.matrix(number, r / 8)] + u64(number * i64(plan.row));
  }
  __device__ __forceinline__ static int bytes_of(const Plan& plan, int part) {
    const int left = plan.row - part * kPiece;
    return left < kPiece ? left : kPiece;
  }

  // Every second item of a product. As `wanted`.
  __device__ __forceinline__ bool send_product(const Plan& plan, u32 group) {
    const int parts = plan.parts;
    int part = int(group);
#pragma unroll 1
    for (int tile = 0; tile < plan.tiles; ++tile, part -= parts) {
      const u64 from = row_of(plan, tile);
      const int left = plan.share - tile * plan.rows();
      const int rows = (left < plan.rows() ? left : plan.rows()) << plan.both;
#pragma unroll 1
      for (; part < parts; part += 2, ++items) {
        const u32 slot = slot_of(group, items), before = items / kOwn - 1;
        if (items >= kOwn && !wanted([&] { return passed(&here.empty[slot], before & 1); }))
          return false;
        copy(int(slot), from ? from + u64(part * kPiece) : 0, rows, bytes_of(plan, part));
      }
    }
    return true;
  }

  // All of a launch: the first sender reads the phases and plans them for all others.
  __device__ __forceinline__ void send_all(const Step& s, u32 group) {
    constexpr u32 kWords = sizeof(Phase) / 8;
    static_assert(kWords <= 32, "a lane has one word");
    const u32 count = u32(s.phase_count);
    const u64* const words = at<const u64>(s.phases) + (u32(lane) < kWords ? lane : 0);
    u32 phase = u32(s.first_phase), number = 0;
    u64 word = words[phase * kWords];
#pragma unroll 1
    for (i64 token = 0; token < i64(s.steps); ++number) {
      Phase& p = here.near[number % kNear];
      Plan& plan = here.plans[number % kNear];
      if (++phase == count) phase = 0, ++token;
      if (group) {
        if (!wanted([&] { return is_told(number); })) break;
      } else {
        u64* const unused = &here.free[number % kNear];
        const u32 before = number / kNear - 1;
        if (number >= kNear && !wanted([&] { return passed(unused, before & 1); })) break;
        if (u32(lane) < kWords) reinterpret_cast<u64*>(&p)[lane] = word;
        word = words[phase * kWords];  // of the next one, while this one is sent for
        __syncwarp();
        if (is_product(p)) make_plan(p, plan);
        __syncwarp();
        arrive(&here.told[number % kNear]);
      }
      if (is_product(p) && !send_product(plan, group)) break;
      __syncwarp();  // all lanes have read the plan
      if (group) arrive(&here.free[number % kNear]);
    }
    // No copy comes after the end.
    for (u32 last = items > kOwn ? items - kOwn : 0; last < items; ++last) take(group, last);
  }
};

}  // namespace mf::decode
