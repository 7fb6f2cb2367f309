#include "lockstep/launch/streams.h"

#include <charconv>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The whole of `text` as a number from 0 to `most`, else -1.
int whole(std::string_view text, int most) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most;
  return good ? value : -1;
}

}  // namespace

StreamChoice StreamChoice::parse(std::string_view flag, std::string_view text) {
  const auto refuse = [&] {
    return UsageError(
        std::string(flag) + " '" + std::string(text) +
        "' is not understood; accepted: 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a list of "
        "rank:number such as 0:1,1:2");
  };
  StreamChoice choice;
  if (text.find(':') == std::string_view::npos) {
    choice.everyone_ = whole(text, 3);
    if (choice.everyone_ < 0) throw refuse();
    return choice;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos) throw refuse();
    const int rank = whole(item.substr(0, colon), 1 << 20);
    const int streams = whole(item.substr(colon + 1), 3);
    if (rank < 0 || streams < 0 || !choice.of_rank_.emplace(rank, streams).second) throw refuse();
    if (comma != std::string_view::npos && rest.empty()) throw refuse();
  }
  return choice;
}

bool StreamChoice::has(int rank, Stream stream) const {
  const auto named = of_rank_.find(rank);
  const int streams = named == of_rank_.end() ? everyone_ : named->second;
  return (streams & (stream == Stream::out ? 1 : 2)) != 0;
}

bool StreamChoice::any() const {
  if (everyone_ != 0) return true;
  for (const auto& [rank, streams] : of_rank_)
    if (streams != 0) return true;
  return false;
}

int StreamChoice::largest_rank() const { return of_rank_.empty() ? -1 : of_rank_.rbegin()->first; }

}  // namespace lockstep
