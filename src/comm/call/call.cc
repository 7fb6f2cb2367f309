#include "comm/call/call.h"

#include <array>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, kCollectives> kNames = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
    "scatter",    "all_to_all",     "barrier",    "send",      "recv",   "split"};

}  // namespace

const char* to_string(Collective what) { return kNames[static_cast<std::size_t>(what)]; }

Collective parse_collective(std::string_view text) {
  std::string names;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<Collective>(i);
    names += (i == 0 ? "" : ", ") + std::string(kNames[i]);
  }
  throw UsageError("unknown collective '" + std::string(text) + "'; accepted: " + names);
}

bool reduces(Collective what) {
  return what == Collective::all_reduce || what == Collective::reduce_scatter || what == Collective::reduce;
}

bool is_message(Collective what) { return what == Collective::send || what == Collective::recv; }

std::size_t input_bytes(Collective what, std::size_t bytes, int ranks) {
  switch (what) {
    case Collective::reduce_scatter:
    case Collective::scatter:
    case Collective::all_to_all: return bytes * static_cast<std::size_t>(ranks);
    default: return bytes;
  }
}

std::string Call::where(const std::string& group) const {
  const std::string operation =
      is_message(what) ? " in group " : ", operation " + std::to_string(shown().sequence) + " of group ";
  return describe() + operation + group + for_what();
}

FlightCall flight_call(const Call& call) {
  FlightCall flight = FlightCall::named(to_string(call.what));
  if (call.what == Collective::barrier || call.what == Collective::split) return flight;
  flight.dtype = call.dtype;
  flight.count = call.count;
  if (reduces(call.what)) flight.op = call.op;
  flight.root = call.root;
  return flight;
}

std::string Call::describe() const {
  if (whole != nullptr) return whole->describe();
  std::string detail = lockstep::describe(flight_call(*this));
  if (reduces(what) && op == ReduceOp::avg && divisor > 0) {
    std::string number = std::to_string(divisor);
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
    detail += " over " + number;
  }
  if (order == Order::any) detail += detail.empty() ? "any order" : ", any order";
  if (device.kind != Device::Kind::cpu)
    detail += (detail.empty() ? "on " : ", on ") + std::string(to_string(device.kind));
  if (!algorithm.empty()) detail += (detail.empty() ? "by " : ", by ") + algorithm;
  return std::string(to_string(what)) + "(" + detail + ")";
}

}  // namespace lockstep
