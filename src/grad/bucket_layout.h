// Which parameter goes into which bucket, and where.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep {

struct ParameterShape {
  std::size_t count = 0;  // elements
  DType dtype = DType::f32;
  std::optional<DType> own = {};  // of the parameter, where its gradient is of another
  int unit = 0;                   // what is gathered together (parallel/units.h) has a number; 0: nothing
};

struct BucketPlan {
  DType dtype = DType::f32;
  std::size_t count = 0;     // elements, gaps for alignment and for the cut included
  std::vector<int> members;  // parameters, in the order given
};

struct Placement {
  int bucket = 0;
  std::size_t offset = 0;  // elements
};

struct BucketLayout {
  std::vector<BucketPlan> buckets;
  std::vector<Placement> placements;  // of each parameter
};

// Where the buckets of a layout lie in one block of memory.
struct BucketOffsets {
  std::vector<std::size_t> begins;  // bytes
  std::size_t bytes = 0;            // of the block; a page at least
};

// "bucket 2 of 3 (layer1.weight … layer3.bias)": one a bucket, for messages. `names`: the parameters'.
std::vector<std::string> bucket_labels(const BucketLayout& layout, std::span<const std::string> names);

// Every tensor in a bucket starts at a multiple of this.
inline constexpr std::size_t kTensorAlignment = 64;

// Every bucket of a block starts at a multiple of this, a page.
inline constexpr std::size_t kBucketAlignment = 4096;  // bytes

BucketOffsets place_buckets(const BucketLayout& layout, std::size_t alignment = kBucketAlignment);

// `order` is the order in which gradients are expected. A bucket holds one type, of parameters of one type,
// and of one unit, and at most `cap_bytes` (the first of each type `first_bytes`; not those of units), or one
// parameter that is larger than that.
// Buckets are in the order in which they are expected to be full. Each can be cut into `ranks` equal parts:
// on the lines of tensors where what that adds to the bucket's end hardly counts, else wherever it comes out
// even.
BucketLayout plan_buckets(std::span<const ParameterShape> parameters, std::span<const int> order,
                          std::size_t first_bytes, std::size_t cap_bytes, int ranks = 1);

}  // namespace lockstep
