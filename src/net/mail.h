// Whole messages over a stream, for the few texts of a rendezvous and of the agents: a length (4 bytes, the
// highest first), then the text. The length is checked against a bound before anything is kept.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "net/stream.h"

namespace lockstep::net {

inline constexpr std::size_t kMostMail = std::size_t{16} << 20;

// Blocking. Throw ConnectionLost (receive_mail also for a length above `most`), TimeoutError when the
// deadline passes: the stream is of no use then. send_mail of more than kMostMail: UsageError.
void send_mail(Stream& stream, std::string_view text, Deadline deadline);
std::string receive_mail(Stream& stream, Deadline deadline, std::size_t most = kMostMail);

// Finds the messages in bytes as they come.
class MailParser {
 public:
  explicit MailParser(std::size_t most = kMostMail) : most_(most) {}
  void take(Bytes bytes) { buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }
  // The next whole message, if there is one. Throws ConnectionLost for a length above the bound.
  std::optional<std::string> next();

 private:
  std::size_t most_;
  std::string buffer_;
  std::size_t begin_ = 0;  // what is before it was given out
};

// For event loops: whenever the stream is readable, poll until there is no message more.
class MailReader {
 public:
  explicit MailReader(std::size_t most = kMostMail) : parser_(most) {}
  // Reads what is there; the next whole message if there is one. Throws ConnectionLost (after all messages
  // that came before).
  std::optional<std::string> poll(Stream& stream);

 private:
  MailParser parser_;
};

// For event loops: messages that leave as the stream takes them.
class MailWriter {
 public:
  void add(std::string_view text);  // throws UsageError above kMostMail
  // True when everything has left; otherwise wait until the stream is writable. Throws ConnectionLost.
  bool flush(Stream& stream);
  bool empty() const { return begin_ == buffer_.size(); }

 private:
  std::string buffer_;
  std::size_t begin_ = 0;
};

}  // namespace lockstep::net
