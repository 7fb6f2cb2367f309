#include "launch/relay.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::launcher {

void LastLines::add(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.size() > 7 && line.starts_with("frame #") && line[7] >= '0' && line[7] <= '9')
    return;  // a libtorch error's backtrace, longer than all that is kept
  std::string kept(line.substr(0, kMostBytes));
  if (line.size() > kMostBytes) kept += "…";
  if (lines_.size() == kMostLines) lines_.pop_front();
  lines_.push_back(std::move(kept));
}

Relay::Relay(Options options) : options_(std::move(options)) {}

bool Relay::read_some() {
  char block[64 << 10];
  ssize_t got = 0;
  do {
    got = ::read(options_.pipe.get(), block, sizeof block);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return true;
  if (got <= 0) return false;
  take({block, static_cast<std::size_t>(got)});
  return true;
}

void Relay::take(std::string_view bytes) {
  for (std::string_view rest = bytes; options_.file && !rest.empty();) {
    const ssize_t written = ::write(options_.file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const SystemError why("write", errno);  // before anything else sets errno
      log().error("a worker's log file can't be written any more: {}", why.what());
      options_.file.reset();
      break;
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (options_.form == Form::raw) options_.sink->add(bytes);
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t room = kMostLine - partial_.size();
    const std::size_t bytes_taken = std::min(end == std::string_view::npos ? bytes.size() : end, room);
    partial_.append(bytes.substr(0, bytes_taken));
    bytes.remove_prefix(bytes_taken);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
    } else if (partial_.size() < kMostLine) {
      break;
    }
    line(partial_);
    partial_.clear();
  }
}

void Relay::line(std::string_view text) {
  if (options_.last != nullptr) options_.last->add(text);
  if (options_.form != Form::lines) return;
  options_.sink->add(options_.prefix);
  options_.sink->add(text);
  options_.sink->add("\n");
}

void Relay::finish() {
  if (!partial_.empty()) line(partial_);
  partial_.clear();
  options_.pipe.reset();
  options_.file.reset();
}

}  // namespace lockstep::launcher
