#include "comm/engine/shm_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "comm/agree/mismatch.h"
#include "comm/algo/team.h"
#include "comm/engine/offers.h"
#include "comm/shm/pages.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

using shm::Descriptor;
using shm::kAbsent;
using shm::kPrivate;
using shm::Seat;
using shm::SeatState;

std::vector<int> pick(const std::vector<int>& all, const std::vector<int>& which) {
  std::vector<int> picked;
  for (int i : which) picked.push_back(all[static_cast<std::size_t>(i)]);
  return picked;
}

// Does this rank's input matter to anybody?
bool gives(const Call& call, int rank) {
  const bool from_root = call.what == Collective::broadcast || call.what == Collective::scatter;
  return call.in != nullptr && (!from_root || rank == call.root);
}

}  // namespace

ShmEngine::ShmEngine(std::shared_ptr<shm::Session> session, std::shared_ptr<shm::Control> control,
                     std::string name, int rank, std::vector<int> members)
    : Engine({.name = "shm",
              .rank = rank,
              .nodes = pick(session->nodes(), members),
              .naming = std::make_shared<Naming>(RankNames::plain(name, static_cast<int>(members.size()))),
              .can = {},
              .selector = &selector_}),
      session_(std::move(session)),
      control_(std::move(control)),
      name_(std::move(name)),
      members_(std::move(members)),
      meeting_(*control_, name_, rank, size(), naming()),
      channel_(meeting_, ShmChannel::Kind::collective),
      messages_(meeting_, ShmChannel::Kind::point_to_point),
      selector_(Knobs::from_environment().algorithm) {
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

template <class Body>
auto ShmEngine::during(const Call& call, Body&& body) {
  struct Ongoing {  // no longer than this: the call is the caller's
    shm::Meeting& meeting;
    ~Ongoing() { meeting.end(); }
  } ongoing{meeting_};
  meeting_.begin(call);
  return body();
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
  gather(call, planned);
  const Algorithm* const agreed = agree(call, planned);
  call.running(agreed->name());
  if (call.divisor != kDivisorOfOthers) {
    Stage stage{.call = call,
                .me = rank(),
                .nodes = nodes(),
                .scratch = scratch_,
                .messages = &channel_,
                .shared = this};
    return agreed->run(stage);
  }
  Call told = call;
  told.divisor = divisor_of_others();
  Stage stage{.call = told,
              .me = rank(),
              .nodes = nodes(),
              .scratch = scratch_,
              .messages = &channel_,
              .shared = this};
  agreed->run(stage);
}

void ShmEngine::gather(const Call& call, const Algorithm* planned, std::int64_t first, std::int64_t second) {
  ++round_;
  const std::size_t in_bytes = input_bytes(call.what, call.bytes(), size());
  Seat& seat = meeting_.own_seat();
  Descriptor& d = seat.descriptor[round_ % 2];
  d.card =
      card_of(call, selector_.forced());  // a forced one too: LOCKSTEP_ALGORITHM may differ between ranks
  d.payload[0] = first;
  d.payload[1] = second;
  const auto place = [&](const void* data) {
    return data == nullptr ? kAbsent : session_->arena().offset_of(data, 1).value_or(kPrivate);
  };
  d.in_offset = place(call.in);
  d.out_offset = place(call.out);
  d.in_address = reinterpret_cast<std::uintptr_t>(call.in);
  d.out_address = reinterpret_cast<std::uintptr_t>(call.out);
  d.posts = planned != nullptr && planned->needs().posts ? 1 : 0;
  d.unreadable = planned != nullptr && planned->needs().pages && !readable(call) ? 1 : 0;
  if (d.posts != 0 && gives(call, rank()) && in_bytes > 0)
    std::memcpy(seat.eager[round_ % 2], call.in, in_bytes);
  meeting_.barrier();
  compare();
}

// Everybody sees the same cards and writes the same line.
void ShmEngine::compare() {
  if (all_same(size(), [&](int r) -> const CallCard& { return descriptor(r).card; })) return;
  std::vector<Caller> callers;
  for (int r = 0; r < size(); ++r) callers.push_back({r, descriptor(r).card});
  meeting_.fail(MismatchError(who_called_what(rank_names(), callers)));
  meeting_.rethrow();
}

// Everybody sees the same descriptors, so everybody comes to the same answer.
const Algorithm* ShmEngine::agree(const Call& call, const Algorithm* planned) const {
  if (!call.algorithm.empty()) return planned;
  bool all_posted = true;
  bool all_reachable = true;
  bool all_readable = true;
  for (int r = 0; r < size(); ++r) {
    const Descriptor& d = descriptor(r);
    all_posted &= d.posts != 0;
    all_reachable &= d.in_offset != kPrivate && d.out_offset != kPrivate;
    all_readable &= d.unreadable == 0;
  }
  if (all_posted) return planned;
  CallShape shape = shape_of(call, all_reachable);
  shape.pages &= all_readable;
  shape.posts = false;  // the call is on its way
  return selector_.choose(shape, call.order);
}

double ShmEngine::divisor_of_others() const {
  for (int r = 0; r < size(); ++r)
    if (const double divisor = descriptor(r).card.divisor; divisor != kDivisorOfOthers) return divisor;
  return kDivisorOfOthers;
}

void ShmEngine::with_peers(const Call& call, std::chrono::milliseconds grace,
                           const std::function<void(Reach& reach, const Call& call)>& body) {
  Call patient = call;  // out here: errors speak of it when the body is gone
  patient.timeout += grace;
  guard(call, [&] {
    during(call, [&] {
      gather(call, nullptr);
      Call told = call;
      if (told.divisor == kDivisorOfOthers) told.divisor = divisor_of_others();
      meeting_.begin(patient);
      body(*this, told);
    });
  });
}

void ShmEngine::tell_failure(const Error& error) noexcept try {
  meeting_.fail(error);
} catch (const std::exception&) {  // no memory for the message: the peers see this rank's end
}

const void* ShmEngine::in(int rank) const {
  const std::uint64_t offset = descriptor(rank).in_offset;
  return offset >= kAbsent ? nullptr : session_->arena().at(offset);
}

void* ShmEngine::out(int rank) const {
  const std::uint64_t offset = descriptor(rank).out_offset;
  return offset >= kAbsent ? nullptr : session_->arena().at(offset);
}

const void* ShmEngine::posted(int rank) const { return meeting_.seat(rank).eager[round_ % 2]; }

// Two rounds: where everybody's word lies and what it says; then who could not read whose.
void ShmEngine::try_pages(std::chrono::milliseconds timeout) {
  if (size() == 1) return;
  Call call;
  call.what = Collective::barrier;
  call.purpose = "trying to read each other's memory";
  call.timeout = timeout;
  // Another process of the same number, in another pid namespace, has not this in this place.
  const auto word = std::make_unique<std::int64_t>(now_ns());
  std::string why_not;
  const auto try_it = [&] {
    gather(call, nullptr, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(word.get())), *word);
    std::int64_t refused = -1;
    int error = 0;
    for (int r = 0; r < size() && refused < 0; ++r) {
      if (r == rank()) continue;
      std::int64_t got = 0;
      error = shm::read_pages(peer_pid(r), reinterpret_cast<const void*>(descriptor(r).payload[0]),
                              std::as_writable_bytes(std::span(&got, 1)));
      if (error != 0 || got != descriptor(r).payload[1]) refused = r;
    }
    gather(call, nullptr, refused, error);
    for (int r = size() - 1; r >= 0; --r)
      if (const auto whose = static_cast<int>(descriptor(r).payload[0]); whose >= 0)
        why_not = meeting_.named(r) + " can't read the memory of " + meeting_.named(whose) + " (process " +
                  std::to_string(peer_pid(whose)) +
                  "): " + shm::why_no_pages(static_cast<int>(descriptor(r).payload[1]));
  };
  guard(call, [&] { during(call, try_it); });
  settle_pages(std::move(why_not));
}

void ShmEngine::try_own_pages() {
  const std::int64_t word = 1;
  std::int64_t got = 0;
  const int error = shm::read_pages(::getpid(), &word, std::as_writable_bytes(std::span(&got, 1)));
  settle_pages(got == word ? "" : "this process can't read its own memory: " + shm::why_no_pages(error));
}

void ShmEngine::settle_pages(std::string why_not) {
  declare(std::move(why_not));
  const Algorithm* const forced = find_algorithm(selector_.forced());
  if (forced != nullptr && forced->needs().pages && !no_pages_.empty())
    throw UsageError("LOCKSTEP_ALGORITHM asks for " + std::string(forced->name()) +
                     ", which can't run here: " + no_pages_ + "; unset it, and another algorithm is chosen");
}

// By the first byte: what kind of memory it is shows there.
bool ShmEngine::readable(const Call& call) const {
  std::byte first{};
  for (const void* data : {call.in, static_cast<const void*>(call.out == call.in ? nullptr : call.out)})
    if (call.count > 0 && size() > 1 && data != nullptr && !reaches(data) &&
        shm::read_pages(::getpid(), data, {&first, 1}) == EFAULT)
      return false;
  return true;
}

void ShmEngine::read_from(int rank, std::uint64_t address, std::span<std::byte> to) {
  const int error = shm::read_pages(peer_pid(rank), reinterpret_cast<const void*>(address), to);
  if (error != 0) unread(rank, error);
}

void ShmEngine::unread(int rank, int error) {
  // Its process is gone: whoever watches the peers is about to say so.
  if (error == ESRCH) meeting_.wait_until([] { return false; }, [&] { return std::vector<int>{rank}; });
  // A peer that gave up said so before it let go of its memory. One that the kernel kills for want of memory
  // loses that first and ends then: give the news of it a moment.
  constexpr std::chrono::milliseconds kNewsOfDeath{1000};
  constexpr std::chrono::milliseconds kPollInterval{1};
  for (const Deadline news = Deadline::after(kNewsOfDeath); !news.passed();) {
    meeting_.check();
    std::this_thread::sleep_for(kPollInterval);
  }
  throw SystemError(meeting_.named(this->rank()) + " can't read the buffers of " + meeting_.named(rank) +
                        " (process " + std::to_string(peer_pid(rank)) + ") in " + meeting_.where() +
                        "; another algorithm than pages copies them",
                    error);
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

CommMemory ShmEngine::allocate(std::size_t bytes) {
  return session_->arena().allocate(members_[static_cast<std::size_t>(rank())], bytes);
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

// Two rounds: who wants what; then the first member of each new group says where its control block is.
std::unique_ptr<Engine> ShmEngine::join_part(int colour, int key, const std::string& name, const Call& call) {
  gather(call, nullptr, colour, key);
  std::vector<int> ranks;  // of this group, in the new group's order
  std::vector<std::int64_t> keys;
  for (int r = 0; r < size(); ++r) {
    keys.push_back(descriptor(r).payload[1]);
    if (descriptor(r).payload[0] == colour && colour >= 0) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });

  const bool leader = !ranks.empty() && ranks.front() == rank();
  std::shared_ptr<shm::Control> control;
  std::int64_t offset = 0;
  if (leader) {
    shm::Control& block =
        session_->make_block(members_[static_cast<std::size_t>(rank())], static_cast<int>(ranks.size()));
    control = {session_, &block};
    offset = static_cast<std::int64_t>(*session_->arena().offset_of(&block, 1));
  }
  gather(call, nullptr, offset);
  if (colour < 0) return nullptr;
  if (!leader) {
    const std::int64_t at = descriptor(ranks.front()).payload[0];
    control = {session_,
               reinterpret_cast<shm::Control*>(session_->arena().at(static_cast<std::uint64_t>(at)))};
  }
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  auto engine = std::make_unique<ShmEngine>(session_, std::move(control), name, place, pick(members_, ranks));
  engine->selector_ = selector_;
  if (engine->size() > 1) engine->declare(no_pages_);
  engine->call_ranks(rank_names().split(name, ranks));
  return engine;
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
