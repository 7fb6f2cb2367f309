// From a method's name and options to the codec.
#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/suggest.h"
#include "compress/codec/methods.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int kMostLevels = 127;

// A whole text as a number, or nothing.
template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse(std::string_view text, const std::string& accepted) {
  throw UsageError(fmt::format("codec '{}': accepted: {}", text, accepted));
}

}  // namespace

std::vector<std::string> codec_examples() {
  return {"int8", "fp8", "fp8:e5m2", "qsgd:16", "terngrad", "onebit", "topk:0.01"};
}

std::unique_ptr<Codec> make_codec(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view method = text.substr(0, colon);
  const bool bare = colon == std::string_view::npos;
  const std::string_view option = bare ? std::string_view() : text.substr(colon + 1);
  if (method == "int8" || method == "terngrad" || method == "onebit") {
    if (!bare) refuse(text, fmt::format("{}, which has no options", method));
    if (method == "int8") return int8_codec();
    return method == "terngrad" ? terngrad_codec() : onebit_codec();
  }
  if (method == "fp8") {
    if (!bare && option != "e4m3" && option != "e5m2") refuse(text, "fp8 (which is fp8:e4m3) and fp8:e5m2");
    return fp8_codec(option == "e5m2" ? codec_kernel::Fp8::e5m2 : codec_kernel::Fp8::e4m3);
  }
  if (method == "qsgd") {
    const auto levels = parsed<int>(option);
    if (!levels || *levels < 1 || *levels > kMostLevels)
      refuse(text, fmt::format("qsgd:S, with 1 to {} levels, as qsgd:16", kMostLevels));
    return qsgd_codec(*levels);
  }
  if (method == "topk") {
    const auto ratio = parsed<double>(option);
    if (!ratio || !(*ratio > 0) || *ratio > 1)
      refuse(text, "topk:R, with the share of elements that is sent above 0 and at most 1, as topk:0.01");
    return topk_codec(*ratio);
  }
  throw UsageError("codec " + not_understood(std::string(text), codec_examples()));
}

}  // namespace lockstep
