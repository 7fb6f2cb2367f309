#include "bench/coder.h"

#include <fmt/format.h>

#include <cmath>

#include "compress/codec/codec.h"
#include "compress/codec/low_rank.h"
#include "compress/codec/shared_levels.h"
#include "compress/method_text.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

class CodecCoder final : public Coder {
 public:
  CodecCoder(const std::string& method, std::size_t count)
      : codec_(make_codec(method)), payload_(codec_->payload_bytes(count)) {}
  std::string name() const override { return codec_->name(); }
  std::size_t payload_bytes() const override { return payload_.size(); }
  int decodes() const override { return 2; }
  void encode(std::span<const float> gradient) override {
    codec_->encode(gradient, {.seed = 1, .step = 1, .subtree = 0, .parameter = 1}, payload_);
  }
  void decode_add(std::span<float> sum) override { codec_->decode_add(payload_, sum); }

 private:
  std::unique_ptr<Codec> codec_;
  std::vector<std::byte> payload_;
};

// The scale is agreed on in front, which takes a pass.
class IntCoder final : public Coder {
 public:
  explicit IntCoder(std::size_t count) : sums_(count), values_(count) {}
  std::string name() const override { return "intsgd"; }
  std::size_t payload_bytes() const override { return sums_.size() + sizeof(float); }
  int decodes() const override { return 1; }
  void encode(std::span<const float> gradient) override {
    most_ = compress::largest_of(gradient);
    std::fill(sums_.begin(), sums_.end(), std::int8_t{0});
    compress::add_levels(gradient, most_, kLevels, compress::ElementRandom(1, 1, 0, "w"), sums_.data());
  }
  void decode_add(std::span<float> sum) override {
    compress::from_levels(sums_.data(), most_, kLevels, values_);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values_[i];
  }

 private:
  static constexpr auto kLevels = static_cast<float>(compress::kMostLevel / 2);  // of two workers each
  std::vector<std::int8_t> sums_;
  std::vector<float> values_;
  float most_ = 0;
};

class LowRankCoder final : public Coder {
 public:
  LowRankCoder(std::size_t count, std::size_t rank) : rank_(rank) {
    for (std::size_t r = 1; r * r <= count; ++r)
      if (count % r == 0) rows_ = r;
    columns_ = count / rows_;
    p_.resize(rows_ * rank_);
    q_.resize(columns_ * rank_);
    start_.resize(columns_ * rank_);
    const compress::ElementRandom random(1, 0, -1, "w");
    for (std::size_t i = 0; i < start_.size(); ++i) start_[i] = 2 * random.uniform(i) - 1;
  }
  std::string name() const override { return fmt::format("powersgd:rank={}", rank_); }
  std::size_t payload_bytes() const override { return (p_.size() + q_.size()) * sizeof(float); }
  int decodes() const override { return 1; }
  void encode(std::span<const float> gradient) override {
    const compress::Matrix m{gradient.data(), rows_, columns_};
    compress::times(m, start_, rank_, p_);
    compress::orthonormalise(p_, rank_);
    compress::transposed_times(m, p_, rank_, q_);
  }
  void decode_add(std::span<float> sum) override { compress::expand_add(p_, q_, rank_, sum, columns_); }

 private:
  std::size_t rank_, rows_ = 1, columns_ = 0;
  std::vector<float> p_, q_, start_;
};

}  // namespace

std::unique_ptr<Coder> make_coder(const std::string& method, std::size_t count) {
  const std::string name = method.substr(0, method.find(':'));
  if (name == "intsgd" || name == "powersgd") {
    compress::MethodText text = compress::parse_rules(method).front().method;
    const double rank = name == "powersgd" ? text.number("rank", 4, 1, 1 << 16) : 1;
    text.done();
    if (rank != std::floor(rank)) text.refuse("rank: accepted: whole numbers, 1 or more");
    if (name == "intsgd") return std::make_unique<IntCoder>(count);
    return std::make_unique<LowRankCoder>(count, static_cast<std::size_t>(rank));
  }
  try {
    return std::make_unique<CodecCoder>(method, count);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}; intsgd, powersgd:rank=R", error.what()));
  }
}

std::vector<std::string> coder_examples() {
  std::vector<std::string> list = codec_examples();
  list.insert(list.end(), {"intsgd", "powersgd:rank=4"});
  return list;
}

}  // namespace lockstep
