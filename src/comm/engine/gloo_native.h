// Gloo's own collectives. all_reduce has its two algorithms, "ring" and "bcube"; everything else is "native".
//
// Gloo adds f16 in f16, rounding at each step; bf16, bit operations and reduce_scatter it does not have. min
// and max of NaN, and the order of sums, are Gloo's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/call/call.h"
#include "comm/call/capabilities.h"

namespace gloo {
class Context;
}

namespace lockstep {

class GlooNative {
 public:
  explicit GlooNative(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  static const std::vector<Offer>& offers();
  // The one that runs such a call unless another is named; null: Gloo has none.
  static const Offer* usual(const Call& call);

  // A collective of some elements, in which all ranks are. avg is left as the sum. Throws Gloo's exceptions.
  void run(const Call& call);

 private:
  void all_reduce(const Call& call);
  void reduce(const Call& call);
  void all_to_all(const Call& call);
  template <class Options>
  void prepare(Options& options, const Call& call);

  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;  // counts calls; the same on every rank
  std::vector<std::uint8_t> scratch_;
};

}  // namespace lockstep
