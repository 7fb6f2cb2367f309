// Throws bytes at the reader of cost tables, which come from a file of the user's cache or from another rank:
// a table that is taken survives being written and read again, and every call still finds an algorithm by it;
// everything else is refused with a UsageError of one line and changes nothing.
#include <array>
#include <cmath>
#include <string_view>

#include "base/fuzz_driver.h"
#include "comm/tune/selector.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<int, 8> kNodes = {0, 0, 0, 0, 1, 1, 1, 1};

CallShape shape_of(std::size_t bytes, int ranks) {
  return {.what = Collective::all_reduce,
          .ranks = ranks,
          .bytes = bytes,
          .reachable = bytes % 2 == 0,
          .nodes = std::span(kNodes).first(static_cast<std::size_t>(ranks))};
}

}  // namespace
}  // namespace lockstep

void lockstep::fuzz::one(std::string_view input) {
  Selector selector;
  const std::string before = selector.to_json();
  try {
    selector.from_json(std::string(input));
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    require(selector.to_json() == before, "a table that was refused is used");
    return;
  }
  accepted = true;
  const std::string text = selector.to_json();
  Selector again;
  again.from_json(text);
  require(again.to_json() == text, "a table changes when it is written and read");
  for (const int ranks : {1, 2, 7})
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1001}, std::size_t{1} << 30}) {
      require(selector.choose(shape_of(bytes, ranks), Order::canonical) != nullptr, "no algorithm is left");
      for (const Candidate& candidate : selector.table(shape_of(bytes, ranks), Order::any))
        require(!std::isnan(candidate.expected_s()), "a time that is no number");
    }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  Selector measured;
  for (const int ranks : {1, 4})
    for (const std::size_t bytes : {std::size_t{1} << 12, std::size_t{1} << 20})
      for (const Candidate& candidate : measured.table(shape_of(bytes, ranks), Order::any))
        measured.add_measurement(shape_of(bytes, ranks), *candidate.algorithm, 1e-3);
  return {Selector().to_json(), measured.to_json()};
}
