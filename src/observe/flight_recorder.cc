#include "lockstep/observe/flight_recorder.h"

#include <fmt/format.h>

#include <iterator>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The one place where bytes become slots. std::atomic words of a lock-free size have no state beyond
// their value, so zeroed or inherited memory needs no construction.
const FlightSlot* slots_of(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (memory.size() < FlightRing::kBytes || address % FlightRing::kAlignment != 0)
    throw UsageError(fmt::format("flight recorder: got {} bytes at {}; it needs {} bytes aligned to {}",
                                 memory.size(), fmt::ptr(memory.data()), FlightRing::kBytes,
                                 FlightRing::kAlignment));
  return reinterpret_cast<const FlightSlot*>(memory.data());
}

std::uint64_t get(const FlightSlot::Word& word) { return word.load(std::memory_order_acquire); }

// Characters up to the first zero; what is not plain ASCII becomes '?', for the ring may be anybody's.
std::string text_of(std::span<const std::uint64_t> words) {
  std::string text(words.size_bytes(), '\0');
  std::memcpy(text.data(), words.data(), words.size_bytes());
  text.resize(std::min(text.find('\0'), text.size()));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

template <class Enum>
std::optional<Enum> enum_of(std::uint64_t kind, int shift, std::size_t values) {
  const std::uint64_t value = kind >> shift & 0xff;
  if (value >= values) return std::nullopt;
  return static_cast<Enum>(value);
}

FlightEntry read_slot(const FlightSlot& slot) {
  const std::uint64_t what[2] = {get(slot.what[0]), get(slot.what[1])};
  // State before end time, first word of the name before the others: the reverse of how they are put.
  const std::uint64_t kind = get(slot.kind);
  const auto state = enum_of<FlightState>(kind, 16, 4).value_or(FlightState::failed);
  const bool over = state == FlightState::done || state == FlightState::failed;
  std::uint64_t algorithm[3] = {get(slot.algorithm[0])};
  if (algorithm[0] != 0) {
    algorithm[1] = get(slot.algorithm[1]);
    algorithm[2] = get(slot.algorithm[2]);
  }

  FlightCall call;
  std::memcpy(call.what, what, sizeof(what));
  call.dtype = enum_of<DType>(kind, 0, std::size(kAllDTypes));
  call.op = enum_of<ReduceOp>(kind, 8, std::size(kAllReduceOps));
  call.root = static_cast<std::int32_t>(kind >> 32);
  call.count = get(slot.count);
  return {.sequence = get(slot.sequence),
          .what = text_of(what),
          .detail = describe(call),
          .algorithm = text_of(algorithm),
          .state = state,
          .begin_ns = static_cast<std::int64_t>(get(slot.begin_ns)),
          .end_ns = over ? static_cast<std::int64_t>(get(slot.end_ns)) : 0};
}

}  // namespace

const char* to_string(FlightState state) {
  switch (state) {
    case FlightState::waiting: return "waiting";
    case FlightState::running: return "running";
    case FlightState::done: return "done";
    case FlightState::failed: return "failed";
  }
  return "unknown";
}

std::string describe(const FlightCall& call) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (call.dtype) add(fmt::format("{} × {}", to_string(*call.dtype), call.count));
  if (call.op) add(to_string(*call.op));
  if (call.root >= 0) {
    const std::string_view what(call.what, strnlen(call.what, sizeof(call.what)));
    add(fmt::format("{} {}", what == "send" ? "to" : what == "recv" ? "from" : "root", call.root));
  }
  return text;
}

FlightRing::FlightRing(std::span<std::byte> memory) : slots_(const_cast<FlightSlot*>(slots_of(memory))) {
  for (std::size_t i = 0; i < kEntries; ++i) ordinal_ = std::max(ordinal_, get(slots_[i].stamp) / 2);
}

std::vector<FlightEntry> FlightRing::last() const {
  return read_flight_ring(std::as_bytes(std::span(slots_, kEntries)));
}

std::vector<FlightEntry> read_flight_ring(std::span<const std::byte> memory) {
  const FlightSlot* slots = slots_of(memory);
  std::vector<std::pair<std::uint64_t, FlightEntry>> found;
  for (std::size_t i = 0; i < FlightRing::kEntries; ++i) {
    const std::uint64_t stamp = get(slots[i].stamp);
    if (stamp == 0 || stamp % 2 == 1) continue;
    FlightEntry entry = read_slot(slots[i]);
    if (slots[i].stamp.load(std::memory_order_relaxed) != stamp) continue;
    found.emplace_back(stamp, std::move(entry));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<FlightEntry> entries;
  entries.reserve(found.size());
  for (auto& [stamp, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace lockstep
