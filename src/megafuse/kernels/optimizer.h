// An optimizer's step over all parameters of a model. Tensors stand in a table, a row of words for
// each; the elements of all of them, one tensor after the other, are cut into pieces, and a piece
// never reaches into a second tensor. optimizer_cpu.h and optimizer_cuda.h share the pieces out;
// the rules below say what happens to one element.
#pragma once

#include "portable.h"

namespace mf::optimizer {

constexpr i64 kPiece = 16384;  // elements; runtime/host/programs/optimizer.h counts with it

// A row of the table, in words of 64 bits.
constexpr int kFirstPiece = 0;  // how many pieces the rows before have
constexpr int kElements = 1;
constexpr int kColumns = 2;  // addresses: the parameter, its gradient, what the rule keeps
constexpr int kNumbers = 8;  // doubles, as the rule reads them
constexpr int kRow = 16;

MF_INLINE float root(float x) {
#if MF_ON_GPU
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}
MF_INLINE double root(double x) {
#if MF_ON_GPU
  return ::sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

// The part of a tensor that a piece is.
struct Piece {
  const u64* row;
  i64 first, count;

  MF_INLINE Piece(const u64* table, i64 rows, i64 piece) {
    i64 low = 0, high = rows - 1;
    while (low < high) {  // the last row that begins at this piece or before
      const i64 middle = (low + high + 1) / 2;
      if (i64(table[middle * kRow + kFirstPiece]) <= piece)
        low = middle;
      else
        high = middle - 1;
    }
    row = table + low * kRow;
    first = (piece - i64(row[kFirstPiece])) * kPiece;
    const i64 left = i64(row[kElements]) - first;
    count = left < kPiece ? left : kPiece;
  }
};

// A parameter that is Inf has no part in its gradient where nothing decays.
template <class F>
MF_INLINE F decayed(F gradient, F decay, F parameter) {
  return decay != F(0) ? gradient + decay * parameter : gradient;
}

// A rule has the numbers of a tensor and does an element's step in `x`, where x[c][i] is column c
// of element i. Adam, and with kDecoupled AdamW; with kMaxima it divides by the largest mean so
// far.
template <class F, bool kDecoupled, bool kMaxima>
struct Adam {
  static constexpr int kOperands = kMaxima ? 5 : 4;
  F sign, decay, take, keep_squares, take_squares, rate, correction, eps;

  MF_INLINE explicit Adam(const double* n)
      : sign(F(n[0])),
        decay(F(n[1])),
        take(F(n[2])),
        keep_squares(F(n[3])),
        take_squares(F(n[4])),
        rate(F(n[5])),
        correction(F(n[6])),
        eps(F(n[7])) {}

  template <class Columns>
  MF_INLINE void step(Columns& x, int i) const {
    F parameter = x[0][i], gradient = sign * x[1][i];
    if constexpr (kDecoupled)
      parameter *= decay;  // what is kept of it
    else
      gradient = decayed(gradient, decay, parameter);
    const F mean = x[2][i] + take * (gradient - x[2][i]);
    const F squares = keep_squares * x[3][i] + take_squares * gradient * gradient;
    F under = squares;
    if constexpr (kMaxima) {
      // As torch.maximum: a NaN stays.
      under = x[4][i] > squares || x[4][i] != x[4][i] ? x[4][i] : squares;
      x[4][i] = under;
    }
    x[0][i] = parameter - rate * mean / (root(under) * correction + eps);
    x[2][i] = mean;
    x[3][i] = squares;
  }
};

template <class F, bool kMomentum>
struct Sgd {
  static constexpr int kOperands = kMomentum ? 3 : 2;
  F sign, decay, keep, take, rate;
  bool nesterov;
  F momentum;

  MF_INLINE explicit Sgd(const double* n)
      : sign(F(n[0])),
        decay(F(n[1])),
        keep(F(n[2])),
        take(F(n[3])),
        rate(F(n[4])),
        nesterov(n[5] != 0),
        momentum(F(n[6])) {}

  template <class Columns>
  MF_INLINE void step(Columns& x, int i) const {
    F change = decayed(sign * x[1][i], decay, x[0][i]);
    if constexpr (kMomentum) {
      const F moving = keep * x[2][i] + take * change;
      x[2][i] = moving;
      change = nesterov ? change + momentum * moving : moving;
    }
    x[0][i] -= rate * change;
  }
};

template <class F>
struct Lion {
  static constexpr int kOperands = 3;
  F sign, kept, keep, take, keep_moving, take_moving, rate;

  MF_INLINE explicit Lion(const double* n)
      : sign(F(n[0])),
        kept(F(n[1])),
        keep(F(n[2])),
        take(F(n[3])),
        keep_moving(F(n[4])),
        take_moving(F(n[5])),
        rate(F(n[6])) {}

  template <class Columns>
  MF_INLINE void step(Columns& x, int i) const {
    const F gradient = sign * x[1][i];
    const F direction = keep * x[2][i] + take * gradient;
    const F change = direction > F(0) ? rate : direction < F(0) ? -rate : F(0);
    x[0][i] = kept * x[0][i] - change;
    x[2][i] = keep_moving * x[2][i] + take_moving * gradient;
  }
};

}  // namespace mf::optimizer
