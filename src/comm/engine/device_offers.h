// What an engine of GPUs over a carrier can do: its own on GPUs, the carrier's on host memory.
#pragma once

#include <string>

#include "comm/call/capabilities.h"

namespace lockstep {

inline constexpr SetOf<Collective> kOnDevices = {Collective::all_reduce, Collective::reduce_scatter,
                                                 Collective::all_gather, Collective::broadcast,
                                                 Collective::reduce,     Collective::gather,
                                                 Collective::scatter,    Collective::all_to_all,
                                                 Collective::send,       Collective::recv};

// `host`: the carrier's. `own`: on memory of `kind`.
inline Capabilities with_devices(Capabilities host, Device::Kind kind, std::vector<Offer> own) {
  Capabilities can = std::move(host);
  can.devices.add(kind);
  std::string names;
  for (const Offer& offer : own) names += (names.empty() ? "" : ", ") + offer.name;
  for (Offer& offer : can.offers)
    offer.looks_at = [before = std::move(offer.looks_at), name = offer.name, kind, names](const Call& call) {
      if (call.device.kind == kind)
        return name + " works on the processor's memory; accepted on " + to_string(kind) + ": " + names;
      return before ? before(call) : std::string();
    };
  for (Offer& offer : own) {
    offer.looks_at = [name = offer.name, kind](const Call& call) {
      return call.device.kind == kind ? std::string()
                                      : name + " works on memory of " + to_string(kind) + " alone";
    };
    can.offers.push_back(std::move(offer));
  }
  return can;
}

}  // namespace lockstep
