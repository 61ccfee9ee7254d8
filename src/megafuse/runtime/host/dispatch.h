// The dispatcher's side of every op: one boxed kernel for the backends, one for autograd,
// one for autocast, each told which op it serves. Schemas are defined in Python.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

#include "autograd.h"
#include "python.h"

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
    switch (op.args[i].kind) {
      case ArgKind::kNumber:
        call.number[i] = value.toDouble();
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

struct BoxedForward : c10::OperatorKernel {
  const Op* op;
  explicit BoxedForward(const Op* o) : op(o) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t n = op->args.size();
    const std::vector<c10::IValue> args(stack->end() - long(n), stack->end());
    torch::jit::drop(*stack, n);
    at::Tensor out;
    RandomState random;
    try {
      const Call call = read_stack(*op, args);
      const Agreement agreement = agree(call);
      if (op->random) {
        random = draw_state(agreement.device);
        random.kept = allocate({2}, {}, at::kLong, agreement.device);
        random.words[4] = reinterpret_cast<uint64_t>(random.kept.mutable_data_ptr());
      }
      out = forward(call, agreement, random);
    } catch (const BadArguments&) {
      explain(*op, args);
    } catch (const UseReference&) {
      out = call_reference(*op, args);
      if (op->random) random.kept = allocate({2}, {}, at::kLong, out.device());
    }
    stack->emplace_back(std::move(out));
    if (op->random) stack->emplace_back(std::move(random.kept));
  }
};

struct BoxedAutograd : c10::OperatorKernel {
  const Op* op;
  explicit BoxedAutograd(const Op* o) : op(o) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const size_t n = op->args.size();
    const std::vector<c10::IValue> args(stack->end() - long(n), stack->end());
    Call call;
    try {
      call = read_stack(*op, args);
    } catch (const BadArguments&) {
      explain(*op, args);
    }
    const bool differentiate = wants_grad(call);
    for (int arg : op->tensors)
      if (call.tensor[arg]->_fw_grad(/*level=*/0).defined() ||
          (differentiate && call.tensor[arg]->is_inference())) {
        // Forward mode and tensors that cannot be saved are PyTorch's business.
        torch::jit::drop(*stack, n);
        stack->emplace_back(call_reference(*op, args));
        if (op->random) stack->emplace_back(at::empty({2}, at::kLong));
        return;
      }
    {
      at::AutoDispatchBelowADInplaceOrView below;
      handle.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
    if (!differentiate) return;
    RandomState random;
    if (op->random) random.kept = stack->back().toTensor();
    const at::Tensor out = (*stack)[stack->size() - (op->random ? 2 : 1)].toTensor();
    record(call, out, random);
  }
};

// What PyTorch's autocast does for exp and its kin: compute and answer in float32.
struct BoxedAutocast : c10::OperatorKernel {
  const Op* op;
  explicit BoxedAutocast(const Op* o) : op(o) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastCUDA);
    for (size_t i = stack->size() - op->args.size(); i < stack->size(); ++i)
      if ((*stack)[i].isTensor())
        (*stack)[i] = at::autocast::cached_cast(at::kFloat, (*stack)[i].toTensor(), at::kCUDA);
    handle.callBoxed(stack);
  }
};

// pointwise_backward(str op, Tensor grad, Tensor?[] saved, float[] saved_values,
//     Tensor?[] like, float[] numbers, int[] choices, Tensor? random, bool[] wanted) -> Tensor[]
// returns the wanted gradients only.
constexpr size_t kBackwardArgs = 9;

inline Gradients dispatch_backward(const BackwardCall& b) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("megafuse::pointwise_backward", "");
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
  if (op.random) {
    TORCH_CHECK(b.random.kept.defined() || !b.random.words[3],
                "megafuse: this backward cannot leave the CUDA graph its forward was captured in.");
    random = b.random.kept.defined() ? b.random.kept
                                     : at::tensor({int64_t(b.random.words[0]),
                                                   int64_t(b.random.words[1] + b.random.words[2])},
                                                  at::kLong)
                                           .to(b.grad.device());
  }
  torch::jit::Stack stack{
      op.name, b.grad, optional_list(b.saved), values, optional_list(b.like), numbers, choices,
      random,  wanted};
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
  BackwardCall b;
  b.call.op = op;
  b.grad = args[1].toTensor();
  for (const c10::IValue& t : args[2].toListRef())
    b.saved.push_back(t.isNone() ? at::Tensor() : t.toTensor());
  for (double v : args[3].toDoubleVector()) b.saved_value.push_back(v);
  for (const c10::IValue& t : args[4].toListRef())
    b.like.push_back(t.isNone() ? at::Tensor() : t.toTensor());
  const auto numbers = args[5].toDoubleVector();
  for (size_t i = 0; i < op->numbers.size(); ++i) b.call.number[op->numbers[i]] = numbers.at(i);
  const auto choices = args[6].toIntVector();
  for (size_t i = 0; i < op->args.size(); ++i) b.call.choice[i] = uint8_t(choices.at(i));
  if (!args[7].isNone()) b.random = stored_state(args[7].toTensor());
  for (const c10::IValue& w : args[8].toListRef()) b.wanted.push_back(w.toBool());
  Gradients gradients = backward(b);
  std::vector<at::Tensor> wanted;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (b.wanted[i]) {
      // Custom ops may not return an input, nor one tensor twice.
      bool repeated = gradients[i].is_alias_of(b.grad);
      for (const at::Tensor& t : wanted) repeated |= t.is_alias_of(gradients[i]);
      wanted.push_back(repeated ? gradients[i].clone() : gradients[i]);
    }
  stack->emplace_back(std::move(wanted));
}

// Python defined stand-ins for these kernels at import, to be overridden here on first use;
// the dispatcher would warn of that.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

inline void register_kernels(const Op* op) {
  static Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto* library =
      new torch::Library(torch::Library::IMPL, "megafuse", std::nullopt, __FILE__, __LINE__);
  static const bool backward_registered = [] {
    for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      library->impl(
          "pointwise_backward",
          torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&boxed_backward>()));
    return true;
  }();
  (void)backward_registered;
  auto add = [&](c10::DispatchKey key, auto functor) {
    library->impl(
        op->name.c_str(),
        torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::move(functor))));
  };
  add(c10::DispatchKey::CPU, std::make_unique<BoxedForward>(op));
  add(c10::DispatchKey::CUDA, std::make_unique<BoxedForward>(op));
  if (op->differentiable()) add(c10::DispatchKey::Autograd, std::make_unique<BoxedAutograd>(op));
  if (op->autocast_float) add(c10::DispatchKey::AutocastCUDA, std::make_unique<BoxedAutocast>(op));
}

}  // namespace megafuse
