// A GEMM for Hopper with any epilogue in its registers:
//
//   out = epilogue(A B)      A [M, K] and the weight B [N, K], row by row
//
// cuBLAS knows few epilogues and has none for erf. On an H200, 16384 x 768 x 3072 with a bias, us:
//
//                          nothing  tanh gelu  erf gelu  and what was before it, tanh / erf
//   cuBLAS                   118       134        -         155 / -
//   tiles of 128 x 256       117       137       148        143 / 154
//   two of 128 x 128         113       124       140        132 / 148
//
// and 349 against 367 for 8192 x 4096 x 4096, where cuBLAS takes 346. Other tiles that take turns:
// 128 x 160, cuBLAS's own choice for a bare product, took 134 with a tanh gelu; 128 x 192, as much
// as the registers hold, 110, 127, 146 and 141 / 164. What they have in common is the power cap: of
// zeros, which toggle nothing, all take 10 to 14 % less (two of 128 x 128: 98, 111, 130).
//
// Two blocks form a cluster and share each tile of B: each loads a half and sends it to both.
//
//   warpgroups 0 and 1   multiply and finish
//   warpgroup 2          one thread of it asks the copy engine (TMA) for the tiles to come
#pragma once

#include "activations.h"
#include "portable.h"

namespace mf {

struct alignas(64) TensorMap {
  u64 opaque[16];
};

// ---- the machine's words

__device__ __forceinline__ u32 shared_address(const void* p) {
  return u32(__cvta_generic_to_shared(p));
}

// A barrier in shared memory that threads and the copy engine arrive at.
struct Barrier {
  u64 word;
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }
  __device__ __forceinline__ void expect(u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  __device__ __forceinline__ void wait(u32 phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(phase)
        : "memory");
  }
  // Arrives at this barrier's twin in block `rank` of the cluster.
  __device__ __forceinline__ void arrive_at(u32 rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
};

__device__ __forceinline__ void copy_tile(void* to, const TensorMap& map, int x, int y,
                                          Barrier* done) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(done))
      : "memory");
}
// The same to the same place of every block in `mask`.
__device__ __forceinline__ void copy_tile_to(void* to, const TensorMap& map, int x, int y,
                                             Barrier* done, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(done)), "h"(mask)
      : "memory");
}

__device__ __forceinline__ u32 block_in_cluster() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

template <int N>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

__device__ __forceinline__ void mma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// How the tensor cores find a tile: rows of 128 bytes along K, swizzled as the copy engine left
// them, 8 of which make an atom of 1 KB.
__device__ __forceinline__ u64 tile_descriptor(const void* tile) {
  const u64 address = (shared_address(tile) & 0x3ffff) >> 4;
  return address | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

#define MF_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MF_16(i) MF_4(i), MF_4(i + 4), MF_4(i + 8), MF_4(i + 12)
#define MF_64(i) MF_16(i), MF_16(i + 16), MF_16(i + 32), MF_16(i + 48)
#define MF_NAMES_64                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MF_NAMES_128                                                                             \
  MF_NAMES_64                                                                                    \
  ", "                                                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MF_MMA(T, name, n, count, a_, b_, add_, ...)                                 \
  __device__ __forceinline__ void mma(float (&d)[count], u64 a, u64 b, int add, T) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_                        \
                 ", 0;\n"                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." name "." name      \
                 " {" MF_NAMES_##count "}, " a_ ", " b_ ", add, 1, 1, 0, 0;\n}\n"    \
                 : __VA_ARGS__                                                       \
                 : "l"(a), "l"(b), "r"(add));                                        \
  }
#define MF_MMAS(T, name)                                    \
  MF_MMA(T, name, "128", 64, "%64", "%65", "%66", MF_64(0)) \
  MF_MMA(T, name, "256", 128, "%128", "%129", "%130", MF_64(0), MF_64(64))
// d (64 x 128 or 64 x 256) = a b, or d += a b, over 16 of K.
MF_MMAS(bfloat16, "bf16")
MF_MMAS(half, "f16")
#undef MF_MMAS
#undef MF_MMA
#undef MF_NAMES_128
#undef MF_NAMES_64
#undef MF_64
#undef MF_16
#undef MF_4

// Two 16-bit numbers in a word.
template <class T>
__device__ __forceinline__ float2 pair_of(u32 word) {
  T low, high;
  low.bits = u16(word), high.bits = u16(word >> 16);
  return make_float2(to_float(low), to_float(high));
}
template <class T>
__device__ __forceinline__ u32 pair(float low, float high);
template <>
__device__ __forceinline__ u32 pair<bfloat16>(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ __forceinline__ u32 pair<half>(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// ---- the kernel

struct GemmSize {
  int m, n, k;
  int column_tiles;  // tiles of N that are worked on side by side, so that both operands stay in L2
  u8 *out, *pre;  // where rows begin anywhere, which the copy engine cannot write; n numbers each
};

// kColumns, those of a tile of 128 rows:
//
//   256   both warpgroups of a block multiply one tile, then finish it. It reads least, and is best
//         where the epilogue is short beside the product.
//   128   they take turns, a tile each, and one finishes its tile while the other multiplies.
//
// What binds is shared memory, which has 128 bytes a cycle: the tensor cores read 80 (256) or 96
// (128), and tiles come in at 48 or 64.
//
// kAnywhere: the result's rows are no whole 16 bytes, such as those of a vocabulary's head. (8192 x
// 768 x 50257: 1048 us. cuBLAS's product, padded, takes 877, and the padding and a copy 500 more.)
template <class T, class Epilogue, int kColumns, bool kAnywhere = false>
struct GemmSm90 {
  static constexpr bool kTogether = kColumns == 256;
  static constexpr int kTileM = 128, kTileN = kColumns, kTileK = 64, kCluster = 2;
  static constexpr int kStages = kTogether ? 4 : 6, kRooms = 2;
  // The tensor cores take 64 rows at once: a warpgroup has one such piece of the tile, or all.
  static constexpr int kPieces = kTogether ? 1 : kTileM / 64, kPieceBytes = 64 * kTileK * 2;
  static constexpr int kThreads = 384, kMultipliers = 2;
  static constexpr int kABytes = kTileM * kTileK * 2, kBBytes = kTileN * kTileK * 2;
  // An epilogue's results leave 64 columns at a time: 16 rows of 128 bytes for each warp.
  static constexpr int kLeaving = 64;

  struct Shared {
    u8 a[kStages][kABytes];
    u8 b[kStages][kBBytes];
    u8 leaving[kRooms][kMultipliers * 4][16 * 128];
    Barrier full[kStages], empty[kStages];
  };
  static constexpr int shared_bytes = sizeof(Shared) + 1024;

  const TensorMap &a_map, &b_map, &out_map, &pre_map;
  const GemmSize& size;
  Shared& shared;
  u32 rank;
  int steps, row_tiles, columns, tiles;
  int room = 0;

  __device__ __forceinline__ GemmSm90(const TensorMap& a, const TensorMap& b, const TensorMap& out,
                                      const TensorMap& pre, const GemmSize& s, u8* memory)
      : a_map(a),
        b_map(b),
        out_map(out),
        pre_map(pre),
        size(s),
        shared(*reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024)),
        rank(block_in_cluster()),
        steps((s.k + kTileK - 1) / kTileK),
        row_tiles((s.m + kTileM * kCluster - 1) / (kTileM * kCluster)),
        columns((s.n + kTileN - 1) / kTileN),
        tiles(row_tiles * columns) {}

  struct Tile {
    int row, column;  // of its first element
  };
  __device__ __forceinline__ static int first_tile() { return blockIdx.x / kCluster; }
  __device__ __forceinline__ static int stride() { return gridDim.x / kCluster; }
  // The i-th tile of this cluster's: bands of column_tiles columns, row after row.
  __device__ __forceinline__ Tile tile(int i) const {
    const int band = i / (row_tiles * size.column_tiles);
    const int first = band * size.column_tiles;
    const int width = ::min(size.column_tiles, columns - first);
    const int within = i - first * row_tiles;
    return {((within / width) * kCluster + int(rank)) * kTileM, (first + within % width) * kTileN};
  }

  // ---- loading

  __device__ __forceinline__ void load() {
    int stage = 0;
    u32 phase = 1;  // the first round finds every stage empty
    constexpr u16 all = (1 << kCluster) - 1;
    for (int i = first_tile(); i < tiles; i += stride()) {
      const Tile t = tile(i);
      for (int step = 0; step < steps; ++step) {
        shared.empty[stage].wait(phase);
        Barrier* full = &shared.full[stage];
        full->expect(kABytes + kBBytes);
        copy_tile(shared.a[stage], a_map, step * kTileK, t.row, full);
        constexpr int share = kBBytes / kCluster, rows = kTileN / kCluster;
        u8* half_of_b = shared.b[stage] + rank * share;
        const int n = t.column + int(rank) * rows;
        copy_tile_to(half_of_b, b_map, step * kTileK, n, full, all);
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
    }
  }

  // ---- multiplying

  __device__ __forceinline__ static int first_piece(int group) { return kTogether ? group : 0; }

  // Tells all loaders of the cluster that this block is done with a stage.
  __device__ __forceinline__ void release(int stage) {
    const u32 lane = threadIdx.x % 128;
    if (lane < kCluster) shared.empty[stage].arrive_at(lane);
  }

  // Named barriers: a warpgroup waits for its turn and passes it on once it has seen its last
  // tile arrive, so none looks at a stage more than one round ahead.
  __device__ __forceinline__ static void wait_for_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
  }
  __device__ __forceinline__ static void pass_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
  }

  __device__ __forceinline__ void multiply(const Epilogue& epilogue) {
    const int group = threadIdx.x / 128;
    if (!kTogether && group == 1) pass_turn(group);
    // Stages before this one: the other warpgroup's tiles count too.
    int used = kTogether ? 0 : group * steps;
    for (int i = first_tile() + (kTogether ? 0 : group * stride()); i < tiles;
         i += (kTogether ? 1 : kMultipliers) * stride()) {
      float d[kPieces][kTileN / 2];
      int stage = used % kStages;
      u32 phase = used / kStages % 2;
      if (!kTogether) wait_for_turn(group);
      for (int step = 0; step < steps; ++step) {
        shared.full[stage].wait(phase);
        const u64 a = tile_descriptor(shared.a[stage] + first_piece(group) * kPieceBytes);
        const u64 b = tile_descriptor(shared.b[stage]);
        constexpr int k_step = 32 >> 4;
        mma_begin();
#pragma unroll
        for (int k = 0; k < kTileK / 16; ++k)
#pragma unroll
          for (int p = 0; p < kPieces; ++p)
            mma(d[p], a + p * (kPieceBytes >> 4) + k * k_step, b + k * k_step, step | k, T());
        mma_commit();
        if (step > 0) {
          mma_wait<1>();
          release(stage == 0 ? kStages - 1 : stage - 1);
        }
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
      if (!kTogether) pass_turn(group);
      const Tile t = tile(i);
      const Beside beside = fetch(epilogue, part(t, group, 0));
      mma_wait<0>();
      release(stage == 0 ? kStages - 1 : stage - 1);
      finish(epilogue, d, t, group, beside);
      used += (kTogether ? 1 : kMultipliers) * steps;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }

  // ---- the epilogue

  // A thread holds pairs of neighbouring columns: of row lane / 4 and the row 8 below it, at column
  // 2 (lane % 4) of every 8. What an epilogue reads beside them is fetched one turn ahead.
  struct Beside {
    u32 columns[kLeaving / 8];
    u32 rows[kLeaving / 8][2];
  };
  // Where the i-th part of a warp's results begins: 16 rows of 64 columns.
  static constexpr int kAcross = kTileN / kLeaving, kParts = kPieces * kAcross;
  __device__ __forceinline__ static Tile part(Tile t, int group, int i) {
    return {t.row + (first_piece(group) + i / kAcross) * 64 + int(threadIdx.x) / 32 % 4 * 16,
            t.column + i % kAcross * kLeaving};
  }
  __device__ __forceinline__ Beside fetch(const Epilogue& epilogue, Tile at) const {
    const int lane = threadIdx.x % 32, row = at.row + lane / 4;
    Beside beside;
#pragma unroll
    for (int j = 0; j < kLeaving / 8; ++j) {
      const int c = at.column + lane % 4 * 2 + j * 8;
      if (kAnywhere && c == size.n - 1)
        beside.columns[j] = epilogue.load_last_column(c);
      else
        beside.columns[j] = c < size.n ? epilogue.load_columns(c) : 0;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        beside.rows[j][h] = c < size.n && row + h * 8 < size.m ? epilogue.load(row + h * 8, c) : 0;
    }
    return beside;
  }

  // 16 rows of results of a warp to memory, by the copy engine, which waits for nobody: a store of
  // 16 bytes a thread took 1.6 us a tile, since all blocks come to this point at once. The engine
  // undoes the swizzle that keeps threads off each other's banks, and leaves out what lies outside.
  __device__ __forceinline__ void leave(const u32 (&pairs)[kLeaving / 8][2], const TensorMap& map,
                                        u8* anywhere, Tile at, int group) {
    const int lane = threadIdx.x % 32;
    if (++room == kRooms) room = 0;
    u8* const leaving = shared.leaving[room][group * 4 + threadIdx.x / 32 % 4];
    if (!kAnywhere && lane == 0)
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kRooms - 1) : "memory");
    __syncwarp();
    const int to = lane % 16, piece = lane / 16;
#pragma unroll
    for (int j = 0; j < kLeaving / 8; j += 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared_address(leaving) + to * 128 + ((j + piece) ^ (to % 8)) * 16),
                   "r"(pairs[j][0]), "r"(pairs[j][1]), "r"(pairs[j + 1][0]), "r"(pairs[j + 1][1])
                   : "memory");
    }
    if constexpr (kAnywhere) {
      __syncwarp();
      store(leaving, anywhere, at);
      return;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0)
      asm volatile(
          "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
          "cp.async.bulk.commit_group;" ::"l"(&map),
          "r"(at.column), "r"(at.row), "r"(shared_address(leaving))
          : "memory");
  }

  // The same by the warp itself, four rows at a time: a lane has 16 bytes that lie at an aligned
  // address, from two of the row's pieces, and one of the eight numbers at its ends.
  __device__ __forceinline__ void store(const u8* leaving, u8* to, Tile at) const {
    const int lane = threadIdx.x % 32, mine = lane % 8;
    if (size.n - at.column < kLeaving) return store_one_by_one(leaving, to, at);
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      const int row = first + lane / 8;
      if (at.row + row >= size.m) continue;
      u16* const out = reinterpret_cast<u16*>(to) + i64(at.row + row) * size.n + at.column;
      const u32 before = u32(16 - (reinterpret_cast<u64>(out) & 15)) & 15;  // bytes
      const int head = int(before / 2);
      const uint4 low = *reinterpret_cast<const uint4*>(leaving + place(row, mine * 8));
      const uint4 high =
          *reinterpret_cast<const uint4*>(leaving + place(row, mine < 7 ? mine * 8 + 8 : 56));
      u32 word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 6; ++i) word[i] = before & 8 ? word[i + 2] : word[i];
#pragma unroll
      for (int i = 0; i < 5; ++i) word[i] = before & 4 ? word[i + 1] : word[i];
      const u32 bits = (before & 2) * 8;
      const uint4 whole = make_uint4(
          __funnelshift_r(word[0], word[1], bits), __funnelshift_r(word[1], word[2], bits),
          __funnelshift_r(word[2], word[3], bits), __funnelshift_r(word[3], word[4], bits));
      if (head == 0 || mine < 7) *reinterpret_cast<uint4*>(out + head + mine * 8) = whole;
      if (head != 0) {
        const int end = mine < head ? mine : 56 + mine;
        out[end] = *reinterpret_cast<const u16*>(leaving + place(row, end));
      }
    }
  }
  // Where a number of a part lies, as the swizzle has it.
  __device__ __forceinline__ static int place(int row, int column) {
    return row * 128 + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
  }
  // The last columns.
  __device__ __forceinline__ void store_one_by_one(const u8* leaving, u8* to, Tile at) const {
    const int columns = size.n - at.column, rows = ::min(size.m - at.row, 16);
    for (int row = 0; row < rows; ++row) {
      u16* const out = reinterpret_cast<u16*>(to) + i64(at.row + row) * size.n + at.column;
      for (int column = threadIdx.x % 32; column < columns; column += 32)
        out[column] = *reinterpret_cast<const u16*>(leaving + place(row, column));
    }
  }

  __device__ __forceinline__ void finish(const Epilogue& epilogue,
                                         const float (&d)[kPieces][kTileN / 2], Tile t, int group,
                                         Beside beside) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const Tile at = part(t, group, i);
      const Beside here = beside;
      if (i + 1 < kParts) beside = fetch(epilogue, part(t, group, i + 1));
      u32 pairs[kLeaving / 8][2], more[kLeaving / 8][2];
#pragma unroll
      for (int j = 0; j < kLeaving / 8; ++j) {
        const float* const mine = &d[i / kAcross][(i % kAcross * kLeaving / 8 + j) * 4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float v[2] = {mine[h * 2], mine[h * 2 + 1]}, pre[2];
          epilogue.finish(v, pre, pair_of<T>(here.columns[j]), pair_of<T>(here.rows[j][h]));
          pairs[j][h] = pair<T>(v[0], v[1]);
          if constexpr (Epilogue::pre_too) more[j][h] = pair<T>(pre[0], pre[1]);
        }
      }
      if constexpr (Epilogue::pre_too) leave(more, pre_map, size.pre, at, group);
      leave(pairs, out_map, size.out, at, group);
    }
  }

  __device__ __forceinline__ void run(const Epilogue& epilogue) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        shared.full[s].init(1);
        shared.empty[s].init(kCluster * (kTogether ? 2 : 1));
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x / 128 == kMultipliers) {
      give_registers<40>();
      if (threadIdx.x == 128 * kMultipliers) load();
    } else {
      take_registers<232>();
      multiply(epilogue);
    }
    cluster_sync();  // no block leaves while the other may still write to it
  }
};

// ---- epilogues

// act(A B + bias) + residual, and A B + bias itself where the backward wants it: then act is of
// that as it is stored, so that a backward can work it out again and find the same numbers.
template <class T, class Act, bool kBias, bool kResidual, bool kPre>
struct LinearEpilogue {
  const T* bias;
  const T* residual;
  i64 residual_stride;
  static constexpr bool pre_too = kPre;

  __device__ __forceinline__ u32 load_columns(int column) const {
    return kBias ? *reinterpret_cast<const u32*>(bias + column) : 0;
  }
  // The last of an odd number.
  __device__ __forceinline__ u32 load_last_column(int column) const {
    return kBias ? *reinterpret_cast<const u16*>(bias + column) : 0;
  }
  __device__ __forceinline__ u32 load(int row, int column) const {
    return kResidual ? *reinterpret_cast<const u32*>(residual + row * residual_stride + column) : 0;
  }
  __device__ __forceinline__ void finish(float (&v)[2], float (&before)[2], float2 columns,
                                         float2 rows) const {
    if constexpr (kBias) v[0] += columns.x, v[1] += columns.y;
    if constexpr (kPre) {
      const float2 stored = pair_of<T>(pair<T>(v[0], v[1]));
      v[0] = stored.x, v[1] = stored.y;
    }
    before[0] = v[0], before[1] = v[1];
    v[0] = Act::value(v[0]), v[1] = Act::value(v[1]);
    if constexpr (kResidual) v[0] += rows.x, v[1] += rows.y;
  }
};

struct Identity {
  template <class F>
  static MF_INLINE F value(F x) {
    return x;
  }
};

}  // namespace mf
