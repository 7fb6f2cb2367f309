#include "compress/random_k.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "compress/arithmetic.h"
#include "compress/codec/element_random.h"
#include "compress/tree_sum.h"

namespace lockstep::compress {
namespace {

class RandomK final : public Method {
 public:
  RandomK(std::string name, const RandomKOptions& options) : name_(std::move(name)), options_(options) {}

  std::string name() const override { return name_; }
  bool gathers() const override { return false; }
  std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const override {
    return payload_bytes(sizes) < count_of(sizes) * element_bytes ? "" : "its payload would not be smaller";
  }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    return kept(count_of(sizes)) * sizeof(float);
  }
  void bind(const Setting& setting, const std::vector<NamedTensor>& parameters) override {
    setting_ = setting;
    if (!options_.feedback) return;
    for (const NamedTensor& parameter : parameters)
      setting_.book->declare_by_subtree("owed", parameter.name, parameter.tensor.sizes().vec());
  }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    const auto picks = std::make_shared<std::vector<std::vector<std::size_t>>>();
    std::size_t total = 0;
    for (const std::size_t m : members) {
      const BucketTensor& tensor = flight->bucket.tensors[m];
      picks->push_back(chosen(setting_.seed, flight->step, tensor.name, tensor.count, kept(tensor.count)));
      total += picks->back().size();
    }
    const Group& group = setting_.lines.first;
    auto* const values =
        reinterpret_cast<float*>(staging_.of(group, flight->bucket.index, total * sizeof(float)));
    setting_.savings->add_bytes(dense_bytes(*flight, members), static_cast<double>(total * sizeof(float)));
    float* to = values;
    for (std::size_t i = 0; i < members.size(); ++i) {
      pick(*flight, members[i], (*picks)[i], to);
      to += (*picks)[i].size();
    }
    return group.all_reduce_async(Buffer{values, total, DType::f32}, {.purpose = flight->bucket.purpose})
        .then([this, flight, picks, values, members = std::move(members)] {
          const float* from = values;
          for (std::size_t i = 0; i < members.size(); ++i) {
            place(*flight, members[i], (*picks)[i], from);
            from += (*picks)[i].size();
          }
        });
  }

 private:
  std::size_t kept(std::size_t count) const {
    return std::clamp<std::size_t>(static_cast<std::size_t>(static_cast<double>(count) * options_.ratio), 1,
                                   count);
  }

  // This worker's sum of the chosen elements.
  void pick(const Flight& flight, std::size_t member, const std::vector<std::size_t>& picks,
            float* to) const {
    const BucketTensor& tensor = flight.bucket.tensors[member];
    std::vector<std::vector<float>> parts(flight.subtrees.size(), std::vector<float>(picks.size()));
    std::vector<float*> sums;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      sums.push_back(parts[k].data());
      if (flight.there[k][member] == Presence::absent) continue;
      if (flight.there[k][member] == Presence::not_finite) {
        fill(parts[k], std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      const std::span<float> values = flight.sum(k, member);
      if (options_.feedback)
        add_owed(values, flight.inverse, setting_.book->of("owed", flight.subtrees[k], tensor.name));
      const float factor = options_.feedback
                               ? 1.0f
                               : flight.inverse * static_cast<float>(static_cast<double>(tensor.count) /
                                                                     static_cast<double>(picks.size()));
      for (std::size_t e = 0; e < picks.size(); ++e) parts[k][e] = values[picks[e]] * factor;
    }
    const float* const sum =
        !setting_.carriage->speaks() ? nullptr : tree_sum_in_place(sums, 0, picks.size(), [&](std::size_t k) {
          return flight.there[k][member] != Presence::absent;
        });
    if (sum != nullptr)
      std::copy_n(sum, picks.size(), to);
    else
      fill({to, picks.size()}, -0.0f);
  }

  void place(const Flight& flight, std::size_t member, const std::vector<std::size_t>& picks,
             const float* from) {
    const std::span<float> out = flight.out(member);
    if (!all_finite({from, picks.size()})) return fill(out, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t k = 0; k < flight.subtrees.size() && options_.feedback; ++k) {
      if (flight.there[k][member] != Presence::there) continue;
      const std::span<float> owed =
          setting_.book->of("owed", flight.subtrees[k], flight.bucket.tensors[member].name);
      for (const std::size_t e : picks) owed[e] = 0;
    }
    fill(out, 0);
    for (std::size_t e = 0; e < picks.size(); ++e) out[picks[e]] = from[e];
  }

  std::string name_;
  RandomKOptions options_;
  Setting setting_;
  Staging staging_;
};

}  // namespace

// Floyd's: each set of k is as likely as any other, with k draws.
std::vector<std::size_t> chosen(std::uint64_t seed, std::int64_t step, const std::string& parameter,
                                std::size_t n, std::size_t k) {
  const ElementRandom random(seed, step, -1, parameter);
  std::unordered_set<std::size_t> picks;
  for (std::size_t last = n - k; last < n; ++last) {
    __extension__ using Wide = unsigned __int128;
    const auto draw = static_cast<std::size_t>((static_cast<Wide>(random.bits(last)) * (last + 1)) >> 64);
    picks.insert(picks.contains(draw) ? last : draw);
  }
  std::vector<std::size_t> sorted(picks.begin(), picks.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::unique_ptr<Method> random_k(std::string name, const RandomKOptions& options) {
  return std::make_unique<RandomK>(std::move(name), options);
}

}  // namespace lockstep::compress
