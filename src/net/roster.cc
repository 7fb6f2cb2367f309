#include "net/roster.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/seconds_text.h"
#include "lockstep/base/error.h"
#include "net/mail.h"
#include "net/roster_mail.h"

namespace lockstep::net {
namespace {

constexpr const char* kHello = "roster";
constexpr std::chrono::seconds kGrace{5};  // for messages that are on their way

// "3", "3 and 7", "1, 2, … and 40 more": as many as fit in a line.
std::string list_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

// Rank 0's side: a desk where everybody hands in a card and waits.
class Desk {
 public:
  Desk(const RosterOptions& options, const std::string& card)
      : options_(options),
        deadline_(Deadline::after(options.timeout)),
        cards_(static_cast<std::size_t>(options.size)),
        clients_of_(static_cast<std::size_t>(options.size)),
        gate_({.address = listen_address(options.endpoint),
               .port = options.endpoint.port,
               .secret = options.secret,
               .security = options.security}) {
    cards_[0] = card;
  }

  std::vector<std::string> collect() {
    try {
      while (present_ < options_.size) {
        if (deadline_.passed()) report_missing();
        if (options_.waits) options_.waits(list_of(missing()));
        wait();
        while (auto arrival = gate_.next(Deadline::after(std::chrono::nanoseconds(0))).stream)
          clients_.push_back(std::make_unique<Client>(std::move(arrival)));
        for (const auto& client : clients_) hear(*client);
        std::erase_if(clients_, [](const auto& client) { return client->stream == nullptr; });
      }
    } catch (const Error& error) {
      answer(refusal_text(error));
      throw;
    }
    answer(cards_text(cards_));
    return std::move(cards_);
  }

 private:
  struct Client {
    explicit Client(std::unique_ptr<Stream> from) : stream(std::move(from)) {}
    std::unique_ptr<Stream> stream;  // null when it went before it said who it is
    MailReader reader{kMostCard + 64};
    MailWriter writer;
    int rank = -1;  // not said yet
  };

  void wait() {
    std::vector<pollfd> watched = {{gate_.ready_fd(), POLLIN, 0}};
    for (const auto& client : clients_) watched.push_back({client->stream->fd(), POLLIN, 0});
    const auto left =
        std::min<std::int64_t>(1000, std::chrono::ceil<std::chrono::milliseconds>(deadline_.left()).count());
    if (::poll(watched.data(), watched.size(), static_cast<int>(left)) < 0 && errno != EINTR)
      throw SystemError("poll", errno);
  }

  void hear(Client& client) {
    try {
      while (const auto message = client.reader.poll(*client.stream))
        register_card(client, CardMail::parse(*message));
    } catch (const ConnectionLost& lost) {
      if (client.rank >= 0)
        throw PeerError(client.rank, "rank " + std::to_string(client.rank) + " at " + client.stream->peer() +
                                         " " + lost.reason + " while it waited for the others to start");
      client.stream.reset();  // it may come again
    } catch (const BadRosterMail&) {
      throw UsageError(
          "the worker at " + client.stream->peer() +
          " sent a card that this one does not understand; use the same Lockstep on every machine");
    }
  }

  void register_card(Client& client, CardMail mail) {
    const std::string& where = client.stream->peer();
    if (mail.size != options_.size)
      throw UsageError("rank " + std::to_string(mail.rank) + " at " + where + " says that the job has " +
                       std::to_string(mail.size) + " workers, rank 0 says " + std::to_string(options_.size) +
                       "; give all the same WORLD_SIZE");
    if (mail.rank >= options_.size || client.rank >= 0)
      throw UsageError("the worker at " + where + " says it is rank " + std::to_string(mail.rank) + " of " +
                       std::to_string(options_.size) + "; accepted: one card of a rank below the size");
    const auto index = static_cast<std::size_t>(mail.rank);
    if (mail.rank == 0 || clients_of_[index] != nullptr)
      throw UsageError("two workers say they are rank " + std::to_string(mail.rank) + ": one at " +
                       (mail.rank == 0 ? gate_.endpoint().text() : clients_of_[index]->stream->peer()) +
                       ", one at " + where + "; give each its own RANK");
    client.rank = mail.rank;
    clients_of_[index] = &client;
    cards_[index] = std::move(mail.card);
    ++present_;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank)
      if (clients_of_[static_cast<std::size_t>(rank)] == nullptr) ranks.push_back(rank);
    return ranks;
  }

  [[noreturn]] void report_missing() const {
    const std::vector<int> missing = this->missing();
    const std::string listens =
        gate_.endpoint() == options_.endpoint ? "" : " (rank 0 listens at " + gate_.endpoint().text() + ")";
    throw TimeoutError(missing,
                       list_of(missing) + " of " + std::to_string(options_.size) + " did not come to " +
                           options_.endpoint.text() + " within " + seconds_text(options_.timeout) + listens +
                           "; is every worker running with the same secret, and can it reach rank 0?");
  }

  // Everybody gets it, as far as they are there; one that went will be missed later.
  void answer(const std::string& text) {
    const Deadline grace = Deadline::after(kGrace);
    std::vector<Client*> waiting;
    for (const auto& client : clients_) {
      if (client->stream == nullptr) continue;
      client->writer.add(text);
      waiting.push_back(client.get());
    }
    while (!waiting.empty() && !grace.passed()) {
      std::erase_if(waiting, [](Client* client) {
        try {
          return client->writer.flush(*client->stream);
        } catch (const ConnectionLost&) {
          return true;
        }
      });
      std::vector<pollfd> watched;
      for (const Client* client : waiting) watched.push_back({client->stream->fd(), POLLOUT, 0});
      if (!watched.empty()) ::poll(watched.data(), watched.size(), 100);
    }
  }

  const RosterOptions& options_;
  Deadline deadline_;
  std::vector<std::string> cards_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<const Client*> clients_of_;  // by rank
  int present_ = 1;                        // rank 0 itself
  Gate gate_;
};

// Whoever is or should be there is rank 0.
std::unique_ptr<Stream> dial_desk(const RosterOptions& options) try {
  std::function<void()> between;
  if (options.waits) between = [&] { options.waits(list_of({0})); };
  return dial(options.endpoint, options.secret, options.security, kHello, Deadline::after(options.timeout),
              {}, between);
} catch (const TimeoutError& error) {
  throw TimeoutError({0}, error.what());
} catch (const PeerError& error) {
  throw PeerError(0, error.what());
}

std::vector<std::string> hand_in(const RosterOptions& options, const std::string& card) {
  const auto stream = dial_desk(options);
  // Rank 0 answers when its own time is over at the latest: waiting for that gives every rank the names of
  // the missing.
  const Deadline deadline = Deadline::after(options.timeout + kGrace);
  try {
    send_mail(*stream, CardMail{options.rank, options.size, card}.text(), deadline);
    return parse_answer(receive_mail(*stream, deadline, kMostMail), options.size);
  } catch (const ConnectionLost& lost) {
    throw PeerError(0,
                    "rank 0 at " + stream->peer() + " " + lost.reason + " while the workers were starting");
  } catch (const TimeoutError& error) {
    if (!error.missing().empty()) throw;
    throw TimeoutError(
        {0}, "rank 0 at " + stream->peer() + " did not answer within " + seconds_text(options.timeout));
  } catch (const BadRosterMail&) {
    throw PeerError(
        0, "rank 0 at " + stream->peer() +
               " answered what this worker does not understand; use the same Lockstep on every machine");
  }
}

}  // namespace

std::vector<std::string> exchange_cards(const RosterOptions& options, const std::string& card) {
  if (options.size < 1 || options.size > kMostRanks || options.rank < 0 || options.rank >= options.size)
    throw UsageError("rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
                     "; accepted: a rank below the size, and sizes from 1 to " + std::to_string(kMostRanks));
  if (card.size() > kMostCard)
    throw UsageError("a card of " + std::to_string(card.size()) + " bytes; accepted: at most " +
                     std::to_string(kMostCard));
  if (options.size == 1) return {card};
  return options.rank == 0 ? Desk(options, card).collect() : hand_in(options, card);
}

}  // namespace lockstep::net
