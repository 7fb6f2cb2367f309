// The updates for every instruction set, and the choice among them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "optim/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {

// Kept: how the state, and what is updated, are stored.
template <class T, class Codec, class Kept = Codec>
void sgd_of_type(const Elements& elements, const SgdUpdate& sgd) {
  const auto run = [&]<Momentum Kind>() {
    if (sgd.weight_decay != 0) {
      using Rule = SgdRule<T, Kind, Decay::gradient>;
      Sweep<T, Codec, Rule, Kept>::run(elements, Rule(sgd));
    } else {
      using Rule = SgdRule<T, Kind, Decay::none>;
      Sweep<T, Codec, Rule, Kept>::run(elements, Rule(sgd));
    }
  };
  switch (sgd.kind) {
    case Momentum::none: return run.template operator()<Momentum::none>();
    case Momentum::start: return run.template operator()<Momentum::start>();
    case Momentum::start_nesterov: return run.template operator()<Momentum::start_nesterov>();
    case Momentum::keep: return run.template operator()<Momentum::keep>();
    case Momentum::keep_nesterov: return run.template operator()<Momentum::keep_nesterov>();
  }
}

template <class T, class Codec, class Kept = Codec>
void adam_of_type(const Elements& elements, const AdamUpdate& adam) {
  const auto run = [&]<Decay Where>() {
    using Rule = AdamRule<T, Where>;
    Sweep<T, Codec, Rule, Kept>::run(elements, Rule(adam));
  };
  if (adam.weight_decay != 0)
    run.template operator()<Decay::gradient>();
  else if (adam.keep != 1)
    run.template operator()<Decay::parameter>();
  else
    run.template operator()<Decay::none>();
}

void sgd_here(const Elements& elements, const SgdUpdate& sgd) {
  switch (elements.dtype) {
    case DType::f32: return sgd_of_type<float, Plain<float>>(elements, sgd);
    case DType::f64: return sgd_of_type<double, Plain<double>>(elements, sgd);
    case DType::f16:
      if (elements.master != nullptr) return sgd_of_type<float, F16, Plain<float>>(elements, sgd);
      return sgd_of_type<float, F16>(elements, sgd);
    default:
      if (elements.master != nullptr) return sgd_of_type<float, Bf16, Plain<float>>(elements, sgd);
      return sgd_of_type<float, Bf16>(elements, sgd);
  }
}

void adam_here(const Elements& elements, const AdamUpdate& adam) {
  switch (elements.dtype) {
    case DType::f32: return adam_of_type<float, Plain<float>>(elements, adam);
    case DType::f64: return adam_of_type<double, Plain<double>>(elements, adam);
    case DType::f16:
      if (elements.master != nullptr) return adam_of_type<float, F16, Plain<float>>(elements, adam);
      return adam_of_type<float, F16>(elements, adam);
    default:
      if (elements.master != nullptr) return adam_of_type<float, Bf16, Plain<float>>(elements, adam);
      return adam_of_type<float, Bf16>(elements, adam);
  }
}

const char* name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep::kernel {

HWY_EXPORT(sgd_here);
HWY_EXPORT(adam_here);
HWY_EXPORT(name_here);

namespace {

// In a function, so that it is there before the first static object that adds some.
std::array<DeviceUpdates, kDeviceKinds>& device_updates() {
  static std::array<DeviceUpdates, kDeviceKinds> all;
  return all;
}

const DeviceUpdates& updates_of(Device device) {
  if (!has_updates(device.kind))
    throw UsageError("optimizer update on a device without kernels for it; accepted: cpu, or one with them");
  return device_updates()[static_cast<std::size_t>(device.kind)];
}

void check(const Elements& elements) {
  if (!is_float(elements.dtype))
    throw UsageError(std::string("optimizer update of ") + to_string(elements.dtype) +
                     " elements; accepted: f32, f64, f16, bf16");
  if (elements.master != nullptr && size_of(elements.dtype) != 2)
    throw UsageError(std::string("optimizer update of ") + to_string(elements.dtype) +
                     " elements with master weights; accepted: f16, bf16");
}

// Where all of them are.
Device device_of(std::span<const Elements> list) {
  for (const Elements& elements : list) {
    check(elements);
    if (!(elements.device == list.front().device))
      throw UsageError("optimizer update of elements on several devices; accepted: one of them a call");
  }
  return list.front().device;
}

template <class Pointer>
Pointer* advance(Pointer* pointer, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
  return pointer == nullptr ? nullptr : static_cast<Byte*>(pointer) + bytes;
}

}  // namespace

Elements Elements::part(std::size_t begin, std::size_t length) const {
  const std::size_t bytes = begin * size_of(dtype), kept_bytes = begin * size_of(kept_dtype());
  return {dtype,
          advance(parameter, bytes),
          advance(gradient, bytes),
          advance(first, kept_bytes),
          advance(second, kept_bytes),
          length,
          device,
          advance(master, kept_bytes),
          gradient_factor};
}

void add_device_updates(Device::Kind kind, DeviceUpdates updates) {
  device_updates()[static_cast<std::size_t>(kind)] = updates;
}

bool has_updates(Device::Kind kind) {
  return kind == Device::Kind::cpu || device_updates()[static_cast<std::size_t>(kind)].sgd != nullptr;
}

void update(std::span<const Elements> list, const SgdUpdate& sgd) {
  if (list.empty()) return;
  if (const Device device = device_of(list); device.kind != Device::Kind::cpu)
    return updates_of(device).sgd(list, sgd);
  for (const Elements& elements : list) HWY_DYNAMIC_DISPATCH(sgd_here)(elements, sgd);
}

void update(std::span<const Elements> list, const AdamUpdate& adam) {
  if (list.empty()) return;
  if (const Device device = device_of(list); device.kind != Device::Kind::cpu)
    return updates_of(device).adam(list, adam);
  for (const Elements& elements : list) HWY_DYNAMIC_DISPATCH(adam_here)(elements, adam);
}

void update(const Elements& elements, const SgdUpdate& sgd) { update(std::span(&elements, 1), sgd); }
void update(const Elements& elements, const AdamUpdate& adam) { update(std::span(&elements, 1), adam); }

const char* update_target_name() { return HWY_DYNAMIC_DISPATCH(name_here)(); }

}  // namespace lockstep::kernel
#endif
