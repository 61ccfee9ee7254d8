// Floats to whole numbers, as floats.
#pragma once

#include "logarithms.h"

namespace mf {

MF_FLOAT_FUNCTION(floor)
MF_FLOAT_FUNCTION(ceil)
MF_FLOAT_FUNCTION(trunc)
MF_DOUBLE_FUNCTION(floor)
MF_DOUBLE_FUNCTION(ceil)
MF_DOUBLE_FUNCTION(trunc)

// Half to even, as the processor's rounding is set.
MF_INLINE float round(float x) {
#if MF_ON_GPU
  return ::rintf(x);
#else
  return __builtin_nearbyintf(x);
#endif
}
MF_INLINE double round(double x) {
#if MF_ON_GPU
  return ::rint(x);
#else
  return __builtin_nearbyint(x);
#endif
}

}  // namespace mf
