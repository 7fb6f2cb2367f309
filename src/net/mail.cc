#include "net/mail.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "net/socket.h"

namespace lockstep::net {
namespace {

constexpr std::size_t kLength = 4;

std::array<std::byte, kLength> length_of(std::string_view text) {
  if (text.size() > kMostMail)
    throw UsageError("a message of " + std::to_string(text.size()) + " bytes; accepted: at most " +
                     std::to_string(kMostMail));
  std::array<std::byte, kLength> length;
  for (std::size_t i = 0; i < kLength; ++i)
    length[i] = static_cast<std::byte>(text.size() >> (8 * (kLength - 1 - i)) & 255);
  return length;
}

std::size_t parse_length(const char* bytes, std::size_t most) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLength; ++i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > most)
    throw ConnectionLost{"sent a message of " + std::to_string(length) + " bytes, more than the " +
                         std::to_string(most) + " that are accepted"};
  return length;
}

// A second at most, so that the stream gets its chance to notice a vanished machine.
void wait_a_while(Stream& stream, short events, Deadline deadline) {
  if (deadline.passed())
    throw TimeoutError(
        {}, std::string(events == POLLIN ? "no message came from " : "no message could be sent to ") +
                stream.peer() + " in time");
  wait_ready(stream.fd(), events,
             Deadline::after(std::min<std::chrono::nanoseconds>(std::chrono::seconds(1), deadline.left())));
}

void read_exactly(Stream& stream, std::span<std::byte> into, Deadline deadline) {
  while (!into.empty()) {
    const std::size_t got = stream.read(into);
    into = into.subspan(got);
    if (got == 0) wait_a_while(stream, POLLIN, deadline);
  }
}

}  // namespace

void send_mail(Stream& stream, std::string_view text, Deadline deadline) {
  const auto length = length_of(text);
  const std::array<Bytes, 2> whole = {Bytes(length), std::as_bytes(std::span(text.data(), text.size()))};
  std::size_t sent = 0;
  for (;;) {
    const std::size_t of_length = std::min(sent, kLength);
    const std::array<Bytes, 2> rest = {whole[0].subspan(of_length), whole[1].subspan(sent - of_length)};
    sent += stream.write(rest);
    if (sent == kLength + text.size()) return;
    wait_a_while(stream, POLLOUT, deadline);
  }
}

std::string receive_mail(Stream& stream, Deadline deadline, std::size_t most) {
  std::array<char, kLength> prefix;
  read_exactly(stream, std::as_writable_bytes(std::span(prefix)), deadline);
  const std::size_t length = parse_length(prefix.data(), most);
  // Memory is taken as the text comes, not on its announcement.
  std::string text;
  while (text.size() < length) {
    const std::size_t begin = text.size();
    text.resize(begin + std::min(length - begin, std::size_t{64} << 10));
    read_exactly(stream, std::as_writable_bytes(std::span(text).subspan(begin)), deadline);
  }
  return text;
}

std::optional<std::string> MailParser::next() {
  if (buffer_.size() - begin_ < kLength) return std::nullopt;
  const std::size_t length = parse_length(buffer_.data() + begin_, most_);
  if (buffer_.size() - begin_ - kLength < length) return std::nullopt;
  std::string text = buffer_.substr(begin_ + kLength, length);
  begin_ += kLength + length;
  // Moved to the front only when most of the buffer is used up: each byte is moved once on average.
  if (begin_ * 2 >= buffer_.size()) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return text;
}

std::optional<std::string> MailReader::poll(Stream& stream) {
  for (;;) {
    if (auto message = parser_.next()) return message;
    std::array<std::byte, std::size_t{16} << 10> buffer;
    const std::size_t got = stream.read(buffer);
    if (got == 0) return std::nullopt;
    parser_.take(std::span(buffer).first(got));
  }
}

void MailWriter::add(std::string_view text) {
  const auto length = length_of(text);
  buffer_.append(reinterpret_cast<const char*>(length.data()), length.size());
  buffer_ += text;
}

bool MailWriter::flush(Stream& stream) {
  while (!empty()) {
    const std::array<Bytes, 1> rest = {std::as_bytes(std::span(buffer_).subspan(begin_))};
    const std::size_t sent = stream.write(rest);
    if (sent == 0) return false;
    begin_ += sent;
  }
  buffer_.clear();
  begin_ = 0;
  return true;
}

}  // namespace lockstep::net
