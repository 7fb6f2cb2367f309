// The arithmetic of the optimizers: one pass over parameter, gradient and state, SIMD by run-time dispatch.
//
// f32 and f64: every operation is rounded where libtorch's tensor operations round, a * b + c being one
// rounding where the processor has fused multiply-add and two where it has not, as in libtorch's own kernels.
// f16 and bf16: the arithmetic is that of f32, and the results are rounded once, when they are stored. With
// master weights nothing that is remembered is rounded: they and the state are f32, and the parameter is the
// master's rounded value.
//
// Every element is on its own and goes through the same instructions whatever its place, so the result does
// not depend on alignment or on how the elements are cut into calls.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/buffer.h"

namespace lockstep::kernel {

// `count` elements of a float type. They are updated in place, all but the gradient; no two overlap. `first`
// and `second` are the state; null where the update has none.
struct Elements {
  DType dtype = DType::f32;  // of the parameter and the gradient; without a master, of the state too
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  std::size_t count = 0;
  Device device = {};
  // f32, of a 16-bit parameter, whose state is f32 then: what is updated in its place. Null: there is none.
  void* master = nullptr;
  // What each gradient is multiplied by first, in the arithmetic's type: one over the scale of the loss.
  double gradient_factor = 1;

  // The type of the state, and of what is updated.
  DType kept_dtype() const { return master != nullptr ? DType::f32 : dtype; }
  void* kept_parameter() const { return master != nullptr ? master : parameter; }
  // `length` of them, from `begin` on.
  Elements part(std::size_t begin, std::size_t length) const;
};

enum class Momentum {
  none,
  start,           // first = g, p -= lr * first
  start_nesterov,  // first = g, p -= lr * (g + momentum * first)
  keep,            // first = momentum * first + gain * g, p -= lr * first
  keep_nesterov    // the same, p -= lr * (g + momentum * first)
};

// g = gradient + weight_decay * p; then as `kind` says.
struct SgdUpdate {
  Momentum kind = Momentum::none;
  double lr = 0;
  double momentum = 0;
  double gain = 1;          // 1 - dampening
  double weight_decay = 0;  // 0: left out
};
void update(const Elements& elements, const SgdUpdate& sgd);
// Many of them, all on one device: there as few launches as their types allow.
void update(std::span<const Elements> list, const SgdUpdate& sgd);

// g = gradient + weight_decay * p, p = keep * p, first = beta1 * first + (1 - beta1) * g,
// second = beta2 * second + (1 - beta2) * g², p -= step_size * first / (sqrt(second) / correction + eps).
struct AdamUpdate {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double step_size = 0;
  double correction = 1;
  double weight_decay = 0;  // 0: left out
  double keep = 1;          // 1: left out
};
void update(const Elements& elements, const AdamUpdate& adam);
void update(std::span<const Elements> list, const AdamUpdate& adam);

// The same on another device, put on its current stream. A library that has them adds them when it is linked.
struct DeviceUpdates {
  void (*sgd)(std::span<const Elements> list, const SgdUpdate& sgd) = nullptr;
  void (*adam)(std::span<const Elements> list, const AdamUpdate& adam) = nullptr;
};
void add_device_updates(Device::Kind kind, DeviceUpdates updates);  // once a kind, before main or from it
bool has_updates(Device::Kind kind);

// The instruction set in use: "AVX3", "AVX2", "SSE4", …
const char* update_target_name();

}  // namespace lockstep::kernel
