#include "comm/channel/mpi_channel.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint32_t kCheck = 0x4c53'4d31;  // that a head is one of ours
// What a rank sent before it left is there soon after the news that it has.
constexpr std::chrono::nanoseconds kLastBytesWithin = std::chrono::milliseconds(200);

}  // namespace

MpiChannel::MpiChannel(MPI_Comm comm, RankNames names, std::chrono::nanoseconds spin)
    : WireChannel(std::move(names)),
      line_(std::make_shared<mpi::Line>(comm)),
      most_spin_(spin),
      agreement_(*this, line_->rank(), line_->size(), naming()),
      transfer_(*line_, naming(),
                [this](int from, const CallCard& card, std::uint64_t bytes, std::uint64_t expected) {
                  judge(from, card, bytes, expected);
                }) {
  spin_.set_most(most_spin_);
}

MpiChannel::~MpiChannel() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  try {
    if (!line_->failed()) line_->leave();
  } catch (const std::exception&) {  // no memory: the peers will wait for their timeout
  }
  mpi::Runtime::get().retire(line_);
}

void MpiChannel::begin(Call& call, const CallCard& card, Kind kind) {
  call_ = &call;
  card_ = card;
  card_.check = kCheck;
  kind_ = kind;
  if (kind == Kind::collective) history_.add(card_);
  if (call.timeout.count() <= 0) call.timeout = kLongestTimeout;
  agreement_.begin(call, mpi::Line::kSayEvery);
}

void MpiChannel::learn_divisor(const CallCard& card) {
  if (call_->divisor != kDivisorOfOthers || card.divisor == kDivisorOfOthers) return;
  call_->divisor = card.divisor;
  card_.divisor = card.divisor;
}

void MpiChannel::judge(int from, const CallCard& card, std::uint64_t bytes, std::uint64_t expected) {
  if (card.check != kCheck)
    throw MismatchError(where() + ": " + named(from) +
                        " sent something that is no message of ours, or in another order; "
                        "all ranks need the same version, cost table and LOCKSTEP_ settings");
  if (met_ != nullptr) {
    (*met_)[static_cast<std::size_t>(from)] = card;
    // Another length is another call, which the cards will show.
    if (bytes != expected && same_call(card, card_))
      throw MismatchError(where() + ": " + named(from) +
                          " runs it by another algorithm; all ranks need the same cost "
                          "table and LOCKSTEP_ settings");
    if (bytes != expected) throw MismatchError(who_called_what(names(), {rank(), card_}, {from, card}));
    return;
  }
  const Arrived message{.from = from, .card = card, .bytes = bytes, .expected = expected};
  if (!fits(card_, message)) throw MismatchError(why_unfit(names(), {rank(), card_}, where(), message));
  learn_divisor(card);
}

// Whatever goes wrong is the group's failure, and nothing of MPI's is left pointing at the caller's memory.
template <class Body>
void MpiChannel::guarded(Body&& body) {
  line_->check();
  try {
    body();
  } catch (const Error& error) {
    line_->fail(error);
    transfer_.abandon();
    line_->check();  // the first failure, which may have been a peer's
    throw;
  } catch (...) {  // no memory: the engine makes it the group's failure
    transfer_.abandon();
    throw;
  }
}

void MpiChannel::exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                          const kernel::Reduction& reduction) {
  guarded([&] { run(sends, recvs, reduction); });
}

template <class Turn, class Finished, class WaitsFor>
void MpiChannel::wait_until(std::size_t bytes, Turn&& turn, Finished&& finished, WaitsFor&& waits_for) {
  agreement_.start_wait();
  gone_ns_ = 0;
  mpi::Patience patience(spin_.now(), bytes);
  while (!finished()) {
    if (turn()) {
      patience.moved();
      agreement_.moved();
    } else if (patience.wait())
      look(waits_for());
  }
  patience.was_long() ? spin_.was_wasted() : spin_.paid_off();
}

void MpiChannel::run(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                     const kernel::Reduction& reduction) {
  transfer_.start(sends, recvs, card_, kind_ == Kind::collective ? mpi::kCollectiveTag : mpi::kMessageTag);
  wait_until(
      0, [&] { return transfer_.turn(reduction); }, [&] { return transfer_.finished(); },
      [&] { return transfer_.waiting_for(); });
}

// What peers gave up with comes first: it is better than what this rank could say.
void MpiChannel::hear() {
  line_->listen();
  line_->check();
  for (int r = 0; r < size(); ++r)
    if (const auto said = line_->waits(r))
      if (const CallCard* const own = history_.other_than(said->card))
        throw MismatchError(who_called_what(names(), {rank(), *own}, {r, said->card}));
}

void MpiChannel::look(const std::vector<int>& waits_for) {
  hear();
  if (whole_ != nullptr) whole_->hear();
  if (idle_) idle_();
  const auto gone = std::ranges::find_if(waits_for, [&](int r) { return line_->has_left(r); });
  if (gone != waits_for.end()) {
    if (gone_ns_ == 0) gone_ns_ = now_ns();
    if (now_ns() - gone_ns_ > kLastBytesWithin.count()) throw agreement_.left(*gone);
  }
  if (const auto late = agreement_.overdue(waits_for)) throw *late;
  agreement_.look(waits_for);
}

void MpiChannel::post(const Notice& mine) { line_->say_waiting(card_, mine.waits_for); }

// MPI's notes may be long on the way and are never taken back: one of another operation says nothing about
// now.
std::optional<Notice> MpiChannel::read(int rank) const {
  auto said = line_->waits(rank);
  if (!said || said->card.sequence != card_.sequence) return std::nullopt;
  return Notice{.waits_for = std::move(said->waits_for)};
}

std::vector<std::byte> MpiChannel::meet(std::span<const std::byte> word) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::byte> words(ranks * word.size());
  std::vector<CallCard> cards(ranks);
  std::vector<Outgoing> sends;
  std::vector<Incoming> recvs;
  for (int r = 0; r < size(); ++r) {
    const auto place = std::span(words).subspan(static_cast<std::size_t>(r) * word.size(), word.size());
    if (r == rank()) {
      cards[static_cast<std::size_t>(r)] = card_;
      std::ranges::copy(word, place.begin());
      continue;
    }
    sends.push_back({r, word});
    recvs.push_back({r, place});
  }
  guarded([&] {
    struct Collecting {
      std::vector<CallCard>*& where;
      ~Collecting() { where = nullptr; }
    } collecting{met_};
    met_ = &cards;
    run(sends, recvs, {});
    if (!all_same(size(), [&](int r) -> const CallCard& { return cards[static_cast<std::size_t>(r)]; })) {
      std::vector<Caller> callers;
      for (int r = 0; r < size(); ++r) callers.push_back({r, cards[static_cast<std::size_t>(r)]});
      throw MismatchError(who_called_what(names(), callers));
    }
    for (const CallCard& card : cards) learn_divisor(card);
  });
  return words;
}

void MpiChannel::wait(MPI_Request& request, const char* what, std::size_t bytes,
                      const std::vector<int>& peers, MPI_Status* status) {
  guarded([&] {
    int done = 0;
    const auto turn = [&] {
      mpi::call(what, [&] { return MPI_Test(&request, &done, status); });
      return done != 0;
    };
    wait_until(
        bytes, turn, [&] { return done != 0; }, [&] { return peers; });
  });
}

// MPI's own call waits without limit, so its ranks meet before it, as a part of the call that is being made.
std::unique_ptr<WireChannel> MpiChannel::among(const std::vector<int>& ranks, const std::string& group,
                                               std::chrono::milliseconds timeout) {
  call_->timeout = timeout;
  agreement_.begin(*call_, mpi::Line::kSayEvery);  // its time starts anew
  std::vector<Outgoing> sends;
  std::vector<Incoming> recvs;
  for (const int r : ranks) {
    if (r == rank()) continue;
    sends.push_back({r, {}});
    recvs.push_back({r, {}});
  }
  exchange(sends, recvs, {});
  MPI_Comm comm = MPI_COMM_NULL;
  guarded([&] {
    mpi::call("MPI_Comm_create_group", [&] {
      MPI_Group whole = MPI_GROUP_NULL;
      MPI_Group some = MPI_GROUP_NULL;
      int code = MPI_Comm_group(line_->comm(), &whole);
      if (code == MPI_SUCCESS)
        code = MPI_Group_incl(whole, static_cast<int>(ranks.size()), ranks.data(), &some);
      if (code == MPI_SUCCESS) code = MPI_Comm_create_group(line_->comm(), some, mpi::kGroupTag, &comm);
      if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
      if (whole != MPI_GROUP_NULL) MPI_Group_free(&whole);
      return code;
    });
  });
  return std::make_unique<MpiChannel>(comm, names().split(group, ranks), most_spin_);
}

}  // namespace lockstep
