#include "comm/engine/offers.h"

#include "comm/algo/algorithm.h"

namespace lockstep {
namespace {

Offer offer_of(const Algorithm& algorithm, const std::vector<int>& nodes) {
  Offer offer{.name = std::string(algorithm.name()),
              .collectives = {},
              .canonical = algorithm.canonical(nodes),
              .at_most_bytes = algorithm.needs().at_most_bytes};
  for (int what = 0; what < kCollectives; ++what)
    if (algorithm.has(static_cast<Collective>(what))) offer.collectives.add(static_cast<Collective>(what));
  return offer;
}

}  // namespace

std::vector<Offer> our_offers(const std::vector<int>& nodes, bool reach, const std::string& no_pages) {
  std::vector<Offer> offers;
  for (const Algorithm* algorithm : all_algorithms()) {
    const Needs needs = algorithm->needs();
    if (needs.levels || (needs.reach && !reach)) continue;
    offers.push_back(offer_of(*algorithm, nodes));
    if (needs.pages) offers.back().not_here = no_pages;
  }
  return offers;
}

std::vector<Offer> composed_offers(const std::vector<int>& nodes) {
  std::vector<Offer> offers;
  for (const Algorithm* algorithm : all_algorithms())
    if (algorithm->needs().levels) offers.push_back(offer_of(*algorithm, nodes));
  return offers;
}

}  // namespace lockstep
