#include "models/generate.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/random.h"

namespace lockstep {
namespace {

// One of the bytes, each as likely as `logits` and the temperature say.
unsigned char draw(const torch::Tensor& logits, double temperature, RandomStream& random) {
  const std::int64_t count = std::min<std::int64_t>(logits.numel(), 256);
  const torch::Tensor values = logits.to(torch::kFloat64).contiguous();
  const double* const value = values.data_ptr<double>();
  const auto likeliest = std::max_element(value, value + count) - value;
  if (temperature == 0) return static_cast<unsigned char>(likeliest);
  std::vector<double> up_to(static_cast<std::size_t>(count));
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    up_to[static_cast<std::size_t>(i)] = sum += std::exp((value[i] - value[likeliest]) / temperature);
  const auto drawn = std::ranges::upper_bound(up_to, random.uniform() * sum);
  return static_cast<unsigned char>(std::min<std::int64_t>(drawn - up_to.begin(), count - 1));
}

}  // namespace

std::string generate(Model& model, const GenerateOptions& options) {
  const c10::NoGradGuard no_grad;
  RandomStream random(stream_seed(options.seed, 0));
  std::string text = options.prompt;
  for (std::int64_t i = 0; i < options.bytes; ++i) {
    const auto seen = std::min<std::int64_t>(options.context, std::ssize(text));
    torch::Tensor window = torch::empty({1, seen}, torch::kInt64);
    auto* const token = window.data_ptr<std::int64_t>();
    for (std::int64_t k = 0; k < seen; ++k)
      token[k] = static_cast<unsigned char>(text[text.size() - static_cast<std::size_t>(seen - k)]);
    text += static_cast<char>(draw(model.forward(window)[0][seen - 1], options.temperature, random));
  }
  return text.substr(options.prompt.size());
}

}  // namespace lockstep
