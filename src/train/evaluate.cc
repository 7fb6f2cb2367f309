#include "train/evaluate.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"
#include "train/evaluation_mode.h"

namespace lockstep {
namespace {

// Parts of the loss: targets, where there are any.
double parts_of(const Batch& batch) {
  return static_cast<double>(batch.target.defined() ? batch.target.numel() : batch.data.size(0));
}

// As the loader does: an Error of the dataset's own is this rank's alone, and the others are to hear of it.
Batch examples_of(const Dataset& data, const std::vector<std::int64_t>& indices) {
  try {
    return data.get(indices, nullptr);
  } catch (const std::exception& error) {
    throw DatasetError(indices, fmt::format("evaluation, examples {} to {}: {}", indices.front(),
                                            indices.back(), one_line(error.what())));
  }
}

// Which sign a NaN has is the processor's choice.
double ratio_of(double sum, double count) {
  const double ratio = sum / count;
  return count == 0 || std::isnan(ratio) ? std::numeric_limits<double>::quiet_NaN() : ratio;
}

}  // namespace

MetricSum count_correct(const torch::Tensor& output, const Batch& batch) {
  const torch::Tensor likeliest = output.argmax(-1);
  if (!likeliest.sizes().equals(batch.target.sizes()))  // eq() would compare all with all
    throw UsageError(
        fmt::format("count_correct: outputs [{}] and targets [{}]; accepted: targets of the outputs' "
                    "shape without its last number",
                    fmt::join(output.sizes(), ", "), fmt::join(batch.target.sizes(), ", ")));
  return {static_cast<double>(likeliest.eq(batch.target).sum().item<std::int64_t>()),
          static_cast<double>(batch.target.numel())};
}

std::optional<double> accuracy_of(const Task& task, const std::optional<Evaluation>& evaluation) {
  for (std::size_t i = 0; evaluation && i < task.metrics.size(); ++i)
    if (task.metrics[i].first == "accuracy") return evaluation->metrics[i];
  return {};
}

Evaluation evaluate(Strategy& strategy, const Task& task, std::int64_t batch,
                    const std::function<Batch(const Batch&)>& place) {
  const c10::NoGradGuard no_grad;
  torch::nn::Module& model = strategy.module();
  const Group& world = strategy.group();
  const Dataset& data = *task.test;
  const EvaluationMode mode(model);
  const std::int64_t batches = (data.size() + batch - 1) / batch;
  // Per batch a sum and a count: of the loss, then of each metric. Others' stay zero, and adding zeros
  // changes no bit.
  const std::size_t width = 2 * (1 + task.metrics.size());
  std::vector<double> sums(width * static_cast<std::size_t>(batches));
  for (std::int64_t b = world.rank(); b < batches; b += world.size()) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(batch, data.size() - b * batch)));
    std::iota(indices.begin(), indices.end(), b * batch);
    const Batch examples = place(examples_of(data, indices));
    const torch::Tensor output = task.forward(examples);
    double* at = &sums[width * static_cast<std::size_t>(b)];
    *at++ = task.loss(output, examples).item<double>() * parts_of(examples);
    *at++ = parts_of(examples);
    for (const auto& [name, metric] : task.metrics) {
      const MetricSum found = metric(output, examples);
      *at++ = found.sum;
      *at++ = found.count;
    }
  }
  strategy.meet();  // not all have the same number of batches
  world.all_reduce(buffer(sums));
  std::vector<double> total(width);
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % width] += sums[i];
  Evaluation evaluation{.loss = ratio_of(total[0], total[1]), .metrics = {}};
  for (std::size_t i = 2; i < width; i += 2) evaluation.metrics.push_back(ratio_of(total[i], total[i + 1]));
  return evaluation;
}

}  // namespace lockstep
