#include "comm/call/capabilities.h"

#include "lockstep/comm/device.h"

namespace lockstep {
namespace {

std::string refuses_offer(const Offer& offer, const Call& call, int ranks) {
  if (const std::size_t bytes = input_bytes(call.what, call.bytes(), ranks); bytes > offer.at_most_bytes)
    return offer.name + " carries at most " + std::to_string(offer.at_most_bytes) + " bytes, this call has " +
           std::to_string(bytes);
  if (call.count > offer.at_most_count)
    return offer.name + " " + to_string(call.what) + " takes at most " + std::to_string(offer.at_most_count) +
           " elements a rank, this call has " + std::to_string(call.count);
  if (!offer.not_here.empty())
    return offer.name + " can't run here: " + offer.not_here + "; without a name another algorithm is chosen";
  if (call.divisor == kDivisorOfOthers && !offer.learns_divisor)
    return offer.name + " needs the divisor from every rank";
  if (std::string why = offer.lack_of(call); !why.empty()) return why;
  return offer.looks_at ? offer.looks_at(call) : std::string();
}

}  // namespace

std::string Offer::lack_of(const Call& call) const {
  for (const Lack& lack : lacks)
    if (lack.has(call)) return lack.why + " " + to_string(call.op) + " of " + to_string(call.dtype);
  return {};
}

std::vector<std::string> Capabilities::algorithms(Collective what) const {
  std::vector<std::string> names;
  for (const Offer& offer : offers)
    if (offer.collectives.has(what)) names.push_back(offer.name);
  return names;
}

std::string Capabilities::refuses(const char* engine, Device device) const {
  if (devices.has(device.kind)) return {};
  std::string accepted;
  for (std::size_t k = 0; k < kDeviceKinds; ++k)
    if (const auto kind = static_cast<Device::Kind>(k); devices.has(kind))
      accepted += (accepted.empty() ? "" : ", ") + std::string(to_string(kind));
  return std::string("the ") + engine + " engine does not work on " + to_string(device) +
         "; accepted: " + accepted;
}

std::string Capabilities::refuses(const char* engine, const Call& call, int ranks,
                                  const std::string& algorithm) const {
  if (std::string why = refuses(engine, call.device); !why.empty()) return why;
  if (call.what == Collective::barrier && call.device.kind != Device::Kind::cpu && !stream_barrier)
    return std::string("the ") + engine + " engine has no barrier of streams on " + to_string(call.device) +
           "; accepted: one of the host, or a call that moves something";
  std::string first;  // why none takes a call that names none
  for (const Offer& offer : offers) {
    if (!offer.collectives.has(call.what)) continue;
    if (!algorithm.empty()) {
      if (offer.name == algorithm) return refuses_offer(offer, call, ranks);
      continue;
    }
    const std::string why = offer.lack_of(call);
    if (why.empty()) return {};
    if (first.empty()) first = why;
  }
  if (algorithm.empty()) return first;
  const std::vector<std::string> known = algorithms(call.what);
  if (known.empty()) return "it takes no algorithm, not '" + algorithm + "'";
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  return "no algorithm '" + algorithm + "' on engine " + engine + "; accepted: " + names;
}

}  // namespace lockstep
