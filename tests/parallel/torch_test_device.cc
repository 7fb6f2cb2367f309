// libtorch on the test device (comm/test_device.h), as PrivateUse1: what buckets and parameters need is put
// on the current stream, all other operations run on the processor on copies, which the host waits for
// without counting: lockstep has not asked for that.
#include "parallel/torch_test_device.h"

#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#if __has_include(<ATen/detail/PrivateUse1HooksInterface.h>)
#include <ATen/detail/PrivateUse1HooksInterface.h>
#endif

#include "comm/test_device.h"
#include "optim/update.h"

namespace lockstep::testing {
namespace {

using torch::Tensor;

// libtorch's own optional, or the standard's, as the version has it.
template <class From, class T>
struct Rebound;
template <template <class> class Optional, class From, class T>
struct Rebound<Optional<From>, T> {
  using type = Optional<T>;
};
template <class T>
using Maybe = typename Rebound<decltype(torch::TensorOptions().device_opt()), T>::type;

bool on_device(const Tensor& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

lockstep::DeviceStream stream_of(const Tensor& tensor) {
  return TestDevice::get().current_stream(tensor.device().index());
}

Access touched(const Tensor& tensor, bool write) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const std::size_t elements = tensor.numel() == 0 ? 0 : static_cast<std::size_t>(last) + 1;
  return {tensor.data_ptr(), elements * tensor.element_size(), write};
}

// As the streams reach it.
Tensor here(const Tensor& tensor) {
  if (!on_device(tensor)) return tensor;
  return at::from_blob(TestDevice::get().reached(static_cast<char*>(tensor.data_ptr())), tensor.sizes(),
                       tensor.strides(), tensor.options().device(torch::kCPU));
}

// body(to, from) on the stream of `by`. Where they lie is settled now, as for every kernel.
template <class Body>
void on_stream(const Tensor& by, const Tensor& to, const std::vector<Tensor>& from, Body body) {
  std::vector<Access> touches;
  if (on_device(to)) touches.push_back(touched(to, true));
  std::vector<Tensor> inputs;
  for (const Tensor& tensor : from) {
    if (on_device(tensor)) touches.push_back(touched(tensor, false));
    inputs.push_back(on_device(tensor) ? here(tensor) : tensor.clone());
  }
  TestDevice::get().give(stream_of(by), touches, [target = here(to), inputs, body] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    body(target, inputs);
  });
}

Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, Maybe<at::ScalarType> dtype,
            Maybe<at::Device> device) {
  std::int64_t last = 0;
  bool none = false;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    last += (sizes[d] - 1) * strides[d];
    none = none || sizes[d] == 0;
  }
  const at::ScalarType type = dtype.value_or(at::kFloat);
  const std::size_t bytes = (none ? 0 : static_cast<std::size_t>(last) + 1) * c10::elementSize(type);
  const at::Device where = *device;
  const std::shared_ptr<void> memory = TestDevice::get().allocate(bytes, where.index());
  return at::from_blob(
      memory.get(), sizes, strides, [memory](void*) {}, torch::TensorOptions().dtype(type).device(where),
      where);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Maybe<at::ScalarType> dtype,
                     Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool>) {
  return make(sizes, strides, dtype, device);
}

Tensor empty(at::IntArrayRef sizes, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device,
             Maybe<bool>, Maybe<at::MemoryFormat>) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<std::int64_t>(sizes[d], 1);
  return make(sizes, strides, dtype, device);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const auto copy = [](const Tensor& target, const std::vector<Tensor>& source) { target.copy_(source[0]); };
  on_stream(on_device(to) ? to : from, to, {from}, copy);
  if (!on_device(to)) TestDevice::get().wait_uncounted(stream_of(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) { return copy_from(from, to, false); }

Tensor& fill(Tensor& self, const at::Scalar& value) {
  on_stream(self, self, {}, [value](const Tensor& to, const auto&) { Tensor(to).fill_(value); });
  return self;
}

Tensor& zero(Tensor& self) { return fill(self, 0); }

Tensor& add(Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  on_stream(self, self, {self, other},
            [alpha](const Tensor& to, const std::vector<Tensor>& from) { to.add_(from[1], alpha); });
  return self;
}

Tensor& mul(const Tensor& a, const Tensor& b, Tensor& out) {
  on_stream(out, out, {a, b},
            [](Tensor to, const std::vector<Tensor>& from) { at::mul_out(to, from[0], from[1]); });
  return out;
}

void on_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static inline thread_local c10::DeviceIndex current = 0;
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {type(), std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {type(), current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 8; }
  // libtorch 2's backward orders streams itself, also where there is only one.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    destroyEvent(*event, stream.device_index());
    *event = new DeviceEvent(TestDevice::get().record(stream_at(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    TestDevice::get().wait(stream_at(stream), *static_cast<DeviceEvent*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<DeviceEvent*>(event);
  }

 private:
  static DeviceStream stream_at(const c10::Stream& stream) {
    return TestDevice::get().current_stream(stream.device_index());
  }
};

// Before the first backward (torch_first.cc's), which counts the devices.
[[gnu::init_priority(200)]] const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::PrivateUse1,
                                                                                new Guard);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
// Its backward knows the streams of one accelerator alone: the GPUs that it was built for, where this has no
// name.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
};

[[maybe_unused]] const bool kIsTheAccelerator = [] {
  c10::register_privateuse1_backend("testdevice");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
#endif

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_processor>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(at::native::view));
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("add_.Tensor", add);
  m.impl("mul.out", mul);
}

// The optimizers' kernels: the processor's, on the stream.
template <class Update>
void update_one(const kernel::Elements& elements, const Update& how) {
  TestDevice& device = TestDevice::get();
  const std::size_t bytes = elements.count * size_of(elements.dtype);
  const std::size_t kept_bytes = elements.count * size_of(elements.kept_dtype());
  std::vector<Access> touches = {{elements.gradient, bytes}, {elements.parameter, bytes, true}};
  for (const void* data : {elements.first, elements.second, elements.master})
    if (data != nullptr) touches.push_back({data, kept_bytes, true});
  kernel::Elements there = elements;
  there.device = {};
  there.parameter = device.reached(elements.parameter);
  there.gradient = device.reached(elements.gradient);
  if (elements.first != nullptr) there.first = device.reached(elements.first);
  if (elements.second != nullptr) there.second = device.reached(elements.second);
  if (elements.master != nullptr) there.master = device.reached(elements.master);
  device.give(device.current_stream(elements.device.index), touches,
              [there, how] { kernel::update(there, how); });
}

template <class Update>
void update(std::span<const kernel::Elements> list, const Update& how) {
  for (const kernel::Elements& elements : list) update_one(elements, how);
}

[[maybe_unused]] const bool kUpdatesAreThere = [] {
  kernel::add_device_updates(Device::Kind::custom, {update<kernel::SgdUpdate>, update<kernel::AdamUpdate>});
  return true;
}();

}  // namespace

torch::Device torch_test_device(const Group& group) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(group.rank())};
}

}  // namespace lockstep::testing
