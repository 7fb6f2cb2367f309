// The arithmetic of optimizers that look at a whole parameter before they update it: squares added up in
// fixed blocks, and LAMB's moments, direction and step. SIMD by run-time dispatch, and as in update.h every
// element goes through the same instructions whatever its place, so that the cut makes no difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/dtype.h"
#include "optim/update.h"

namespace lockstep::kernel {

// A block: so many elements, counted from the parameter's first one; the last block may be shorter.
inline constexpr std::size_t kBlockElements = 512;

// The sum of the squares of at most one block, in f64: element i joins the i % 16th of 16 sums, which are
// then added in pairs. Squares of f32 and of smaller types are exact.
double sum_of_squares(const double* values, std::size_t count);

// Elements of a float type as f64, exactly.
void widen(DType dtype, const void* from, double* to, std::size_t count);

// first = beta1 * first + (1 - beta1) * g, second = beta2 * second + (1 - beta2) * g²; the direction is
// u = first / correction1 / (sqrt(second) / correction2 + eps) + weight_decay * p, with p the master where
// there is one, and g the gradient times its factor. On the processor; DeviceLayers has the same.
struct LambUpdate {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double correction1 = 1;
  double correction2 = 1;
  double weight_decay = 0;
};
void lamb_moments(const Elements& elements, const LambUpdate& lamb);  // changes the state alone
// u of the state as it is, as f64.
void lamb_direction(const Elements& elements, const LambUpdate& lamb, double* u);
void lamb_step(const Elements& elements, const LambUpdate& lamb, double rate);  // p -= rate * u

// What a worker has of one parameter on a device, and where its blocks are among all parameters' blocks.
struct LayerPart {
  Elements elements;
  std::size_t begin = 0;        // the first element's place in the parameter
  std::size_t first_block = 0;  // the parameter's
};
// Where sums of squares go, all of it on the device: as LayerNorms has them on the host.
struct LayerSums {
  double* values = nullptr;  // two a block; behind those of all blocks two times the elements of cut ones
  const std::int32_t* cut = nullptr;  // of each block: its number among the cut ones, or less than 0
  std::size_t blocks = 0;             // of all parameters
};

// The same on another device, in the order of its current stream, with the same bits. Blocks of which the
// worker has nothing are left as they are.
struct DeviceLayers {
  // Squares of the parameters, and of the gradients times their factor.
  void (*measure_lars)(std::span<const LayerPart> parts, const LayerSums& to) = nullptr;
  // Squares of the parameters and of the direction u, with the moments moved on before.
  void (*measure_lamb)(std::span<const LayerPart> parts, const LambUpdate& lamb,
                       const LayerSums& to) = nullptr;
  void (*lamb_step)(std::span<const Elements> list, const LambUpdate& lamb, double rate) = nullptr;
};
void add_device_layers(Device::Kind kind, DeviceLayers layers);  // once a kind, before main or from it
// Null: there are none.
const DeviceLayers* device_layers(Device::Kind kind);

}  // namespace lockstep::kernel
