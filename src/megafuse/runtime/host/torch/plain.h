// Which tensors and which moments the direct path is for: dense CPU and CUDA tensors
// with nothing watching. Everything else (torch.compile, functorch, subclasses, dispatch
// and function modes, tracing) goes through the dispatcher.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace megafuse {

// Every tensor carries its device's autocast key; each thread excludes it while autocast is off.
inline constexpr c10::DispatchKeySet kAutocast = c10::default_excluded_set;

inline bool is_plain(const at::Tensor& t) {
  constexpr c10::DispatchKeySet allowed =
      c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::DispatchKeySet(c10::DispatchKey::CUDA) |
      c10::DispatchKeySet(c10::DispatchKey::AutogradCPU) |
      c10::DispatchKeySet(c10::DispatchKey::AutogradCUDA) |
      c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | kAutocast;
  return (t.key_set().raw_repr() & ~allowed.raw_repr()) == 0;
}

// Whether any path is for this tensor: dense, on a device we know, or a stand-in for one.
inline bool is_supported(const at::Tensor& t) {
  const auto type = t.device().type();
  return t.layout() == at::kStrided && !t.is_quantized() &&
         (type == at::kCPU || type == at::kCUDA || type == at::kMeta);
}

// Nothing is switched on that watches calls, and autograd is not switched off in a way that
// GradMode does not show. Other keys may be masked (the autograd engine masks some on its threads):
// plain tensors do not have them.
inline bool only_plain_modes() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const uint64_t extra = local.included_.raw_repr() & ~c10::default_included_set.raw_repr();
  const bool below_autograd = local.excluded_.has_any(c10::autograd_dispatch_keyset);
  return extra == 0 && !(below_autograd && at::GradMode::is_enabled()) &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
         !at::impl::torch_function_mode_enabled();
}

// Whether autocast is on for any of these keys.
inline bool autocast_is_on(c10::DispatchKeySet keys) {
  return !(keys - c10::impl::tls_local_dispatch_key_set().excluded_).empty();
}

}  // namespace megafuse
