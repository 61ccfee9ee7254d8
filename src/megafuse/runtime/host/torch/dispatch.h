// The dispatcher's side of every op: one boxed kernel for the backends, one for autograd,
// one for autocast, each told which op it serves. Schemas are defined in Python.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <memory>

#include "torch/autograd.h"
#include "torch/python.h"

namespace megafuse {

inline std::vector<std::unique_ptr<Op>>& all_ops() {
  static auto* ops = new std::vector<std::unique_ptr<Op>>;
  return *ops;
}

// The arguments of a boxed call. The tensors stay on the stack, which must outlive the Call.
inline Call read_stack(const Op& op, at::ArrayRef<c10::IValue> stack) {
  Call call{&op};
  for (size_t i = 0; i < op.args.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isNone()) {
      if (op.args[i].is_number()) call.number[i] = NAN;
      continue;
    }
    switch (op.args[i].kind) {
      case ArgKind::kNumber:
        call.number[i] = value.toDouble();
        if (op.args[i].optional && std::isnan(call.number[i])) throw BadArguments{};
        break;
      case ArgKind::kInteger:
        call.number[i] = double(value.toInt());
        break;
      case ArgKind::kFlag:
        call.choice[i] = value.toBool();
        break;
      case ArgKind::kChoice: {
        const auto& choices = op.args[i].choices;
        const auto it = std::find(choices.begin(), choices.end(), value.toStringRef());
        if (it == choices.end()) throw BadArguments{};
        call.choice[i] = uint8_t(it - choices.begin());
        break;
      }
      default:
        call.tensor[i] = &value.toTensor();
    }
  }
  return call;
}

// How many arguments the op has for the dispatcher: `keep` last where there is something to keep.
inline size_t boxed_args(const Op& op) { return op.args.size() + (op.kept() ? 1 : 0); }

inline std::vector<c10::IValue> pop_args(const Op& op, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> args(stack->end() - long(boxed_args(op)), stack->end());
  torch::jit::drop(*stack, args.size());
  return args;
}

// Outputs, kept results (empty ones where nothing was kept), and the random state last: zeros where
// nothing was drawn, so that two calls return the same.
inline void push_results(const Op& op, torch::jit::Stack* stack, Results results,
                         at::Tensor random) {
  const at::TensorOptions options = results[0].options();
  results.resize(size_t(op.outputs + op.kept()));
  for (at::Tensor& t : results)
    stack->emplace_back(t.defined() ? std::move(t) : at::empty({0}, options));
  if (op.random)
    stack->emplace_back(random.defined() ? std::move(random)
                                         : at::zeros({2}, options.dtype(at::kLong)));
}

struct BoxedForward : c10::OperatorKernel {
  const Op* op;
  explicit BoxedForward(const Op* o) : op(o) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto args = pop_args(*op, stack);
    const bool keep = op->kept() && args.back().toBool();
    Results results;
    RandomState random;
    try {
      const Call call = read_stack(*op, args);
      const Agreement agreement = agree(call);
      if (draws(call)) {
        random = draw_state(agreement.device);
        random.kept = allocate({2}, {}, at::kLong, agreement.device);
        random.words[4] = reinterpret_cast<uint64_t>(random.kept.mutable_data_ptr());
      }
      results = run_forward(call, agreement, random, keep);
    } catch (const BadArguments&) {
      explain(*op, args);
    } catch (const UseReference&) {
      results = call_reference(*op, args, keep);
    }
    push_results(*op, stack, std::move(results), std::move(random.kept));
  }
};

struct BoxedAutograd : c10::OperatorKernel {
  const Op* op;
  explicit BoxedAutograd(const Op* o) : op(o) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const std::vector<c10::IValue> args(stack->end() - long(boxed_args(*op)), stack->end());
    Call call;
    try {
      call = read_stack(*op, args);
    } catch (const BadArguments&) {
      explain(*op, args);
    }
    const bool differentiate = wants_grad(call);
    auto by_reference = [&](size_t on_stack) {
      torch::jit::drop(*stack, on_stack);
      push_results(*op, stack, call_reference(*op, args, /*keep=*/false), {});
    };
    bool cuda = false;
    for (int arg : op->tensors) {
      const at::Tensor* t = call.tensor[arg];
      if (!t) continue;
      cuda |= t->is_cuda();
      // Forward mode and tensors that cannot be saved are left to PyTorch.
      if (t->_fw_grad(/*level=*/0).defined() || (differentiate && t->is_inference()))
        return by_reference(args.size());
    }
    const c10::DeviceType device = cuda ? at::kCUDA : at::kCPU;
    if (differentiate && !can_build_for(*op, device)) return by_reference(args.size());
    if (op->kept() && differentiate) stack->back() = true;
    {
      at::AutoDispatchBelowADInplaceOrView below;
      handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
    if (!differentiate) return;
    const size_t made = size_t(op->outputs + op->kept() + op->random);
    // No kernel wrote these results, so none of ours can differentiate them.
    if (!can_build_for(*op, device)) return by_reference(made);
    RandomState random;
    if (op->random) random.kept = stack->back().toTensor();
    Results results;
    for (auto it = stack->end() - long(made); it != stack->end(); ++it)
      results.push_back(it->toTensor());
    record(call, results, random);
  }
};

// What PyTorch's autocast does: for exp and the like, compute and answer in float32; for matmul and
// the like, compute in the dtype that the user chose.
struct BoxedAutocast : c10::OperatorKernel {
  const Op* op;
  c10::DeviceType device;
  BoxedAutocast(const Op* o, c10::DeviceType d) : op(o), device(d) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard off(kAutocast);
    const at::ScalarType dtype =
        op->autocast_lowers ? at::autocast::get_autocast_dtype(device) : at::kFloat;
    const size_t first = stack->size() - boxed_args(*op);
    Promotion given;
    for (int i : op->tensors) {
      const Arg& arg = op->args[i];
      c10::IValue& value = (*stack)[first + size_t(i)];
      if (!value.isTensor()) continue;
      // The sum that a norm is of takes its dtype from x and the residual, not from the weight.
      if (!arg.own_dtype || arg.shape.leading)
        given.see(value.toTensor().scalar_type(), value.toTensor().dim() > 0);
      if (!arg.own_dtype) value = at::autocast::cached_cast(dtype, value.toTensor(), device);
    }
    handle.callBoxed(stack);
    // Only the first output is in float32; the others (a sum beside its norm) have the dtype that
    // they have without autocast.
    if (op->autocast_lowers) return;
    const size_t results = stack->size() - size_t(op->outputs + op->kept() + op->random);
    for (int i = 1; i < op->outputs; ++i) {
      c10::IValue& value = (*stack)[results + size_t(i)];
      value = value.toTensor().to(given.result());
    }
  }
};

// backward(str op, Tensor?[] grads, Tensor?[] saved, float[] saved_values, Tensor?[] like,
//     float[] numbers, int[] choices, Tensor? random, bool[] wanted) -> Tensor[]
// returns the wanted gradients only.
constexpr size_t kBackwardArgs = 9;

inline Gradients dispatch_backward(const BackwardCall& b) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("megafuse::backward", "");
  const Op& op = *b.call.op;
  auto optional_list = [](const auto& tensors) {
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& t : tensors)
      list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
    return list;
  };
  c10::List<double> values, numbers;
  for (double v : b.saved_value) values.push_back(v);
  for (int arg : op.numbers) numbers.push_back(b.call.number[arg]);
  c10::List<int64_t> choices;
  for (size_t i = 0; i < op.args.size(); ++i) choices.push_back(b.call.choice[i]);
  c10::List<bool> wanted;
  for (bool w : b.wanted) wanted.push_back(w);
  c10::IValue random;
  if (drops_some(b.call)) {
    TORCH_CHECK(b.random.kept.defined() || !b.random.words[3],
                "megafuse: this backward cannot leave the CUDA graph its forward was captured in.");
    random = b.random.kept.defined() ? b.random.kept
                                     : at::tensor({int64_t(b.random.words[0]),
                                                   int64_t(b.random.words[1] + b.random.words[2])},
                                                  at::kLong)
                                           .to(b.grads[0].device());
  }
  torch::jit::Stack stack{op.name,
                          optional_list(b.grads),
                          optional_list(b.saved),
                          values,
                          optional_list(b.like),
                          numbers,
                          choices,
                          random,
                          wanted};
  handle.callBoxed(stack);
  const auto list = stack[0].toTensorVector();
  Gradients gradients(op.grads.size());
  for (size_t i = 0, n = 0; i < gradients.size(); ++i)
    if (b.wanted[i]) gradients[i] = list[n++];
  return gradients;
}

inline void boxed_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> args(stack->end() - long(kBackwardArgs), stack->end());
  torch::jit::drop(*stack, kBackwardArgs);
  const Op* op = nullptr;
  for (const auto& candidate : all_ops())
    if (candidate->name == args[0].toStringRef()) op = candidate.get();
  TORCH_CHECK(op && op->differentiable(), "megafuse: no op named ", args[0].toStringRef(),
              " has a backward.");
  auto append = [](auto& tensors, const c10::IValue& list) {
    for (const c10::IValue& t : list.toListRef())
      tensors.push_back(t.isNone() ? at::Tensor() : t.toTensor());
  };
  BackwardCall b;
  b.call.op = op;
  append(b.grads, args[1]);
  append(b.saved, args[2]);
  for (double v : args[3].toDoubleVector()) b.saved_value.push_back(v);
  append(b.like, args[4]);
  const auto numbers = args[5].toDoubleVector();
  for (size_t i = 0; i < op->numbers.size(); ++i) b.call.number[op->numbers[i]] = numbers.at(i);
  const auto choices = args[6].toIntVector();
  for (size_t i = 0; i < op->args.size(); ++i) b.call.choice[i] = uint8_t(choices.at(i));
  if (!args[7].isNone()) b.random = stored_state(args[7].toTensor());
  for (const c10::IValue& w : args[8].toListRef()) b.wanted.push_back(w.toBool());
  Gradients gradients = run_backward(b);
  std::vector<at::Tensor> wanted;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!b.wanted[i]) continue;
    at::Tensor g = op->pointwise()       ? gradients[i]
                   : op->laid_out_as < 0 ? gradients[i].contiguous()
                                         : laid_out_as(b.like[i], gradients[i]);
    // Custom ops may not return an input, nor one tensor twice.
    auto is_alias = [&](const at::Tensor& t) { return t.defined() && t.is_alias_of(g); };
    const bool repeated = std::any_of(b.grads.begin(), b.grads.end(), is_alias) ||
                          std::any_of(b.saved.begin(), b.saved.end(), is_alias) ||
                          std::any_of(wanted.begin(), wanted.end(), is_alias);
    wanted.push_back(repeated ? g.clone() : std::move(g));
  }
  stack->emplace_back(std::move(wanted));
}

// Python defined stand-ins for these kernels at import, to be overridden here on first use;
// the dispatcher would warn of that.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Puts an op's kernels in the place of the stand-ins, all of them or, where that throws, none: a
// Library that is destroyed takes back what was registered through it.
inline void register_kernels(const Op* op) {
  static Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto* const kept = new std::vector<torch::Library>;
  auto new_library = [] {
    return torch::Library(torch::Library::IMPL, "megafuse", std::nullopt, __FILE__, __LINE__);
  };
  if (kept->empty()) {
    torch::Library backward = new_library();
    for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      backward.impl(
          "backward",
          torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&boxed_backward>()));
    kept->push_back(std::move(backward));
  }
  torch::Library library = new_library();
  auto add = [&](c10::DispatchKey key, auto functor) {
    library.impl(
        op->name.c_str(),
        torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::move(functor))));
  };
  add(c10::DispatchKey::CPU, std::make_unique<BoxedForward>(op));
  add(c10::DispatchKey::CUDA, std::make_unique<BoxedForward>(op));
  if (op->differentiable()) add(c10::DispatchKey::Autograd, std::make_unique<BoxedAutograd>(op));
  for (const auto& [key, device] : {std::pair(c10::DispatchKey::AutocastCPU, at::kCPU),
                                    {c10::DispatchKey::AutocastCUDA, at::kCUDA}})
    if (op->autocast.has(key)) add(key, std::make_unique<BoxedAutocast>(op, device));
  kept->push_back(std::move(library));
}

}  // namespace megafuse
