// The channel over TCP. Between two ranks there are a few connections: `bulk` ones carry collectives (a large
// message is cut into as many parts as there are), and one carries send and recv and the news about the
// group. The rank's own thread reads and writes them all without blocking; there is no thread in between.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/agree/agreement.h"
#include "comm/agree/group_failure.h"
#include "comm/agree/mismatch.h"
#include "comm/call/spin.h"
#include "comm/channel/frame_stream.h"
#include "comm/channel/wire_channel.h"
#include "lockstep/base/clock.h"

namespace lockstep {

class TcpFabric;

// The connections to one rank; none to oneself.
struct TcpPeer {
  std::vector<FrameStream> bulk;
  std::vector<FrameStream> side;  // one
};

class TcpChannel final : public WireChannel, private Notices {
 public:
  // `members[i]`: the world rank of rank i, for sub-channels. Made by TcpFabric::connect.
  TcpChannel(std::shared_ptr<TcpFabric> fabric, std::string group, int rank, std::vector<int> members,
             std::vector<TcpPeer> peers);
  ~TcpChannel() override;  // tells the peers that it leaves

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void begin(Call& call, const CallCard& card, Kind kind) override;
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                const kernel::Reduction& reduction) override;
  void fail(const Error& error) noexcept override;
  void check() override { failure_.check(); }
  std::unique_ptr<WireChannel> among(const std::vector<int>& ranks, const std::string& group,
                                     std::chrono::milliseconds timeout) override;
  std::string peer_state(int rank) const override;
  void tell_waits(const std::vector<int>& ranks) noexcept override { agreement_.post(ranks); }
  void catch_up() override;
  double observed_s_per_byte(int rank) const override {
    return peers_[static_cast<std::size_t>(rank)].s_per_byte;
  }
  void forget_observed() override {
    for (Peer& peer : peers_) peer.s_per_byte = 0;
  }
  void watch(WireChannel* whole, std::function<void()> idle, std::vector<int> mates) override {
    whole_ = dynamic_cast<TcpChannel*>(whole);
    idle_ = std::move(idle);
    agreement_.is_part_of(whole_ == nullptr ? nullptr : &whole_->agreement_, std::move(mates));
  }

 private:
  static constexpr std::chrono::nanoseconds kLongestPostEvery = std::chrono::milliseconds(500);
  enum class State { joined, left, dead };
  struct Peer {
    TcpPeer streams;
    State state = State::joined;
    WaitStatus waits = {};
    std::int64_t waits_ns = 0;  // when it said so
    double s_per_byte = 0;      // of the fastest of its large messages
  };
  struct Sending {
    Outgoing what;
    FrameStream* stream;
    OutgoingFrame frame;
    bool done() const { return frame.sent == kFrameHeaderBytes + what.bytes.size(); }
  };
  struct Receiving {
    Incoming what;
    FrameStream* stream;
    bool opened = false;  // its header has come and fits
    std::int64_t opened_ns = 0;
    std::size_t got = 0;
    std::size_t tail = 0;  // bytes of an element that is not whole yet
    std::array<std::byte, 16> rest = {};
    bool done() const { return opened && got == what.bytes.size(); }
  };

  void plan(std::span<const Outgoing> sends, std::span<const Incoming> recvs);
  bool turn(const kernel::Reduction& reduction);
  bool pull(Receiving& recv, const kernel::Reduction& reduction);
  bool open(Receiving& recv);
  void note_rate(const Receiving& recv);
  void fold(Receiving& recv, const kernel::Reduction& reduction, std::size_t came);
  bool finished() const;
  bool awaited(const FrameStream& stream) const;  // this exchange still expects bytes there
  void wait();
  std::vector<int> waiting_for() const;

  // Notices
  void post(const Notice& mine) override;
  std::optional<Notice> read(int rank) const override;
  std::string where() const override;
  std::string seen(int /*rank*/) const override { return ""; }
  std::string silent() const override { return ""; }

  // Takes in the news on every connection; throws what they mean.
  void attend();
  void attend(int peer, FrameStream& stream);
  static void let_news_go(FrameStream& stream) noexcept;
  void heard(int peer, const FrameStream& stream, const FrameHeader& header,
             std::span<const std::byte> payload);
  // Throws MismatchError when `card`, of a collective, is not what this rank called under the same number.
  void compare(int peer, const CallCard& card);
  // Throws MismatchError when this rank is in send or recv with a peer that waits for it in a collective.
  void compare_waits(int peer, const CallCard& card);
  [[noreturn]] void differ(const std::string& line);  // throws MismatchError
  [[noreturn]] void lost(int peer, const std::string& reason);
  void tell(FrameKind kind, std::span<const std::byte> payload) noexcept;
  void tell_failure() noexcept;  // once
  bool last_words(int peer);
  void learn_end() noexcept;
  void flush_news() noexcept;
  int number_of(int rank) const { return names().number(rank); }
  std::string named(int rank) const { return names().named(rank); }
  template <class Body>
  void each_stream(int peer, Body&& body) {
    TcpPeer& streams = peers_[static_cast<std::size_t>(peer)].streams;
    for (FrameStream& stream : streams.side) body(stream);
    for (FrameStream& stream : streams.bulk) body(stream);
  }

  std::shared_ptr<TcpFabric> fabric_;
  int rank_;
  std::vector<int> members_;
  std::vector<Peer> peers_;
  Call* call_ = nullptr;
  CallCard card_;
  Kind kind_ = Kind::collective;
  std::string purpose_;  // the call's
  CallHistory history_;
  TcpChannel* whole_ = nullptr;  // attended too while this one waits
  std::function<void()> idle_;
  Agreement agreement_;
  std::chrono::nanoseconds post_every_ = kLongestPostEvery;  // a notice that this rank waits
  std::int64_t looked_ns_ = 0;                               // when it last looked at all connections
  bool differing_ = false;
  GroupFailure failure_;
  bool told_failure_ = false;
  SpinBudget spin_;
  std::vector<Sending> sending_;  // kept between calls: no allocation on the way
  std::vector<Receiving> receiving_;
  std::vector<std::byte> room_;  // where bytes to be folded arrive
};

}  // namespace lockstep
