#include "comm/engine/shm_engine.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "comm/agree/mismatch.h"
#include "comm/algo/team.h"
#include "comm/engine/offers.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

using shm::Seat;
using shm::SeatState;

}  // namespace

ShmEngine::ShmEngine(std::shared_ptr<shm::Session> session, std::shared_ptr<shm::Control> control,
                     const RankNames& names, int rank, std::vector<int> members, const std::string& forced)
    : Engine({.name = "shm",
              .rank = rank,
              .nodes = session->nodes_of(members),
              .naming = std::make_shared<Naming>(names),
              .can = {},
              .selector = &selector_}),
      session_(std::move(session)),
      control_(std::move(control)),
      members_(std::move(members)),
      meeting_(*control_, names.group(), rank, size(), naming()),
      channel_(meeting_, ShmChannel::Kind::collective),
      messages_(meeting_, ShmChannel::Kind::point_to_point),
      selector_(forced) {
  const Knobs knobs = Knobs::from_environment();
  const bool crowded = size() > session_->cores();
  meeting_.set_spin(knobs.spin.value_or(std::chrono::microseconds(crowded ? 0 : 100)));
  Costs costs;
  costs.crowding = std::max(1.0, static_cast<double>(size()) / session_->cores());
  selector_.set_costs(costs);
  Seat& seat = meeting_.own_seat();
  seat.pid.store(::getpid(), std::memory_order_relaxed);
  seat.state.store(static_cast<std::uint32_t>(SeatState::joined), std::memory_order_release);
  declare(size() == 1 ? "" : "whether ranks may read each other's memory was not tried");
  ticket_ = session_->enrol(meeting_, members_);
}

ShmEngine::~ShmEngine() {
  session_->withdraw(ticket_);
  meeting_.leave();
}

void ShmEngine::declare(std::string no_pages) {
  no_pages_ = std::move(no_pages);
  can() = shm_capabilities(nodes(), no_pages_);
  for (Offer& offer : can().offers)
    if (find_algorithm(offer.name)->needs().pages)
      offer.looks_at = [this, name = offer.name](const Call& call) {
        return readable(call)
                   ? std::string()
                   : name +
                         " can't run: the kernel does not read this buffer for the other ranks (is it a "
                         "device's?); without a name another algorithm is chosen";
      };
}

CallShape ShmEngine::shape_of(const Call& call, bool reachable) const {
  return {.what = call.what,
          .ranks = size(),
          .bytes = call.bytes(),
          .reachable = reachable,
          .pages = no_pages_.empty(),
          .nodes = nodes()};
}

void ShmEngine::execute(const Call& call) {
  during(call, [&] { work(call); });
}

double ShmEngine::meet(const Call& call) {
  return during(call, [&] {
    gather(call, nullptr);
    return call.divisor == kDivisorOfOthers ? divisor_of_others() : call.divisor;
  });
}

std::unique_ptr<Engine> ShmEngine::divide(int colour, int key, const std::string& name, const Call& call) {
  return during(call, [&] { return join_part(colour, key, name, call); });
}

void ShmEngine::work(const Call& call) {
  if (call.what == Collective::send || call.what == Collective::recv) return point_to_point(call);

  const bool reachable =
      (call.in == nullptr || reaches(call.in)) && (call.out == nullptr || reaches(call.out));
  const Algorithm* const planned = call.algorithm.empty()
                                       ? selector_.choose(shape_of(call, reachable), call.order)
                                       : find_algorithm(call.algorithm);
  shm::Meeting::AtWork at_work(meeting_.own_seat());
  gather(call, planned);
  const Algorithm* const agreed = agree(call, planned);
  if (!agreed->needs().reach) at_work.end();  // messages alone
  call.running(agreed->name());
  const auto run = [&](const Call& complete) {
    Stage stage{.call = complete,
                .me = rank(),
                .nodes = nodes(),
                .scratch = scratch_,
                .messages = &channel_,
                .shared = this};
    agreed->run(stage);
  };
  if (call.divisor != kDivisorOfOthers) return run(call);
  Call told = call;
  told.divisor = divisor_of_others();
  run(told);
}

// The peers are told first: they wait for this rank.
void ShmEngine::give_up(const Call& call, const Error& error) noexcept {
  tell_failure(error);
  if (meeting_.await_peers_hands_off()) return;
  if (call.out != nullptr) session_->arena().keep(call.out);
}

// Other nodes that wait for this rank learn in the whole group whom it waits for in its own.
void ShmEngine::watch(Composable* whole, std::function<void()> idle) {
  meeting_.agreement().on_wait([this, whole, idle = std::move(idle)](const std::vector<int>& ranks) {
    if (idle) idle();
    if (whole == nullptr) return;
    const RankNames names = rank_names();
    std::vector<int> numbers;
    for (const int r : ranks) numbers.push_back(names.number(r));
    whole->tell_waits(numbers);
  });
}

void ShmEngine::tell_waits(const std::vector<int>& ranks) noexcept try {
  meeting_.waits_elsewhere(ranks);
} catch (const std::exception&) {  // no memory: it is said again soon
}

void ShmEngine::with_peers(const Call& call, std::chrono::milliseconds grace, const Task& task) {
  Call patient = call;  // out here: errors speak of it when the task is gone
  patient.timeout += grace;
  guard(call, [&] {
    during(call, [&] {
      gather(call, nullptr);
      Call told = call;
      if (told.divisor == kDivisorOfOthers) told.divisor = divisor_of_others();
      meeting_.begin(patient);
      task(*this, told);
    });
  });
}

void ShmEngine::tell_failure(const Error& error) noexcept try {
  meeting_.fail(error);
} catch (const std::exception&) {  // no memory for the message: the peers see this rank's end
}

bool ShmEngine::reaches(const void* data) const { return session_->arena().offset_of(data, 1).has_value(); }

double ShmEngine::expected_seconds(const Call& call) const {
  const bool reachable =
      (call.in == nullptr || reaches(call.in)) && (call.out == nullptr || reaches(call.out));
  const CallShape shape = shape_of(call, reachable);
  const Algorithm* const algorithm =
      call.algorithm.empty() ? selector_.choose(shape, call.order) : find_algorithm(call.algorithm);
  return algorithm == nullptr ? 0 : selector_.expect(*algorithm, shape);
}

CommMemory ShmEngine::allocate(std::size_t bytes, Device) {
  return session_->arena().allocate(members_[static_cast<std::size_t>(rank())], bytes);
}

std::uint64_t ShmEngine::share(std::size_t bytes) {
  return session_->arena().share(members_[static_cast<std::size_t>(rank())], bytes, size());
}

CommMemory ShmEngine::hold(std::uint64_t place, std::size_t bytes) {
  return session_->arena().hold(place, bytes);
}

void ShmEngine::point_to_point(const Call& call) {
  call.running("message");
  auto data = [&](auto* p) { return std::span(reinterpret_cast<std::byte*>(p), call.bytes()); };
  const kernel::Reduction none{};
  const CallCard card = card_of(call, "");  // goes before its bytes
  Team team = Team::whole(messages_);
  if (call.what == Collective::send) {
    team.send(call.root, std::as_bytes(std::span(&card, 1)), none);
    team.send(call.root, data(const_cast<void*>(call.in)), none);
    return;
  }
  CallCard came;
  team.recv(call.root, std::as_writable_bytes(std::span(&came, 1)), Arrival::store, none);
  if (!same_message(card, came)) {
    meeting_.fail(MismatchError(who_called_instead(rank_names(), {rank(), card}, {call.root, came})));
    meeting_.rethrow();
  }
  team.recv(call.root, data(call.out), Arrival::store, none);
}

PeerView ShmEngine::peer(int rank) const {
  Seat& seat = meeting_.seat(rank);
  const char* state = "unknown";
  switch (static_cast<SeatState>(seat.state.load(std::memory_order_acquire))) {
    case SeatState::joined: state = "joined"; break;
    case SeatState::left: state = "left"; break;
    case SeatState::dead: state = "dead"; break;
    case SeatState::empty: break;
  }
  return {.state = state, .pid = peer_pid(rank), .recorder = seat.flight};
}

Capabilities shm_capabilities(const std::vector<int>& nodes, const std::string& no_pages) {
  return {.reachable_memory = true, .offers = our_offers(nodes, true, no_pages)};
}

}  // namespace lockstep
