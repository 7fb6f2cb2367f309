#include "compress/scattered.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/round_up.h"
#include "compress/arithmetic.h"
#include "compress/slices.h"
#include "compress/tree_sum.h"

namespace lockstep::compress {
namespace {

// One bucket on its way.
struct Scattering {
  std::vector<std::size_t> members;
  Slices slices;
  std::vector<std::vector<std::vector<std::byte>>> payloads;  // this worker's, by subtree and member
  std::span<std::byte> arrived = {}, sums = {};               // of all ranks
  std::vector<Presence> found = {};                           // of a member: over all subtrees

  std::size_t header() const { return round_up(members.size(), std::size_t{8}); }
  std::size_t frame() const { return header() + slices.bytes; }
};

class Scattered final : public Method {
 public:
  Scattered(std::string name, const GatheredParts& parts, Form form)
      : name_(std::move(name)),
        parts_(parts),
        form_(form),
        codec_(parts.codec(0)),
        gathered_(gathered_method(name_, parts)) {}

  std::string name() const override { return name_; }
  bool gathers() const override { return true; }
  bool scatters(const Carriage& carriage) const override {
    return scatters(carriage, carriage.most_gathered());
  }
  bool has_forms() const override { return true; }
  // Where it goes on gathering, too: another state may be loaded.
  bool has_two_calls(const Carriage& carriage) const override { return scatters(carriage, kMostGathered); }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    return gathered_->payload_bytes(sizes);
  }
  std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const override {
    return gathered_->why_dense(sizes, element_bytes);
  }
  void bind(const Setting& setting, const std::vector<NamedTensor>& parameters) override {
    setting_ = setting;
    gathered_->bind(setting, parameters);
  }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    if (!scatters(*setting_.carriage)) return gathered_->run(flight, std::move(members));
    const Group& group = setting_.lines.first;
    const auto ranks = static_cast<std::size_t>(group.size());
    Slices slices(*codec_, *flight, members, ranks, setting_.leaves);
    const auto own = std::make_shared<Scattering>(Scattering{std::move(members), std::move(slices), {}});
    const std::size_t chunk = setting_.carriage->piece_bytes(own->frame());
    const std::span both(staging_.of(group, flight->bucket.index, 2 * ranks * chunk), 2 * ranks * chunk);
    const std::span leaves = both.first(ranks * chunk);
    own->arrived = both.subspan(ranks * chunk);
    encode_all(*flight, *own);
    for (std::size_t r = 0; r < ranks; ++r) put_slice(*flight, *own, r, leaves.subspan(r * chunk, chunk));
    setting_.savings->add_bytes(
        dense_bytes(*flight, own->members),
        static_cast<double>(leaves.size() + (keeps_own_part() ? 0 : own->slices.bytes)));
    const Work scattered = group.all_to_all_async(ConstBuffer{leaves.data(), leaves.size(), DType::u8},
                                                  Buffer{own->arrived.data(), leaves.size(), DType::u8},
                                                  {.purpose = flight->bucket.purpose});
    if (keeps_own_part())
      return scattered.then([this, flight, own] {
        add_up(*flight, *own);
        finish(*flight, *own);
      });
    return scattered
        .then([this, flight, own] {
          const std::span<std::byte> sum = add_up(*flight, *own);
          return setting_.lines.second.all_gather_async(ConstBuffer{sum.data(), sum.size(), DType::u8},
                                                        Buffer{own->sums.data(), own->sums.size(), DType::u8},
                                                        {.purpose = flight->bucket.purpose});
        })
        .then([this, flight, own] { finish(*flight, *own); });
  }

 private:
  bool scatters(const Carriage& carriage, int most_gathered) const {
    return form_ == Form::scattered ||
           (form_ == Form::by_subtrees && carriage.subtrees().count > most_gathered);
  }

  void encode_all(const Flight& flight, Scattering& own) {
    own.payloads.resize(flight.subtrees.size());
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k)
      for (const std::size_t member : own.members) {
        std::vector<std::byte>& payload = own.payloads[k].emplace_back();
        if (flight.there[k][member] != Presence::there) continue;
        const std::span<float> values = flight.sum(k, member);
        parts_.recall->prepare(*setting_.book, flight.subtrees[k], flight.bucket.tensors[member], values,
                               flight.inverse);
        payload.resize(codec_->payload_bytes(values.size()));
        codec_->encode(values, {}, payload);
        if (Savings::measures(flight.step)) measure(values, payload);
      }
  }

  void measure(std::span<const float> meant, std::span<const std::byte> payload) const {
    std::vector<float> off(meant.size());
    codec_->decode(payload, off);
    for (std::size_t e = 0; e < off.size(); ++e) off[e] -= meant[e];
    setting_.savings->add_error(squares(off), squares(meant));
  }

  // What `rank` is to add up of this worker's subtrees.
  void put_slice(const Flight& flight, const Scattering& own, std::size_t rank,
                 std::span<std::byte> to) const {
    const Carriage& carriage = *setting_.carriage;
    std::vector<std::byte> frames(static_cast<std::size_t>(carriage.own().count) * own.frame());
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      const auto place = static_cast<std::size_t>(flight.subtrees[k] - carriage.own().first);
      std::byte* const frame = frames.data() + place * own.frame();
      for (std::size_t i = 0; i < own.members.size(); ++i)
        frame[i] = static_cast<std::byte>(flight.there[k][own.members[i]]);
      for (const Slices::Range& range : own.slices.of_rank[rank])
        if (const std::vector<std::byte>& payload = own.payloads[k][range.i]; !payload.empty())
          std::memcpy(frame + own.header() + range.at, payload.data() + range.payload, range.bytes);
    }
    carriage.put(frames, own.frame(), to);
  }

  // This rank's slice, of which the sums are encoded once more.
  std::span<std::byte> add_up(const Flight& flight, Scattering& own) {
    const Group& group = keeps_own_part() ? setting_.lines.first : setting_.lines.second;
    const auto ranks = static_cast<std::size_t>(group.size());
    own.sums =
        std::span(sums_.of(group, flight.bucket.index, ranks * own.slices.bytes), ranks * own.slices.bytes);
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::span<std::byte> to = own.sums.subspan(rank * own.slices.bytes, own.slices.bytes);
    std::vector<std::byte> joined;
    const auto frames = setting_.carriage->frames(own.arrived, own.frame(), joined);
    own.found.assign(own.members.size(), Presence::absent);
    for (const std::span<const std::byte> frame : frames)
      for (std::size_t i = 0; i < own.members.size(); ++i)
        own.found[i] = std::max(own.found[i], static_cast<Presence>(frame[i]));
    for (const Slices::Range& range : own.slices.of_rank[rank]) {
      if (own.found[range.i] != Presence::there) continue;
      std::vector<float> sum(range.count);
      const auto payload = [&](std::size_t s) {
        return frames[s].subspan(own.header() + range.at, range.bytes);
      };
      tree_sum(
          frames.size(), sum,
          [&](std::size_t s) { return static_cast<Presence>(frames[s][range.i]) == Presence::there; },
          [&](std::size_t s, std::span<float> into) { codec_->decode(payload(s), into); },
          [&](std::size_t s, std::span<float> into) { codec_->decode_add(payload(s), into); });
      codec_->encode(sum, {}, to.subspan(range.at, range.bytes));
    }
    return to;
  }

  bool keeps_own_part() const { return setting_.leaves == Exchange::Leaves::own_part; }

  void finish(const Flight& flight, const Scattering& own) {
    for (std::size_t i = 0; i < own.members.size(); ++i) remember(flight, own, i);
    const auto rank = static_cast<std::size_t>(setting_.lines.first.rank());
    for (std::size_t r = 0; r < own.slices.of_rank.size(); ++r)
      for (const Slices::Range& range : own.slices.of_rank[r])
        if (own.found[range.i] == Presence::there && (!keeps_own_part() || r == rank))
          codec_->decode(own.sums.subspan(r * own.slices.bytes + range.at, range.bytes),
                         flight.out(own.members[range.i]).subspan(range.first, range.count));
  }

  // Where a sum is not finite what was not applied stays in what is remembered.
  void remember(const Flight& flight, const Scattering& own, std::size_t i) {
    const std::size_t member = own.members[i];
    const BucketTensor& tensor = flight.bucket.tensors[member];
    if (own.found[i] == Presence::absent) fill(flight.out(member), -0.0f);
    if (own.found[i] == Presence::not_finite)
      fill(flight.out(member), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      if (flight.there[k][member] != Presence::there) continue;
      if (own.found[i] == Presence::not_finite)
        parts_.recall->give_up(*setting_.book, flight.subtrees[k], tensor);
      else
        parts_.recall->settle(*setting_.book, flight.subtrees[k], tensor, *codec_, own.payloads[k][i]);
    }
  }

  std::string name_;
  GatheredParts parts_;
  Form form_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<Method> gathered_;
  Setting setting_;
  Staging staging_, sums_;
};

}  // namespace

std::unique_ptr<Method> scattered_method(const std::string& name, const GatheredParts& parts, Form form) {
  return std::make_unique<Scattered>(name, parts, form);
}

}  // namespace lockstep::compress
