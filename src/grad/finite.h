// Whether gradients are finite, by their bits.
#pragma once

#include "lockstep/grad/exchange.h"

namespace lockstep {

// On a device it is asked there, and waited for.
bool all_finite(const Buffer& data);

// This rank's part of a bucket, without the gaps between tensors. All ranks' parts together are the bucket.
bool own_part_finite(const Bucket& bucket);

}  // namespace lockstep
