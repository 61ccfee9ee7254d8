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

inline const Program* find_program(const std::string& name) {
  static const Pointwise pointwise;
  static const Rows rows;
  static const LinearAct linear_relu(/*relu=*/true), linear_gelu(/*relu=*/false);
  static const GeluLinear gelu_linear;
  static const LayernormLinear layernorm_linear;
  static const DropoutAdd dropout_add;
  static const Ffn ffn;
  static const SwigluFfn swiglu_ffn;
  static const Attention attention;
  static const TransformerBlock transformer_block;
  struct Named {
    const char* name;
    const Program* program;
  };
  static const Named programs[] = {
      {"pointwise", &pointwise},
      {"rows", &rows},
      {"linear_relu", &linear_relu},
      {"linear_gelu", &linear_gelu},
      {"gelu_linear", &gelu_linear},
      {"layernorm_linear", &layernorm_linear},
      {"dropout_add", &dropout_add},
      {"ffn", &ffn},
      {"swiglu_ffn", &swiglu_ffn},
      {"attention", &attention},
      {"transformer_block", &transformer_block},
  };
  for (const Named& each : programs)
    if (name == each.name) return each.program;
  TORCH_CHECK(false, "megafuse: runtime/host/programs/programs.h has no program named ", name);
}

}  // namespace megafuse
