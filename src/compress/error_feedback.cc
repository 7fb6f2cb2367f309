#include "compress/arithmetic.h"
#include "compress/recall.h"

namespace lockstep::compress {
namespace {

class Nothing final : public Recall {
 public:
  void declare(MemoryBook&, const NamedTensor&) const override {}
  void prepare(MemoryBook&, int, const BucketTensor&, std::span<float> sum, float inverse) const override {
    scale(sum, inverse);
  }
  void settle(MemoryBook&, int, const BucketTensor&, const Codec&,
              std::span<const std::byte>) const override {}
  bool put_absent(MemoryBook&, const BucketTensor&, std::span<float>) const override { return false; }
  void keep(MemoryBook&, const BucketTensor&, std::span<const float>) const override {}
};

// The sign is changed so that what was sent is taken off by adding it: of a few elements, where few were
// sent.
class ErrorFeedback final : public Recall {
 public:
  void declare(MemoryBook& book, const NamedTensor& parameter) const override {
    book.declare_by_subtree(kKind, parameter.name, parameter.tensor.sizes().vec());
  }
  void prepare(MemoryBook& book, int subtree, const BucketTensor& tensor, std::span<float> sum,
               float inverse) const override {
    add_owed(sum, inverse, book.of(kKind, subtree, tensor.name));
  }
  void settle(MemoryBook& book, int subtree, const BucketTensor& tensor, const Codec& codec,
              std::span<const std::byte> payload) const override {
    codec.decode_add(payload, book.of(kKind, subtree, tensor.name));
  }
  bool put_absent(MemoryBook&, const BucketTensor&, std::span<float>) const override { return false; }
  void keep(MemoryBook&, const BucketTensor&, std::span<const float>) const override {}

 private:
  static constexpr const char* kKind = "owed";
};

}  // namespace

std::unique_ptr<Recall> recall_nothing() { return std::make_unique<Nothing>(); }
std::unique_ptr<Recall> error_feedback() { return std::make_unique<ErrorFeedback>(); }

}  // namespace lockstep::compress
