// Whether gradients are finite, by their bits.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/grad/exchange.h"

namespace lockstep {

// On the processor.
bool all_finite(const Buffer& data);

// This rank's part of a bucket, tensor by tensor, without the gaps between them. All ranks' parts together
// are the bucket.
std::vector<Buffer> own_tensors(const Bucket& bucket);

// On a device, in the order of its current stream: `found`, an i32 there, becomes 1 where an element of the
// list is not finite, and stays as it is otherwise. Nobody waits for anything.
void mark_not_finite(std::span<const Buffer> list, const torch::Tensor& found);

// The same in one launch, where a library for the device has it; libtorch's operations otherwise. Added when
// it is linked.
using MarkNotFinite = void (*)(std::span<const Buffer> list, std::int32_t* found);
void add_device_finite(Device::Kind kind, MarkNotFinite mark);  // once a kind, before main or from it

}  // namespace lockstep
