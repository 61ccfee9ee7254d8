// residual_layer_norm: s = residual + dropout(x), out = layer_norm(s)
#pragma once

#include "layer_norm.h"
#include "residual_norm.h"

namespace mf {

template <class F, class S, bool kTraining>
using ResidualLayerNorm = ResidualNorm<LayerNorm<F, S>, F, S, kTraining>;
template <class F, bool kTraining>
using ResidualLayerNormBackward = ResidualNormBackward<LayerNormBackward<F>, F, kTraining>;

}  // namespace mf
