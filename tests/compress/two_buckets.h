// Two matrices under --compress auto, on links that are what a test says.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "compress/compressor.h"
#include "lockstep/grad/reducer.h"

namespace lockstep::testing {

// Seconds a byte: so slow, or so fast, that what this machine takes to encode does not count.
inline constexpr double kSlow = 1e-3, kFast = 1e-13;
inline constexpr double kSlowdown = 1e10;

// Costs that do not come from this machine. `slowdown`: how much longer calls take than the table says.
struct FakeLink {
  double byte_s = kSlow;
  std::atomic<double> slowdown = 1;

  compress::LinkView view() {
    return {.expected =
                [this](const Group& group, const CallQuestion& call) {
                  const auto bytes = static_cast<double>(call.count * size_of(call.dtype));
                  const int others = call.what == Collective::all_gather ? group.size() - 1 : 1;
                  return 1e-10 + byte_s * bytes * others;
                },
            .took =
                [this](std::span<const compress::SentBucket> step) {
                  double seconds = 0;
                  for (const compress::SentBucket& bucket : step)
                    seconds += bucket.expected_s * slowdown.load();
                  return seconds;
                }};
  }
};

// Two matrices, each a bucket of its own: gradients of one have few elements, those of the other all.
struct TwoBuckets {
  TwoBuckets(const Group& group_, FakeLink& link, const CompressOptions& options)
      : TwoBuckets(group_, link.view(), options) {}
  TwoBuckets(const Group& group_, const compress::LinkView& links, const CompressOptions& options)
      : exchange(
            exchange_of(std::make_shared<compress::Compressor>(options, Exchange::Leaves::everything, links),
                        Exchange::Leaves::everything)) {
    rebind(group_);
  }

  void rebind(const Group& other, std::size_t bucket_bytes = 1) {
    group = other;
    reducer.reset();  // whose hooks go before the next one's come
    reducer.emplace(
        parameters, group,
        ReducerOptions{
            .bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes, .exchange = exchange});
  }

  void step() {
    ++steps;
    const auto rate = static_cast<float>(0.3 + group.rank() + 0.1 * steps);
    const torch::Tensor full =
        torch::sin(torch::arange(96 * 64, torch::kFloat32).square() * rate).view({96, 64});
    const torch::Tensor few =
        (1e-4F * torch::cos(torch::arange(96 * 64, torch::kFloat32) * rate)).view({96, 64});
    few[5][steps % 8] = rate;
    if (few_is_zero) few.zero_();
    torch::Tensor loss = torch::zeros({});
    for (const auto& [name, tensor] : parameters) {
      tensor.mutable_grad() = torch::Tensor();
      loss = loss + factor * (tensor * (has_few(name) ? few : full)).sum();
    }
    loss.backward();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      sums[p] = sums[p] + parameters[p].tensor.grad().to(torch::kFloat64);
      last[p] = parameters[p].tensor.grad().clone();
    }
  }
  bool has_few(const std::string& name) const { return name == "few" ? !few_is_full : full_is_few; }
  void take_steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  // Names of what was chosen, "few full".
  std::string chosen() const {
    const torch::Tensor choices = exchange.state().at("auto");
    std::string text;
    for (std::int64_t p = 0; p < 2; ++p) {
      const auto choice = choices[p].item<std::int64_t>();
      text += (p == 0 ? "" : " ") + (choice < 0
                                         ? std::to_string(choice)
                                         : compress::Chooser::candidates()[static_cast<std::size_t>(choice)]);
    }
    return text;
  }

  Group group;
  std::vector<NamedTensor> parameters = {{"few", torch::ones({96, 64}).requires_grad_()},
                                         {"full", torch::ones({96, 64}).requires_grad_()}};
  Exchange exchange;
  std::optional<Reducer> reducer;
  int steps = 0;
  bool few_is_full = false, full_is_few = false, few_is_zero = false;
  float factor = 1;  // of all gradients
  std::vector<torch::Tensor> sums = {torch::zeros({}), torch::zeros({})}, last = {{}, {}};
};

inline constexpr int kFirstChoice = compress::Chooser::kProbes + 3;
inline constexpr int kEvery = compress::Chooser::kLeastInterval;
inline constexpr const char* kNone = "-1 -1";

inline bool keeps_few_bits(const std::string& name) { return name == "fp8" || name == "int8"; }

inline std::vector<Group> two_ranks() {
  return tcp_groups(2, net::Security::plaintext, std::chrono::seconds(20));
}

}  // namespace lockstep::testing
