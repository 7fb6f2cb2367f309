#include "compress/shared_int.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compress/arithmetic.h"
#include "compress/codec/element_random.h"
#include "compress/codec/shared_levels.h"
#include "lockstep/base/error.h"

namespace lockstep::compress {
namespace {

class SharedInt final : public Method {
 public:
  explicit SharedInt(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  bool gathers() const override { return false; }
  std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const override {
    return payload_bytes(sizes) < count_of(sizes) * element_bytes ? "" : "its integers would not be smaller";
  }
  bool has_two_calls(const Carriage&) const override { return true; }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    return count_of(sizes) + sizeof(float);
  }

  void bind(const Setting& setting, const std::vector<NamedTensor>&) override {
    setting_ = setting;
    const int n = setting.carriage->existing();
    if (n > kMostLevel)
      throw UsageError("--compress intsgd with " + std::to_string(n) +
                       " groups, whose sums don't fit into 8 bits; accepted: --compress-groups 64 at most");
    levels_ = static_cast<float>(kMostLevel / n);
  }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    const int index = flight->bucket.index;
    const Group& group = setting_.lines.first;
    const std::size_t n = members.size();
    auto* const most = reinterpret_cast<float*>(maxima_.of(group, index, n * sizeof(float)));
    for (std::size_t i = 0; i < n; ++i) most[i] = scaled_largest(*flight, members[i]);
    std::size_t total = 0;
    for (const std::size_t m : members) total += flight->bucket.tensors[m].count;
    auto* const sums = reinterpret_cast<std::int8_t*>(sums_.of(setting_.lines.second, index, total));
    setting_.savings->add_bytes(dense_bytes(*flight, members),
                                static_cast<double>(total + n * sizeof(float)));
    const auto parts = std::make_shared<const std::vector<std::size_t>>(std::move(members));
    return group
        .all_reduce_async(Buffer{most, n, DType::f32},
                          {.op = ReduceOp::max, .purpose = flight->bucket.purpose})
        .then([this, flight, parts, most, sums, total] {
          quantise(*flight, *parts, most, sums);
          return setting_.lines.second.all_reduce_async(Buffer{sums, total, DType::i8},
                                                        {.purpose = flight->bucket.purpose});
        })
        .then([this, flight, parts, most, sums] { restore(*flight, *parts, most, sums); });
  }

 private:
  // Scales the sums, too.
  float scaled_largest(const Flight& flight, std::size_t member) const {
    float most = 0;
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      if (flight.there[k][member] == Presence::not_finite) return std::numeric_limits<float>::infinity();
      if (flight.there[k][member] == Presence::absent) continue;
      scale(flight.sum(k, member), flight.inverse);
      most = std::max(most, largest_of(flight.sum(k, member)));
    }
    return most;
  }

  void quantise(const Flight& flight, const std::vector<std::size_t>& members, const float* most,
                std::int8_t* to) const {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const BucketTensor& tensor = flight.bucket.tensors[members[i]];
      std::fill_n(to, tensor.count, std::int8_t{0});
      for (std::size_t k = 0; k < flight.subtrees.size() && setting_.carriage->speaks(); ++k)
        if (flight.there[k][members[i]] == Presence::there && most[i] > 0 && std::isfinite(most[i]))
          add_levels(flight.sum(k, members[i]), most[i], levels_,
                     ElementRandom(setting_.seed, flight.step, flight.subtrees[k], tensor.name), to);
      to += tensor.count;
    }
  }

  void restore(const Flight& flight, const std::vector<std::size_t>& members, const float* most,
               const std::int8_t* from) const {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::span<float> out = flight.out(members[i]);
      if (std::isfinite(most[i])) {
        from_levels(from, most[i], levels_, out);
      } else {
        fill(out, std::numeric_limits<float>::quiet_NaN());
      }
      from += out.size();
    }
  }

  std::string name_;
  Setting setting_;
  float levels_ = 1;
  Staging maxima_, sums_;
};

}  // namespace

std::unique_ptr<Method> shared_int(std::string name) { return std::make_unique<SharedInt>(std::move(name)); }

}  // namespace lockstep::compress
