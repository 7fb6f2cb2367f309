#include "compress/gathered.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "compress/arithmetic.h"
#include "compress/tree_sum.h"
#include "lockstep/base/fnv.h"

namespace lockstep::compress {
namespace {

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

// Where in a frame the payloads of a bucket's tensors are.
struct Frame {
  Frame(const Codec& codec, const Flight& flight, const std::vector<std::size_t>& members) {
    bytes = aligned(members.size());
    for (const std::size_t m : members) {
      offsets.push_back(bytes);
      sizes.push_back(codec.payload_bytes(flight.bucket.tensors[m].count));
      bytes += aligned(sizes.back());
    }
  }
  template <class Byte>
  std::span<Byte> payload(std::span<Byte> frame, std::size_t i) const {
    return frame.subspan(offsets[i], sizes[i]);
  }

  std::size_t bytes = 0;
  std::vector<std::size_t> offsets, sizes;
};

class Gathered final : public Method {
 public:
  Gathered(std::string name, GatheredParts parts) : name_(std::move(name)), parts_(std::move(parts)) {}

  std::string name() const override { return name_; }
  bool gathers() const override { return true; }
  std::optional<double> beta1() const override { return parts_.beta1; }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    return parts_.codec(std::numeric_limits<std::int64_t>::max())->payload_bytes(count_of(sizes));
  }
  std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const override {
    return payload_bytes(sizes) < count_of(sizes) * element_bytes ? "" : "its payload would not be smaller";
  }

  void bind(const Setting& setting, const std::vector<NamedTensor>& parameters) override {
    setting_ = setting;
    for (const NamedTensor& parameter : parameters) {
      parts_.recall->declare(*setting_.book, parameter);
      if (parts_.two_sided)
        setting_.book->declare_shared("server", parameter.name, parameter.tensor.sizes().vec());
    }
  }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    const std::shared_ptr<const Codec> codec = parts_.codec(flight->step);
    const Frame frame(*codec, *flight, members);
    const Group& group = setting_.lines.first;
    const std::size_t piece = setting_.carriage->piece_bytes(frame.bytes);
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::span pieces(staging_.of(group, flight->bucket.index, ranks * piece), ranks * piece);
    const auto own = pieces.subspan(static_cast<std::size_t>(group.rank()) * piece, piece);
    encode_all(*codec, *flight, members, frame, own);
    setting_.savings->add_bytes(dense_bytes(*flight, members), static_cast<double>(piece));
    return group
        .all_gather_async(ConstBuffer{own.data(), piece, DType::u8},
                          Buffer{pieces.data(), pieces.size(), DType::u8},
                          {.purpose = flight->bucket.purpose})
        .then([this, flight, codec, frame, pieces, members = std::move(members)] {
          std::vector<std::byte> joined;
          const auto frames = setting_.carriage->frames(pieces, frame.bytes, joined);
          for (std::size_t i = 0; i < members.size(); ++i)
            finish(*codec, *flight, members[i], frame, i, frames);
        });
  }

 private:
  CodecKey key_of(const Flight& flight, int subtree, const BucketTensor& tensor) const {
    return {.seed = setting_.seed, .step = flight.step, .subtree = subtree, .parameter = fnv1a(tensor.name)};
  }

  void encode_all(const Codec& codec, const Flight& flight, const std::vector<std::size_t>& members,
                  const Frame& frame, std::span<std::byte> piece) {
    const auto count = static_cast<std::size_t>(setting_.carriage->own().count);
    std::vector<std::byte> frames(count *
                                  frame.bytes);  // zeros: of subtrees without a lane in this step, too
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      const auto place = static_cast<std::size_t>(flight.subtrees[k] - setting_.carriage->own().first);
      const std::span<std::byte> own = std::span(frames).subspan(place * frame.bytes, frame.bytes);
      for (std::size_t i = 0; i < members.size(); ++i) {
        const Presence there = flight.there[k][members[i]];
        own[i] = static_cast<std::byte>(there);
        if (there != Presence::there) continue;
        const BucketTensor& tensor = flight.bucket.tensors[members[i]];
        const std::span<float> values = flight.sum(k, members[i]);
        parts_.recall->prepare(*setting_.book, flight.subtrees[k], tensor, values, flight.inverse);
        codec.encode(values, key_of(flight, flight.subtrees[k], tensor), frame.payload(own, i));
        if (Savings::measures(flight.step)) measure(codec, values, frame.payload(own, i));
      }
    }
    setting_.carriage->put(frames, frame.bytes, piece);
  }

  void measure(const Codec& codec, std::span<const float> meant, std::span<const std::byte> payload) const {
    std::vector<float> off(meant.size());
    codec.decode(payload, off);
    for (std::size_t e = 0; e < off.size(); ++e) off[e] -= meant[e];
    setting_.savings->add_error(squares(off), squares(meant));
  }

  // Tensor `member` of the bucket, which is the i-th of the frames.
  void finish(const Codec& codec, const Flight& flight, std::size_t member, const Frame& frame, std::size_t i,
              const std::vector<std::span<const std::byte>>& frames) {
    const BucketTensor& tensor = flight.bucket.tensors[member];
    const std::span<float> out = flight.out(member);
    const auto presence = [&](std::size_t s) { return static_cast<Presence>(frames[s][i]); };
    for (std::size_t s = 0; s < frames.size(); ++s)
      if (presence(s) == Presence::not_finite) return give_up(flight, member);
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k)
      if (flight.there[k][member] == Presence::there)
        parts_.recall->settle(*setting_.book, flight.subtrees[k], tensor, codec,
                              frame.payload(frames[static_cast<std::size_t>(flight.subtrees[k])], i));
    if (!parts_.two_sided && !is_needed(flight, setting_, member)) return;
    std::vector<float> absent;  // what a subtree without a gradient adds
    const auto there = [&](std::size_t s) { return presence(s) == Presence::there; };
    bool any = false, all = true;
    for (std::size_t s = 0; s < frames.size(); ++s) {
      any = any || there(s);
      all = all && there(s);
    }
    if (any && !all) {
      absent.resize(out.size());
      if (!parts_.recall->put_absent(*setting_.book, tensor, absent)) absent.clear();
    }
    tree_sum(
        frames.size(), out, [&](std::size_t s) { return there(s) || !absent.empty(); },
        [&](std::size_t s, std::span<float> to) {
          if (there(s))
            codec.decode(frame.payload(frames[s], i), to);
          else
            std::ranges::copy(absent, to.begin());
        },
        [&](std::size_t s, std::span<float> to) {
          if (there(s))
            codec.decode_add(frame.payload(frames[s], i), to);
          else
            add(to, absent);
        });
    if (parts_.two_sided && any) serve(codec, flight, tensor, out);
    if (any) parts_.recall->keep(*setting_.book, tensor, out);
  }

  // What was not applied stays in what is remembered.
  void give_up(const Flight& flight, std::size_t member) {
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k)
      if (flight.there[k][member] == Presence::there)
        parts_.recall->give_up(*setting_.book, flight.subtrees[k], flight.bucket.tensors[member]);
    fill(flight.out(member), std::numeric_limits<float>::quiet_NaN());
  }

  // The second side: its random numbers are those of a subtree behind the last.
  void serve(const Codec& codec, const Flight& flight, const BucketTensor& tensor, std::span<float> out) {
    const std::span<float> owed = setting_.book->shared("server", tensor.name);
    add_owed(out, 1, owed);
    std::vector<std::byte> payload(codec.payload_bytes(out.size()));
    codec.encode(out, key_of(flight, setting_.carriage->subtrees().count, tensor), payload);
    codec.decode(payload, out);
    add(owed, out);
  }

  std::string name_;
  GatheredParts parts_;
  Setting setting_;
  Staging staging_;
};

}  // namespace

std::unique_ptr<Method> gathered_method(std::string name, GatheredParts parts) {
  return std::make_unique<Gathered>(std::move(name), std::move(parts));
}

}  // namespace lockstep::compress
