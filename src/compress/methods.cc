#include "compress/methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <functional>

#include "base/suggest.h"
#include "compress/codec/codec.h"
#include "compress/deep_gradient.h"
#include "compress/gathered.h"
#include "compress/momentum.h"
#include "compress/power_sgd.h"
#include "compress/random_k.h"
#include "compress/scattered.h"
#include "compress/shared_int.h"
#include "lockstep/base/error.h"
#include "lockstep/compress/compress.h"

namespace lockstep::compress {
namespace {

// The codec's own words, with what was said on the command line.
std::shared_ptr<const Codec> codec_of(const MethodText& method, const std::string& text) {
  try {
    return make_codec(text);
  } catch (const UsageError& error) {
    method.refuse(error.what());
  }
}

// The one value of a method: "0.01" in topk:0.01.
double value_of(MethodText& method, const std::string& meaning, double above, double most) {
  const std::string text = method.values.empty() ? "" : method.values.front();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (method.values.size() != 1 || end != text.c_str() + text.size() || !(value > above && value <= most))
    method.refuse(fmt::format("accepted: {}:{}, above {} and at most {}", method.name, meaning, above, most));
  method.values.clear();
  return value;
}

Form form_of(MethodText& method) {
  const auto found = method.options.find("form");
  if (found == method.options.end()) return Form::by_subtrees;
  const std::string form = found->second;
  method.options.erase(found);
  if (form != "gathered" && form != "scattered")
    method.refuse(fmt::format("form={}; accepted: gathered, scattered", form));
  return form == "gathered" ? Form::gathered : Form::scattered;
}

// Those that codecs do: all-gather and error feedback around them.
std::unique_ptr<Method> make_codec_method(MethodText method) {
  const std::string text =
      method.values.empty() ? method.name : fmt::format("{}:{}", method.name, fmt::join(method.values, ":"));
  const std::shared_ptr<const Codec> codec = codec_of(method, text);
  method.values.clear();
  const bool feedback = method.flag("ef", codec->wants_error_feedback());
  const bool two_sided = method.flag("two-sided", method.name == "onebit" && feedback);
  const bool has_forms = method.name == "fp8" || method.name == "int8";
  const Form form = has_forms ? form_of(method) : Form::gathered;
  method.done();
  if (two_sided && !feedback) method.refuse("two-sided=on needs ef=on");
  if (two_sided && form == Form::scattered) method.refuse("two-sided=on needs form=gathered");
  const GatheredParts parts{.codec = [codec](std::int64_t) { return codec; },
                            .recall = feedback ? error_feedback() : recall_nothing(),
                            .two_sided = two_sided};
  return has_forms && !two_sided ? scattered_method(method.text, parts, form)
                                 : gathered_method(method.text, parts);
}

std::unique_ptr<Method> make_dgc(MethodText method) {
  const double ratio = value_of(method, "RATIO", 0, 1);
  const DeepGradientOptions options{.momentum = method.number("momentum", 0.9, 0, 0.999999),
                                    .clip = method.number("clip", 0, 0, 1e12)};
  const auto rampup = static_cast<std::int64_t>(method.number("rampup", 0, 0, 1e12));
  method.done();
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const double stage : ratios_to(ratio))
    codecs.push_back(codec_of(method, fmt::format("topk:{}", stage)));
  return gathered_method(
      method.text,
      {.codec = [codecs, rampup](std::int64_t step) { return codecs[stage_of(step, rampup, codecs.size())]; },
       .recall = deep_gradient(options)});
}

constexpr const char* kOneBitAdam = "onebit-adam";

std::unique_ptr<Method> make_onebit_adam(MethodText method) {
  const double beta1 = method.number("beta1", 0.9, 0, 0.999999);
  method.done();
  if (warmup_of(method) == 0)
    method.refuse("warmup=0; accepted: 1 or more, the steps from which the variance is known");
  return gathered_method(method.text,
                         {.codec = [codec = codec_of(method, "onebit")](std::int64_t) { return codec; },
                          .recall = momentum_feedback(beta1),
                          .two_sided = true,
                          .beta1 = beta1});
}

std::unique_ptr<Method> make_intsgd(MethodText method) {
  method.done();
  return shared_int(method.text);
}

std::unique_ptr<Method> make_randk(MethodText method) {
  const double ratio = value_of(method, "RATIO", 0, 1);
  const bool feedback = method.flag("ef", false);
  method.done();
  return random_k(method.text, {.ratio = ratio, .feedback = feedback});
}

std::unique_ptr<Method> make_powersgd(MethodText method) {
  const double rank = method.number("rank", 4, 1, 1 << 16);
  if (rank != std::floor(rank)) method.refuse("rank: accepted: whole numbers, 1 or more");
  const bool feedback = method.flag("ef", true);
  method.done();
  return power_sgd(method.text, {.rank = static_cast<std::size_t>(rank), .feedback = feedback});
}

const std::map<std::string, std::function<std::unique_ptr<Method>(MethodText)>>& makers() {
  static const std::map<std::string, std::function<std::unique_ptr<Method>(MethodText)>> makers = {
      {"dgc", make_dgc},
      {"fp8", make_codec_method},
      {"int8", make_codec_method},
      {"intsgd", make_intsgd},
      {"onebit", make_codec_method},
      {kOneBitAdam, make_onebit_adam},
      {"powersgd", make_powersgd},
      {"qsgd", make_codec_method},
      {"randk", make_randk},
      {"terngrad", make_codec_method},
      {"topk", make_codec_method}};
  return makers;
}

}  // namespace

std::int64_t warmup_of(const MethodText& text) {
  constexpr std::int64_t kOneBitAdamWarmup = 1000;
  return text.warmup.value_or(text.name == kOneBitAdam ? kOneBitAdamWarmup : 0);
}

std::unique_ptr<Method> make_method(MethodText text) {
  const auto maker = makers().find(text.name);
  if (maker != makers().end()) return maker->second(std::move(text));
  throw UsageError("--compress " + not_understood(text.name, compression_methods()));
}

}  // namespace lockstep::compress

namespace lockstep {

std::vector<std::string> compression_methods() {
  std::vector<std::string> names = {"none"};
  for (const auto& [name, maker] : compress::makers()) names.push_back(name);
  return names;
}

}  // namespace lockstep
