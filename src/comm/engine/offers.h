// Our algorithms as engines offer them.
#pragma once

#include <string>
#include <vector>

#include "comm/call/capabilities.h"

namespace lockstep {

// Our algorithms, for ranks on `nodes` that share memory or don't; `no_pages`: why private memory can't be
// read.
std::vector<Offer> our_offers(const std::vector<int>& nodes, bool reach, const std::string& no_pages = {});
// Those besides for ranks on `nodes` whose engine is composed of two.
std::vector<Offer> composed_offers(const std::vector<int>& nodes);

}  // namespace lockstep
