// JSON that somebody else may have written. The library parses any depth, but copies, compares and prints
// values by recursion: what is nested some ten thousand times deep would end the process without a word.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/small_file.h"

namespace lockstep {

inline constexpr int kMostJsonDepth = 64;  // lists and objects in each other; ours have up to 8
inline constexpr std::size_t kMostJsonBytes = std::size_t{64} << 20;  // of a file

// Whether lists and objects lie in each other more than `most` deep. Of a text that is no JSON: up to where
// it ceases to be, at least.
bool nests_deeper(std::string_view text, int most = kMostJsonDepth);

// Throws UsageError("nested deeper than …").
void expect_shallow(std::string_view text, int most = kMostJsonDepth);

// As Json::parse, whose errors it throws; and UsageError as expect_shallow.
template <class Json>
Json parse_json(std::string_view text, int most = kMostJsonDepth) {
  expect_shallow(text, most);
  return Json::parse(text);
}

// `discarded` where the text is no JSON or nested too deep.
template <class Json>
Json try_json(std::string_view text) {
  return nests_deeper(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

// `discarded` also where there is no regular file of at most kMostJsonBytes.
template <class Json>
Json try_json_file(const std::filesystem::path& file) {
  const auto text = read_small_file(file.string(), kMostJsonBytes);
  return text ? try_json<Json>(*text) : Json(Json::value_t::discarded);
}

}  // namespace lockstep
