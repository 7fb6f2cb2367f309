#include "comm/engine/gloo_engine.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <csignal>
#include <new>
#include <thread>
#include <type_traits>

#include "comm/agree/mismatch.h"
#include "comm/algo/algorithm.h"
#include "comm/call/failure_record.h"
#include "comm/call/internal_call.h"
#include "comm/engine/gloo_address.h"
#include "comm/engine/gloo_channel.h"
#include "comm/engine/gloo_native.h"
#include "comm/engine/gloo_store.h"
#include "comm/engine/vendor.h"
#include "comm/tune/selector.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

// Gloo sees only that a connection ended. What the carrier knows of it (a death, what a peer gave up with)
// may come a moment later.
constexpr std::chrono::milliseconds kReason{500};

// Gloo writes to sockets whose peer may be gone without saying that it wants no signal for it, which would
// end this process. A program that has a mind of its own about the signal keeps it.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// Our algorithms over Gloo's messages, by cost.
constexpr const char* kOurs = "canonical";

class GlooEngine final : public Engine {
 public:
  explicit GlooEngine(std::shared_ptr<Engine> carrier)
      : Engine({.name = "gloo",
                .rank = carrier->rank(),
                .nodes = carrier->nodes(),
                .naming = carrier->naming(),
                .can = gloo_capabilities(),
                .selector = &selector_}),
        kept_(std::move(carrier)),
        carrier_(*kept_),
        knobs_(Knobs::from_environment()) {
    ignore_broken_pipes();
    gloo::transport::tcp::attr attr;
    // A number, never a name: Gloo would look this machine's name up, which may be loopback or nothing.
    attr.hostname = gloo_address(nodes(), knobs_);
    try {
      auto context = std::make_shared<gloo::rendezvous::Context>(rank(), size());
      context->setTimeout(knobs_.init_timeout);
      ExchangeStore store(
          [&](const std::string& blob) { return gather_texts(carrier_, blob, knobs_.init_timeout); });
      auto device = gloo::transport::tcp::CreateDevice(attr);
      context->connectFullMesh(store, device);
      context_ = std::move(context);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      try {
        give_up("connecting from " + attr.hostname, e);
      } catch (const Error& error) {
        carrier_.fail(error);
        throw;
      }
    }
    channel_ = std::make_unique<GlooChannel>(context_);
    native_ = std::make_unique<GlooNative>(context_);
  }

  CommMemory allocate(std::size_t bytes, Device) override { return private_memory(bytes); }
  bool reaches(const void* /*data*/) const override { return false; }
  double expected_seconds(const Call& /*call*/) const override { return 0; }
  PeerView peer(int rank) const override {
    PeerView view = carrier_.peer(rank);
    view.recorder = {};  // the carrier's, in which nobody records
    return view;
  }
  void tell_failure(const Error& error) noexcept override {
    carrier_.fail(error);
    disconnect();
  }
  void check(News news) override { carrier_.check(news); }
  Composable* composable() override { return carrier_.composable(); }

 protected:
  void execute(const Call& given) override {
    Call call = timed(given);
    call.algorithm = asked_for(call);
    if (size() == 1) return run_alone(call);
    const bool message = is_message(call.what);
    const Deadline deadline = Deadline::after(call.timeout);
    if (!message) call.divisor = carrier_.open(call);
    if (!message && call.count == 0 && call.what != Collective::barrier) return;
    call.timeout = std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()),
                            std::chrono::milliseconds(1));
    translated(call, [&] { move(call); });
  }

  double meet(const Call& call) override { return carrier_.open(call); }

  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    auto carrier = carrier_.split(colour, key, name, timed(call));
    if (carrier == nullptr) return nullptr;
    return std::make_unique<GlooEngine>(std::move(carrier));
  }

 private:
  // Who calls an engine by itself may leave the time to it.
  Call timed(Call call) const {
    if (call.timeout.count() <= 0) call.timeout = knobs_.timeout;
    return call;
  }

  // By the call, or by LOCKSTEP_ALGORITHM where that is a name of this engine's and can run the call. Told to
  // the others, who may have another.
  std::string asked_for(const Call& call) const {
    const bool forced = call.algorithm.empty() && !is_message(call.what) && !knobs_.algorithm.empty() &&
                        capabilities().refuses(name(), call, size(), knobs_.algorithm).empty();
    return forced ? knobs_.algorithm : call.algorithm;
  }

  // One of our algorithms that LOCKSTEP_ALGORITHM names, for what no other name is asked for; null: none, or
  // it can't run the call.
  const Algorithm* forced_of_ours(const Call& call) const {
    if (!call.algorithm.empty()) return nullptr;
    const Algorithm* const forced = find_algorithm(knobs_.algorithm);
    return forced != nullptr && can_run(*forced, shape_of(call)) ? forced : nullptr;
  }

  // Canonical sums are ours, and those that Gloo does not have.
  bool is_ours(const Call& call) const {
    if (forced_of_ours(call) != nullptr) return true;
    if (!reduces(call.what)) return false;
    if (!call.algorithm.empty()) return call.algorithm == kOurs;
    return call.order == Order::canonical || GlooNative::usual(call) == nullptr;
  }

  void move(const Call& call) {
    channel_->begin(call.timeout);
    if (call.what == Collective::send) return send(call);
    if (call.what == Collective::recv) return recv(call);
    if (is_ours(call)) return run_ours(call);
    call.running(call.algorithm.empty() ? GlooNative::usual(call)->name : call.algorithm);
    native_->run(call);
    finish_average(call, rank(), size());
  }

  CallShape shape_of(const Call& call) const {
    return {
        .what = call.what, .ranks = size(), .bytes = call.bytes(), .messages_only = true, .nodes = nodes()};
  }

  void run_ours(const Call& call) {
    const Order order = call.algorithm == kOurs ? Order::canonical : call.order;
    const Algorithm* algorithm = forced_of_ours(call);
    if (algorithm == nullptr) algorithm = selector_.choose(shape_of(call), order);
    call.running(algorithm->name());
    Stage stage{.call = call,
                .me = rank(),
                .nodes = nodes(),
                .scratch = algorithm_scratch_,
                .messages = channel_.get()};
    algorithm->run(stage);
  }

  void send(const Call& call) {
    call.running("message");
    // Before its bytes: Gloo ends the process of a rank that gets more than it asked for.
    const CallCard card = card_of(call, "");
    channel_->send(call.root, std::as_bytes(std::span(&card, 1)));
    channel_->send(call.root, std::span(static_cast<const std::byte*>(call.in), call.bytes()));
  }

  void recv(const Call& call) {
    call.running("message");
    const CallCard card = card_of(call, "");
    CallCard came;
    channel_->recv(call.root, std::as_writable_bytes(std::span(&came, 1)));
    if (!same_message(card, came))
      throw MismatchError(who_called_instead(rank_names(), {rank(), card}, {call.root, came}));
    channel_->recv(call.root, std::span(static_cast<std::byte*>(call.out), call.bytes()));
  }

  // Gloo's exceptions as ours.
  template <class Body>
  void translated(const Call& call, Body&& body) {
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      give_up(call.describe() + " of group " + rank_names().group(), e,
              is_message(call.what) ? call.root : -1);
    }
  }

  // On one line; and what the carrier knows of it goes before what Gloo says. `other`: the one other rank
  // that it is about; -1: any.
  [[noreturn]] void give_up(const std::string& what, const std::exception& e, int other = -1) {
    std::string text = e.what();
    std::ranges::replace(text, '\n', ' ');
    const std::string message = "gloo " + what + " on " + named(rank()) + ": " + text;
    const bool late = text.find("imed out") != std::string::npos;
    const bool gone = !late && dynamic_cast<const gloo::IoException*>(&e) != nullptr;
    disconnect();  // which is how peers inside Gloo's calls notice
    int peer = size() == 2 ? 1 - rank() : other;
    if (gone) peer = who_went(peer);
    const std::string called = peer < 0 ? "a rank" : named(peer);
    // Among more than two, whoever this rank waits for may itself wait for another.
    if (late && peer < 0) throw TimeoutError({}, message + "; missing: unknown, Gloo does not say");
    if (late) throw TimeoutError({number_of(peer)}, message + "; missing: " + called);
    if (gone && peer < 0) throw PeerError(-1, message);
    if (gone) throw PeerError(number_of(peer), called + " is gone: " + message);
    throw SystemError(message);
  }

  // Throws what the carrier knows of a connection that ended; else gives the rank that left, or `guess`.
  int who_went(int guess) {
    for (const Deadline reason = Deadline::after(kReason); !reason.passed();) {
      carrier_.check(News::awaited);
      for (int r = 0; r < size(); ++r)
        if (const std::string state = carrier_.peer(r).state; state == "left" || state == "dead") return r;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return guess;
  }

  void disconnect() noexcept {
    try {
      if (context_ != nullptr) context_->closeConnections();
    } catch (const std::exception&) {  // they are closed
    }
  }

  int number_of(int rank) const { return rank_names().number(rank); }
  std::string named(int rank) const { return rank_names().named(rank); }

  const std::shared_ptr<Engine> kept_;
  Engine& carrier_;
  Knobs knobs_;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<GlooChannel> channel_;
  std::unique_ptr<GlooNative> native_;
  Selector selector_;  // its usual costs, the same on every rank
  Scratch algorithm_scratch_;
};

}  // namespace

Capabilities gloo_capabilities() {
  Capabilities can{.offers = GlooNative::offers()};
  can.offers.push_back(
      {.name = kOurs,
       .collectives = {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}});
  return can;
}

std::unique_ptr<Engine> make_gloo_engine(std::shared_ptr<Engine> carrier) {
  return std::make_unique<GlooEngine>(std::move(carrier));
}

}  // namespace lockstep
