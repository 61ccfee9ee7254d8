// residual_rms_norm: s = residual + dropout(x), out = rms_norm(s)
#pragma once

#include "residual_norm.h"
#include "rms_norm.h"

namespace mf {

template <class F, class S, bool kTraining>
using ResidualRmsNorm = ResidualNorm<RmsNorm<F>, F, S, kTraining>;
template <class F, bool kTraining>
using ResidualRmsNormBackward = ResidualNormBackward<RmsNormBackward<F>, F, kTraining>;

}  // namespace mf
