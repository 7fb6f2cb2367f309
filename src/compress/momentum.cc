#include "compress/momentum.h"

#include <algorithm>

namespace lockstep::compress {
namespace {

class MomentumFeedback final : public Recall {
 public:
  explicit MomentumFeedback(double beta1) : beta1_(beta1) {}

  void declare(MemoryBook& book, const NamedTensor& parameter) const override {
    book.declare_by_subtree(kOwed, parameter.name, parameter.tensor.sizes().vec());
    book.declare_shared(kMomentum, parameter.name, parameter.tensor.sizes().vec());
  }

  void prepare(MemoryBook& book, int subtree, const BucketTensor& tensor, std::span<float> sum,
               float inverse) const override {
    const std::span<const float> momentum = book.shared(kMomentum, tensor.name);
    const std::span<float> owed = book.of(kOwed, subtree, tensor.name);
    const float gain = static_cast<float>(1 - beta1_) * inverse, share = share_of(book);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = (share * momentum[i] + gain * sum[i]) - owed[i];
      owed[i] = -sum[i];
    }
  }

  void settle(MemoryBook& book, int subtree, const BucketTensor& tensor, const Codec& codec,
              std::span<const std::byte> payload) const override {
    codec.decode_add(payload, book.of(kOwed, subtree, tensor.name));
  }

  void give_up(MemoryBook& book, int subtree, const BucketTensor& tensor) const override {
    const std::span<const float> momentum = book.shared(kMomentum, tensor.name);
    const std::span<float> owed = book.of(kOwed, subtree, tensor.name);
    const float share = share_of(book);
    for (std::size_t i = 0; i < owed.size(); ++i) owed[i] += share * momentum[i];
  }

  bool put_absent(MemoryBook& book, const BucketTensor& tensor, std::span<float> to) const override {
    const std::span<const float> momentum = book.shared(kMomentum, tensor.name);
    const float share = share_of(book);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = share * momentum[i];
    return true;
  }

  void keep(MemoryBook& book, const BucketTensor& tensor, std::span<const float> result) const override {
    std::ranges::copy(result, book.shared(kMomentum, tensor.name).begin());
  }

 private:
  static constexpr const char* kOwed = "owed";
  float share_of(const MemoryBook& book) const {
    return static_cast<float>(beta1_ / book.subtrees().existing());
  }
  double beta1_;
};

}  // namespace

std::unique_ptr<Recall> momentum_feedback(double beta1) { return std::make_unique<MomentumFeedback>(beta1); }

}  // namespace lockstep::compress
