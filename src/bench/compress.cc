#include "bench/compress.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "bench/coder.h"
#include "bench/own_core.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

std::vector<float> normal_gradient(std::size_t count) {
  RandomStream random(1, 0, 0);
  std::vector<float> values(count);
  for (float& value : values)  // Box and Muller's
    value = static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                               std::cos(2 * std::numbers::pi * random.uniform()));
  return values;
}

// Ways of passing over the same memory, which take turns, so that what changes on the machine meanwhile hits
// all alike.
struct Pass {
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() {
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
  }
};

void take_turns(std::span<Pass> passes, double seconds_each) {
  constexpr int kFewest = 5;
  constexpr std::int64_t kShortestNs = 50'000;  // a sample lasts at least so long, to be timed well
  std::vector<std::int64_t> repeats;
  for (const Pass& pass : passes) {
    pass.run();  // touches the memory
    const std::int64_t begin = now_ns();
    pass.run();
    repeats.push_back(1 + kShortestNs / std::max<std::int64_t>(1, now_ns() - begin));
  }
  const double limit = seconds_each * static_cast<double>(passes.size());
  double spent = 0;
  for (int round = 0; round < kFewest || spent < limit; ++round)
    for (std::size_t k = 0; k < passes.size(); ++k) {
      const std::int64_t begin = now_ns();
      for (std::int64_t i = 0; i < repeats[k]; ++i) passes[k].run();
      const double taken = static_cast<double>(now_ns() - begin) * 1e-9;
      passes[k].seconds.push_back(taken / static_cast<double>(repeats[k]));
      spent += taken;
    }
}

double relative_error(std::span<const float> sent, std::span<const float> gradient) {
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double value = gradient[i];
    off += (sent[i] - value) * (sent[i] - value);
    all += value * value;
  }
  return std::sqrt(off / all);
}

CompressRow measure(Coder& coder, std::span<const float> gradient, double min_time_s) {
  std::vector<float> sum(gradient.size());
  coder.encode(gradient);
  coder.decode_add(sum);
  CompressRow row{
      .method = coder.name(), .bytes = gradient.size_bytes(), .payload_bytes = coder.payload_bytes()};
  row.decodes = coder.decodes();
  row.relative_error = relative_error(sum, gradient);
  Pass passes[] = {{[&] { std::memcpy(sum.data(), gradient.data(), gradient.size_bytes()); }},
                   {[&] { coder.encode(gradient); }},
                   {[&] { coder.decode_add(sum); }}};
  take_turns(passes, min_time_s);
  const double copy_s = passes[0].median();
  const double encode_s = passes[1].median();
  const double decode_s = passes[2].median();
  const auto dense = static_cast<double>(row.bytes);
  const auto sent = static_cast<double>(row.payload_bytes);
  const double copied_a_second = 2 * dense / copy_s;
  row.encode_us = encode_s * 1e6;
  row.decode_us = decode_s * 1e6;
  row.encode_of_copy = (dense + sent) / encode_s / copied_a_second;
  row.decode_of_copy = (2 * dense + sent) / decode_s / copied_a_second;
  // Dense, two workers send each other half of the sums and half of the result: all bytes, each way.
  row.pays_below_bits_s = 8 * std::max(0.0, dense - sent) / (encode_s + row.decodes * decode_s);
  return row;
}

}  // namespace

void measure_codecs(const CompressPlan& plan, const std::function<void(const CompressRow&)>& give) {
  const OwnCore core(0, 1);
  for (const std::uint64_t bytes : plan.sizes) {
    const std::vector<float> gradient = normal_gradient(bytes / sizeof(float));
    for (const std::string& method : plan.methods)
      give(measure(*make_coder(method, gradient.size()), gradient, plan.min_time_s));
  }
}

}  // namespace lockstep
