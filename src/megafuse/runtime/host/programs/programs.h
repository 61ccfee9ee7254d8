// Every program by the name that the registry gives: `program=` of a composite, or its family.
#pragma once

#include "programs/attention.h"
#include "programs/gelu_linear.h"
#include "programs/layernorm_linear.h"
#include "programs/swiglu_ffn.h"
#include "programs/transformer_block.h"
#include "torch/pointwise.h"
#include "torch/rows.h"

namespace megafuse {

template <class Made>
std::shared_ptr<const Program> make(const Op& op) {
  return std::make_shared<Made>(op);
}

inline std::shared_ptr<const Program> program_of(const Op& op, const std::string& name) {
  struct Named {
    const char* name;
    std::shared_ptr<const Program> (*make)(const Op&);
  };
  static constexpr Named programs[] = {
      {"pointwise", make<Pointwise>},
      {"rows", make<Rows>},
      {"linear_relu", LinearAct::relu},
      {"linear_gelu", LinearAct::gelu},
      {"gelu_linear", make<GeluLinear>},
      {"layernorm_linear", make<LayernormLinear>},
      {"dropout_add", make<DropoutAdd>},
      {"ffn", make<Ffn>},
      {"swiglu_ffn", make<SwigluFfn>},
      {"attention", make<Attention>},
      {"transformer_block", make<TransformerBlock>},
  };
  for (const Named& each : programs)
    if (name == each.name) return each.make(op);
  TORCH_CHECK(false, "megafuse: runtime/host/programs/programs.h has no program named ", name);
}

}  // namespace megafuse
