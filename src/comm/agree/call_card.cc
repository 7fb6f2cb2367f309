#include "comm/agree/call_card.h"

#include <iterator>

namespace lockstep {

void write_card(CallCard& card, const Call& part, std::string_view forced_algorithm) {
  const Call& call = part.shown();
  card.sequence = call.sequence;
  card.count = call.count;
  // The part's: it may have learnt it.
  card.divisor = reduces(call.what) && call.op == ReduceOp::avg ? part.divisor : 0;
  card.root = call.root;
  card.what = static_cast<std::uint8_t>(call.what);
  card.dtype = static_cast<std::uint8_t>(call.dtype);
  card.op = static_cast<std::uint8_t>(reduces(call.what) ? call.op : ReduceOp::sum);
  card.order = static_cast<std::uint8_t>(call.order);
  card.device = static_cast<std::uint8_t>(call.device.kind);
  const std::string_view algorithm = call.algorithm.empty() ? forced_algorithm : call.algorithm;
  std::memset(card.algorithm, 0, sizeof(card.algorithm));
  algorithm.copy(card.algorithm, sizeof(card.algorithm));
}

std::string describe(const CallCard& card) {
  // Arrived over a wire, so any byte may be anything.
  if (card.what >= kCollectives ||
      card.dtype > static_cast<std::uint8_t>(kAllDTypes[std::size(kAllDTypes) - 1]) ||
      card.op > static_cast<std::uint8_t>(ReduceOp::bit_or) ||
      card.order > static_cast<std::uint8_t>(Order::any) || card.device >= kDeviceKinds)
    return "something unknown";
  Call call;
  call.what = static_cast<Collective>(card.what);
  call.count = card.count;
  call.dtype = static_cast<DType>(card.dtype);
  call.op = static_cast<ReduceOp>(card.op);
  call.root = card.root;
  call.order = static_cast<Order>(card.order);
  call.divisor = card.divisor;
  call.device.kind = static_cast<Device::Kind>(card.device);
  const std::size_t length = ::strnlen(card.algorithm, sizeof(card.algorithm));
  call.algorithm.assign(card.algorithm, length);
  for (char& c : call.algorithm)
    if (c < ' ' || c > '~') c = '?';
  return call.describe();
}

}  // namespace lockstep
