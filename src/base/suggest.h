// "Did you mean": the closest of a few words.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// The word of `known` that is closest to `word`, or empty when none is close: for "did you mean".
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// "'rign' is not understood; accepted: ring, tree. Did you mean 'ring'?": for UsageError.
std::string not_understood(const std::string& word, const std::vector<std::string>& accepted);

// Throws UsageError: `what` in front of not_understood(), unless `word` is one of `accepted`.
void expect_one_of(const std::string& what, const std::string& word,
                   const std::vector<std::string>& accepted);

}  // namespace lockstep
