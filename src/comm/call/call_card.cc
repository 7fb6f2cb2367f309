#include "comm/call/call_card.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

bool same_divisor(double a, double b) { return a == b || a == kDivisorOfOthers || b == kDivisorOfOthers; }

}  // namespace

CallCard card_of(const Call& part, std::string_view forced_algorithm) {
  const Call& call = part.shown();
  CallCard card;
  card.sequence = call.sequence;
  card.count = call.count;
  // The part's: it may have learnt it.
  card.divisor = reduces(call.what) && call.op == ReduceOp::avg ? part.divisor : 0;
  card.root = call.root;
  card.what = static_cast<std::uint8_t>(call.what);
  card.dtype = static_cast<std::uint8_t>(call.dtype);
  card.op = static_cast<std::uint8_t>(reduces(call.what) ? call.op : ReduceOp::sum);
  card.order = static_cast<std::uint8_t>(call.order);
  const std::string_view algorithm = call.algorithm.empty() ? forced_algorithm : call.algorithm;
  algorithm.copy(card.algorithm, sizeof(card.algorithm));
  return card;
}

std::string describe(const CallCard& card) {
  // Arrived over a wire, so any byte may be anything.
  if (card.what >= kCollectives ||
      card.dtype > static_cast<std::uint8_t>(kAllDTypes[std::size(kAllDTypes) - 1]) ||
      card.op > static_cast<std::uint8_t>(ReduceOp::bit_or) ||
      card.order > static_cast<std::uint8_t>(Order::any))
    return "something unknown";
  Call call;
  call.what = static_cast<Collective>(card.what);
  call.count = card.count;
  call.dtype = static_cast<DType>(card.dtype);
  call.op = static_cast<ReduceOp>(card.op);
  call.root = card.root;
  call.order = static_cast<Order>(card.order);
  call.divisor = card.divisor;
  const std::size_t length = ::strnlen(card.algorithm, sizeof(card.algorithm));
  call.algorithm.assign(card.algorithm, length);
  for (char& c : call.algorithm)
    if (c < ' ' || c > '~') c = '?';
  return call.describe();
}

bool same_call(const CallCard& a, const CallCard& b) {
  return a.sequence == b.sequence && same_divisor(a.divisor, b.divisor) && a.what == b.what &&
         a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.order == b.order &&
         std::memcmp(a.algorithm, b.algorithm, sizeof(a.algorithm)) == 0;
}

std::string describe_mismatch(const std::string& group, const RankNames& names, int rank_a, const CallCard& a,
                              int rank_b, const CallCard& b) {
  const bool a_first = names.world(rank_a) < names.world(rank_b);
  const CallCard& low = a_first ? a : b;
  const CallCard& high = a_first ? b : a;
  const auto said = [&](const CallCard& card) {
    // The number only where it is what differs.
    return describe(card) +
           (a.sequence == b.sequence ? "" : " as operation " + std::to_string(card.sequence));
  };
  return "operation " + std::to_string(std::min(a.sequence, b.sequence)) + " of group " + group +
         ": ranks called different things: " + names.named(a_first ? rank_a : rank_b) + " called " +
         said(low) + "; " + names.named(a_first ? rank_b : rank_a) + " called " + said(high);
}

}  // namespace lockstep
