// torch's CUDA device made of host memory: an allocator, a guard, and for torch's own operations
// the CPU's, on the same memory.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

extern "C" void* emulated_allocate(size_t bytes);
extern "C" void emulated_free(void* data);

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

struct Guarded final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes ? emulated_allocate(bytes) : nullptr;
    TORCH_CHECK(data || !bytes, "the emulated GPU has no memory left");
    return {data, data, bytes ? &emulated_free : &nothing, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &emulated_free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  static void nothing(void*) {}
};
Guarded allocator;
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// What torch asks beside the guard. Random numbers are the CPU's.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};
// torch made the hooks of a build without CUDA when it was imported, and has no way to change them.
// They have no members, so that ours fit in their place.
const bool hooked = [] {
  static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks;
  return true;
}();

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

at::Tensor seen_in(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like,
                   int64_t offset) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(offset);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

// The same memory, as a CPU tensor.
at::Tensor on_cpu(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  const c10::Storage& storage = t.storage();
  const c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(),
                          c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(at::kCPU)),
                          nullptr, false);
  return seen_in(same, c10::DispatchKey::CPU, t, t.storage_offset());
}
// A CPU tensor's elements in memory of the device; views stay views of the argument they are of.
at::Tensor on_device(const at::Tensor& t, const std::vector<at::Tensor>& arguments) {
  if (!t.defined() || t.is_cuda()) return t;
  for (const at::Tensor& a : arguments) {
    if (!a.defined() || !a.is_cuda() || !t.numel() || !a.numel()) continue;
    const auto at = reinterpret_cast<uintptr_t>(t.const_data_ptr());
    const auto first = reinterpret_cast<uintptr_t>(a.storage().data());
    if (at < first || at >= first + a.storage().nbytes()) continue;
    return seen_in(a.storage(), c10::DispatchKey::CUDA, t, int64_t(at - first) / t.element_size());
  }
  at::Tensor made = at::detail::empty_strided_generic(t.sizes(), t.strides(), &allocator,
                                                      c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                      t.scalar_type());
  if (t.numel()) on_cpu(made).copy_(t);
  return made;
}

c10::IValue each(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& t : value.toTensorVector()) made.push_back(f(t));
    return made;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(at::kCPU);
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      made.push_back(t ? std::optional(f(*t)) : t);
    return made;
  }
  return value;
}

// Operations give results their sizes: an empty one gets memory, another may get smaller.
void take_over(const at::Tensor& t, const at::Tensor& result) {
  c10::TensorImpl* const impl = t.unsafeGetTensorImpl();
  const bool same_memory = result.storage().data() == t.storage().data();
  const at::Tensor made = same_memory ? result : on_device(result, {});
  if (!same_memory) impl->set_storage_keep_dtype(made.storage());
  impl->set_sizes_and_strides(made.sizes(), made.strides());
}

// Any other operation. What it writes into, it returns.
void through_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto given = torch::jit::pop(*stack, count);
  std::vector<at::Tensor> arguments, written, sized;
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    c10::IValue value = each(given[i], on_cpu);
    if (given[i].isTensor()) {
      const at::Tensor& t = given[i].toTensor();
      arguments.push_back(t);
      if (alias && alias->isWrite()) {
        if (t.is_cuda() && t.numel() == 0) value = at::empty({0}, t.options().device(at::kCPU));
        written.push_back(t);
        sized.push_back(value.toTensor());
      }
    }
    torch::jit::push(*stack, std::move(value));
  }
  op.callBoxed(*stack);
  for (size_t i = 0; i < written.size(); ++i)
    if (written[i].is_cuda() && written[i].sizes() != sized[i].sizes())
      take_over(written[i], sized[i]);
  const size_t returns = schema.returns().size();
  const auto results = torch::jit::pop(*stack, returns);
  size_t next = 0;
  for (size_t i = 0; i < returns; ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (alias && alias->isWrite() && results[i].isTensor() && next < written.size())
      torch::jit::push(*stack, written[next++]);
    else
      torch::jit::push(
          *stack, each(results[i], [&](const at::Tensor& t) { return on_device(t, arguments); }));
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  // Those that torch writes for all devices at once, with a part for each that is missing here.
  for (const char* name : {"copy_", "fill_.Scalar", "zero_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&through_cpu>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&through_cpu>());
}

}  // namespace
