// How a compressor comes to its method under --compress auto.
#include <algorithm>
#include <optional>

#include "compress/arithmetic.h"
#include "compress/compressor.h"
#include "compress/methods.h"

namespace lockstep::compress {
namespace {

constexpr std::size_t kMostProbed = std::size_t{1} << 20;  // elements of a tensor

std::unique_ptr<Method> candidate(std::size_t index) {
  return make_method(parse_rules(Chooser::candidates()[index]).front().method);
}

}  // namespace

void Compressor::use_choice() {
  lines_[0].method =
      chooser_->choice() < 0 ? nullptr : candidate(static_cast<std::size_t>(chooser_->choice()));
}

double Compressor::wire_seconds(const Method& method) const {
  double bytes = 0;
  bool smaller = false;
  for (const auto& [name, tensor] : parameters_) {
    const std::vector<std::int64_t> sizes = tensor.sizes().vec();
    const bool compresses = static_cast<std::size_t>(tensor.numel()) >= lines_[0].min &&
                            method.why_dense(sizes, element_bytes(tensor)).empty();
    smaller = smaller || compresses;
    bytes += compresses ? static_cast<double>(method.payload_bytes(sizes))
                        : static_cast<double>(tensor.numel()) * static_cast<double>(element_bytes(tensor));
  }
  if (!smaller) return 0;
  const auto each = static_cast<std::size_t>(bytes / buckets_) + 1;
  return buckets_ * group_->expected_seconds(method.gathers()
                                                 ? CallQuestion{.what = Collective::all_gather,
                                                                .count = carriage_.piece_bytes(each),
                                                                .dtype = DType::u8}
                                                 : CallQuestion{.what = Collective::all_reduce,
                                                                .count = each / sizeof(float) + 1});
}

// In front of a step's first bucket, on every rank, but not at the same time: it is full early on one, and
// leaves at the end of backward on another, which may wait there for the first (SyncBatchNorm). So nobody
// waits for what the others have not begun: all ask in one step, and know in the next.
void Compressor::look_for_method(const Bucket& bucket) {
  constexpr int kAsk = 2 + Chooser::kProbes;
  if (bucket.index == 0) ++probed_;
  if (bucket.index == 0 && probed_ == kAsk) return ask();
  if (bucket.index == 0 && probed_ > kAsk) return decide();
  buckets_ = std::max(buckets_, bucket.index + 1);
  if (probed_ >= 2 && probed_ < kAsk && bucket.data.dtype == DType::f32 && !bucket.sums.empty())
    probe(bucket);
}

void Compressor::probe(const Bucket& bucket) {
  Flight flight;
  flight.bucket = bucket;
  flight.sums = {static_cast<float*>(bucket.sums[0].data)};
  std::optional<std::size_t> largest;
  for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
    const std::size_t count = bucket.tensors[t].count;
    if (bucket.sums[0].has[t] == 0 || count < lines_[0].min || count > kMostProbed) continue;
    if (!largest || count > bucket.tensors[*largest].count) largest = t;
  }
  if (!largest) return;
  const BucketTensor& tensor = bucket.tensors[*largest];
  if (all_finite({flight.sums[0] + tensor.offset, tensor.count}))
    chooser_->probe(flight, *largest, parameters_[tensor.parameter].tensor);
}

double Compressor::elements() const {
  double elements = 0;
  for (const NamedTensor& parameter : parameters_) elements += static_cast<double>(parameter.tensor.numel());
  return elements;
}

void Compressor::ask() {
  std::vector<double> wire;
  for (std::size_t c = 0; c < Chooser::candidates().size(); ++c) wire.push_back(wire_seconds(*candidate(c)));
  const auto each = static_cast<std::size_t>(elements() / buckets_) + 1;
  chooser_->ask(*group_, buckets_ * plain_.expected_seconds(*group_, each, DType::f32), wire);
}

void Compressor::decide() {
  chooser_->decide(elements());
  use_choice();
  assign(parameters_);
  bind_methods();
}

}  // namespace lockstep::compress
